// Tests that train: the same steps twice, learning rate 0, ops against float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/bit_checksum.h"
#include "diagnosis/verify/op_error.h"
#include "diagnosis/verify/run_twice.h"
#include "diagnosis/verify/zero_learning_rate.h"
#include "parallel_core/data/step_dataset.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using accuracy::Outcome;
using accuracy::VerdictReport;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::kLlama;
using testing::Overrides;

// A run of recorded steps with four rows each, in a folder of its own.
class TrainingTests : public ::testing::Test {
 protected:
  static constexpr int64_t kSteps = 4;

  TrainingTests() {
    const AllConfig config = testing::small_config();
    for (int64_t step = 0; step < kSteps; ++step) {
      const data::Batch batch = testing::make_batch(config, 4, 4 * step);
      data::write_step(dir_.file("data"), step, 0,
                       {.rows = 4,
                        .seq = batch.seq,
                        .tokens = batch.tokens,
                        .labels = batch.labels,
                        .loss_mask = batch.loss_mask});
    }
  }

  AllConfig config(const Overrides& more = {}) const {
    return testing::small_config(testing::joined(
        {kLlama,
         {"dataset_config.step_data_dir=" + dir_.file("data"), "dataset_config.batch_size=2",
          "dataset_config.micro_batch_num=2", "training_config.training_iters=4",
          "training_config.output_dir=" + dir_.file("output")},
         more}));
  }

  data::TempDir dir_;
};

// Changes the result of an op in one step of a run.
class SpoiledOp final : public StepObserver, private Observer {
 public:
  SpoiledOp(std::string op, OpPass pass, int64_t step, double factor)
      : op_(std::move(op)), pass_(pass), spoiled_step_(step), factor_(factor) {}

  void before(int64_t step) override {
    if (step == spoiled_step_) {
      scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
    }
  }
  void after(FinishedStep& /*step*/) override { scope_.reset(); }

 private:
  void op_ended(const OpRun& run) override {
    if (run.op != op_ || run.pass != pass_ || !run.outputs[0].defined()) {
      return;
    }
    auto* values = static_cast<float*>(run.outputs[0].raw());
    for (int64_t i = 0; i < run.outputs[0].numel(); ++i) {
      values[i] *= static_cast<float>(factor_);
    }
  }

  std::string op_;
  OpPass pass_;
  int64_t spoiled_step_;
  double factor_;
  std::unique_ptr<ObserverScope> scope_;
};

PretrainOptions with_spoiled_op(const std::string& op, OpPass pass, int64_t step, double factor) {
  PretrainOptions options;
  options.observers.push_back([=](TrainOneStepCell&) -> std::unique_ptr<StepObserver> {
    return std::make_unique<SpoiledOp>(op, pass, step, factor);
  });
  return options;
}

std::map<std::string, int64_t> differing(const VerdictReport& report, int64_t step) {
  std::map<std::string, int64_t> out;
  for (const accuracy::Finding& finding : report.findings) {
    if (finding["step"] == step) {
      EXPECT_GT(finding["compared"].get<int64_t>(), 0);
      out[finding["what"].get<std::string>()] = finding["differ"].get<int64_t>();
    }
  }
  return out;
}

TEST_F(TrainingTests, TheSameStepsTwiceHaveTheSameBits) {
  const VerdictReport report = run_twice(config(), {}, 2);
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  EXPECT_EQ(report.findings.size(), 2 * 5U);  // of each step: ops, loss, norm, gradients, weights
  EXPECT_EQ(differing(report, 2)["weights"], 0);
  EXPECT_FALSE(report.first.has_value());
}

TEST_F(TrainingTests, AnOpThatIsNotTheSameTwiceIsNamed) {
  PretrainOptions options;
  int runs = 0;
  options.observers.push_back([&runs](TrainOneStepCell&) -> std::unique_ptr<StepObserver> {
    // Only the second run's second step is another one.
    return std::make_unique<SpoiledOp>("swiglu_fused", OpPass::kForward, ++runs == 2 ? 2 : 100,
                                       1.0000002);
  });
  const VerdictReport report = run_twice(config(), options, 3);
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->step, 2);
  EXPECT_EQ(report.first->micro_batch, 0);
  EXPECT_EQ(report.first->op, "swiglu_fused");
  EXPECT_EQ(report.first->pass, "forward");
  EXPECT_THAT(*report.first->module, HasSubstr("layers.0.mlp"));
  EXPECT_THAT(report.first->source.value_or(""), HasSubstr("activation"));
  EXPECT_EQ(differing(report, 1)["op results"], 0);
  EXPECT_GT(differing(report, 2)["weights"], 0);
}

TEST_F(TrainingTests, TwiceIsComparedOnAllRanks) {
  for (const Overrides& layout :
       {Overrides{"parallel_config.tensor_model_parallel_size=2"},
        Overrides{"parallel_config.pipeline_model_parallel_size=2"},
        Overrides{"training_config.use_distributed_optimizer=True", "parallel_config.zero_level=z3",
                  "dataset_config.batch_size=1"}}) {
    const AllConfig own = config(layout);
    run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
      PretrainOptions options;
      options.world = world;
      const VerdictReport report = run_twice(own, options, 2);
      EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
      destroy_model_parallel();
    });
  }
}

