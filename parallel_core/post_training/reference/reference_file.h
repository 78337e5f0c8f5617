// Log-probabilities of a reference model, kept beside the run that is held against it.
#pragma once

#include <optional>
#include <string>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/reference/log_prob_table.h"

namespace tapestry::post_training {

inline constexpr const char* kReferenceFile = "reference_log_probs.safetensors";

/// What such values belong to.
struct ReferenceIdentity {
  std::string model;      ///< says which one it is, with a checksum; empty: not known any more
  std::string sequences;  ///< SequenceSet::checksum
  std::string mismatched;
};

/// Of TaskExamples::sequences and mismatched.
struct ReferenceLogProbs {
  LogProbTable sequences;
  LogProbTable mismatched;
};

ReferenceIdentity identity_of(std::string model, const TaskExamples& examples);

/// The values in a file, on every rank; none where there is no such file, or it belongs to others:
/// then `remark` says what differs. A model that is not known is taken for the file's. Rank 0
/// reads. IoError for a file that is damaged. Collective.
std::optional<ReferenceLogProbs> read_reference_file(const std::string& path,
                                                     const ReferenceIdentity& identity,
                                                     const TaskExamples& examples,
                                                     ProcessGroup& world,
                                                     std::string& remark);

/// Writes it, on rank 0. Collective. IoError.
void write_reference_file(const std::string& path,
                          const ReferenceIdentity& identity,
                          const ReferenceLogProbs& values,
                          ProcessGroup& world);

}  // namespace tapestry::post_training
