// Whole runs: text, tokens, training, evaluation, checkpoint, generation, and the files of a run.
#include <fcntl.h>
#include <pty.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <regex>
#include <sstream>
#include <thread>

#include "autograd/io/json.h"
#include "parallel_core/config/config.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class StoryTest : public ProgramTest {
 protected:
  // Lines of a text that match a pattern.
  static int count(const std::string& text, const std::string& pattern) {
    const std::regex regex(pattern);
    std::istringstream lines(text);
    int found = 0;
    for (std::string line; std::getline(lines, line);) {
      found += std::regex_search(line, regex) ? 1 : 0;
    }
    return found;
  }
  static double mean_loss(const std::vector<Json>& steps, size_t first, size_t last) {
    double sum = 0;
    for (size_t i = first; i < last; ++i) {
      sum += steps.at(i).at("loss").get<double>();
    }
    return sum / static_cast<double>(last - first);
  }
};

TEST_F(StoryTest, FromTextToTextAndOn) {
  std::string lines;
  std::istringstream text(sample_text(600));
  for (std::string line; std::getline(text, line);) {
    lines += Json{{"id", lines.size()}, {"body", line}}.dump() + "\n";
  }
  dir_.write("corpus.jsonl", lines);
  ASSERT_EQ(preprocess("--input corpus.jsonl --json_key body --output_prefix data --tokenizer_type "
                       "sentencepiece --train_tokenizer --vocab_size 300 --append_eod"),
            0)
      << said();

  // The tokenizer is found beside the data.
  dir_.write("run.yaml",
             "training_config:\n  training_iters: 40\n  output_dir: first\n  log_interval: 5\n"
             "  eval_interval: 20\n  eval_iters: 2\n  save_interval: 20\n  seed: 3\n"
             "  num_threads: 1\n  log_param_grad_norms: True\n"
             "dataset_config:\n  data_path: data_body_document\n  batch_size: 8\n"
             "  micro_batch_num: 2\n  split: 90,10,0\n"
             "model_config:\n  vocab_size: 304\n  num_layers: 2\n  hidden_size: 32\n"
             "  ffn_hidden_size: 64\n  num_attention_heads: 2\n  seq_length: 32\n"
             "  position_embedding_type: rope\n"
             "optimizer_config:\n  learning_rate: 1e-2\n  lr_warmup_iters: 4\n");
  ASSERT_EQ(pretrain("--config_path run.yaml --run_cmd 'by hand, twice'"), 0) << said();
  EXPECT_EQ(err_, "");  // no progress bar, no error
  EXPECT_THAT(out_, Not(HasSubstr("\r")));
  EXPECT_THAT(out_, Not(HasSubstr("\x1b[")));

  // metrics.jsonl
  const std::vector<Json> first = steps("first");
  ASSERT_EQ(first.size(), 40U);
  for (size_t i = 0; i < first.size(); ++i) {
    const Json& line = first[i];
    EXPECT_EQ(line.at("step"), i + 1);
    for (const char* key : {"epoch", "loss", "grad_norm", "lr", "loss_tokens", "tokens",
                            "step_time_ms", "peak_bytes", "finite", "loss_scale", "grad_norms"}) {
      EXPECT_TRUE(line.contains(key)) << key;
    }
    EXPECT_EQ(line.at("tokens"), 8 * 2 * 32);
    EXPECT_EQ(line.contains("eval_loss"), i == 19 || i == 39);
  }
  EXPECT_NEAR(first[0].at("loss").get<double>(), std::log(304.0), 0.3);
  EXPECT_LT(mean_loss(first, 35, 40), 0.6 * mean_loss(first, 0, 2));
  EXPECT_DOUBLE_EQ(first[0].at("lr").at(0).get<double>(), 1e-2 / 4);  // of this step's update
  EXPECT_DOUBLE_EQ(first[1].at("lr").at(0).get<double>(), 2e-2 / 4);
  EXPECT_NEAR(first[39].at("eval_perplexity").get<double>(),
              std::exp(first[39].at("eval_loss").get<double>()), 1e-9);
  EXPECT_LT(first[39].at("eval_loss").get<double>(), first[19].at("eval_loss").get<double>());

  // Logs
  const std::string log = dir_.read("first/log/rank_0/info.log");
  EXPECT_EQ(count(log, R"( train: Epoch:\d+, Step:\d+, Loss: \d+\.\d{6}, Finite_grads: True, )"
                       R"(Loss_scale: 1\.0, Learning_rate: \((\d\.\d{6}e[-+]\d\d,)+\), )"
                       R"(Time: \d+\.\d\d ms, Tokens/s: \d+, Mean_loss: \d+\.\d{6}, )"
                       R"(Remaining: \d+:\d\d$)"),
            8);
  EXPECT_EQ(count(log, R"( eval: Step:(20|40), Loss: \d+\.\d{6}, Perplexity: \d+\.\d{4}$)"), 2);
  EXPECT_THAT(log, HasSubstr("run_cmd: by hand, twice"));
  EXPECT_THAT(log, HasSubstr("dp 1 | pp 1 | tp 1 | sp False | vpp None"));
  ASSERT_TRUE(fs::exists(dir_.file("first/log/rank_0/error.log")));
  EXPECT_EQ(dir_.read("first/log/rank_0/error.log"), "");

  // config.yaml reproduces the run
  const std::string resolved = dir_.read("first/config.yaml");
  EXPECT_THAT(resolved, HasSubstr("run_cmd: by hand, twice"));
  EXPECT_THAT(resolved, HasSubstr("# run.yaml:"));
  EXPECT_THAT(resolved, HasSubstr("# default"));
  ASSERT_EQ(pretrain("--config_path first/config.yaml --set training_config.output_dir=again"), 0)
      << said();
  EXPECT_EQ(metrics("again"), metrics("first"));
  EXPECT_TRUE(dir_.read("again/checkpoint/step_00000040/model.safetensors") ==
              dir_.read("first/checkpoint/step_00000040/model.safetensors"));

  // Checkpoints
  for (const char* step : {"step_00000020", "step_00000040"}) {
    for (const char* file :
         {"model.safetensors", "config.json", "config.yaml", "tokenizer.model"}) {
      EXPECT_TRUE(fs::exists(dir_.file(std::string("first/checkpoint/") + step + "/" + file)));
    }
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.file("first/checkpoint")), {}), 2);

  // Text
  const std::string arguments =
      "--checkpoint first --prompt 'And the king' --max_new_tokens 40 --temperature 0.8 --seed ";
  ASSERT_EQ(generate(arguments + "1"), 0) << said();
  const std::string written = out_;
  EXPECT_EQ(written.find("And the king"), 0U) << written;
  EXPECT_THAT(written.substr(12), HasSubstr("the ")) << written;
  ASSERT_EQ(generate(arguments + "1"), 0);
  EXPECT_EQ(out_, written);
  ASSERT_EQ(generate(arguments + "2"), 0);
  EXPECT_NE(out_, written);
  ASSERT_EQ(generate(arguments + "2 --top_k 1"), 0);
  const std::string likeliest = out_;
  ASSERT_EQ(generate(arguments + "3 --temperature 0"), 2);  // given twice
  ASSERT_EQ(generate("--checkpoint first/checkpoint/step_00000040 --prompt 'And the king' "
                     "--max_new_tokens 40 --temperature 0"),
            0)
      << said();
  EXPECT_EQ(out_, likeliest);

  // Training on from the weights
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=second --set "
                     "training_config.load_checkpoint=first/checkpoint --set "
                     "training_config.training_iters=10"),
            0)
      << said();
  const std::vector<Json> second = steps("second");
  EXPECT_LT(mean_loss(second, 0, 2), 0.7 * mean_loss(first, 0, 2));
  EXPECT_NEAR(mean_loss(second, 0, 2), mean_loss(first, 38, 40), 0.4);
}

