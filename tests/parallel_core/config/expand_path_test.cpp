#include "parallel_core/config/yaml/expand_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/render.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::config {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel =
    "model_config: {vocab_size: 31, num_layers: 1, num_attention_heads: 2, hidden_size: 16,\n"
    "  ffn_hidden_size: 32, seq_length: 8}\n";

class ExpandPath : public ::testing::Test {
 protected:
  ExpandPath() {
    ::setenv("HOME", "/home/ann", 1);
    ::setenv("TAPESTRY_DATA", "/data/set one", 1);
    ::setenv("TAPESTRY_EMPTY", "", 1);
    ::unsetenv("TAPESTRY_UNSET");
  }
  ~ExpandPath() override {
    if (had_home_) {
      ::setenv("HOME", home_.c_str(), 1);
    }
  }
  static std::string expanded(const std::string& path) {
    std::string error;
    std::string result = expand_path(path, error);
    EXPECT_EQ(error, "") << path;
    return result;
  }
  static std::string refused(const std::string& path) {
    std::string error;
    EXPECT_EQ(expand_path(path, error), path);
    return error;
  }

 private:
  bool had_home_ = std::getenv("HOME") != nullptr;
  std::string home_ = had_home_ ? std::getenv("HOME") : "";
};

TEST_F(ExpandPath, HomeAndVariables) {
  EXPECT_EQ(expanded("~"), "/home/ann");
  EXPECT_EQ(expanded("~/runs"), "/home/ann/runs");
  EXPECT_EQ(expanded("${TAPESTRY_DATA}/text"), "/data/set one/text");
  EXPECT_EQ(expanded("a${TAPESTRY_DATA}b${HOME}"), "a/data/set oneb/home/ann");
  EXPECT_EQ(expanded("~/${TAPESTRY_DATA}"), "/home/ann//data/set one");
}

TEST_F(ExpandPath, TwoDollarsAreOneOfTheName) {
  EXPECT_EQ(expanded("$$HOME"), "$HOME");
  EXPECT_EQ(expanded("$${HOME}/${TAPESTRY_DATA}"), "${HOME}//data/set one");
  EXPECT_EQ(expanded("a$$$$b"), "a$$b");
  for (const char* path : {"$HOME", "${HOME}", "$$", "a$", "$5", "$$$x", "$ x", "a/$b/c$"}) {
    EXPECT_EQ(expanded(literal_path(path)), path);
  }
  EXPECT_EQ(literal_path("cost$ $5 a$/b"), "cost$ $5 a$/b");
  EXPECT_THAT(refused("runs/$x"), HasSubstr("write ${x}, or $$x"));
}

// A resolved configuration names the folders that its run had, whatever their names.
TEST_F(ExpandPath, PathsReadBackAsTheyAre) {
  const std::string odd = "a b\n$HOME \"c'd ${X} $$";
  AllConfig config = init_configs_from_yaml("examples/gpt/pretrain_gpt_tiny.yaml");
  config.training_config.output_dir = odd;
  config.dataset_config.text = std::vector<std::string>{odd, "${Y}", "plain"};
  config.tensorboard.tensorboard_dir = odd;
  AllConfig resolved = config;
  tapestry::resolve(resolved);
  EXPECT_EQ(resolved.training_config.output_dir, odd);
  const AllConfig again = init_configs_from_text(resolved_yaml(resolved), "config.yaml");
  EXPECT_TRUE(again.same_values(resolved));
  EXPECT_EQ(again.training_config.output_dir, odd);
  EXPECT_EQ(again.dataset_config.text, config.dataset_config.text);
}

TEST_F(ExpandPath, TheRestStays) {
  for (const char* path : {"", "./output", "a~b", "a/~", "cost$", "$5", "a$/b", "100%", "{HOME}"}) {
    EXPECT_EQ(expanded(path), path);
  }
}

TEST_F(ExpandPath, EscapedPathsComeBack) {
  EXPECT_EQ(expanded("a$$b"), "a$b");
  EXPECT_EQ(expanded("a$${HOME}"), "a${HOME}");
  for (const char* path :
       {"a$b", "${HOME}/x", "$", "$$", "$$$x", "a$$5", "cost$", "a$/b", "new\nline"}) {
    EXPECT_EQ(expanded(literal_path(path)), path);
  }
  EXPECT_EQ(expanded(literal_path("~bob")), "./~bob");
}

