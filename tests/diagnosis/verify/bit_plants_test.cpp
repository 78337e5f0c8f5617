// One changed bit breaks the hash of the step in which it was planted, and is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/accuracy/compare_bits.h"
#include "diagnosis/verify/exact/prove_step.h"
#include "diagnosis/verify/exact/rerun_step.h"
#include "diagnosis/verify/verify_layout.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/data/step_dataset.h"
#include "parallel_core/parallel_state.h"
#include "tests/diagnosis/verify/bit_faults.h"
#include "tests/message_of.h"
#include "tests/parallel_core/layouts/layout_testing.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace bit_plants_test {
namespace {

using accuracy::Outcome;
using accuracy::VerdictReport;
using ::testing::AnyOf;
using testing::BitFault;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::Overrides;

using Kind = BitFault::Kind;

// Runs of recorded steps with four rows each, in folders of their own.
class BitPlants : public ::testing::Test {
 protected:
  static constexpr int64_t kSteps = 4;

  BitPlants() { write_steps("data", kSteps); }

  void write_steps(const std::string& name, int64_t steps) {
    const AllConfig config = testing::small_config();
    for (int64_t step = 0; step < steps; ++step) {
      const data::Batch batch = testing::make_batch(config, 4, 4 * step);
      data::write_step(dir_.file(name), step, 0,
                       {.rows = 4,
                        .seq = batch.seq,
                        .tokens = batch.tokens,
                        .labels = batch.labels,
                        .loss_mask = batch.loss_mask});
    }
  }

  AllConfig config(const std::string& run, const Overrides& more = {}) const {
    return testing::small_config(testing::joined(
        {testing::kLlama,
         {"training_config.exact=True", "dataset_config.step_data_dir=" + dir_.file("data"),
          "dataset_config.batch_size=2", "dataset_config.micro_batch_num=2",
          concat("training_config.training_iters=", kSteps), "training_config.save_interval=2",
          "training_config.output_dir=" + dir_.file(run)},
         more}));
  }

  // Trains in a context of its own, on threads as ranks where there are several.
  void train(const AllConfig& config,
             const PretrainOptions& options = {},
             int ranks = 1,
             const CommunicationOptions& communication = {}) {
    run_thread_ranks(
        ranks,
        [&](const std::shared_ptr<ProcessGroup>& world) {
          PretrainOptions own = options;
          own.world = world;
          own.overwrite = true;
          pretrain(config, own);
          destroy_model_parallel();
        },
        communication);
  }

  static PretrainOptions with(const std::shared_ptr<BitFault>& fault) {
    PretrainOptions options;
    if (fault != nullptr) {
      options.observers.push_back([fault](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
        return std::make_unique<testing::PlantedBit>(cell, fault);
      });
    }
    return options;
  }

  // Both runs compared by bits; `lasting` is in the program that runs the second one again.
  VerdictReport compare(const std::string& a,
                        const std::string& b,
                        const std::shared_ptr<BitFault>& lasting = nullptr) {
    const auto rerun = [&](size_t side, int64_t step, int64_t batch_size) {
      const std::string folder = dir_.file(side == 0 ? a : b);
      accuracy::StepRerun out;
      run_thread_ranks(1, [&](const std::shared_ptr<ProcessGroup>& world) {
        PretrainOptions training = with(side == 1 ? lasting : nullptr);
        training.world = world;
        out = trace_step(
            {.folder = folder, .step = step, .batch_size = batch_size, .training = training},
            [&](const std::vector<std::string>& more) {
              return init_configs_from_yaml(folder + "/config.yaml", {.overrides = more});
            });
        destroy_model_parallel();
      });
      return out;
    };
    return accuracy::compare_bits(dir_.file(a), dir_.file(b), {.rerun = rerun, .rows = 1000});
  }

  static std::set<std::string> differing(const VerdictReport& report, const char* what) {
    std::set<std::string> names;
    for (const accuracy::Finding& finding : report.findings) {
      if (finding["what"] == what) {
        names.insert(finding["name"].get<std::string>());
      }
    }
    return names;
  }

  // The logical tensors that a parameter of the model holds.
  std::vector<std::string> logical_names(const std::string& parameter) {
    std::vector<std::string> names;
    testing::run_parallel(1, {}, [&] {
      const auto model = get_model(config("names"));
      for (const auto& entry : model->named_parameters()) {
        for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
          if (entry.name == parameter) {
            names.push_back(logical.name);
          }
        }
      }
    });
    return names;
  }

  data::TempDir dir_;
};

