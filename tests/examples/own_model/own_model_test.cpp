// examples/gpt/own_model.cpp: a program with a model of its own computes in every layout what it
// computes in one process, on ranks that are threads and on ranks that mpirun starts.
#include <algorithm>
#include <cmath>

#include "autograd/io/json.h"
#include "autograd/ops/elementwise.h"
#include "diagnosis/verify/layout_findings.h"
#include "diagnosis/verify/rounding_spread.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

// Four steps of eight sequences in all.
constexpr const char* kRun =
    " --training_iters 4 --seed 7 --num_threads 1 --data_path text_text_document"
    " --tokenizer_type byte --split 90,10,0 --vocab_size 260 --num_layers 2"
    " --hidden_size 16 --ffn_hidden_size 32 --num_attention_heads 2 --seq-length 16"
    " --position_embedding_type rope --normalization RMSNorm --init_method_std 0.1 --lr 1e-2"
    " --lr_decay_style cosine --weight_decay 0.1 --clip_grad 1.0 --save_interval 4";

// A micro-batch as the layouts have it, and the same steps in others, whose sums are split
// elsewhere; and at the lowest CPU level and the processor's own, one of which adds up in another
// order.
constexpr const char* kTwo = " --micro-batch-size 2";
constexpr const char* kOtherSplits[] = {" --micro-batch-size 1 --micro_batch_num 8",
                                        " --micro-batch-size 4 --micro_batch_num 2",
                                        " --micro-batch-size 8 --micro_batch_num 1"};
constexpr const char* kOtherLevels[] = {"env TAPESTRY_CPU_LEVEL=portable ",
                                        "env -u TAPESTRY_CPU_LEVEL "};

double bound(double spread) {
  constexpr double kFloat32Rounding = 0x1p-24;
  return RoundingSpread::kMultiple * std::max(spread, kFloat32Rounding);
}

class OwnModelTest : public ProgramTest {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(prepare_text()); }
  int own_model(const std::string& words) { return run(TAPESTRY_OWN_MODEL, words); }

  struct Curve {
    std::vector<double> losses, norms;
    LogicalState weights;
  };
  Curve read_run(const std::string& folder) {
    Curve curve;
    for (const nlohmann::json& values : steps(folder)) {
      curve.losses.push_back(values.at("loss").get<double>());
      curve.norms.push_back(values.at("grad_norm").get<double>());
    }
    curve.weights = read_weights(dir_.file(folder + "/checkpoint/step_00000004"));
    return curve;
  }

  // The largest relative difference of each kind, and where that of the weights is.
  struct Distance {
    double loss = 0, norm = 0, weight = 0;
    std::string farthest;
  };
  static Distance distance(const Curve& found, const Curve& expected) {
    Distance far;
    EXPECT_EQ(found.losses.size(), 4U);
    EXPECT_EQ(found.weights.size(), expected.weights.size());
    for (size_t i = 0; i < std::min(found.losses.size(), expected.losses.size()); ++i) {
      far.loss = std::max(far.loss, std::abs(found.losses[i] / expected.losses[i] - 1));
      far.norm = std::max(far.norm, std::abs(found.norms[i] / expected.norms[i] - 1));
    }
    for (const auto& [name, weight] : expected.weights) {
      if (!found.weights.contains(name)) {
        ADD_FAILURE() << name << " is missing";
        continue;
      }
      const double here = norm_distance(found.weights.at(name), weight, euclidean_norm(weight));
      if (here >= far.weight) {
        far.weight = here;
        far.farthest = name;
      }
    }
    return far;
  }
};

TEST_F(OwnModelTest, EveryLayoutComputesWhatOneProcessDoes) {
  for (const char* layout : {"tp=2,micro=2", "pp=2,micro=2", "dp=2,micro=2",
                             "tp=2,sp,pp=2,dp=2,zero=z2,overlap,micro=2", "cp=2,micro=2"}) {
    ASSERT_EQ(own_model(concat("--verify_layout ", layout, kRun, kTwo)), 0) << said();
    EXPECT_THAT(out_, HasSubstr("no difference above its bound\n")) << layout;
    EXPECT_THAT(out_, HasSubstr("3 steps")) << layout;
    EXPECT_THAT(out_, HasSubstr("\ngradients ")) << layout;
    EXPECT_FALSE(std::filesystem::exists(dir_.file("output")));
  }
  ASSERT_EQ(own_model(concat(kRun, kTwo, " --verify_steps=1 --verify_layout=tp=2")), 0) << said();
  EXPECT_THAT(out_, HasSubstr("1 steps"));
}

