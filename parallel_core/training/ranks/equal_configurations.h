// Whether the ranks of a job have been given the same run.
#pragma once

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// Ranks that read different files, or have different command lines, would train different models
/// and never notice: what they exchange has the same shapes. ValueError, the same on every rank,
/// that names each key whose value differs, and who has which; or the builds, where the programs
/// are not one. Paths are compared as places: a relative one means another in another directory,
/// and two names of one folder are equal. training_config.num_threads, which hosts of different
/// sizes need, may differ. Collective; before groups are made of keys that might differ.
void check_equal_configurations(const AllConfig& config, ProcessGroup& world);

}  // namespace tapestry
