// The folders in which a run's checkpoints lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapestry {

/// The name of a step's checkpoint: "step_00000400".
std::string checkpoint_name(int64_t step);

/// The newest "step_%08d" folder below a folder; the folder itself if it holds weights, or an
/// adapter. IoError if there is none of these: it names the newest checkpoint further below, where
/// the folder holds runs.
std::string resolve_checkpoint(const std::string& path);

/// Complete checkpoints in a folder .../checkpoint, in the order of their steps.
std::vector<std::string> checkpoints_in(const std::string& directory);
/// The last of them; empty if there is none.
std::string latest_checkpoint_in(const std::string& directory);

/// Removes the oldest checkpoints of `directory` beyond `keep_max`, but none of `kept`, names or
/// paths, which do not count, and never `newest`.
void remove_old_checkpoints(const std::string& directory,
                            int64_t keep_max,
                            const std::string& newest,
                            const std::vector<std::string>& kept = {});

/// Gives a checkpoint another name beside it, under which resolve_checkpoint does not find it. What
/// had that name is replaced. IoError.
void set_checkpoint_aside(const std::string& checkpoint, const std::string& name);

/// Removes what saves that were cut short have left.
void remove_unfinished_checkpoints(const std::string& directory);

}  // namespace tapestry
