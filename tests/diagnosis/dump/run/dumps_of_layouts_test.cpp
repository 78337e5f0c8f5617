// Dumps of layouts, held against that of one process by the bounds that rounding gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/compare_dumps.h"
#include "diagnosis/dump/movements.h"
#include "diagnosis/dump/run/rounded_steps.h"
#include "diagnosis/dump/run/tensor_dump.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/training.h"
#include "tests/parallel_core/layouts/layout_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace dumps_of_layouts_test {
namespace {

using testing::Overrides;

const Overrides kModel = {"training_config.training_iters=2", "model_config.hidden_dropout=0.1",
                          "dataset_config.micro_batch_num=2", "optimizer_config.eps=0.001"};

class Dumps : public ::testing::Test {
 protected:
  dump::DumpConfig dump_to(const std::string& name, const std::string& more = "") {
    const std::string file = dir_.path() + "/" + name + ".json";
    std::ofstream(file) << R"({"common_dump_settings": {"op_debug_mode": 0, "dump_mode": 1,
      "kernels": ["Value", "Parameter", "Scalar"],
      "net_name": "Net", "iteration": "0", "saved_data": "full", "path": ")"
                        << folder(name) << "\"" << more
                        << R"(}, "e2e_dump_settings": {"enable": true}})";
    return dump::read_dump_config(file);
  }
  std::string folder(const std::string& name) const { return dir_.path() + "/" + name; }

  // A step, and one that is not dumped, of what one rank has of a training.
  void train_dumped(const AllConfig& config,
                    const dump::DumpConfig& dump,
                    std::optional<uint64_t> draw = std::nullopt,
                    int64_t rank_on_host = 0) {
    testing::Trainer trainer(config);
    testing::MadeUpSamples source(config);
    std::optional<RoundedSteps> rounded;
    TrainOptions options;
    if (draw) {
      options.observers.push_back(&rounded.emplace(*draw, dump.iteration));
    }
    TensorDump dumps(trainer.cell, config, dump, rank_on_host);
    options.observers.push_back(&dumps);
    train(trainer.cell, source, config, options);
  }

  void dump_single(const AllConfig& config) {
    const auto run = [&](const std::string& name, std::optional<uint64_t> draw) {
      testing::run_parallel(1, {}, [&] { train_dumped(config, dump_to(name), draw); });
    };
    run("single", std::nullopt);
    dump::Movements movements;
    for (uint64_t draw = 0; draw < 2; ++draw) {
      run("moved", draw);
      movements.add(folder("single"), folder("moved"));
    }
    dump::write_rounding(dump::rounding_path(folder("single")), movements.rows());
  }

  void dump_layout(const LayoutPair& pair) {
    const ModelParallelConfig& p = pair.layout.parallel_config;
    const dump::DumpConfig dump = dump_to("layout");
    testing::run_parallel(static_cast<int>(world_size(p, pair.data_parallel_size)),
                          model_parallel_sizes(p), [&] { train_dumped(pair.layout, dump); });
  }

  accuracy::VerdictReport compared() {
    return accuracy::compare_dumps(folder("layout"), folder("single"), {});
  }

  data::TempDir dir_;
};

// Of the table, the rows that were held against a bound.
std::set<std::string> compared_ops(const accuracy::VerdictReport& report) {
  std::set<std::string> out;
  for (const accuracy::Finding& finding : report.findings) {
    if (finding.value("status", "") == "agrees") {
      out.insert(finding.value("tensor", ""));
    }
  }
  return out;
}

class DumpsOfLayouts : public Dumps, public ::testing::WithParamInterface<const char*> {};

TEST_P(DumpsOfLayouts, AgreeWithThatOfOneProcess) {
  const LayoutPair pair = testing::small_pair(GetParam(), kModel);
  dump_single(pair.single);
  dump_layout(pair);
  accuracy::CompareOptions all;
  all.rows = 100000;
  const accuracy::VerdictReport report =
      accuracy::compare_dumps(folder("layout"), folder("single"), all);
  EXPECT_EQ(report.outcome, accuracy::Outcome::kAgrees) << accuracy::report_text(report);
  const std::set<std::string> ops = compared_ops(report);
  for (const char* op : {"embedding", "layers.0.attention.q", "layers.1.attention.context",
                         "layers.1.mlp.active", "logits", "Gradients/layers.0.attention.wq.weight",
                         "layers.1.feed_forward.w_down.weight", "loss", "grad_norm"}) {
    EXPECT_TRUE(std::any_of(ops.begin(), ops.end(), [&](const std::string& name) {
      return name.find(op) != std::string::npos;
    })) << op;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         DumpsOfLayouts,
                         ::testing::Values("dp=2",
                                           "dp=2,zero=z1",
                                           "dp=2,zero=z3",
                                           "tp=2",
                                           "tp=2,sp",
                                           "pp=2",
                                           "cp=2",
                                           "tp=2,sp,pp=2,dp=2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST_F(Dumps, NameTheFirstValueThatIsMadeOtherwise) {
  LayoutPair pair = testing::small_pair("tp=2", kModel);
  dump_single(pair.single);
  pair.layout.model_config.norm_epsilon *= 10;
  dump_layout(pair);
  const accuracy::VerdictReport report = compared();
  ASSERT_EQ(report.outcome, accuracy::Outcome::kDiffers) << accuracy::report_text(report);
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->step, 1);
  EXPECT_EQ(report.first->tensor, "layers.0.attention_norm");
}

// Rank 1 of the job is rank 0 of a second host: support_device counts on each of them.
TEST_F(Dumps, GoByTheRankOnItsHost) {
  LayoutPair pair = testing::small_pair("dp=2,micro=1", kModel);
  const auto ranks_dumped = [&](const std::string& name, const std::string& devices) {
    const dump::DumpConfig dump = dump_to(name, ", \"support_device\": " + devices);
    testing::run_parallel(2, model_parallel_sizes(pair.layout.parallel_config), [&] {
      train_dumped(pair.layout, dump, std::nullopt, /*rank_on_host=*/0);
    });
    std::vector<std::string> ranks;
    for (const char* rank : {"rank_0", "rank_1"}) {
      if (std::filesystem::exists(folder(name) + "/" + rank)) {
        ranks.emplace_back(rank);
      }
    }
    return ranks;
  };
  EXPECT_THAT(ranks_dumped("first", "[0]"), ::testing::ElementsAre("rank_0", "rank_1"));
  EXPECT_THAT(ranks_dumped("second", "[1]"), ::testing::IsEmpty());
}

}  // namespace
}  // namespace dumps_of_layouts_test
}  // namespace tapestry
