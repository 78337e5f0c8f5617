#include "parallel_core/planning/time/model_times.h"

#include <algorithm>

#include "parallel_core/config/model_matrices.h"
#include "parallel_core/estimates/fitted_times.h"
#include "parallel_core/estimates/recompute_estimate.h"

namespace tapestry::planning {

namespace {

// Backward twice as long as forward, or as long where weights are frozen.
PassTime split(double forward, const TransformerConfig& model) {
  return {.forward = forward, .backward = (model.lora.use_lora ? 1 : 2) * forward};
}

}  // namespace

ModelTimes estimated_times(const Layout& layout, const MachineSpeed& speed) {
  const AllConfig& config = layout.config;
  const TransformerConfig& model = config.model_config;
  const ModelParallelConfig& p = config.parallel_config;
  const double flops = fitted_times::kShareOfSpeed * speed.flops;
  const double passes = model.lora.use_lora ? 2 : 3;
  const std::vector<LayerCost> recomputed = layer_costs(config);
  ModelTimes times;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const double moving = fitted_times::kPassesOverActivations *
                          layer_cost(config, RecomputePolicy(), layer).kept / speed.bytes;
    PassTime time = split(
        layer_flops(config, layer) / flops + (moving + fitted_times::kSecondsPerPass) / passes,
        model);
    if (!recomputed.empty()) {
      time.backward += recomputed[static_cast<size_t>(layer)].flops / flops;
    }
    times.layers.push_back(time);
  }
  const double tokens = static_cast<double>(config.dataset_config.batch_size * model.seq_length) /
                        static_cast<double>(p.context_parallel_size);
  const double columns = static_cast<double>(model.score_head ? 1 : model.vocab_size) /
                         static_cast<double>(p.tensor_model_parallel_size);
  const auto hidden = static_cast<double>(model.hidden_size);
  const double head = 2 * tokens * columns * hidden / flops + 4 * tokens * columns / speed.bytes;
  times.after = split(head, model);
  for (int64_t ahead = 0; ahead < model.mtp_num_layers; ++ahead) {
    times.after += times.layers.back();
    times.after += split(head, model);
  }
  times.before = split(4 * tokens * hidden / speed.bytes, model);
  times.update_per_parameter = fitted_times::kBytesPerUpdate / speed.bytes;
  times.fixed = fitted_times::kSecondsPerStep;
  return times;
}

ModelTimes measured_times(const Layout& layout,
                          const ShareModel& share,
                          const PartTimes& parts,
                          double turns) {
  const TransformerConfig& model = layout.config.model_config;
  // Layers of one kind take the same; the first of several also meets colder caches.
  const TransformerConfig& own = share.config.model_config;
  std::vector<PassTime> of_kind(parts.layers.size());
  std::vector<int> alike(parts.layers.size(), 0);
  for (size_t i = 0; i < parts.layers.size(); ++i) {
    const auto kind = static_cast<size_t>(layer_of_share(model, own, static_cast<int64_t>(i)));
    of_kind[kind] += parts.layers[i];
    ++alike[kind];
  }
  const double alone = 1 / turns;
  ModelTimes times;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const auto kind = static_cast<size_t>(layer_of_share(model, own, layer));
    times.layers.push_back(of_kind[kind] * (alone / alike[kind]));
  }
  times.before = parts.before * alone;
  times.after = parts.after * alone;
  const double update = parts.update + (share.has_all_copies ? parts.reduce : 0);
  times.update_per_parameter = alone * update / std::max(parts.parameters, 1.0);
  times.fixed = alone * parts.fixed;
  times.has_messages_of_layers = true;
  times.has_messages_of_data = share.has_all_copies;
  return times;
}

ModelTimes measured_times(const Layout& layout,
                          const ShareModel& share,
                          const PartTimes& parts,
                          double turns,
                          const PartTimes& alone) {
  ModelTimes times = measured_times(layout, share, alone, 1);
  const ModelTimes crowded = measured_times(layout, share, parts, turns);
  times.update_per_parameter = crowded.update_per_parameter;
  times.fixed = crowded.fixed;
  const auto passes = [](const ModelTimes& of) {
    double sum = of.before.both() + of.after.both();
    for (const PassTime& layer : of.layers) {
      sum += layer.both();
    }
    return sum;
  };
  // Ranks that never waited would take `turns` times as long.
  times.crowding =
      std::clamp((passes(crowded) * turns / passes(times) - 1) / (turns - 1), 0.0, 1.5);
  return times;
}

}  // namespace tapestry::planning
