// training_state.json and the state tensors beside the weights of a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "optim/optimizer.h"
#include "parallel_core/dist_checkpointing/stored_tensors.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

inline constexpr const char* kTrainingStateFile = "training_state.json";

/// Content of the file: `state`, a JSON object that is the trainer's own business, and what belongs
/// to the tensors: step, optimizer and the updates of each tensor. ValueError if `state` is none.
std::string training_state_text(const std::string& state,
                                int64_t step,
                                const StoredTensors& saved,
                                const optim::Optimizer* optimizer);

/// The trainer's object, as it was given. IoError, naming file and member, if the folder has none
/// or it is malformed.
std::string read_training_state(const std::string& folder);
/// True if the folder holds what a run needs to go on.
bool has_training_state(const std::string& folder);

/// Puts the optimizer's states and the model's buffers back, every rank reading its own parts,
/// whichever layout wrote them. ValueError, with the whole list, for states that do not fit:
/// another optimizer or model; IoError. Nothing is changed by a call that throws before it reads.
void load_optimizer_state(const std::string& folder,
                          ParallelModel& model,
                          optim::Optimizer& optimizer);
/// The buffers alone.
void load_buffers(const std::string& folder, ParallelModel& model);

}  // namespace tapestry
