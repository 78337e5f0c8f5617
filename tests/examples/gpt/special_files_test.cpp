// What stands in the place of a file that a user names and is none: pipes that nobody writes to,
// devices without an end, files of a terabyte, folders, a single line without an end. Each program
// refuses it by its name, at once and in little memory.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Kind { kPipe, kDevice, kGiant, kFolder, kLine };

constexpr Kind kAll[] = {Kind::kPipe, Kind::kDevice, Kind::kGiant, Kind::kFolder, Kind::kLine};
constexpr const char* kSpecialFiles[] = {"a pipe", "a device", "a giant", "a folder", "a line"};

const std::string kRun = " --config_path run.yaml";

class SpecialFiles : public ProgramTest {
 protected:
  void SetUp() override {
    prepare_text();
    dir_.write("run.yaml", std::string(kTinyRun) + "  lr_decay_style: constant\n");
    ASSERT_EQ(pretrain(kRun), 0) << said();
    // Beyond the limit of every reader of lines; links to it take no time.
    std::ofstream line(dir_.file("line"), std::ios::binary);
    const std::string block(size_t{1} << 20U, 'a');
    for (int i = 0; i < 65; ++i) {
      line << block;
    }
  }

  void put(Kind kind, const std::string& path) {
    switch (kind) {
      case Kind::kPipe:
        ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
        break;
      case Kind::kDevice:
        fs::create_symlink("/dev/zero", path);
        break;
      case Kind::kGiant:
        std::ofstream(path).close();
        fs::resize_file(path, uint64_t{1} << 40U);
        break;
      case Kind::kFolder:
        fs::create_directory(path);
        break;
      case Kind::kLine:
        fs::create_symlink(dir_.file("line"), path);
        break;
    }
  }

  // Runs the command with each kind in the file's place, and puts the file back.
  void refuses(const std::string& file,
               const std::string& program,
               const std::string& arguments,
               std::vector<Kind> kinds = {std::begin(kAll), std::end(kAll)}) {
    const std::string path = dir_.file(file);
    const bool is_there = fs::exists(path);
    if (is_there) {
      fs::rename(path, path + ".aside");
    }
    for (const Kind kind : kinds) {
      SCOPED_TRACE(std::string(kSpecialFiles[static_cast<int>(kind)]) + " as " + file + ": " +
                   program + " " + arguments);
      fs::create_directories(fs::path(path).parent_path());
      put(kind, path);
      // Addresses, as the sanitizers' shadow needs more: 4 GB.
      const int code = run("ulimit -v 4000000; timeout 60 " + program, arguments);
      EXPECT_EQ(code, 2) << said();
      EXPECT_THAT(err_, HasSubstr(fs::path(file).filename().string()));
      EXPECT_THAT(err_, Not(AnyOf(HasSubstr("bad_alloc"), HasSubstr("terminate called"))));
      fs::remove_all(path);
      fs::remove_all(dir_.file("new"));
    }
    if (is_there) {
      fs::rename(path + ".aside", path);
    }
  }

  const std::string going_on_ =
      kRun + " --set training_config.resume_training=True --set training_config.training_iters=4";
  const std::string new_run_ = kRun + " --set training_config.output_dir=./new";
};

TEST_F(SpecialFiles, OfARun) {
  const std::string folder = "output/checkpoint/step_00000003/";
  refuses("run.yaml", TAPESTRY_PRETRAIN_GPT, kRun);
  refuses("output/metrics.jsonl", TAPESTRY_PRETRAIN_GPT, "--plot output");
  refuses("output/metrics.jsonl", TAPESTRY_PRETRAIN_GPT, "--report output --out report.html");
  refuses("output/config.yaml", TAPESTRY_PRETRAIN_GPT, "--report output --out report.html",
          {Kind::kPipe, Kind::kDevice, Kind::kGiant, Kind::kFolder});
  refuses("output/metrics.jsonl", TAPESTRY_PRETRAIN_GPT, going_on_);
  refuses("output/config.yaml", TAPESTRY_PRETRAIN_GPT, "--resume output");
  refuses("output/log/rank_0/info.log", TAPESTRY_PRETRAIN_GPT, going_on_,
          {Kind::kPipe, Kind::kDevice, Kind::kFolder});
  for (const char* file : {"manifest.json", "training_state.json", "training_state.safetensors",
                           "model.safetensors", "config.json"}) {
    refuses(folder + file, TAPESTRY_PRETRAIN_GPT, going_on_);
  }
  for (const char* file : {"manifest.json", "generation_config.json", "model.safetensors"}) {
    refuses(folder + file, TAPESTRY_GENERATE, "--checkpoint output --prompt a --max_new_tokens 1");
  }
  fs::copy(dir_.file("output"), dir_.file("other"), fs::copy_options::recursive);
  refuses("output/metrics.jsonl", TAPESTRY_COMPARE_CHECKPOINTS, "other output");
  refuses("output/metrics.jsonl", TAPESTRY_ACCURACY, "curves other output");
  dir_.write("curve.csv", "step,loss\n1,2\n");
  refuses("curve.csv", TAPESTRY_ACCURACY, "curves other curve.csv");
  refuses("arguments.json", TAPESTRY_ACCURACY, "checklist run.yaml arguments.json");
}

