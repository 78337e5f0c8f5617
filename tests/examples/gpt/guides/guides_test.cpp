// Snippets of MindFormers' guides, in small runs: what the guides say comes of them.
#include <regex>
#include <set>

#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two layers of width 16 on a text of its own; snippets come behind it. The text has 80 rows of 16
// tokens but 5: an epoch is 18.75 steps of four.
constexpr const char* kSmallRun =
    "training_config: {training_iters: 3, seed: 7, log_interval: 1, num_threads: 1}\n"
    "dataset_config:\n"
    "  {text: [text.txt], tokenizer_type: byte, split: '1,0,0', batch_size: 2, micro_batch_num: "
    "2}\n"
    "optimizer_config: {optimizer_type: AdamW, learning_rate: 1.0e-3, weight_decay: 0.1}\n";

std::string model(int layers, const std::string& more = "") {
  return "model_config:\n  num_layers: " + std::to_string(layers) +
         "\n  hidden_size: 16\n  ffn_hidden_size: 32\n  num_attention_heads: 2\n  vocab_size: 260\n"
         "  seq_length: 16\n  position_embedding_type: rope\n  hidden_act: swiglu\n"
         "  normalization: RMSNorm\n" +
         more;
}

class GuidesTest : public ProgramTest {
 protected:
  void SetUp() override {
    dir_.write("text.txt", sample_text(60).substr(0, 1200));
    snippet("run", "");
  }
  void snippet(const std::string& name, const std::string& text, int layers = 2) {
    dir_.write(name + ".yaml", kSmallRun + model(layers) + text);
  }
  /// Trains NAME.yaml into the folder NAME.
  int train(const std::string& name, const std::string& words = "") {
    return pretrain(arguments(name) + words);
  }
  int train_ranks(int ranks, const std::string& name, const std::string& words = "") {
    return run(std::string(TAPESTRY_MPIEXEC) + " -q --oversubscribe --bind-to none -n " +
                   std::to_string(ranks) + " " TAPESTRY_PRETRAIN_GPT,
               arguments(name) + words);
  }
  static std::string arguments(const std::string& name) {
    return "--config_path " + name + ".yaml --overwrite --set training_config.output_dir=" + name +
           " ";
  }
  std::string info(const std::string& name) const {
    return dir_.read(name + "/log/rank_0/info.log");
  }
  int count(const std::string& text, const std::string& expression) const {
    const std::regex wanted(expression);
    return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), wanted),
                                          std::sregex_iterator()));
  }
};

TEST_F(GuidesTest, AccumulationInAFileAndOnTheCommandLine) {
  snippet("file", "runner_config:\n  gradient_accumulation_steps: 4\n");
  ASSERT_EQ(train("file"), 0) << said();
  ASSERT_EQ(train("run", "--gradient_accumulation_steps 4"), 0) << said();
  EXPECT_EQ(metrics("file"), metrics("run"));
  EXPECT_EQ(steps("run").front().at("tokens"), 8 * 2 * 16);
  // Megatron's names, a key of a section, and a switch.
  ASSERT_EQ(train("run",
                  "--train-iters=2 --lr 2e-3 --dataset_config.micro_batch_num 3 "
                  "--save-last False"),
            0)
      << said();
  EXPECT_EQ(steps("run").size(), 2);
  EXPECT_EQ(steps("run").front().at("lr").front(), 2e-3);
  EXPECT_EQ(steps("run").front().at("tokens"), 3 * 2 * 16);
  EXPECT_EQ(train("file",
                  "--gradient_accumulation_steps 2 "
                  "--set training_config.gradient_accumulation_steps=3"),
            2)
      << said();
  EXPECT_THAT(err_, Says("--gradient_accumulation_steps 2: ... is given by --set ... too"));
}

