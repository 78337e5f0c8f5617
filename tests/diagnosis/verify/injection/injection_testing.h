// Short trainings that are dumped, and that take values, gradients and weights of others.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/rank_context.h"
#include "diagnosis/dump/dump_reader.h"
#include "diagnosis/dump/logical_tensor.h"
#include "diagnosis/dump/run/tensor_dump.h"
#include "diagnosis/dump/tensor_distance.h"
#include "diagnosis/verify/injection/injected_values.h"
#include "parallel_core/training/step/given_state.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry::testing {

struct InjectedRun {
  int64_t steps = 1;
  std::string dump;    ///< folder to write; empty: none
  std::string inputs;  ///< dump to take values from; empty: none
  TrainOneStepCell::GradientSource gradients;
  std::function<void(TrainOneStepCell&)> started;  ///< when the start weights are in
};

/// What is told of the steps: the same on all ranks.
struct StepsOfRun {
  std::vector<StepResult> results;
  std::vector<std::string> lines;
  std::string failure;
};

/// The groups of one process, while it lives.
class OneProcess {
 public:
  OneProcess() { initialize_model_parallel(); }
  OneProcess(const OneProcess&) = delete;
  OneProcess& operator=(const OneProcess&) = delete;
  ~OneProcess() { destroy_model_parallel(); }
};

inline constexpr int64_t kMicroBatches = 4;  // of all data-parallel ranks together, two rows each

inline dump::DumpConfig dump_into(const std::string& folder) {
  // Of each rank its own: they write at the same time.
  const std::string file = concat(folder, ".", RankContext::current().rank(), ".json");
  dump::write_text(file, R"({"common_dump_settings": {"path": ")" + folder +
                             R"(", "dump_mode": 1, "kernels": ["Value", "Parameter"]}, )" +
                             R"("e2e_dump_settings": {}})");
  return dump::read_dump_config(file);
}

inline StepsOfRun run_steps(Trainer& trainer, const InjectedRun& asked) {
  StepsOfRun out;
  std::vector<std::unique_ptr<StepObserver>> observers;
  if (!asked.inputs.empty()) {
    observers.push_back(std::make_unique<InjectedValues>(
        trainer.cell, trainer.config, ReferenceValues(asked.inputs, accuracy::NameMap())));
  }
  if (!asked.dump.empty()) {
    observers.push_back(std::make_unique<TensorDump>(
        trainer.cell, trainer.config, dump_into(asked.dump), RankContext::current().rank()));
  }
  if (asked.gradients) {
    trainer.cell.set_gradient_source(asked.gradients, "given gradients");
  }
  if (asked.started) {
    asked.started(trainer.cell);
  }
  const bool split = model_parallel_is_initialized();
  const int rank = split ? get_data_parallel_rank() : 0;
  const int ranks = split ? get_data_parallel_world_size() : 1;
  for (int64_t step = 1; step <= asked.steps; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t i = rank; i < kMicroBatches; i += ranks) {
      batches.push_back(two_rows(trainer.config, 2 * ((step - 1) * kMicroBatches + i)));
    }
    for (const auto& observer : observers) {
      observer->before(step);
    }
    FinishedStep finished{.record = {.step = step}};
    {
      const PhaseScope phase("step");  // as the training loop has it
      finished.result = trainer.cell(batches);
    }
    finished.is_last = step == asked.steps;
    for (const auto& observer : observers) {
      observer->after(finished);
    }
    out.results.push_back(finished.result);
    out.lines.insert(out.lines.end(), finished.lines.begin(), finished.lines.end());
    out.failure = finished.failure;
  }
  return out;
}

/// Values and gradients of a dump's first iteration by name, each with its values per sample.
inline std::map<std::string, TensorList> dumped(const std::string& folder,
                                                const std::string& op_type = "Value",
                                                int64_t iteration = 0) {
  std::map<std::string, TensorList> out;
  const dump::DumpReader reader(folder);
  for (const dump::LogicalTensor& tensor : dump::logical_tensors(reader.tensors(iteration))) {
    if (tensor.row().op_type == op_type) {
      EXPECT_EQ(tensor.problem(), "") << tensor.row().op_name;
      out[tensor.row().op_name] = tensor.load().values;
    }
  }
  return out;
}

inline double distance_of(const TensorList& found, const TensorList& expected) {
  EXPECT_EQ(found.size(), expected.size());
  dump::DistanceSum sum(dump::DistanceUnit::kElement);
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    sum.add(found[i], expected[i]);
  }
  return sum.distance();
}

/// A layout of ranks that are threads: overrides, and the sizes of its groups.
struct InjectionLayout {
  std::string name;
  int ranks = 1;
  ModelParallelSizes sizes;
  Overrides overrides;
};
inline std::ostream& operator<<(std::ostream& out, const InjectionLayout& layout) {
  return out << layout.name;
}

inline std::vector<InjectionLayout> injection_layouts() {
  const std::string p = "parallel_config.";
  const auto zero = [&](const char* level) {
    return Overrides{"training_config.use_distributed_optimizer=True", p + "zero_level=" + level};
  };
  return {
      {"one", 1, {}, {}},
      {"tp2", 2, {.tensor_model_parallel_size = 2}, {p + "tensor_model_parallel_size=2"}},
      {"tp2sp",
       2,
       {.tensor_model_parallel_size = 2},
       {p + "tensor_model_parallel_size=2", p + "sequence_parallel=True"}},
      {"tp4", 4, {.tensor_model_parallel_size = 4}, {p + "tensor_model_parallel_size=4"}},
      {"pp2", 2, {.pipeline_model_parallel_size = 2}, {p + "pipeline_model_parallel_size=2"}},
      {"dp2", 2, {}, {}},
      {"dp2z1", 2, {}, zero("z1")},
      {"dp2z2", 2, {}, zero("z2")},
      {"dp2z3", 2, {}, zero("z3")},
      {"cp2", 2, {.context_parallel_size = 2}, {p + "context_parallel_size=2"}},
      {"tp2pp2",
       4,
       {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2},
       {p + "tensor_model_parallel_size=2", p + "pipeline_model_parallel_size=2"}},
  };
}

}  // namespace tapestry::testing
