// Small models and batches for tests of the training core.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/random.h"
#include "parallel_core/training/step/train_one_step.h"
#include "parallel_core/training/training.h"

namespace tapestry::testing {

using Overrides = std::vector<std::string>;
using State = std::map<std::string, Tensor>;

/// All of them, one list after the other.
inline Overrides joined(std::initializer_list<Overrides> parts) {
  Overrides out;
  for (const Overrides& part : parts) {
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}
inline Overrides joined(const Overrides& a, const Overrides& b) { return joined({a, b}); }

/// A model of two layers, hidden 32, four heads, vocabulary 31, sequence 8; then the overrides.
inline AllConfig small_config(const Overrides& overrides = {}) {
  const std::string text =
      "training_config: {training_iters: 20, seed: 7}\n"
      "model_config:\n  vocab_size: 31\n  num_layers: 2\n  num_attention_heads: 4\n"
      "  hidden_size: 32\n  ffn_hidden_size: 48\n  seq_length: 8\n  init_method_std: 0.1\n"
      "optimizer_config: {learning_rate: 0.01}\n";
  return init_configs_from_text(text, "small.yaml", {.overrides = overrides});
}

/// Rows of tokens in which no two rows are alike; some tokens do not count in the loss unless
/// `full_mask`. Rows get the sample indices first_sample, first_sample + 1, ...
inline data::Batch make_batch(const AllConfig& config,
                              int64_t rows,
                              int64_t first_sample = 0,
                              bool full_mask = false) {
  data::Batch batch;
  batch.batch = rows;
  batch.seq = config.model_config.seq_length;
  const auto vocab = static_cast<uint64_t>(config.model_config.vocab_size);
  for (int64_t row = 0; row < rows; ++row) {
    batch.sample_ids.push_back(first_sample + row);
    for (int64_t i = 0; i < batch.seq; ++i) {
      const uint64_t word = combine(static_cast<uint64_t>(first_sample + row), 2 * i);
      batch.tokens.push_back(static_cast<int64_t>(word % vocab));
      batch.labels.push_back(static_cast<int64_t>((word >> 20U) % vocab));
      batch.loss_mask.push_back(full_mask || (word >> 40U) % 4 != 0 ? 1.0F : 0.0F);
    }
  }
  return batch;
}

/// Moves every parameter off its start value, so that gains of 1 and biases of 0 hide nothing.
inline void jitter(nn::Module& model, double size = 0.1) {
  const NoGradGuard guard;
  for (const auto& entry : model.named_parameters()) {
    const Tensor noise = normal(0, size, entry.parameter->shape(), kFloat32,
                                RandomKey{99, stream_of(entry.name), 0});
    copy_values(*entry.parameter + noise, *entry.parameter);
    entry.parameter->bump_version();
  }
}

/// The model of the current rank with these weights, or if there are none with initial ones.
inline std::unique_ptr<GPTModel> model_with(const AllConfig& config, const State& weights) {
  auto model = get_model(config);
  if (!weights.empty()) {
    set_logical_state(*model, weights, "test");
  }
  return model;
}

/// Everything that a training step needs.
struct Trainer {
  explicit Trainer(AllConfig settings, const State& start = {})
      : config(std::move(settings)),
        model(model_with(config, start)),
        data_parallel(get_data_parallel(config, *model)),
        optimizer(get_optimizer(config, *model, data_parallel.get())),
        schedule(get_optimizer_param_scheduler(config, 1)),
        cell(*model, *optimizer, *schedule, config, data_parallel.get()) {}
  explicit Trainer(const Overrides& overrides = {}) : Trainer(small_config(overrides)) {}

  AllConfig config;
  std::unique_ptr<GPTModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  TrainOneStepCell cell;
};

/// Loss and logical gradients of one step; the weights are updated as usual.
struct Gradients {
  StepResult result;
  State tensors;
};
inline Gradients run_step(Trainer& trainer, const std::vector<data::Batch>& micro_batches) {
  Gradients out;
  trainer.cell.set_gradient_observer(
      [&](int64_t) { out.tensors = logical_gradients(*trainer.model); });
  out.result = trainer.cell(micro_batches);
  trainer.cell.set_gradient_observer({});
  return out;
}

inline double largest(const Tensor& x) {
  double out = 0;
  for (const double value : x.to_vector<double>()) {
    out = std::max(out, std::abs(value));
  }
  return out;
}

/// max|a - b| / max|b|, with `floor` as the least divisor.
inline double distance(const Tensor& a, const Tensor& b, double floor = 1e-30) {
  EXPECT_EQ(a.shape(), b.shape());
  const std::vector<double> x = a.to_vector<double>();
  const std::vector<double> y = b.to_vector<double>();
  double difference = 0;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    // Not std::max: a NaN has to stay.
    difference = std::abs(x[i] - y[i]) <= difference ? difference : std::abs(x[i] - y[i]);
  }
  return difference / std::max(largest(b), floor);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = dense(a);
  const Tensor y = dense(b);
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

inline std::vector<std::string> names_of(const State& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) {
    names.push_back(name);
  }
  return names;
}

/// A hundredth of the largest element of all: what gradients that are nothing but rounding are
/// measured against.
inline double floor_of(const State& state) {
  double scale = 0;
  for (const auto& [name, tensor] : state) {
    scale = std::max(scale, largest(tensor));
  }
  return 1e-2 * scale;
}

/// The largest distance() of a tensor from the other's of that name.
inline double largest_distance(const State& found, const State& expected) {
  const double floor = floor_of(expected);
  double out = 0;
  for (const auto& [name, tensor] : expected) {
    out = std::max(out, distance(found.at(name), tensor, floor));
  }
  return out;
}

/// Every tensor within `bound` of the other's; names must agree.
inline void expect_states_close(const State& found, const State& expected, double bound) {
  const double floor = floor_of(expected);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_LE(distance(found.at(name), tensor, floor), bound) << name;
  }
}

inline void expect_states_equal(const State& found, const State& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(same_bits(found.at(name), tensor)) << name;
  }
}

}  // namespace tapestry::testing