TEST_F(GuidesTest, Clipping) {
  snippet("clipped",
          "runner_wrapper:\n  type: MFTrainOneStepCell\n  use_clip_grad: True\n"
          "  max_grad_norm: 1.0\n");
  snippet("usual", "runner_wrapper:\n  type: MFTrainOneStepCell\n  use_clip_grad: True\n");
  snippet("unclipped", "runner_wrapper:\n  type: MFTrainOneStepCell\n  max_grad_norm: 1.0\n");
  for (const char* name : {"run", "clipped", "usual", "unclipped"}) {
    ASSERT_EQ(train(name), 0) << said();
  }
  EXPECT_EQ(metrics("clipped"), metrics("usual"));
  EXPECT_EQ(metrics("run"), metrics("unclipped"));
  EXPECT_NE(metrics("run"), metrics("clipped"));
}

TEST_F(GuidesTest, FusedOperators) {
  dir_.write("fused.yaml",
             kSmallRun + model(2, "  use_fused_rope: True\n  use_fused_swiglu: True\n"));
  ASSERT_EQ(train("run"), 0) << said();
  ASSERT_EQ(train("fused"), 0) << said();
  EXPECT_EQ(metrics("run"), metrics("fused"));
}

TEST_F(GuidesTest, ExpertsInGroups) {
  const std::string moe = "moe_config:\n  expert_num: 4\n  num_experts_chosen: 2\n";
  snippet("plain", moe);
  snippet("grouped", moe + "  use_gmm: True\n  use_fused_ops_permute: True\n");
  snippet("safe", moe + "  enable_gmm_safe_tokens: True\n");
  for (const char* name : {"plain", "grouped", "safe"}) {
    ASSERT_EQ(train(name), 0) << said();
    EXPECT_EQ(metrics(name), metrics("plain")) << name;
  }
}

TEST_F(GuidesTest, DropRateOfEachLayer) {
  const std::string moe =
      "moe_config:\n  expert_num: 4\n  num_experts_chosen: 2\n  capacity_factor: 1.5\n"
      "  callback_moe_droprate: True\n";
  const std::string callback =
      ":\n  - type: MoEDropRateCallback\n    expert_num: 4\n    capacity_factor: 1.5\n"
      "    num_layers: 2\n    mtp_depth: ";
  snippet("singular", moe + "callback" + callback + "1\n");
  snippet("plural", moe + "callbacks" + callback + "1\n");
  snippet("without", moe + "callbacks" + callback + "0\n");
  for (const char* name : {"singular", "plural", "without"}) {
    ASSERT_EQ(train(name), 0) << said();
    EXPECT_EQ(count(out_, "layer: [01], drop_rate: [0-9]\\.[0-9]{5}\n"), 2 * 3) << said();
    EXPECT_EQ(count(out_, "drop_rate"), 2 * 3) << said();
  }
}

TEST_F(GuidesTest, LocalNorms) {
  snippet("norms",
          "runner_wrapper:\n  type: MFTrainOneStepCell\n  local_norm: True\n"
          "  scale_sense: 1\n  loss_scale_value: 65536\n  use_clip_grad: True\n");
  ASSERT_EQ(train("norms"), 0) << said();
  EXPECT_GT(count(out_,
                  "local_norm: language_model\\.[a-z_.0-9]* \\[[0-9, ]*\\], [0-9]* elements, "
                  "sum of squares [0-9.e-]*, norm [0-9.e-]*\n"),
            3 * 10);
}

TEST_F(GuidesTest, SpikesAreSkippedUntilThereAreTooMany) {
  const std::string monitor =
      "use_skip_data_by_global_norm: True\nmonitor_config:\n  monitor_on: True\n"
      "  check_for_global_norm: False\n  global_norm_spike_threshold: 0.01\n"
      "  global_norm_spike_count_threshold: 2\n";
  snippet("skip", monitor);
  ASSERT_EQ(train("skip"), 1) << said();
  EXPECT_THAT(out_ + err_,
              ::testing::ContainsRegex(
                  "opt_global_step: 0, skip_data_grad_norm_threshold: 0.01, is_skip: \\[ True\\]\n"
                  ".* Current global norm \\[[0-9.]+\\] of step 1 has been 1 consecutive times "
                  "greater than threshold: 0.01\n"));
  EXPECT_THAT(out_ + err_,
              ::testing::ContainsRegex("Current global norm \\[[0-9.]+\\] of step 2 has been 2 "
                                       "consecutive times greater than threshold 0.01, stop "
                                       "training\\.\\.\\."));
  snippet("both", replaced(monitor, "check_for_global_norm: False", "check_for_global_norm: True"));
  EXPECT_EQ(train("both"), 2) << said();
  EXPECT_THAT(err_, HasSubstr("cannot be turned on at the same time, please choose one."));
}

