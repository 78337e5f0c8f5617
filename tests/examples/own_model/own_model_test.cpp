// examples/gpt/own_model.cpp: a program with a model of its own computes in every layout what it
// computes in one process, on ranks that are threads and on ranks that mpirun starts.
#include <nlohmann/json.hpp>

#include "autograd/ops/elementwise.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/verification/layout_findings.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

// Four steps of eight sequences in all.
constexpr const char* kRun =
    " --training_iters 4 --seed 7 --num_threads 1 --data_path text_text_document"
    " --tokenizer_type byte --split 90,10,0 --micro-batch-size 2 --vocab_size 260 --num_layers 2"
    " --hidden_size 16 --ffn_hidden_size 32 --num_attention_heads 2 --seq-length 16"
    " --position_embedding_type rope --normalization RMSNorm --init_method_std 0.1 --lr 1e-2"
    " --lr_decay_style cosine --weight_decay 0.1 --clip_grad 1.0 --save_interval 4";

// Four steps in float32, whose roundings are 6e-8 of a value each; AdamW's steps carry those of
// small gradients into weights.
constexpr double kLoss = 1e-5;
constexpr double kNorm = 5e-4;
constexpr double kWeight = 1e-4;

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
    std::istringstream lines(dir_.read(folder + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto values = nlohmann::json::parse(line);
      curve.losses.push_back(values.at("loss").get<double>());
      curve.norms.push_back(values.at("grad_norm").get<double>());
    }
    curve.weights = read_weights(dir_.file(folder + "/checkpoint/step_00000004"));
    return curve;
  }
  void expect_equal(const Curve& found, const Curve& expected, const std::string& layout) {
    ASSERT_EQ(found.losses.size(), 4U) << layout;
    for (size_t i = 0; i < found.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], kLoss * expected.losses[i]) << layout;
      EXPECT_NEAR(found.norms[i], expected.norms[i], kNorm * expected.norms[i]) << layout;
    }
    ASSERT_EQ(found.weights.size(), expected.weights.size());
    for (const auto& [name, weight] : expected.weights) {
      ASSERT_TRUE(found.weights.contains(name)) << name;
      EXPECT_LE(norm_distance(found.weights.at(name), weight, euclidean_norm(weight)), kWeight)
          << layout << " " << name;
    }
  }
};

TEST_F(OwnModelTest, EveryLayoutComputesWhatOneProcessDoes) {
  for (const char* layout : {"tp=2,micro=2", "pp=2,micro=2", "dp=2,micro=2",
                             "tp=2,sp,pp=2,dp=2,zero=z2,overlap,micro=2", "cp=2,micro=2"}) {
    ASSERT_EQ(own_model(std::string("--verify_layout ") + layout + kRun), 0) << said();
    EXPECT_THAT(out_, HasSubstr("no difference above its bound\n")) << layout;
    EXPECT_THAT(out_, HasSubstr("3 steps")) << layout;
    EXPECT_THAT(out_, HasSubstr("\ngradients ")) << layout;
    EXPECT_FALSE(std::filesystem::exists(dir_.file("output")));
  }
  ASSERT_EQ(own_model(std::string(kRun) + " --verify_steps=1 --verify_layout=tp=2"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("1 steps"));
}

TEST_F(OwnModelTest, TrainsUnderMpirunAsInOneProcess) {
  ASSERT_EQ(own_model(std::string(kRun) + " --micro_batch_num 4 --output_dir one"), 0) << said();
  const Curve expected = read_run("one");
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  EXPECT_THAT(out_, HasSubstr("model      OwnModel"));
  EXPECT_TRUE(expected.weights.contains("layers.1.gate.weight"));
  EXPECT_TRUE(expected.weights.contains("layers.0.attention.wq.weight"));
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
            concat(kRun, " ", layout.words, " --output_dir ", layout.name)),
        0)
        << said();
    expect_equal(read_run(layout.name), expected, layout.name);
  }
}

TEST_F(OwnModelTest, WhatIsNotPossible) {
  EXPECT_EQ(own_model(std::string(kRun) + " --hiden_size 3"), 2);
  EXPECT_THAT(err_, HasSubstr("unknown name 'hiden_size'; did you mean 'hidden_size'?"));
  EXPECT_EQ(own_model(std::string("--verify_layout pp=3") + kRun), 2);
  EXPECT_THAT(err_, HasSubstr("layer"));
  EXPECT_EQ(own_model(std::string(kRun) + " --verify_steps 3"), 2);
  EXPECT_THAT(err_, HasSubstr("has no effect without --verify_layout"));
  EXPECT_EQ(own_model("--vocab_size 3"), 2);
  EXPECT_THAT(err_, HasSubstr("model_config.hidden_size is required"));
}

}  // namespace
}  // namespace tapestry