TEST_F(BitPlants, FortyOfFortyAreFoundAtTheirStepAndNamed) {
  constexpr int kOfEachKind = 12;
  train(config("sound"));
  uint64_t draw = 20260;
  for (const Kind kind : {Kind::kWeight, Kind::kGradient, Kind::kOrderOfSum}) {
    for (int i = 0; i < kOfEachKind; ++i) {
      draw = combine(draw, static_cast<uint64_t>(i));
      const auto fault = std::make_shared<BitFault>();
      fault->kind = kind;
      fault->draw = draw;
      // A first update has the size of the learning rate whatever the gradient's.
      fault->step = 2 + static_cast<int64_t>((draw >> 50U) % (kSteps - 1));
      SCOPED_TRACE(concat("kind ", static_cast<int>(kind), ", plant ", i, ", step ", fault->step));
      train(config("spoilt"), with(fault));
      ASSERT_EQ(fault->planted, 1);

      // The fault does not return: the run that had it is named, and what it has spoilt.
      const VerdictReport once = compare("sound", "spoilt");
      ASSERT_EQ(once.outcome, Outcome::kDiffers) << report_text(once);
      EXPECT_EQ(once.first->step, fault->step) << report_text(once);
      EXPECT_EQ(once.stage, "recorded") << report_text(once);
      EXPECT_THAT(once.lines, Contains(HasSubstr("The recorded hash of spoilt does not return")));
      EXPECT_THAT(once.lines, Contains(HasSubstr("The recorded hashes of sound return")));
      if (kind == Kind::kGradient) {  // nothing before the update has seen it: it alone differs
        const std::set<std::string> gradients = differing(once, "gradient");
        ASSERT_EQ(gradients.size(), 1U) << report_text(once);
        EXPECT_THAT(logical_names(fault->parameter), Contains(*gradients.begin()));
        EXPECT_EQ(once.first->tensor, *gradients.begin());
      } else {
        EXPECT_TRUE(once.first->tensor.has_value());
      }

      // The fault is in the program that runs the step again: its place is named.
      fault->planted = 0;
      const VerdictReport lasting = compare("sound", "spoilt", fault);
      EXPECT_EQ(lasting.first->step, fault->step);
      if (kind == Kind::kOrderOfSum) {
        EXPECT_EQ(lasting.first->op, "linear") << report_text(lasting);
        EXPECT_EQ(lasting.first->module, fault->module);
        EXPECT_EQ(lasting.first->pass, "forward");
        EXPECT_EQ(lasting.stage, "forward");
        EXPECT_THAT(lasting.lines, Contains(HasSubstr("the op itself differs")));
      } else {
        EXPECT_EQ(lasting.first->tensor, fault->parameter) << report_text(lasting);
        EXPECT_EQ(lasting.stage, kind == Kind::kWeight ? "start" : "backward");
      }
    }
  }
}

TEST_F(BitPlants, ABitOfOneRanksMessageIsFoundAtItsStep) {
  constexpr int kPlants = 4;
  const Overrides two = {"training_config.use_distributed_optimizer=True",
                         "training_config.wrap_with_ddp=True", "dataset_config.micro_batch_num=1"};
  train(config("sound", two), {}, 2);
  uint64_t draw = 7;
  for (int i = 0; i < kPlants; ++i) {
    draw = combine(draw, static_cast<uint64_t>(i));
    const auto plan = std::make_shared<testing::FlippingTransport::Plan>();
    plan->draw = draw;
    plan->rank = static_cast<int>(draw % 2);
    const int64_t step = 2 + static_cast<int64_t>((draw >> 50U) % (kSteps - 1));
    SCOPED_TRACE(concat("plant ", i, ", rank ", plan->rank, ", step ", step));
    PretrainOptions options;
    options.observers.push_back(
        [&, rank = plan->rank](TrainOneStepCell& /*cell*/) -> std::unique_ptr<StepObserver> {
          // Of another rank: a step that never comes.
          const int64_t armed = RankContext::current().rank() == rank ? step : kSteps + 1;
          return std::make_unique<testing::ArmedStep>(
              armed, armed == step ? plan : std::make_shared<testing::FlippingTransport::Plan>());
        });
    train(config("spoilt", two), options, 2,
          {.timeout_seconds = testing::kTestTimeout,
           .wrap_transport = [plan](std::unique_ptr<Transport> inner) {
             return std::make_unique<testing::FlippingTransport>(std::move(inner), plan);
           }});
    ASSERT_EQ(plan->flipped, 1);
    const VerdictReport report = compare("sound", "spoilt");
    ASSERT_EQ(report.outcome, Outcome::kDiffers);
    EXPECT_EQ(report.first->step, step) << report_text(report);
    EXPECT_EQ(report.stage, "recorded") << report_text(report);
    // Of the sums that the message has brought one is another.
    const std::set<std::string> gradients = differing(report, "gradient");
    ASSERT_EQ(gradients.size(), 1U) << report_text(report);
    EXPECT_EQ(report.first->tensor, *gradients.begin());
    EXPECT_THAT(report.lines, Contains(HasSubstr("The recorded hash of spoilt does not return")));
    EXPECT_THAT(report.lines, Contains(HasSubstr("The recorded hashes of sound return")));
  }
}

