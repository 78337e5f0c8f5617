// How long a step will take, before the first one.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// FLOPs of a step's matrix products on all ranks together, recomputation not counted: 2 for each
/// weight of a matrix and token, half of the S x S products of attention, which is causal, and
/// twice that backward.
double model_flops(const AllConfig& config, int64_t data_parallel_size);

/// What the busiest rank has to do for one step.
struct StepWork {
  double flops = 0;   ///< of matrix products: forward, twice that backward, and recomputed ones
  double bytes = 0;   ///< that go through memory: activations, logits, the optimizer's update
  double passes = 0;  ///< of micro-batches through a layer, forward and backward
  double bubble = 0;  ///< share of the time that stages of a pipeline wait (theoretical_bubble)
};

/// Products: 2 FLOPs for each weight of a matrix and token, and half of the S x S products of
/// attention, which is causal. Bytes: each activation that is kept (estimate_memory) counts with
/// what is written and read of it and of its gradient; each parameter with its update.
StepWork step_work(const AllConfig& config, int64_t data_parallel_size);

/// What this process reaches now, with the threads that it has.
struct MachineSpeed {
  double flops = 0;  ///< a second, in the configuration's largest product and dtype
  double bytes = 0;  ///< a second, read and written, of blocks as large as may be
};

/// Measures for about a third of a second, with products of the model and two blocks of memory: of
/// 64 MiB, which no cache holds, or smaller ones, to stay with both below `memory` bytes.
inline constexpr int64_t kMemoryToMeasure = int64_t{128} << 20;
MachineSpeed measure_speed(const AllConfig& config, int64_t memory = kMemoryToMeasure);

/// Seconds of a step: products at 0.7 of that speed, then memory, then a fixed time for each pass
/// through a layer, one after the other, longer by the pipeline's bubble. Communication is not in
/// it, nor evaluation. Steps of small presets took 0.8 to 1.2 of it.
double step_seconds(const StepWork& work, const MachineSpeed& speed);

/// Steps after which the time of a run is told as measured.
inline constexpr int kFirstSteps = 3;

/// How many steps of the whole batch have as many sequences as steps [begin, end) of the run, whose
/// batch may ramp up.
int64_t whole_steps(const AllConfig& config,
                    int64_t data_parallel_size,
                    int64_t end,
                    int64_t begin = 0);

/// "84 ms a step, 0:42 for 500 steps; estimated from ..."; `steps` 0 if they are not known.
std::string time_text(const StepWork& work, const MachineSpeed& speed, int64_t steps);

/// The same in short, for the start of a run: every rank calls it before it allocates, and
/// measures. Empty where the first steps will have told before the measurement has, as those of
/// tiny models do on any processor, or where `available` bytes leave no room for it.
std::string expected_time(const AllConfig& config,
                          int64_t data_parallel_size,
                          int ranks,
                          int64_t available);

}  // namespace tapestry