TEST_F(ExpandPath, AResolvedConfigurationNamesTheSamePaths) {
  const std::string text =
      "training_config:\n  training_iters: 1\n  output_dir: \"out $$x\\n${TAPESTRY_DATA}\"\n"
      "dataset_config:\n  text: [\"a$${HOME}\"]\n";
  const AllConfig config = init_configs_from_text(text + kModel, "run.yaml");
  EXPECT_EQ(config.training_config.output_dir, "out $x\n/data/set one");
  EXPECT_EQ(*config.dataset_config.text, std::vector<std::string>{"a${HOME}"});
  const AllConfig again = init_configs_from_text(resolved_yaml(config), "config.yaml");
  EXPECT_EQ(again.training_config.output_dir, config.training_config.output_dir);
  EXPECT_EQ(again.dataset_config.text, config.dataset_config.text);
}

TEST_F(ExpandPath, SaysWhatIsMissing) {
  EXPECT_THAT(refused("${TAPESTRY_UNSET}/x"), HasSubstr("TAPESTRY_UNSET is not set"));
  EXPECT_THAT(refused("${TAPESTRY_EMPTY}/x"), HasSubstr("TAPESTRY_EMPTY is empty"));
  EXPECT_THAT(refused("$HOME/x"), HasSubstr("write ${HOME}"));
  EXPECT_THAT(refused("~bob/x"), HasSubstr("write the path in full"));
  for (const char* path : {"${", "${}", "${HOME", "${HOME:-x}", "${5}", "${A B}"}) {
    EXPECT_THAT(refused(path), HasSubstr("${...}")) << path;
  }
  ::unsetenv("HOME");
  EXPECT_THAT(refused("~/x"), HasSubstr("HOME is not set"));
}

TEST_F(ExpandPath, InAConfiguration) {
  const AllConfig config = init_configs_from_text(
      std::string("training_config:\n  training_iters: 1\n  output_dir: ~/runs/${TAPESTRY_DATA}\n"
                  "dataset_config:\n  data_path: [0.5, \"${TAPESTRY_DATA}/a\", 0.5, ~/b]\n") +
          kModel,
      "run.yaml", {.overrides = {"training_config.load_checkpoint=~/start"}});
  EXPECT_EQ(config.training_config.output_dir, "/home/ann/runs//data/set one");
  EXPECT_EQ(config.training_config.load_checkpoint, "/home/ann/start");
  EXPECT_EQ(*config.dataset_config.data_path,
            (std::vector<std::string>{"0.5", "/data/set one/a", "0.5", "/home/ann/b"}));
  EXPECT_THAT(config.notes, ::testing::IsEmpty());
  EXPECT_ERROR(init_configs_from_text(std::string("training_config:\n  training_iters: 1\n"
                                                  "  output_dir: ${TAPESTRY_UNSET}/a\n") +
                                          kModel,
                                      "run.yaml"),
               ConfigError, "run.yaml:3:15: training_config.output_dir: '${TAPESTRY_UNSET}/a': ");
}

// A key that names a file and is not marked would take "~/x" for the name of a folder.
TEST(PathKeys, AreMarked) {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      const bool named =
          key.name.ends_with("_path") || key.name.ends_with("_dir") ||
          key.name.ends_with("_file") || key.name == "load_checkpoint" ||
          key.name == "tokenizer_model" || key.name == "from_hf" || key.name == "upcycle_from" ||
          key.name == "text" || key.name == "chat_template" || key.name == "adapter" ||
          key.name == "data" || key.name == "validation_data" || key.name == "reference" ||
          key.name == "teacher" || key.name == "teacher_log_probs" || key.name == "rollouts";
      const bool text = key.field.type == Type::kString || key.field.type == Type::kStringList;
      EXPECT_EQ(key.path, named && text) << key.name;
    }
  }
}

}  // namespace
}  // namespace tapestry::config
