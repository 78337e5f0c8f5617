// Which model a run is held against, and its log-probabilities before training.
#pragma once

#include <string>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/reference/reference_file.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/training/run_task.h"

namespace tapestry::post_training {

/// Whether the configuration's task is held against a reference whose log-probabilities are
/// computed before training: dpo and kto, but for losses that need none.
bool needs_reference_log_probs(const AllConfig& config);

/// The log-probabilities that post_training_config.reference gives all examples: those of
/// output_dir or, of a run that goes on, beside its checkpoint, where they fit; else computed, in
/// evaluation mode with the weights in the place of the run's own, each data-parallel rank its
/// share, and kept in output_dir. ValueError for adapter_off without adapters; errors of
/// ModelBeforeTraining::load. Collective.
ReferenceLogProbs reference_log_probs(const AllConfig& config,
                                      const TaskExamples& examples,
                                      const RowRoom& room,
                                      const ModelBeforeTraining& model,
                                      ProcessGroup& world);

}  // namespace tapestry::post_training
