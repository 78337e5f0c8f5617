// Short trainings from given weights, in any layout, and their comparison with one process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/other_rounding.h"
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
  /// Makes each rank's objective in place of the mean cross entropy; empty: none.
  std::function<std::unique_ptr<StepObjective>()> objective = {};
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
  const auto objective = options.objective ? options.objective() : nullptr;
  trainer.cell.set_objective(objective.get());
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

/// Distances between two runs, or the largest that they may have; all relative.
struct RunDistances {
  double loss = 0;
  double norm = 0;      // of all gradients together, first step
  double gradient = 0;  // elements, and norms of single tensors
  double weight = 0;
};

/// Calls f(kind, name, distance) for everything that is compared; `found` has all of `single`.
template <class F>
void each_distance(const ModelRun& found, const ModelRun& single, const F& f) {
  const auto relative = [](double a, double b) { return a == b ? 0 : std::abs(a - b) / b; };
  for (size_t i = 0; i < single.losses.size(); ++i) {
    f(&RunDistances::loss, concat("loss of step ", i + 1),
      relative(found.losses[i], single.losses[i]));
  }
  f(&RunDistances::norm, "norm", relative(found.norms[0], single.norms[0]));
  double largest_norm = 0;
  double found_squares = 0;
  double squares = 0;
  for (const auto& [name, norm] : single.tensor_norms) {
    largest_norm = std::max(largest_norm, norm);
    found_squares += std::pow(found.tensor_norms.at(name), 2);
    squares += std::pow(norm, 2);
  }
  f(&RunDistances::norm, "norm of all tensors",
    relative(std::sqrt(found_squares), std::sqrt(squares)));
  for (const auto& [name, norm] : single.tensor_norms) {
    f(&RunDistances::gradient, "norm of " + name,
      std::abs(found.tensor_norms.at(name) - norm) / std::max(norm, 1e-2 * largest_norm));
  }
  if (found.weights.empty()) {
    return;  // another rank has the states
  }
  // Gradients that are nothing but rounding are measured against the largest of all.
  const auto each_tensor = [&](double RunDistances::*kind, const State& a, const State& b) {
    double scale = 0;
    for (const auto& [name, tensor] : b) {
      scale = std::max(scale, largest(tensor));
    }
    for (const auto& [name, tensor] : b) {
      f(kind, name, distance(a.at(name), tensor, 1e-2 * scale));
    }
  };
  each_tensor(&RunDistances::gradient, found.gradients, single.gradients);
  each_tensor(&RunDistances::weight, found.weights, single.weights);
}

/// What rounding alone may do to the run of one process, from what it does.
inline RunDistances rounding_bounds(const Overrides& overrides,
                                    const State& start,
                                    const RunOptions& options,
                                    const ModelRun& single) {
  const AllConfig config = small_config(overrides);
  RunDistances out;
  with_other_rounding(
      start, config.model_config.compute_dtype,
      [&](const State& weights) { return train_model(config, weights, options); },
      [&](const ModelRun& again) {
        each_distance(again, single,
                      [&](double RunDistances::*kind, const std::string& /*name*/,
                          double distance) { out.*kind = std::max(out.*kind, distance); });
      });
  out.loss = out.norm = std::max(out.loss, out.norm);
  for (double RunDistances::*kind :
       {&RunDistances::loss, &RunDistances::norm, &RunDistances::gradient, &RunDistances::weight}) {
    out.*kind = bound_of_spread(out.*kind);
  }
  return out;
}

/// The run of one process from moved_weights, and what layouts may differ from it by.
struct Reference {
  State start;
  ModelRun run;
  RunDistances bounds;
};
/// Each is trained once in a program, however many layouts are compared with it. `name` tells apart
/// options that make other batches.
inline const Reference& reference_run(const Overrides& overrides,
                                      const RunOptions& options,
                                      const std::string& name = "") {
  // Never destroyed: their tensors would outlive the allocator.
  static auto& known = *new std::map<std::string, Reference>;  // NOLINT(*-owning-memory)
  std::string key = concat(name, " ", options.steps, " ", options.micro_batches);
  for (const std::string& override : overrides) {
    key += " " + override;
  }
  auto found = known.find(key);
  if (found == known.end()) {
    Reference made = {moved_weights(overrides), {}, {}};
    made.run = train_model(small_config(overrides), made.start, options);
    made.bounds = rounding_bounds(overrides, made.start, options, made.run);
    found = known.emplace(key, std::move(made)).first;
  }
  return found->second;
}

/// What the current rank, whose groups are made, has found, against one process.
inline void expect_same_run(const ModelRun& found,
                            const ModelRun& single,
                            const RunDistances& bounds) {
  ASSERT_EQ(found.losses.size(), single.losses.size());
  ASSERT_EQ(found.tensor_norms.size(), single.tensor_norms.size());
  for (const auto& [name, norm] : single.tensor_norms) {
    ASSERT_TRUE(found.tensor_norms.contains(name)) << name;
  }
  if (get_tensor_model_parallel_rank() != 0 || get_pipeline_model_parallel_rank() != 0) {
    EXPECT_TRUE(found.initial.empty() && found.gradients.empty() && found.weights.empty());
  } else {
    ASSERT_EQ(names_of(found.gradients), names_of(single.gradients));
    ASSERT_EQ(names_of(found.weights), names_of(single.weights));
    // Initial weights are those of one process, bit for bit.
    expect_states_equal(found.initial, single.initial);
  }
  each_distance(found, single,
                [&](double RunDistances::*kind, const std::string& name, double distance) {
                  EXPECT_LE(distance, bounds.*kind) << name;
                });
}

}  // namespace tapestry::testing