TEST_F(StoryTest, ABlendTrainsOnBothParts) {
  dir_.write("a.txt", std::string(3000, 'a'));
  dir_.write("b.txt", std::string(3000, 'b'));
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(preprocess(concat("--input ", name, ".txt --output_prefix ", name,
                                " --tokenizer_type byte --append_eod")),
              0)
        << said();
  }
  dir_.write("run.yaml", replaced(kTinyRun, "data_path: text_text_document",
                                  "data_path: [0.7, a_text_document, 0.3, b_text_document]"));
  const std::string options =
      " --set dataset_config.split=100,0,0 --set training_config.training_iters=30 --set "
      "training_config.save_interval=30 --set optimizer_config.learning_rate=2e-2 --set "
      "training_config.output_dir=";
  ASSERT_EQ(pretrain("--config_path run.yaml" + options + "blend"), 0) << said();
  // Each letter is followed by itself: the model has seen both.
  for (const std::string letters : {"aaaa", "bbbb"}) {
    ASSERT_EQ(generate("--checkpoint blend --temperature 0 --max_new_tokens 4 --prompt " + letters),
              0)
        << said();
    EXPECT_EQ(out_, letters + letters + "\n");
  }
}

TEST_F(StoryTest, ASignalSavesAndEndsWithZero) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", kTinyRun);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int log = ::open(dir_.file("log").c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::setenv("TERM", "xterm", 1);
    if (::chdir(dir_.path().c_str()) == 0) {
      ::execl(TAPESTRY_PRETRAIN_GPT, "pretrain_gpt", "--config_path", "run.yaml", "--set",
              "training_config.training_iters=200000", nullptr);
    }
    ::_exit(127);
  }
  // Until it has trained a few steps; the last line may be half written.
  const auto lines = [&] {
    const std::string text = dir_.read("output/metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  };
  for (int i = 0; i < 600 && lines() < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << dir_.read("log");
  EXPECT_EQ(WEXITSTATUS(status), 0) << dir_.read("log");
  const size_t last = steps("output").size();
  ASSERT_GE(last, 3U);
  std::string name = std::to_string(last);
  name = "output/checkpoint/step_" + std::string(8 - name.size(), '0') + name;
  EXPECT_TRUE(fs::exists(dir_.file(name + "/model.safetensors"))) << dir_.read("log");
  EXPECT_THAT(dir_.read("output/log/rank_0/info.log"), HasSubstr("stopped on request after"));
  EXPECT_EQ(generate("--checkpoint output --prompt And --max_new_tokens 3"), 0) << said();
}

// Elsewhere there is none: see FromTextToTextAndOn.
TEST_F(StoryTest, ATerminalShowsABar) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", kTinyRun);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child < 0 && ::access("/dev/pts/ptmx", F_OK) != 0) {
    GTEST_SKIP() << "this machine has no pseudo-terminals";
  }
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::chdir(dir_.path().c_str()) == 0) {
      ::execl(TAPESTRY_PRETRAIN_GPT, "pretrain_gpt", "--config_path", "run.yaml", nullptr);
    }
    ::_exit(127);
  }
  std::string shown;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
    shown.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::close(terminal);
  EXPECT_EQ(status, 0) << shown;
  EXPECT_THAT(shown, HasSubstr(".] 1/3  loss 5."));
  EXPECT_THAT(shown, HasSubstr("tokens/s  0:00 left"));
}