TEST_F(SpecialFiles, OfSettings) {
  refuses("dump.json", TAPESTRY_PRETRAIN_GPT, new_run_ + " --dump dump.json");
  const std::string profiled = new_run_ +
                               " --set training_config.profile=True --set "
                               "training_config.profile_dynamic_profiler_config_path=";
  // A folder may hold the file later.
  refuses("window.json", TAPESTRY_PRETRAIN_GPT, profiled + "window.json",
          {Kind::kPipe, Kind::kDevice, Kind::kGiant, Kind::kLine});
  refuses("windows/profiler_config.json", TAPESTRY_PRETRAIN_GPT, profiled + "windows");
  refuses("prompts.txt", TAPESTRY_GENERATE, "--checkpoint output --prompts prompts.txt");
}

TEST_F(SpecialFiles, OfData) {
  refuses("text_text_document.idx", TAPESTRY_PRETRAIN_GPT, new_run_);
  refuses("text_text_document.tokenizer.json", TAPESTRY_PRETRAIN_GPT, new_run_);
  // Its index knows where it ends, so that more of it is none of a fault.
  refuses("text_text_document.bin", TAPESTRY_PRETRAIN_GPT, new_run_,
          {Kind::kPipe, Kind::kDevice, Kind::kFolder});
  // A text may be a single line.
  const std::vector<Kind> no_text = {Kind::kPipe, Kind::kDevice, Kind::kGiant, Kind::kFolder};
  refuses("text.txt", TAPESTRY_PREPROCESS_DATA,
          "--input text.txt --output_prefix new --tokenizer_type byte", no_text);
  refuses("text.jsonl", TAPESTRY_PREPROCESS_DATA,
          "--input text.jsonl --output_prefix new --tokenizer_type byte");
  refuses("text.txt", TAPESTRY_PREPROCESS_DATA,
          "--input text.txt --output_prefix new --tokenizer_type sentencepiece --train_tokenizer "
          "--vocab_size 300",
          no_text);
  refuses("text.txt", TAPESTRY_PRETRAIN_GPT,
          new_run_ +
              " --set dataset_config.data_path=null --set dataset_config.text=[text.txt] --set "
              "dataset_config.dataset_dir=new_data",
          no_text);
  const std::string sft = new_run_ +
                          " --set dataset_config.data_path=null --set "
                          "dataset_config.sft_data_path=[examples.jsonl]";
  refuses("examples.jsonl", TAPESTRY_PRETRAIN_GPT, sft);
  dir_.write("examples.jsonl", R"({"prompt": "one", "completion": "two"})");
  refuses("chat.jinja", TAPESTRY_PRETRAIN_GPT,
          sft + " --set dataset_config.chat_template=chat.jinja");
}

// Also what a folder may lack: it is there, and not what it is called.
TEST_F(SpecialFiles, OfAFolderOfHuggingFace) {
  ASSERT_EQ(preprocess("--input text.txt --output_prefix pieces --tokenizer_type sentencepiece "
                       "--train_tokenizer --vocab_size 280"),
            0)
      << said();
  ASSERT_EQ(
      pretrain(new_run_ +
               " --set dataset_config.data_path=pieces_text_document --set "
               "dataset_config.tokenizer_type=sentencepiece --set model_config.vocab_size=280 "
               "--set model_config.hidden_act=fast_gelu"),
      0)
      << said();
  ASSERT_EQ(run(TAPESTRY_EXPORT, "--checkpoint new --to hf --output hf"), 0) << said();
  const std::string to_gguf = "--checkpoint hf --to gguf --output new.gguf";
  const std::string asked = "--checkpoint hf --prompt a --max_new_tokens 1";
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.model",
                           "tokenizer_config.json", "tokenizer.json"}) {
    refuses(std::string("hf/") + file, TAPESTRY_GENERATE, asked);
    refuses(std::string("hf/") + file, TAPESTRY_EXPORT, to_gguf);
  }
  for (const char* file :
       {"generation_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    refuses(std::string("hf/") + file, TAPESTRY_GENERATE, asked);
  }
  fs::rename(dir_.file("hf/model.safetensors"), dir_.file("weights"));
  refuses("hf/model.safetensors.index.json", TAPESTRY_GENERATE, asked);
}

}  // namespace
}  // namespace tapestry
