// What the tests of the planner share: a model, and costs that are made up.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/init_configs.h"
#include "parallel_core/planning/plan.h"

namespace tapestry::planning {

/// Eight layers, four heads, sequences of 64, 16 of them a step.
inline AllConfig planned_config(const std::vector<std::string>& overrides = {}) {
  const std::string text =
      "training_config: {training_iters: 20, seed: 7}\n"
      "dataset_config: {batch_size: 2, micro_batch_num: 8}\n"
      "model_config:\n  vocab_size: 128\n  num_layers: 8\n  num_attention_heads: 4\n"
      "  hidden_size: 32\n  ffn_hidden_size: 64\n  seq_length: 64\n"
      "optimizer_config: {learning_rate: 0.01}\n";
  return init_configs_from_text(text, "planned.yaml", {.overrides = overrides});
}

/// As many cores as ranks, and memory enough.
inline PlanOptions asked_of(int64_t ranks) {
  return {.ranks = ranks,
          .hosts = 1,
          .cores = ranks,
          .data_parallel_size = 1,
          .memory = int64_t{1} << 40U};
}

/// A layer takes 3 ms for each sequence, a third of them forward, shared out over tensor- and
/// context-parallel ranks without loss.
inline ModelTimes even_times(const Layout& layout) {
  const AllConfig& config = layout.config;
  const ModelParallelConfig& p = config.parallel_config;
  const double seconds =
      1e-3 * static_cast<double>(config.dataset_config.batch_size) /
      static_cast<double>(p.tensor_model_parallel_size * p.context_parallel_size);
  ModelTimes times;
  times.layers.assign(static_cast<size_t>(config.model_config.num_layers),
                      {.forward = seconds, .backward = 2 * seconds});
  return times;
}

}  // namespace tapestry::planning