TEST_F(GuidesTest, HealthOfCheckpointsInAStaticLayout) {
  snippet("health",
          "use_checkpoint_health_monitor : True\nmonitor_config:\n  monitor_on: True\n"
          "runner_wrapper:\n  local_norm: True\n"
          "callbacks:\n  - type: CheckpointMonitor\n    save_checkpoint_steps: 1\n"
          "    embedding_local_norm_threshold: 270.0\n"
          "parallel:\n  full_batch: False\n  dataset_strategy: [[2, 1], [2, 1]]\n"
          "parallel_config:\n  data_parallel: 2\n  pipeline_stage: 2\n  micro_batch_num: 2\n");
  ASSERT_EQ(train_ranks(4, "health"), 0) << said();
  EXPECT_EQ(count(out_, "embedding_local_norm: [0-9.]+\n"), 3) << said();
  EXPECT_THAT(info("health"), HasSubstr("dp 2 | pp 2 | tp 1 | sp False | vpp None"));
  EXPECT_EQ(count(dir_.read("health/health_ckpts.json"), "\"is_health\": 0"), 3);
  EXPECT_EQ(train_ranks(2, "health"), 2) << said();
  EXPECT_THAT(out_ + err_, Says("data_parallel_size is 2 ... leave 1 for data parallelism ... "
                                "mpirun -n 4"));
}

// The guide's second example made small: ten layers on two stages of two chunks each.
TEST_F(GuidesTest, RecomputationByStagesAndChunks) {
  const std::string recompute =
      "recompute_config:\n  recompute: [[1, 0], [1, 1]]\n"
      "  select_recompute:\n    'feed_forward\\.mul': True\n"
      "    'feed_forward\\.w1\\.matmul': [3, 1]\n"
      "  select_comm_recompute: ['ffn_norm\\.norm']\n";
  const std::string offset = "offset: [[0, 1], [1, 0]]\n";
  snippet("dynamic",
          "parallel_config:\n  pipeline_model_parallel_size: 2\n"
          "  virtual_pipeline_model_parallel_size: 2\n  " +
              offset + recompute,
          10);
  dir_.write("static.yaml", kSmallRun + model(10, "  pp_interleave_num: 2\n  " + offset) +
                                "parallel_config:\n  pipeline_stage: 2\n  micro_batch_num: 2\n" +
                                recompute);
  for (const char* name : {"dynamic", "static"}) {
    ASSERT_EQ(train_ranks(2, name), 0) << said();
    for (const char* line :
         {"num_layers per stage: [[2, 3], [3, 2]]\n",
          "Accumulated num_layers per stage: [[2, 5], [8, 10]]\n",
          "Formative layer_recompute: [[1, 0], [1, 1]]\n",
          "Formative select_recompute: {'feed_forward\\.mul': [[2, 3], [3, 2]], "
          "'feed_forward\\.w1\\.matmul': [[2, 1], [1, 0]]}\n",
          "Formative select_comm_recompute: {'ffn_norm\\.norm': [[2, 3], [3, 2]]}\n",
          "Set full recompute at layer 0\n", "Set full recompute at layer 5\n",
          "Set full recompute at layer 8\n",
          "Set select recompute on at layer 1: feed_forward.mul, feed_forward.w1.matmul\n"}) {
      EXPECT_THAT(info(name), HasSubstr(line)) << name;
    }
  }
  for (size_t step = 0; step < 3; ++step) {
    for (const char* value : {"loss", "grad_norm", "tokens"}) {
      EXPECT_EQ(steps("dynamic").at(step).at(value), steps("static").at(step).at(value));
    }
  }
}

