// Where a run goes on that was interrupted.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/step/trainer_state.h"

namespace tapestry {

/// The checkpoint that a run goes on with, and what it says of the run.
struct ResumePoint {
  std::string checkpoint;  ///< its folder
  TrainerState trainer;
  std::optional<DataState> data;
};

/// The checkpoint that training_config.resume_training names: the latest of load_checkpoint, or of
/// output_dir where that is not set, or one of these by its name. A run that is `started_again`
/// (is_started_again) goes on with its own latest one, if it has one already. Empty if the run does
/// not resume, or has nothing to go on with yet: no checkpoint in its own output_dir.
///
/// With use_checkpoint_health_monitor the latest one is the latest that is healthy (HealthRecord)
/// and whole, and one that is named but not healthy is warned of; IoError if there are checkpoints,
/// but none is healthy.
///
/// Collective. IoError, on every rank, if there is no such checkpoint, if it holds weights alone,
/// or if a file of it is torn, truncated or, with crc_check, altered: then the latest one before it
/// that is whole is named.
///
/// `remark` takes what there is to say beside the result; log_warning if it is empty.
std::optional<ResumePoint> find_resume_point(
    const AllConfig& config,
    ProcessGroup& world,
    bool started_again,
    const std::function<void(const std::string&)>& remark = {});

/// IoError, on every rank, if a file with weights of a checkpoint that they are to be taken from is
/// torn, truncated or, with `checksums`, altered: names the latest one before it that is whole, if
/// any. Nothing for a path without a manifest: a file, another program's folder. Collective.
void verify_weights(const std::string& checkpoint, bool checksums, ProcessGroup& world);

/// Whether such a run goes on in the folder that it writes to.
bool resumes_in_place(const TrainingConfig& config);

/// Whether a run that goes on with load_checkpoint, a folder elsewhere, has been started before:
/// the run in output_dir has, as its config.yaml says, the same load_checkpoint. With the name of a
/// checkpoint only if output_dir holds that one: a name is for one start.
bool is_started_again(const TrainingConfig& config);

}  // namespace tapestry