TEST_F(BitPlants, NoAlarmOverManySteps) {
  constexpr int64_t kMany = 60;
  write_steps("many", kMany);
  const Overrides many = {concat("training_config.training_iters=", kMany),
                          "training_config.save_interval=100",
                          "dataset_config.step_data_dir=" + dir_.file("many")};
  train(config("one", many));
  train(config("other", testing::joined(many, {"dataset_config.batch_size=1",
                                               "dataset_config.micro_batch_num=4"})));
  const VerdictReport report = compare("one", "other");
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  EXPECT_THAT(report.lines, Contains(HasSubstr(concat("All ", kMany, " common steps"))));
}

TEST_F(BitPlants, ConfigurationsThatDifferAreNamedFirst) {
  train(config("one"));
  train(config("other", {"optimizer_config.learning_rate=0.02"}));
  const VerdictReport report = compare("one", "other");
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  EXPECT_EQ(report.first->step, 1);
  EXPECT_EQ(report.findings[0]["name"], "optimizer_config.learning_rate");
  EXPECT_EQ(report.stage, "optimizer") << report_text(report);
}

TEST_F(BitPlants, RunsWithoutHashesCannotBeCompared) {
  train(config("one"));
  train(config("other", {"training_config.exact=False"}));
  const VerdictReport report = compare("one", "other");
  EXPECT_EQ(report.outcome, Outcome::kNotComparable);
  EXPECT_THAT(report.lines, Contains(HasSubstr("training_config.exact: True")));
}

TEST_F(BitPlants, AStepIsProved) {
  const auto prove = [&](const std::string& run, int64_t step) {
    VerdictReport report;
    run_thread_ranks(1, [&](const std::shared_ptr<ProcessGroup>& world) {
      PretrainOptions training;
      training.world = world;
      report = prove_step({.config_file = dir_.file(run) + "/config.yaml",
                           .checkpoint = dir_.file(run) + "/checkpoint/step_00000002",
                           .step = step,
                           .program = "test",
                           .training = training},
                          [&](const std::vector<std::string>& more) {
                            return init_configs_from_yaml(dir_.file(run) + "/config.yaml",
                                                          {.overrides = more});
                          });
      destroy_model_parallel();
    });
    return report;
  };
  train(config("run"));
  const std::string before = dir_.read("run/metrics.jsonl");
  const VerdictReport proved = prove("run", 4);
  EXPECT_EQ(proved.outcome, Outcome::kAgrees) << report_text(proved);
  EXPECT_EQ(proved.verdict, "proved");
  EXPECT_EQ(proved.findings.size(), 2);
  EXPECT_THAT(proved.lines, Contains(HasSubstr("configuration")));
  EXPECT_EQ(dir_.read("run/metrics.jsonl"), before);
  EXPECT_THAT(message_of<ValueError>([&] { prove("run", 9); }), HasSubstr("no hash of step 9"));
  EXPECT_THAT(message_of<ValueError>([&] { prove("run", 2); }), HasSubstr("not before step 2"));

  const auto fault = std::make_shared<BitFault>();
  fault->step = 4;
  // Not the lowest bit, which the update of a weight that no token reads may round away.
  fault->draw = (uint64_t{12} << 32U) + 12345;
  train(config("run"), with(fault));
  const VerdictReport differs = prove("run", 4);
  EXPECT_EQ(differs.outcome, Outcome::kDiffers);
  EXPECT_EQ(differs.first->step, 4);
}

TEST(VerifyLayoutBits, LayoutsHaveTheBitsOfOneProcess) {
  const LayoutPair pair = testing::small_pair(
      "tp=2,dp=2", testing::joined(testing::kLlama,
                                   {"training_config.exact=True", "model_config.vocab_size=32"}));
  VerifyOptions options = {.steps = 2, .parts = testing::made_up_data()};
  const LayoutReport report = compare_layout(pair, options);
  EXPECT_TRUE(report.agrees()) << report_text(report, pair);
  EXPECT_THAT(report_text(report, pair), HasSubstr("all bits are equal"));

  // The lowest bit of one weight, which no bound would notice.
  options.parts.before_step = [](ParallelModel& model, int64_t step) {
    if (step == 2 && RankContext::current().rank() < 2) {
      const auto entry = model.named_parameters().back();
      auto* value = static_cast<float*>(entry.parameter->raw());
      *value = std::nextafter(*value, 2.0F);
      entry.parameter->bump_version();
    }
  };
  const LayoutReport differs = compare_layout(pair, options);
  EXPECT_FALSE(differs.agrees()) << report_text(differs, pair);
  EXPECT_EQ(differs.findings->first()->step, 2);
  EXPECT_EQ(differs.findings->first()->bound, 0);
  EXPECT_THAT(report_text(differs, pair), HasSubstr("bits are compared"));
}

}  // namespace
}  // namespace bit_plants_test
}  // namespace tapestry