TEST_F(GuidesTest, EpochsInTheLinesOfTheStaticLog) {
  snippet("epochs",
          "runner_config:\n  epochs: 2\n  batch_size: 2\n  sink_mode: True\n"
          "  sink_size: 1\n");
  ASSERT_EQ(train("epochs", "--training_iters 0 --log_style static"), 0) << said();
  for (const char* line : {"{ Epoch:[  1/  2], step:[    1/   19], loss: ",
                           "{ Epoch:[  1/  2], step:[   19/   19], loss: ", "   50.0% |",
                           "{ Epoch:[  2/  2], step:[    1/   19], loss: ",
                           "{ Epoch:[  2/  2], step:[   19/   19], loss: ", "  100.0% |"}) {
    EXPECT_THAT(out_, HasSubstr(line));
  }
  EXPECT_EQ(count(out_, "Epoch:\\["), 38);
  EXPECT_EQ(count(out_, "100\\.0%"), 1);
}

TEST_F(GuidesTest, DumpsOfTheirSettings) {
  const auto dump = [&](const std::string& mode, const std::string& kernel) {
    dir_.write("dump.json",
               "{\"common_dump_settings\": {\"op_debug_mode\": 0, \"dump_mode\": " + mode +
                   ", \"path\": \"dumped\", \"net_name\": \"ResNet50\", \"iteration\": \"0|2-8\", "
                   "\"saved_data\": \"full\", \"input_output\": 0, \"kernels\": [\"" +
                   kernel +
                   "\"], \"support_device\": [0, 1]}, \"e2e_dump_settings\": {\"enable\": true, "
                   "\"trans_flag\": true}}");
    std::filesystem::remove_all(dir_.file("dumped"));
    return train("run", "--dump dump.json");
  };
  ASSERT_EQ(dump("0", "Default/Conv-op12"), 0) << said();
  EXPECT_THAT(out_ + err_, Says("warning dump: kernels: 'Default/Conv-op12' matches no op ... "
                                "with dump_mode 0 all are dumped"));
  EXPECT_EQ(count(out_ + err_, "matches no op"), 1);
  EXPECT_TRUE(std::filesystem::exists(dir_.file("dumped/rank_0/ResNet50/0/0/statistic.csv")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("dumped/rank_0/ResNet50/0/1")));
  EXPECT_TRUE(std::filesystem::exists(dir_.file("dumped/rank_0/ResNet50/0/2/statistic.csv")));
  ASSERT_EQ(dump("1", "Default/Conv-op12"), 0) << said();
  EXPECT_THAT(out_ + err_, Says("nothing is dumped for it"));
  for (const char* mode : {"0", "1"}) {
    ASSERT_EQ(dump(mode, "linear"), 0) << said();
    EXPECT_THAT(out_ + err_, Not(HasSubstr("matches no op")));
  }
}

TEST_F(GuidesTest, TheFileOfTheFolder) {
  EXPECT_EQ(pretrain(""), 2) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("--config_path FILE is needed"), HasSubstr(dir_.path()),
                          HasSubstr("has no pretrain_gpt.yaml")));
  dir_.write("pretrain_gpt.yaml", dir_.read("run.yaml"));
  ASSERT_EQ(pretrain("--training_iters 1"), 0) << said();
  EXPECT_THAT(err_, Says("takes pretrain_gpt.yaml of this folder"));
  EXPECT_EQ(steps().size(), 1);
  // One that is named goes before it.
  ASSERT_EQ(train("run"), 0) << said();
  EXPECT_THAT(err_, Not(HasSubstr("of this folder")));
}

TEST_F(GuidesTest, NoRoomNamesLayoutsThatFit) {
  const std::string wide =
      "--dry_run --num_layers 64 --hidden_size 32768 --ffn_hidden_size 65536 "
      "--num_attention_heads 64 --batch_size 1 --micro_batch_num 1 ";
  EXPECT_EQ(pretrain("--config_path run.yaml " + wide), 2) << said();
  EXPECT_THAT(err_,
              Says("this configuration needs about ... TiB of memory, but ... are available"));
  EXPECT_THAT(err_, Says("No layout of up to 128 machines like this one fits"));
}

}  // namespace
}  // namespace tapestry