TEST_F(StoryTest, VersionAndHelp) {
  ASSERT_EQ(pretrain("--version"), 0);
  for (const char* named : {"pretrain_gpt ", "build: ", "CPU level: ", "BLAS: ", "MPI: "}) {
    EXPECT_THAT(out_, HasSubstr(named));
  }
  ASSERT_EQ(pretrain("--help"), 0);
  for (const char* named :
       {"--config_path", "--set", "--model_type", "--run_cmd", "--dry_run", "--overwrite",
        "--replace", "--version", "training_config", "model_config"}) {
    EXPECT_THAT(out_, HasSubstr(named));
  }
  ASSERT_EQ(generate("--help"), 0);
  for (const char* named : {"--checkpoint", "--prompt", "--max_new_tokens", "--temperature",
                            "--top_k", "--top_p", "--seed"}) {
    EXPECT_THAT(out_, HasSubstr(named));
  }
}

TEST_F(StoryTest, TheModelMayStandInAnotherSection) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", replaced(kTinyRun, "model_config", "gpt_config"));
  ASSERT_EQ(pretrain("--config_path run.yaml --model_type gpt_config --set "
                     "training_config.save_interval=3"),
            0)
      << said();
  EXPECT_EQ(generate("--checkpoint output --prompt And --max_new_tokens 3"), 0) << said();
}

TEST_F(StoryTest, TheTinyPresetPreparesItsText) {
  if (std::system("command -v bible > /dev/null") != 0) {
    GTEST_SKIP() << "the command bible is not installed";
  }
  const std::string command =
      "--config_path " TAPESTRY_SOURCE_DIR
      "/examples/gpt/pretrain_gpt_tiny.yaml --set training_config.training_iters=2 --set "
      "dataset_config.batch_size=1 --set model_config.seq_length=32";
  ASSERT_EQ(pretrain(command), 0) << said();
  EXPECT_THAT(out_, HasSubstr("prepared the default text"));
  EXPECT_TRUE(fs::exists(dir_.file("dataset/bible.txt")));
  EXPECT_EQ(steps("output").size(), 2U);
  ASSERT_EQ(pretrain(command + " --overwrite"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("found the default text"));
}

}  // namespace
}  // namespace tapestry
