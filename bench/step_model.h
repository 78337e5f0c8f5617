// The time of a training step on many ranks, computed: docs/scaling.md has the formulas.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel_core/comm/collective_cost.h"

namespace tapestry::bench {

/// What one rank has.
struct RankMachine {
  double flops = 0;             ///< of matrix products, per second
  double efficiency = 0;        ///< a step's share of that
  double memory_bandwidth = 0;  ///< bytes per second, for the optimizer
  double memory = 0;            ///< bytes
  MessageCost network;
};

struct StepModel {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t vocabulary = 0;
  int64_t kv = 0;  ///< width of the keys
  bool gated = false;
  bool tied = false;
  int64_t seq = 0;
  int64_t batch = 0;    ///< sequences of a step
  int64_t element = 0;  ///< bytes of an activation and of a weight
  int64_t state = 0;    ///< bytes of a parameter with gradient and optimizer

  int64_t layer_parameters() const;
  int64_t parameters() const;
  /// Of a step: six for each parameter and token, attention over the visible half.
  double operations() const;
};

struct StepLayout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int64_t micro = 1;  ///< micro-batches of a rank

  int ranks() const { return tp * pp * dp; }
};

/// Whether communication moves on while ranks compute.
enum class Overlap : uint8_t { kYes, kNo };

struct StepTime {
  double computing = 0;
  double tensor = 0;  ///< parallelism, as the next two
  double bubble = 0;
  double data = 0;
  double update = 0;
  double all() const { return computing + tensor + bubble + data + update; }
};

/// Nothing if the layout does not divide the model or the batch, or does not fit into memory.
std::optional<StepTime> step_time(const StepModel& model,
                                  const RankMachine& machine,
                                  const StepLayout& layout,
                                  Overlap overlap = Overlap::kYes);

/// The same step, without overlap and without the update, on ranks that exchange its messages on a
/// simulated network and compute by its clock (simulate_ranks): its seconds.
double simulated_step(const StepModel& model, const RankMachine& machine, const StepLayout& layout);

/// Bytes of the hidden states of a micro-batch.
int64_t hidden_bytes(const StepModel& model, const StepLayout& layout);

}  // namespace tapestry::bench
