// A dump as a piece of a run.
#pragma once

#include <cstdint>
#include <optional>

#include "diagnosis/dump/dump_config.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// Has the run of `options` dump what `dump` says, after all pieces that it has so far: they are
/// seen in the dump. With `rounding_draw` results of ops are moved by roundings (RoundingNoise) in
/// the steps that are dumped. `config` outlives the run.
void add_dump(const AllConfig& config,
              const dump::DumpConfig& dump,
              PretrainOptions& options,
              std::optional<uint64_t> rounding_draw = std::nullopt);

}  // namespace tapestry
