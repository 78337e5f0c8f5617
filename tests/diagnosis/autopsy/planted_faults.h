// Faults that tests plant in a step: in weights, and in what ops make.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tape/observer.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/step_autopsy.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// Overwrites an element of what one op makes, on one rank.
class Injector final : public Observer {
 public:
  struct Options {
    int64_t rank = 0;
    std::string op;
    std::string module;  ///< how its path ends
    OpPass pass = OpPass::kForward;
    int64_t micro_batch = 0;
    int64_t element = 0;
    float value = std::numeric_limits<float>::quiet_NaN();
    int64_t times = -1;  ///< -1: whenever the op runs there
  };
  explicit Injector(Options options) : options_(std::move(options)), scope_(*this) {}

  void phase_begins(const PhaseRun& phase) override { micro_batch_ = phase.micro_batch; }
  void op_ended(const OpRun& run) override {
    if (options_.times == 0 || run.op != options_.op || run.pass != options_.pass ||
        !run.module.ends_with(options_.module) || micro_batch_ != options_.micro_batch ||
        RankContext::current().rank() != options_.rank) {
      return;
    }
    for (const Tensor& output : run.outputs) {
      if (output.defined() && output.dtype() == kFloat32) {
        output.data<float>()[options_.element] = options_.value;
        ++injected_;
        options_.times -= options_.times > 0 ? 1 : 0;
        return;
      }
    }
  }
  int64_t injected() const { return injected_; }

 private:
  Options options_;
  int64_t micro_batch_ = -1;
  int64_t injected_ = 0;
  ObserverScope scope_;
};

/// Fills a row of a logical tensor of this rank's model, or element `column` of it; true if the
/// rank has the tensor. The row counts in what the rank has of it.
inline bool set_weight(nn::Module& model,
                       const std::string& logical_name,
                       int64_t row,
                       float value,
                       std::optional<int64_t> column = {}) {
  const NoGradGuard guard;
  for (const auto& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      if (logical.name != logical_name) {
        continue;
      }
      const Tensor piece = logical.view_of(*entry.parameter);
      const Tensor values = dense(piece).view(logical.local_shape()).clone();
      const int64_t width = values.numel() / values.size(0);
      for (int64_t i = 0; i < width; ++i) {
        if (!column || *column == i) {
          values.data<float>()[row * width + i] = value;
        }
      }
      copy_values(values.view(piece.shape()), piece);
      entry.parameter->bump_version();
      return true;
    }
  }
  return false;
}

/// What a rank's autopsy said of a step, and what the step did.
struct Examined {
  StepResult result;
  std::optional<StepFindings> findings;
  int64_t anomalies = 0;
  int64_t applied = 0;
};

/// A training in a layout, one step of which has a fault.
struct PlantedStep {
  Overrides overrides;
  ModelParallelSizes sizes = {};
  int ranks = 1;
  int64_t micro_batches = 1;                            ///< of each data-parallel rank
  int64_t good_steps = 0;                               ///< before it
  int64_t hidden_token = -1;                            ///< an id that the data do not have
  std::function<void(nn::Module& model)> prepare = {};  ///< before the good steps
  std::function<void(nn::Module& model)> spoil_weights = {};
  std::function<void(std::vector<data::Batch>& batches)> spoil_data = {};
  std::optional<Injector::Options> injected = {};
};

/// Micro-batches of two rows for the current rank's place among the data-parallel ones.
inline std::vector<data::Batch> planted_batches(const AllConfig& config,
                                                int64_t step,
                                                const PlantedStep& planted) {
  const int64_t micro_batches = planted.micro_batches;
  const int64_t rank = get_data_parallel_rank();
  const int64_t ranks = get_data_parallel_world_size();
  std::vector<data::Batch> batches;
  for (int64_t m = 0; m < micro_batches; ++m) {
    const int64_t number = (step * micro_batches + m) * ranks + rank;
    batches.push_back(make_batch(config, 2, 2 * number, /*full_mask=*/true));
    for (int64_t& token : batches.back().tokens) {
      token = token == planted.hidden_token ? 0 : token;
    }
  }
  return batches;
}

/// Runs the steps on the current rank, whose groups are made.
inline Examined examine_on_rank(const PlantedStep& planted, AutopsyOptions options = {}) {
  Trainer trainer(planted.overrides);
  if (planted.prepare) {
    planted.prepare(*trainer.model);
  }
  StepAutopsy autopsy(trainer.cell, trainer.config, std::move(options));
  for (int64_t step = 0; step < planted.good_steps; ++step) {
    FinishedStep finished;
    finished.result = trainer.cell(planted_batches(trainer.config, step, planted));
    autopsy.after(finished);
  }
  EXPECT_EQ(autopsy.anomalies(), 0) << "before the fault";
  if (planted.spoil_weights) {
    planted.spoil_weights(*trainer.model);
  }
  std::vector<data::Batch> batches = planted_batches(trainer.config, planted.good_steps, planted);
  if (planted.spoil_data) {
    planted.spoil_data(batches);
  }
  const int64_t applied = trainer.cell.position().applied;
  Examined examined;
  {
    std::unique_ptr<Injector> injector;
    if (planted.injected) {
      injector = std::make_unique<Injector>(*planted.injected);
    }
    examined.result = trainer.cell(batches);
    if (injector && RankContext::current().rank() == planted.injected->rank) {
      EXPECT_GT(injector->injected(), 0) << "no op was met";
    }
  }
  if (autopsy.findings() != nullptr) {
    examined.findings = *autopsy.findings();
  }
  examined.anomalies = autopsy.anomalies();
  examined.applied = trainer.cell.position().applied - applied;
  return examined;
}

/// The same on all ranks of the layout; what each of them said.
inline std::vector<Examined> examine_planted(const PlantedStep& planted,
                                             const AutopsyOptions& options = {}) {
  std::vector<Examined> all(static_cast<size_t>(planted.ranks));
  run_parallel(planted.ranks, planted.sizes, [&] {
    all[static_cast<size_t>(RankContext::current().rank())] = examine_on_rank(planted, options);
  });
  return all;
}

}  // namespace tapestry::testing
