// Going on with a run by its folder, wherever that lies now.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// What starts a run again.
struct ResumedRun {
  std::string config_path;             ///< the config.yaml that the run has written
  std::vector<std::string> overrides;  ///< before those of the command line
};

/// The run in a folder: its own configuration, with the folder as training_config.output_dir and
/// training_config.resume_training. `path` may also be its folder `checkpoint`, or one of the
/// checkpoints in that: then the run goes on with that one. Paths of the configuration that lie in
/// the folder that the run was written to lie in this one. IoError for a folder without a
/// config.yaml.
ResumedRun resumed_run(const std::string& path, const std::string& model_type = "model_config");

/// What a run's own config.yaml, given as the file of a run that resumes, needs besides: it names
/// the folder that it was written for, but the run may have been moved, and goes on where the file
/// lies. Empty for any other file, for a run that does not resume, whose output_dir was given by an
/// override, or which lies there still.
std::vector<std::string> overrides_of_moved_run(const std::string& config_path,
                                                const AllConfig& config);

}  // namespace tapestry
