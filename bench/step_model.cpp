#include "bench/step_model.h"

#include <algorithm>

namespace tapestry::bench {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

// The bucket of gradients that the default size makes.
double bucket_elements(double parameters, int dp) {
  constexpr double kDefault = 40e6;
  constexpr double kPerRank = 1e6;
  return std::min(parameters, std::max(kDefault, kPerRank * dp));
}

bool fits(const StepModel& model, const RankMachine& machine, const StepLayout& layout) {
  const double share = real(model.parameters()) / layout.tp / layout.pp;
  const double per_layer = real(hidden_bytes(model, layout)) / layout.tp *
                           (4 + 4 + 3 * real(model.ffn) / real(model.hidden));
  // z1: weight, its copy and the gradient whole, the rest divided by dp.
  constexpr double kWhole = 8;
  const double kept = share * (kWhole + (real(model.state) - kWhole) / layout.dp);
  const auto in_flight = std::min<int64_t>(layout.pp, layout.micro);
  return kept + per_layer * real(model.layers) / layout.pp * real(in_flight) <= machine.memory;
}

// Two all-reduces forward and two backward for each layer and micro-batch. The two of backward run
// beside weight gradients, each of which takes a sixth of the layer's time.
double tensor_seconds(const StepModel& model,
                      const RankMachine& machine,
                      const StepLayout& layout,
                      double computing,
                      Overlap overlap) {
  const double layers = real(model.layers) / layout.pp * real(layout.micro);
  const double one =
      all_reduce_seconds(machine.network, layout.tp, hidden_bytes(model, layout), model.element);
  const double hidden_by = overlap == Overlap::kYes ? computing / layers / 6 : 0;
  return layers * (2 * one + 2 * std::max(0.0, one - hidden_by));
}

// A reduce-scatter of the gradients and an all-gather of the weights. The last micro-batch's
// backward pass hides the first but for the last bucket, the next forward pass the second but for
// the first bucket.
double data_seconds(const StepModel& model,
                    const RankMachine& machine,
                    const StepLayout& layout,
                    double computing,
                    Overlap overlap) {
  const auto sums = [&](double elements) {
    return reduce_scatter_seconds(machine.network, layout.dp, static_cast<int64_t>(elements) * 4);
  };
  const auto weights = [&](double elements) {
    return all_gather_seconds(machine.network, layout.dp,
                              static_cast<int64_t>(elements) * model.element);
  };
  const double share = real(model.parameters()) / layout.tp / layout.pp;
  if (overlap == Overlap::kNo) {
    return sums(share) + weights(share);
  }
  const double pass = computing / real(layout.micro);
  const double bucket = bucket_elements(share, layout.dp);
  return std::max(sums(bucket), sums(share) - pass * 2 / 3) +
         std::max(weights(bucket), weights(share) - pass / 3);
}

}  // namespace

int64_t StepModel::layer_parameters() const {
  return hidden * (2 * hidden + 2 * kv + ffn * (gated ? 2 : 1) + ffn);
}

int64_t StepModel::parameters() const {
  return layers * layer_parameters() + vocabulary * hidden * (tied ? 1 : 2);
}

double StepModel::operations() const {
  const int64_t matrices = layers * layer_parameters() + vocabulary * hidden;
  const int64_t attention = layers * hidden * seq;
  return 6 * real(batch * seq) * real(matrices + attention);
}

int64_t hidden_bytes(const StepModel& model, const StepLayout& layout) {
  return model.batch / layout.dp / layout.micro * model.seq * model.hidden * model.element;
}

std::optional<StepTime> step_time(const StepModel& model,
                                  const RankMachine& machine,
                                  const StepLayout& layout,
                                  Overlap overlap) {
  constexpr int64_t kHead = 64;
  if (model.batch % (layout.dp * layout.micro) != 0 || model.layers % layout.pp != 0 ||
      model.hidden % (kHead * layout.tp) != 0 || !fits(model, machine, layout)) {
    return std::nullopt;
  }
  StepTime time;
  time.computing = model.operations() / layout.ranks() / (machine.flops * machine.efficiency);
  if (layout.tp > 1) {
    time.tensor = tensor_seconds(model, machine, layout, time.computing, overlap);
  }
  if (layout.pp > 1) {
    // Stages wait for the first micro-batch, and for the messages that bring it and its gradient.
    const double message = message_seconds(machine.network, hidden_bytes(model, layout));
    time.bubble =
        (layout.pp - 1) * ((time.computing + time.tensor) / real(layout.micro) + 2 * message);
  }
  if (layout.dp > 1) {
    time.data = data_seconds(model, machine, layout, time.computing, overlap);
  }
  constexpr double kUpdateBytes = 28;  // of a parameter
  time.update = real(model.parameters()) / layout.ranks() * kUpdateBytes / machine.memory_bandwidth;
  return time;
}

}  // namespace tapestry::bench
