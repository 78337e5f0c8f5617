// Configurations written in the spellings of 1.x and of MindFormers 2.0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/show/mindformers2_page.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::spelling_test {
namespace {

using data::TempDir;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

AllConfig load(const TempDir& dir, const std::string& text, int64_t ranks) {
  dir.write("f.yaml", text);
  return init_configs_for_ranks(dir.file("f.yaml"), ranks);
}

TEST(Spelling, PresetsInBoth) {
  TempDir dir;
  int presets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("examples/gpt")) {
    if (entry.path().extension() != ".yaml") {
      continue;
    }
    ++presets;
    const AllConfig config = load(dir, read(entry.path()), 8);
    for (const char* spelling : {"2.0", "1.x"}) {
      const std::string text = spelled_yaml(config, spelling, 8);
      EXPECT_TRUE(load(dir, text, 8).same_values(config)) << entry.path() << "\n" << text;
      EXPECT_EQ(text.find("training_config:\n") == 0, spelling == std::string("1.x")) << text;
    }
  }
  EXPECT_GT(presets, 5);
}

TEST(Spelling, PublishedFilesInBoth) {
  TempDir dir;
  for (const std::string name : {"deepseek3_1b", "qwen3_sections"}) {
    const AllConfig config = load(dir, read("tests/data/mindformers2/" + name + ".yaml"), 2);
    const std::string old = spelled_yaml(config, "1.x", 2);
    EXPECT_TRUE(load(dir, old, 2).same_values(config)) << old;
    const std::string again = spelled_yaml(load(dir, old, 2), "2.0", 2);
    EXPECT_TRUE(load(dir, again, 2).same_values(config)) << again;
    EXPECT_THAT(again, HasSubstr("model:\n"));
    EXPECT_THAT(again, HasSubstr("model_type: "));
  }
}

// What 2.0 can say is said by its own keys.
TEST(Spelling, LittleIsLeftToTheOwnSection) {
  TempDir dir;
  const AllConfig config = load(dir, read("tests/data/mindformers2/deepseek3_1b.yaml"), 8);
  const std::string text = spelled_yaml(config, "2.0", 8);
  EXPECT_THAT(text, HasSubstr("  kv_lora_rank: 512"));
  EXPECT_THAT(text, HasSubstr("  global_batch_size: 8"));
  EXPECT_THAT(text, HasSubstr("  data_parallel_shard: -1"));
  const size_t own = text.find("tapestry:");
  EXPECT_THAT(own == std::string::npos ? "" : text.substr(own), Not(HasSubstr("moe_config")));
}

TEST(Spelling, UnknownOnes) {
  TempDir dir;
  const AllConfig config = load(dir, read("examples/gpt/pretrain_gpt_tiny.yaml"), 1);
  EXPECT_THAT(message_of<ValueError>([&] { spelled_yaml(config, "3.0"); }), Says("'3.0' ... 2.0"));
}

TEST(Spelling, ThePageIsThatOfTheTable) {
  EXPECT_EQ(read("docs/mindformers2.md"), mindformers2_page())
      << "run: config_doc --mindformers2 > docs/mindformers2.md";
}

}  // namespace
}  // namespace tapestry::spelling_test
