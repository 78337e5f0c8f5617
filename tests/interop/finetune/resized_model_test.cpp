// Tokens were added to a tokenizer, and the model that is tuned knows nothing of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "autograd/io/json.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/export/resized_folder.h"
#include "interop/finetune/finetune.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class ResizedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy("tests/data/golden_gguf/llama/hf", model_, fs::copy_options::recursive);
    rows_ = rows_of(model_);
    Json tokenizer = Json::parse(std::ifstream(model_ + "/tokenizer.json"));
    Json& added = tokenizer["added_tokens"];
    int64_t known = static_cast<int64_t>(tokenizer.at("model").at("vocab").size());
    for (const Json& token : added) {
      known = std::max(known, token.at("id").get<int64_t>() + 1);
    }
    for (int64_t id = known; id < rows_ + 2; ++id) {  // two more than the table has rows
      added.push_back({{"id", id},
                       {"content", "<new" + std::to_string(id - rows_) + ">"},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    std::ofstream(model_ + "/tokenizer.json") << tokenizer.dump();
  }

  static int64_t rows_of(const std::string& folder) {
    return Json::parse(std::ifstream(folder + "/config.json")).at("vocab_size");
  }

  data::TempDir dir_;
  std::string model_ = dir_.file("model");
  int64_t rows_ = 0;
};

TEST_F(ResizedModel, IsWrittenWhereRowsAreMissing) {
  const AllConfig config = init_configs_from_text(
      "training_config: {training_iters: 1}\nmodel_config: {seq_length: 8, from_hf: " + model_ +
          "}\n",
      "run.yaml");
  EXPECT_EQ(ids_of_run(config, model_), rows_ + 2);
  const std::string output = resized_folder_of(dir_.file("run"));
  EXPECT_EQ(resized_folder(model_, rows_, output, false), model_);
  EXPECT_FALSE(fs::exists(output));
  EXPECT_EQ(resized_folder(model_, rows_ + 2, output, false), output);
  EXPECT_EQ(rows_of(output), rows_ + 2);
  const SafetensorsDirectory files(output);
  EXPECT_EQ(files.shape("model.embed_tokens.weight")[0], rows_ + 2);
  EXPECT_TRUE(fs::exists(output + "/tokenizer.json"));
  EXPECT_THAT(message_of<ValueError>([&] { resized_folder(model_, rows_ + 2, output, false); }),
              HasSubstr(output + ": is there already; take another output_dir, or --overwrite"));
  EXPECT_EQ(resized_folder(model_, rows_ + 3, output, true), output);
  EXPECT_EQ(rows_of(output), rows_ + 3);
  EXPECT_EQ(rows_of(output + ".old.1"), rows_ + 2);
}

TEST_F(ResizedModel, IsTunedOnRequest) {
  std::ofstream examples(dir_.file("examples.jsonl"));
  for (int i = 0; i < 12; ++i) {
    examples << R"({"prompt": "a <new1> ", "completion": "b )" << i << "\"}\n";
  }
  examples.close();
  FinetuneOptions options;
  options.recipe.from_hf = model_;
  options.recipe.data = {dir_.file("examples.jsonl")};
  options.recipe.output_dir = dir_.file("run");
  options.recipe.validation_share = 0;
  options.recipe.epochs = 1;
  options.recipe.full = true;
  options.exports = {FinetuneExport::kHf};
  EXPECT_THAT(message_of<ValueError>([&] { finetune(options); }),
              HasSubstr("a row for each id with --resize_embeddings"));
  options.recipe.resize_embeddings = true;
  options.dry_run = true;
  EXPECT_THAT(message_of<ValueError>([&] { finetune(options); }),
              HasSubstr("--dry_run writes nothing, --resize_embeddings first writes the model"));
  options.dry_run = false;
  const FinetuneSummary summary = finetune(options);
  ASSERT_EQ(summary.exported.size(), 1U);
  EXPECT_EQ(rows_of(summary.exported.front()), rows_ + 2);
  EXPECT_EQ(rows_of(model_), rows_);
  std::ifstream recipe(summary.config_path);
  const std::string text{std::istreambuf_iterator<char>(recipe), {}};
  EXPECT_THAT(text, HasSubstr("from_hf: " + resized_folder_of(options.recipe.output_dir)));
}

}  // namespace
}  // namespace tapestry