TEST_F(OwnModelTest, TrainsUnderMpirunAsInOneProcess) {
  ASSERT_EQ(own_model(concat(kRun, kTwo, " --micro_batch_num 4 --output_dir one")), 0) << said();
  const Curve expected = read_run("one");
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  EXPECT_THAT(out_, HasSubstr("model      OwnModel"));
  EXPECT_TRUE(expected.weights.contains("layers.1.gate.weight"));
  EXPECT_TRUE(expected.weights.contains("layers.0.attention.wq.weight"));
  // AdamW's steps carry the rounding of small gradients into weights: what layouts may differ by
  // follows from what the same steps differ by when only rounding does.
  Distance spread;
  const auto measure = [&](const std::string& level, const std::string& split) {
    ASSERT_EQ(run(concat(level, TAPESTRY_OWN_MODEL),
                  concat(kRun, split, " --overwrite --output_dir other")),
              0)
        << said();
    const Distance moved = distance(read_run("other"), expected);
    spread.loss = std::max(spread.loss, moved.loss);
    spread.norm = std::max(spread.norm, moved.norm);
    spread.weight = std::max(spread.weight, moved.weight);
  };
  for (const char* split : kOtherSplits) {
    measure("", split);
  }
  for (const char* level : kOtherLevels) {
    measure(level, concat(kTwo, " --micro_batch_num 4"));
  }
  EXPECT_LT(spread.weight, 1e-2);  // a bound from a run gone wrong would bound nothing
  struct Layout {
    const char* name;
    int ranks;
    const char* words;
  };
  for (const Layout& layout :
       {Layout{"tp", 2, "--tensor_model_parallel_size 2 --micro_batch_num 4"},
        Layout{"pp", 2, "--pipeline_model_parallel_size 2 --micro_batch_num 4"},
        Layout{"dp", 2, "--zero_level z2 --global-batch-size 8 --data-parallel-size 2"},
        Layout{"tp_pp", 4,
               "--tensor_model_parallel_size 2 --sequence_parallel "
               "--pipeline_model_parallel_size 2 --micro_batch_num 4"}}) {
    ASSERT_EQ(
        run(concat(TAPESTRY_MPIEXEC, " --oversubscribe -n ", layout.ranks, " ", TAPESTRY_OWN_MODEL),
            concat(kRun, kTwo, " ", layout.words, " --output_dir ", layout.name)),
        0)
        << said();
    const Distance far = distance(read_run(layout.name), expected);
    EXPECT_LE(far.loss, bound(spread.loss)) << layout.name;
    EXPECT_LE(far.norm, bound(spread.norm)) << layout.name;
    EXPECT_LE(far.weight, bound(spread.weight)) << layout.name << " " << far.farthest;
  }
}

TEST_F(OwnModelTest, WhatIsNotPossible) {
  EXPECT_EQ(own_model(concat(kRun, kTwo, " --hiden_size 3")), 2);
  EXPECT_THAT(err_, HasSubstr("unknown name 'hiden_size'; did you mean 'hidden_size'?"));
  EXPECT_EQ(own_model(std::string("--verify_layout pp=4") + kRun), 2);
  EXPECT_THAT(err_, HasSubstr("layer"));
  EXPECT_EQ(own_model(concat(kRun, kTwo, " --verify_steps 3")), 2);
  EXPECT_THAT(err_, HasSubstr("has no effect without --verify_layout"));
  EXPECT_EQ(own_model("--vocab_size 3"), 2);
  EXPECT_THAT(err_, HasSubstr("model_config.hidden_size is required"));
}

}  // namespace
}  // namespace tapestry
