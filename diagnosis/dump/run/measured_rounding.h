// How far a dump's tensors move when only rounding moves: what comparisons of dumps allow.
#pragma once

#include <cstdint>

#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// After a run with this dump (add_dump), whose tensors are there; `options` are those of the run
/// without it: trains its steps up to the last dumped
/// one again, `repetitions` times with results of ops moved by roundings (RoundingNoise) in the
/// steps that are dumped, and once, unmoved, with the kernels of another CPU level (AVX2's, or the
/// portable ones where the processor has no more than AVX2). Each repetition is dumped and compared
/// with the first run; the largest distance of each tensor becomes a row of rounding.csv in the
/// dump's folder (dump/rounding_file.h). Repetitions leave nothing else behind.
///
/// All ranks make the call. ValueError without tensors in the dump (saved_data statistic), without
/// an end (iteration all and no number of steps), for a run that goes on from a checkpoint of its
/// own, or fewer than one repetition.
void measure_rounding(const AllConfig& config,
                      const PretrainOptions& options,
                      const dump::DumpConfig& dump,
                      int64_t repetitions);

/// What of that is wrong before anything has run.
void check_rounding_can_be_measured(const AllConfig& config,
                                    const dump::DumpConfig& dump,
                                    int64_t repetitions);

}  // namespace tapestry
