// Short trainings from given weights, in any layout, and their comparison with one process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// A model with much in it: rotation, groups of heads, norms of queries and keys, untied weights.
inline const Overrides kLlama = {"model_config.position_embedding_type=rope",
                                 "model_config.normalization=RMSNorm",
                                 "model_config.hidden_act=swiglu",
                                 "model_config.group_query_attention=True",
                                 "model_config.num_query_groups=2",
                                 "model_config.num_attention_heads=8",
                                 "model_config.qk_layernorm=True",
                                 "model_config.untie_embeddings_and_output_weights=True"};
inline const Overrides kDropout = {"model_config.hidden_dropout=0.2",
                                   "model_config.attention_dropout=0.2"};

/// Makes a micro-batch of two rows.
using MakeBatch = std::function<data::Batch(const AllConfig&, int64_t first_sample)>;

inline data::Batch two_rows(const AllConfig& config, int64_t first_sample) {
  return make_batch(config, 2, first_sample);
}

struct RunOptions {
  int steps = 2;
  int64_t micro_batches = 4;  // of all data-parallel ranks together
  MakeBatch make = two_rows;
};

/// What a training shows: the same on every rank but for the states, which the first rank of the
/// tensor and pipeline groups has.
struct ModelRun {
  State initial;  // the weights that training would start from by itself
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, double> tensor_norms;  // of the first step, if the configuration logs them
  State gradients;                             // of the first step
  State weights;                               // at the end
};

/// Initial weights of one process, moved a little.
inline State moved_weights(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  jitter(*model, 0.05);
  return get_logical_state(*model);
}

/// Trains on the current rank from `start`, or if that is empty from the initial weights. Each
/// data-parallel rank has its part of a step's micro-batches.
inline ModelRun train_model(const AllConfig& config,
                            const State& start,
                            const RunOptions& options) {
  ModelRun run;
  run.initial = gather_over_pipeline(get_logical_state(*get_model(config)));
  Trainer trainer(config, start);
  const bool split = model_parallel_is_initialized();
  const int rank = split ? get_data_parallel_rank() : 0;
  const int ranks = split ? get_data_parallel_world_size() : 1;
  trainer.cell.set_gradient_observer(
      [&](int64_t) { run.gradients = gather_over_pipeline(logical_gradients(*trainer.model)); },
      [](int64_t step) { return step == 1; });
  for (int64_t step = 0; step < options.steps; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t i = rank; i < options.micro_batches; i += ranks) {
      batches.push_back(options.make(config, 2 * (step * options.micro_batches + i)));
    }
    StepResult result = trainer.cell(batches);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.grad_norm);
    if (step == 0) {
      run.tensor_norms = std::move(result.grad_norms);
    }
  }
  run.weights = gather_over_pipeline(get_logical_state(*trainer.model, trainer.optimizer.get()));
  return run;
}

struct RunBounds {
  double loss = 1e-5;
  double norm = 1e-5;      // of all gradients together, first step
  double gradient = 1e-4;  // elements, and norms of single tensors
  double weight = 1e-4;
};
/// 16-bit rounding differs where sums are cut; Adam makes it visible in weights that hardly move.
inline constexpr RunBounds kHalfBounds = {
    .loss = 2e-3, .norm = 3e-3, .gradient = 6e-2, .weight = 0.5};

/// What the current rank, whose groups are made, has found, against one process.
inline void expect_same_run(const ModelRun& found,
                            const ModelRun& single,
                            const RunBounds& bounds = {}) {
  ASSERT_EQ(found.losses.size(), single.losses.size());
  for (size_t i = 0; i < single.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], single.losses[i], bounds.loss * single.losses[i]) << i;
  }
  EXPECT_NEAR(found.norms[0], single.norms[0], bounds.norm * single.norms[0]);
  ASSERT_EQ(found.tensor_norms.size(), single.tensor_norms.size());
  double largest = 0;
  double found_squares = 0;
  double squares = 0;
  for (const auto& [name, norm] : single.tensor_norms) {
    ASSERT_TRUE(found.tensor_norms.contains(name)) << name;
    largest = std::max(largest, norm);
    found_squares += std::pow(found.tensor_norms.at(name), 2);
    squares += std::pow(norm, 2);
  }
  EXPECT_NEAR(std::sqrt(found_squares), std::sqrt(squares), bounds.norm * std::sqrt(squares));
  for (const auto& [name, norm] : single.tensor_norms) {
    EXPECT_NEAR(found.tensor_norms.at(name), norm, bounds.gradient * std::max(norm, 1e-2 * largest))
        << name;
  }
  if (get_tensor_model_parallel_rank() != 0 || get_pipeline_model_parallel_rank() != 0) {
    EXPECT_TRUE(found.initial.empty() && found.gradients.empty() && found.weights.empty());
    return;
  }
  // Initial weights are those of one process, bit for bit.
  expect_states_equal(found.initial, single.initial);
  expect_states_close(found.gradients, single.gradients, bounds.gradient);
  expect_states_close(found.weights, single.weights, bounds.weight);
}

}  // namespace tapestry::testing
