// Reward models as folders for sequence classification, out and in again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/export/gguf_export.h"
#include "interop/export/hf_export.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/step/forward_step.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace reward_model_export_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using Json = nlohmann::json;

Json json_in(const std::string& path) { return Json::parse(std::ifstream(path)); }

Overrides scored(const Overrides& model) { return joined(model, {"model_config.score_head=True"}); }

struct Family {
  const char* model_type;
  const char* score_class;
  const char* table;
  Overrides model;
};

std::vector<Family> families() {
  return {{"llama", "LlamaForSequenceClassification", "model.embed_tokens.weight",
           testing::llama({testing::kUntied})},
          {"qwen2", "Qwen2ForSequenceClassification", "model.embed_tokens.weight",
           testing::llama({testing::kQkvBias})},
          {"gpt2", "GPT2ForSequenceClassification", "transformer.wte.weight", {}},
          {"mixtral", "MixtralForSequenceClassification", "model.embed_tokens.weight",
           testing::mixtral()},
          {"gpt_oss", "GptOssForSequenceClassification", "model.embed_tokens.weight",
           testing::gpt_oss()}};
}

// A folder as another program has it, without the run's configuration.
std::string saved(const AllConfig& config, const std::string& directory, const HfSource& source) {
  const auto model = get_model(config);
  testing::jitter(*model);
  const std::string folder =
      write_checkpoint(*model, config.model_config, 1, {.directory = directory, .source = source});
  fs::remove(folder + "/config.yaml");
  return folder;
}

TEST(RewardModelExport, FoldersAreThoseOfTransformers) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.model_type);
    const data::TempDir dir;
    const AllConfig config = testing::small_config(scored(family.model));
    HfSource source;
    source.token_ids = {.bos = 1, .eos = {2}, .pad = {}};
    const std::string in = saved(config, dir.file("run"), source);
    const Json json = json_in(in + "/config.json");
    EXPECT_EQ(json.at("architectures"), Json({family.score_class}));
    EXPECT_EQ(json.at("model_type"), family.model_type);
    EXPECT_EQ(json.at("id2label"), Json({{"0", "LABEL_0"}}));
    EXPECT_EQ(json.at("label2id"), Json({{"LABEL_0", 0}}));
    EXPECT_EQ(json.at("pad_token_id"), 2);  // there is none but the one that ends a text

    const std::string out = dir.file("out");
    export_hf(open_export_source(in), out, {});
    EXPECT_EQ(json_in(out + "/config.json"), json);
    const SafetensorsDirectory files(out);
    EXPECT_EQ(files.shape("score.weight"), Shape({1, config.model_config.hidden_size}));
    EXPECT_TRUE(files.contains(family.table));
    for (const std::string& name : files.names()) {
      EXPECT_FALSE(name.starts_with("lm_head")) << name;
    }
    const AllConfig again =
        init_configs_from_dict({{"training_config", {{"training_iters", 1}}},
                                {"model_config", {{"from_hf", out}, {"seq_length", 8}}},
                                {"optimizer_config", {{"learning_rate", 1.0}}}});
    EXPECT_TRUE(again.model_config.score_head);
    const auto model = get_model(again);
    load_weights(*model, again.model_config, out);
    const auto first = get_model(config);
    load_weights(*first, config.model_config, in);
    testing::expect_states_equal(get_logical_state(*model), get_logical_state(*first));
  }
}

TEST(RewardModelExport, GgufIsRefused) {
  const data::TempDir dir;
  const AllConfig config = testing::small_config(scored(testing::llama()));
  const std::string in = saved(config, dir.file("run"), {});
  EXPECT_THAT(
      message_of<ValueError>([&] { export_gguf(open_export_source(in), dir.file("m.gguf"), {}); }),
      HasSubstr("reward model"));
  EXPECT_FALSE(fs::exists(dir.file("m.gguf")));
}

TEST(RewardModelExport, AFamilyWithoutSuchAModelIsNamed) {
  const AllConfig config = testing::small_config(
      scored(joined(testing::llama(), {"model_config.hf_model_type=granite"})));
  EXPECT_THAT(message_of<ValueError>([&] { file_model_type(config.model_config); }),
              ::testing::AllOf(HasSubstr("granite"), HasSubstr("score_head"),
                               HasSubstr("sequence classification")));
}

TEST(RewardModelExport, LabelsAreOne) {
  const data::TempDir dir;
  const AllConfig config = testing::small_config(scored(testing::llama({testing::kUntied})));
  const std::string in = saved(config, dir.file("run"), {});
  Json json = json_in(in + "/config.json");
  const auto error = [&] {
    return message_of<ValueError>([&] { parse_hf_config(json.dump(), "config.json"); });
  };
  EXPECT_EQ(parse_hf_config(json.dump(), "config.json").model_type, "llama");
  json["id2label"]["1"] = "LABEL_1";
  EXPECT_THAT(error(), HasSubstr("gives 2 labels; a reward model has one"));
  json.erase("id2label");
  EXPECT_THAT(error(), HasSubstr("id2label: is left out, which means 2 labels"));
  json["num_labels"] = 1;
  EXPECT_NO_THROW(parse_hf_config(json.dump(), "config.json"));
}

}  // namespace
}  // namespace reward_model_export_test
}  // namespace tapestry
