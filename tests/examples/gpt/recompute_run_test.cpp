// Recomputation as a user of the program sees it: log lines, estimate, the same numbers.
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::recompute_run_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RecomputeRun : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", replaced(kTinyRun, "num_layers: 1",
                                    "num_layers: 3\n  hidden_act: swiglu\n  hidden_dropout: 0.1\n"
                                    "  attention_dropout: 0.1"));
  }
  int train(const std::string& output, const std::string& arguments) {
    return pretrain("--config_path run.yaml --set training_config.output_dir=" + output + " " +
                    arguments);
  }
  std::string log(const std::string& output) const {
    return dir_.read(output + "/log/rank_0/info.log");
  }
  // metrics.jsonl without memory.
  std::string numbers(const std::string& output) const {
    return std::regex_replace(metrics(output), std::regex("\"memory\":\\{.*?\\}\\}"), "");
  }
};

TEST_F(RecomputeRun, SaysWhatItDoesAndTrainsTheSame) {
  ASSERT_EQ(train("plain", ""), 0) << said();
  dir_.write("block.yaml",
             dir_.read("run.yaml") +
                 "recompute_config:\n"
                 "  recompute: [1]\n"
                 "  select_recompute:\n"
                 "    'feed_forward\\.w1\\.activation\\.silu': True\n"
                 "    'feed_forward\\.mul': True\n"
                 "    'feed_forward\\.w1\\.matmul': [2]\n"
                 "    'feed_forward\\.w1\\.matmull': True\n"
                 "  select_comm_recompute: ['ffn_norm\\.norm','attention_norm\\.norm']\n"
                 "  select_comm_recompute_exclude: ['attention_norm']\n");
  ASSERT_EQ(pretrain("--config_path block.yaml"), 0) << said();
  EXPECT_EQ(numbers("output"), numbers("plain"));
  const std::string text = log("output");
  for (const char* line :
       {"num_layers per stage: [[3]]\n", "Accumulated num_layers per stage: [[3]]\n",
        "Pipeline id list with start_stage: [0, 0, 0]\n", "Interleave id list: [0, 0, 0]\n",
        "Formative ... layer_recompute: [[1]]\n",
        "Formative select_recompute: {'feed_forward\\.w1\\.activation\\.silu': [[3]], "
        "'feed_forward\\.mul': [[3]], 'feed_forward\\.w1\\.matmul': [[2]], "
        "'feed_forward\\.w1\\.matmull': [[3]]}\n",
        "Formative select_comm_recompute: {'ffn_norm\\.norm': [[3]], 'attention_norm\\.norm': "
        "[[3]]}\n",
        "full recompute at layer ... 0\n",
        "Set select recompute on at layer 1: feed_forward.w1.activation.silu, feed_forward.mul, "
        "feed_forward.w1.matmul\n",
        "Set select recompute on at layer 2: feed_forward.w1.activation.silu, feed_forward.mul\n",
        "Set select comm recompute on at layer 1: ffn_norm.norm, attention_norm.norm\n"}) {
    EXPECT_THAT(text, Says(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("at layer 0: ")));
  EXPECT_THAT(out_ + err_,
              Says("'feed_forward\\.w1\\.matmull' ... layer; there are ... attention_norm.norm,"));
  EXPECT_THAT(out_, Says("'attention_norm' ... attention_norm, ... and has no effect"));
  EXPECT_THAT(out_, Says("recompute: ... micro-batch, ... the layers keep"));
  // The run's own record says the same.
  ASSERT_EQ(pretrain("--config_path output/config.yaml --set training_config.output_dir=again"), 0)
      << said();
  EXPECT_EQ(numbers("again"), numbers("plain"));
  EXPECT_THAT(log("again"), Says("Formative ... layer_recompute: [[1]]\n"));
}

TEST_F(RecomputeRun, EverySpellingOfAllLayers) {
  ASSERT_EQ(train("plain", ""), 0) << said();
  for (const std::string& spelling :
       {std::string("--set parallel_config.recompute_config=True"),
        std::string("--set parallel_config.recompute=[3]"),
        std::string("--set model_config.recompute_granularity=full"),
        std::string("--set recompute_config.recompute_layers=[0,1,2]")}) {
    ASSERT_EQ(train("again", spelling + " --overwrite"), 0) << said();
    EXPECT_EQ(numbers("again"), numbers("plain")) << spelling;
    EXPECT_THAT(log("again"), Says("full recompute at layer ... 2")) << spelling;
    const auto peak = [&](const char* output) {
      return steps(output).back().at("memory").at("activations").at("peak_bytes").get<int64_t>();
    };
    EXPECT_LT(peak("again"), peak("plain")) << spelling;
  }
}

TEST_F(RecomputeRun, TheEstimateKnowsIt) {
  const auto estimate = [&](const std::string& arguments) {
    EXPECT_EQ(
        pretrain(
            "--config_path run.yaml --dry_run --verbose --set model_config.seq_length=1024 --set "
            "dataset_config.batch_size=64 " +
            arguments),
        0)
        << said();
    return out_;
  };
  EXPECT_THAT(estimate(""), Not(HasSubstr("\nrecompute: ")));
  EXPECT_THAT(estimate("--set parallel_config.recompute_config=True"),
              AllOf(HasSubstr("(recomputation spares "),
                    HasSubstr("\nrecompute: of each, layers 0 to 2: ")));
}

}  // namespace
}  // namespace tapestry::recompute_run_test