TEST_F(TrainingTests, WithoutALearningRateWeightsKeepTheirBits) {
  const VerdictReport report =
      run_with_zero_learning_rate(config({"optimizer_config.weight_decay=0.1"}), {}, 3);
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  std::istringstream lines(dir_.read("output/metrics.jsonl"));
  std::vector<nlohmann::json> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line));
  }
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[2]["step"], 3);
  EXPECT_EQ(steps[2]["lr"], nlohmann::json({0.0, 0.0}));
  EXPECT_NE(steps[1]["loss"], steps[2]["loss"]);
}

TEST_F(TrainingTests, AWeightThatChangesAllTheSameIsNamed) {
  class Changes final : public StepObserver {
   public:
    explicit Changes(TrainOneStepCell& cell) : cell_(cell) {}
    void after(FinishedStep& step) override {
      if (step.record.step == 2) {
        const auto entry = cell_.network().named_parameters().back();
        static_cast<float*>(entry.parameter->raw())[0] += 1e-6F;
      }
    }

   private:
    TrainOneStepCell& cell_;
  };
  PretrainOptions options;
  std::string name;
  options.observers.push_back([&](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
    name = cell.network().named_parameters().back().name;
    return std::make_unique<Changes>(cell);
  });
  const VerdictReport report = run_with_zero_learning_rate(config(), options, 3);
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->step, 2);
  EXPECT_EQ(report.first->tensor, name);
}

// What ops do wrong beyond rounding; all of a model are measured, in both passes.
TEST_F(TrainingTests, OpsAreAsExactAsTheirInputs) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const AllConfig own = config({concat("model_config.compute_dtype=", dtype),
                                  concat("training_config.output_dir=", dir_.file(dtype))});
    const VerdictReport report = measure_op_errors(own, {}, {.names = "."});
    EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
    std::set<std::string> forward;
    std::set<std::string> backward;
    double last = std::numeric_limits<double>::infinity();
    for (const accuracy::Finding& finding : report.findings) {
      if (finding["status"] == "agrees") {
        (finding["pass"] == "forward" ? forward : backward).insert(finding["op"]);
        EXPECT_LE(finding["ratio"].get<double>(), last);  // the worst first
        last = finding["ratio"].get<double>();
      }
    }
    for (const char* op :
         {"rms_norm", "swiglu_fused", "scaled_dot_product_attention", "linear", "embedding"}) {
      EXPECT_TRUE(forward.contains(op)) << dtype << " " << op << "\n" << report_text(report);
      EXPECT_TRUE(backward.contains(op)) << dtype << " " << op << "\n" << report_text(report);
    }
  }
}

TEST_F(TrainingTests, AnInexactOpIsNamed) {
  for (const OpPass pass : {OpPass::kForward, OpPass::kBackward}) {
    const std::string output = dir_.file(std::string(name_of(pass)));
    const VerdictReport report = measure_op_errors(config({"training_config.output_dir=" + output}),
                                                   with_spoiled_op("swiglu_fused", pass, 1, 1.0001),
                                                   {.names = "mlp/|rms_norm$"});
    EXPECT_EQ(report.outcome, Outcome::kDiffers) << report_text(report);
    ASSERT_TRUE(report.first.has_value());
    EXPECT_EQ(report.first->op, "swiglu_fused");
    EXPECT_EQ(report.first->pass, name_of(pass));
    EXPECT_GT(*report.first->distance, *report.first->bound);
    for (const accuracy::Finding& finding : report.findings) {
      // What is made again for backward is not spoilt: there another op has other inputs.
      if (finding["pass"] == name_of(pass)) {
        EXPECT_EQ(finding["status"] == "differs", finding["op"] == "swiglu_fused")
            << report_text(report);
      }
    }
  }
}

TEST_F(TrainingTests, BadQuestionsAreRefused) {
  EXPECT_THROW(measure_op_errors(config(), {}, {.names = "("}), ValueError);
  EXPECT_THROW(measure_op_errors(config(), {}, {.names = "a", .multiple = 0.5}), ValueError);
  EXPECT_THROW(measure_op_errors(config(), {}, {.names = "a", .steps = 0}), ValueError);
  EXPECT_THROW(run_twice(config(), {}, 0), ValueError);
  EXPECT_THROW(run_with_zero_learning_rate(config(), {}, 0), ValueError);
  EXPECT_EQ(measure_op_errors(config(), {}, {.names = "no_such_op"}).outcome,
            Outcome::kNotComparable);
}

TEST(BitChecksum, TellsShapesDtypesAndOrdersApart) {
  const Tensor x = arange(6).to(kFloat32).reshape({2, 3});
  EXPECT_EQ(bit_checksum(x), bit_checksum(dense_copy(x)));
  EXPECT_EQ(bit_checksum(x.permute({1, 0})), bit_checksum(dense(x.permute({1, 0}))));
  EXPECT_NE(bit_checksum(x), bit_checksum(x.reshape({3, 2})));
  EXPECT_NE(bit_checksum(x), bit_checksum(x.to(kFloat64)));
  EXPECT_NE(bit_checksum(x), bit_checksum(x.reshape({3, 2}).permute({1, 0})));
  EXPECT_NE(bit_checksum(zeros({1})), bit_checksum(zeros({1}) * -1));
  EXPECT_EQ(bit_checksum({}), bit_checksum({}));
}

}  // namespace
}  // namespace tapestry
