// Trainings on data-parallel thread ranks, and the same in one process.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "optim/grad_clip.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/other_rounding.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// What a training left behind.
struct Training {
  std::vector<StepResult> steps;
  State gradients;  // of the first step
  State weights;    // in the end, the optimizer's masters
};

struct RunSettings {
  int ranks = 1;
  int steps = 3;
  int64_t micro_batches = 1;  // of each rank
  int64_t rows = 1;           // of a micro-batch
};

/// Micro-batches of one rank in a step. In one process `parts` ranks' ones follow each other as
/// their samples do.
inline std::vector<data::Batch> rank_batches(
    const AllConfig& config, const RunSettings& s, int64_t step, int rank, int parts) {
  std::vector<data::Batch> out;
  for (int64_t m = 0; m < s.micro_batches; ++m) {
    const int64_t first = ((step * s.micro_batches + m) * parts + rank) * s.rows;
    out.push_back(make_batch(config, s.rows, first));
  }
  return out;
}

inline void copy_into(State& to, const State& from) {
  for (const auto& [name, tensor] : from) {
    to[name] = tensor.clone();
  }
}

/// The training that each rank does; `batches(step)` are its micro-batches.
inline Training train_small(
    const Overrides& overrides,
    int steps,
    const std::function<std::vector<data::Batch>(const AllConfig&, int64_t)>& batches,
    const std::function<void(Trainer&)>& afterwards = {},
    const State& start = {}) {
  Trainer trainer(small_config(overrides), start);
  Training run;
  for (int step = 0; step < steps; ++step) {
    const auto mine = batches(trainer.config, step);
    if (step == 0) {
      Gradients first = run_step(trainer, mine);
      copy_into(run.gradients, first.tensors);
      run.steps.push_back(first.result);
    } else {
      run.steps.push_back(trainer.cell(mine));
    }
  }
  copy_into(run.weights, get_logical_state(*trainer.model, trainer.optimizer.get()));
  if (afterwards) {
    afterwards(trainer);
  }
  return run;
}

/// In one process, with the batches of all `parts` ranks.
inline Training train_alone(const Overrides& overrides,
                            const RunSettings& s,
                            const State& start = {}) {
  const auto batches = [&](const AllConfig& config, int64_t step) {
    std::vector<data::Batch> all(static_cast<size_t>(s.micro_batches * s.ranks));
    for (int rank = 0; rank < s.ranks; ++rank) {
      const auto own = rank_batches(config, s, step, rank, s.ranks);
      for (size_t m = 0; m < own.size(); ++m) {
        all[m * static_cast<size_t>(s.ranks) + static_cast<size_t>(rank)] = own[m];
      }
    }
    return all;
  };
  return train_small(overrides, s.steps, batches, {}, start);
}

/// On thread ranks; what each of them has.
inline std::vector<Training> train_ranks(const Overrides& overrides,
                                         const RunSettings& s,
                                         const std::function<void(Trainer&)>& afterwards = {}) {
  std::vector<Training> runs(static_cast<size_t>(s.ranks));
  run_thread_ranks(s.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    runs[static_cast<size_t>(world->rank())] = train_small(
        overrides, s.steps,
        [&](const AllConfig& config, int64_t step) {
          return rank_batches(config, s, step, world->rank(), s.ranks);
        },
        afterwards);
    destroy_model_parallel();
  });
  return runs;
}

/// Distances between two trainings, or the largest that they may have; all relative.
struct TrainingDistances {
  double loss = 0;
  double norm = 0;      // of all gradients, and of single tensors against it
  double gradient = 0;  // elements, first step
  double weight = 0;    // norm of the difference
};

/// Calls f(kind, name, distance) for everything that is compared.
template <class F>
void each_distance(const Training& found, const Training& expected, const F& f) {
  const auto relative = [](double a, double b) { return a == b ? 0 : std::abs(a - b) / b; };
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const StepResult& a = found.steps[i];
    const StepResult& b = expected.steps[i];
    f(&TrainingDistances::loss, concat("loss of step ", i), relative(a.loss, b.loss));
    f(&TrainingDistances::norm, concat("norm of step ", i), relative(a.grad_norm, b.grad_norm));
    for (const auto& [name, norm] : b.grad_norms) {
      f(&TrainingDistances::norm, concat("norm of ", name, " in step ", i),
        std::abs(a.grad_norms.at(name) - norm) / b.grad_norm);
    }
  }
  double scale = 0;
  for (const auto& [name, tensor] : expected.gradients) {
    scale = std::max(scale, largest(tensor));
  }
  for (const auto& [name, tensor] : expected.gradients) {
    f(&TrainingDistances::gradient, "gradient of " + name,
      distance(found.gradients.at(name), tensor, 1e-2 * scale));
  }
  for (const auto& [name, tensor] : expected.weights) {
    const Tensor difference = found.weights.at(name).to(kFloat64) - tensor.to(kFloat64);
    f(&TrainingDistances::weight, name,
      optim::global_norm({difference}) / optim::global_norm({tensor}));
  }
}

/// The training of one process, and what rounding may do to it.
struct Reference {
  Training run;
  TrainingDistances bounds;
};
inline Reference train_reference(const Overrides& overrides, const RunSettings& s) {
  Reference out = {train_alone(overrides, s), {}};
  const AllConfig config = small_config(overrides);
  with_other_rounding(
      get_logical_state(*get_model(config)), config.model_config.compute_dtype,
      [&](const State& start) { return train_alone(overrides, s, start); },
      [&](const Training& again) {
        each_distance(again, out.run,
                      [&](double TrainingDistances::*kind, const std::string& /*name*/, double d) {
                        out.bounds.*kind = std::max(out.bounds.*kind, d);
                      });
      });
  for (double TrainingDistances::*kind :
       {&TrainingDistances::loss, &TrainingDistances::norm, &TrainingDistances::gradient,
        &TrainingDistances::weight}) {
    out.bounds.*kind = bound_of_spread(out.bounds.*kind);
  }
  return out;
}

inline void expect_same_training(const Training& found,
                                 const Training& expected,
                                 const TrainingDistances& bounds) {
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    const StepResult& a = found.steps[i];
    const StepResult& b = expected.steps[i];
    EXPECT_EQ(a.loss_tokens, b.loss_tokens) << i;
    EXPECT_EQ(a.tokens, b.tokens) << i;
    EXPECT_EQ(a.finite, b.finite) << i;
    ASSERT_EQ(a.grad_norms.size(), b.grad_norms.size()) << i;
  }
  ASSERT_EQ(names_of(found.gradients), names_of(expected.gradients));
  ASSERT_EQ(names_of(found.weights), names_of(expected.weights));
  each_distance(found, expected,
                [&](double TrainingDistances::*kind, const std::string& name, double distance) {
                  EXPECT_LE(distance, bounds.*kind) << name;
                });
}
inline void expect_same_training(const Training& found, const Reference& reference) {
  expect_same_training(found, reference.run, reference.bounds);
}

inline void expect_same_bits(const Training& found, const Training& expected) {
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << i;
    // Which elements each rank adds up depends on the buckets.
    EXPECT_NEAR(found.steps[i].grad_norm, expected.steps[i].grad_norm,
                1e-14 * expected.steps[i].grad_norm)
        << i;
  }
  expect_states_equal(found.gradients, expected.gradients);
  expect_states_equal(found.weights, expected.weights);
}

}  // namespace tapestry::testing
