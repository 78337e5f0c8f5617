// The program `export`: a run, a folder and an adapter in each form, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "autograd/io/tensor_io.h"
#include "autograd/ops/ops.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/golden/gguf_file.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ExportTest : public ProgramTest {
 protected:
  void SetUp() override {
    fs::copy(fs::path(TAPESTRY_SOURCE_DIR) / "tests/data/golden_gguf/llama/hf", dir_.file("hf"),
             fs::copy_options::recursive);
  }
  int export_it(const std::string& arguments) { return run(TAPESTRY_EXPORT, arguments); }
  void expect_bad(const std::string& arguments, const std::string& part) {
    EXPECT_EQ(export_it(arguments), 2) << said();
    EXPECT_THAT(err_, Says(part));
    EXPECT_FALSE(fs::exists(dir_.file("out")));
  }
};

TEST_F(ExportTest, FoldersOfHuggingFace) {
  ASSERT_EQ(export_it("--checkpoint hf --to gguf --type Q8_0 --name Small --output out.gguf"), 0)
      << said();
  EXPECT_THAT(err_, HasSubstr("wrote out.gguf"));
  const testing::GgufFile file = testing::read_gguf_file(dir_.file("out.gguf"));
  EXPECT_EQ(file.metadata.at("general.name").text(), "Small");
  EXPECT_EQ(file.tensors.at("blk.0.attn_q.weight").type, 8U);
  EXPECT_EQ(file.tensors.at("blk.0.attn_norm.weight").type, 0U);
  ASSERT_EQ(export_it("--checkpoint hf --to hf --type BF16 --output half"), 0) << said();
  EXPECT_LT(fs::file_size(dir_.file("half/model.safetensors")),
            fs::file_size(dir_.file("hf/model.safetensors")));
  EXPECT_EQ(dir_.read("half/tokenizer.json"), dir_.read("hf/tokenizer.json"));
}

TEST_F(ExportTest, RunsOfBytes) {
  prepare_text();
  dir_.write("run.yaml", kTinyRun);
  const std::string llama =
      " --set model_config.position_embedding_type=rope --set model_config.normalization=RMSNorm"
      " --set model_config.hidden_act=swiglu --set model_config.add_bias_linear=False"
      " --set model_config.hidden_size=32";
  ASSERT_EQ(pretrain("--config_path run.yaml" + llama), 0) << said();
  ASSERT_EQ(export_it("--checkpoint output --to gguf --type BF16 --output out.gguf"), 0) << said();
  const testing::GgufFile file = testing::read_gguf_file(dir_.file("out.gguf"));
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.model").text(), "gpt2");
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.tokens").texts()[' '], "Ġ");
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.eos_token_id").as<uint32_t>(), 256U);
  // The same run with GELU is one that GGUF cannot say.
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=odd" + llama +
                     " --set model_config.hidden_act=gelu"),
            0)
      << said();
  expect_bad("--checkpoint odd --to gguf --output out", "model_config.hidden_act: is gelu");
  expect_bad("--checkpoint odd --to hf --output out", "hidden_act: is gelu");
}

// Tokens were added to the tokenizer, and the model knows nothing of them.
TEST_F(ExportTest, ARowForEachIdOnRequest) {
  using Json = nlohmann::json;
  const int64_t rows = Json::parse(dir_.read("hf/config.json")).at("vocab_size");
  Json tokenizer = Json::parse(dir_.read("hf/tokenizer.json"));
  Json& added = tokenizer["added_tokens"];
  int64_t known = static_cast<int64_t>(tokenizer.at("model").at("vocab").size());
  for (const Json& token : added) {
    known = std::max(known, token.at("id").get<int64_t>() + 1);
  }
  for (int64_t id = known; id < rows + 2; ++id) {  // two more than the table has rows
    added.push_back({{"id", id},
                     {"content", "<new" + std::to_string(id - rows) + ">"},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  dir_.write("hf/tokenizer.json", tokenizer.dump());
  expect_bad("--checkpoint hf --to gguf --output out",
             "--resize_embeddings ... makes a row for each");
  EXPECT_EQ(generate("--checkpoint hf --prompt x --max_new_tokens 1"), 2);
  EXPECT_THAT(err_, HasSubstr("--resize_embeddings"));
  expect_bad("--adapter hf --to hf --resize_embeddings --output out",
             "--resize_embeddings ... is for a model");

  ASSERT_EQ(export_it("--checkpoint hf --to hf --resize_embeddings --output grown"), 0) << said();
  EXPECT_THAT(err_, Says(std::to_string(rows + 2) + " rows, 2 of them new"));
  EXPECT_EQ(Json::parse(dir_.read("grown/config.json")).at("vocab_size"), rows + 2);
  const testing::State before = load_safetensors(dir_.file("hf/model.safetensors"));
  const testing::State after = load_safetensors(dir_.file("grown/model.safetensors"));
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) {
    const Tensor& grown = after.at(name);
    if (tensor.shape()[0] != rows) {
      testing::expect_states_equal({{name, grown}}, {{name, tensor}});
      continue;
    }
    ASSERT_EQ(grown.shape()[0], rows + 2) << name;
    testing::expect_states_equal({{name, grown.slice(0, 0, rows)}}, {{name, tensor}});
    const Tensor average = mean(tensor.to(kFloat64), Shape{0}, /*keepdim=*/true).to(tensor.dtype());
    for (const int64_t row : {rows, rows + 1}) {
      testing::expect_states_equal({{name, grown.slice(0, row, row + 1)}}, {{name, average}});
    }
  }
  ASSERT_EQ(generate("--checkpoint grown --prompt 'a <new1>' --max_new_tokens 2"), 0) << said();
  // A run from that folder asks for the same.
  dir_.write("book.txt", std::string(2000, 'a') + " <new1>\n");
  dir_.write("run.yaml",
             "training_config: {training_iters: 1, save_interval: 1, output_dir: run}\n"
             "dataset_config: {text: [book.txt], batch_size: 1, split: \"1,0,0\"}\n"
             "model_config: {from_hf: hf, seq_length: 8}\n"
             "optimizer_config: {learning_rate: 1.0e-5}\n");
  EXPECT_EQ(pretrain("--config_path run.yaml"), 2) << said();
  EXPECT_THAT(err_, HasSubstr("a row for each id with --resize_embeddings"));
  EXPECT_EQ(pretrain("--config_path run.yaml --resize_embeddings --dry_run"), 2) << said();
  ASSERT_EQ(pretrain("--config_path run.yaml --resize_embeddings"), 0) << said();
  EXPECT_EQ(Json::parse(dir_.read("run/resized_model/config.json")).at("vocab_size"), rows + 2);
  EXPECT_EQ(Json::parse(dir_.read("run/checkpoint/step_00000001/config.json")).at("vocab_size"),
            rows + 2);
  ASSERT_EQ(export_it("--checkpoint hf --to gguf --resize_embeddings --output out.gguf"), 0)
      << said();
  const testing::GgufFile file = testing::read_gguf_file(dir_.file("out.gguf"));
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.tokens").texts().back(), "<new1>");
}

TEST_F(ExportTest, WrongCommandLines) {
  expect_bad("--to gguf --output out", "--checkpoint is needed");
  expect_bad("--checkpoint hf --output out", "--to is needed");
  expect_bad("--checkpoint hf --to ggml --output out", "expected hf or gguf");
  expect_bad("--checkpoint hf --to gguf --type Q4_0 --output out", "expected ... F32, F16, BF16");
  expect_bad("--checkpoint hf --to hf --type Q8_0 --output out", "is for --to gguf");
  expect_bad("--checkpoint hf --to hf --name x --output out", "--name is for");
  expect_bad("--checkpoint hf --to gguf --merge --output out", "--merge is for --adapter");
  expect_bad("--checkpoint hf --to gguf --max_shard_size 5 --output out", "--max_shard_size is");
  EXPECT_NE(export_it("--checkpoint nothing --to gguf --output out"), 0);
  EXPECT_THAT(err_, HasSubstr("nothing: is no folder"));
}

}  // namespace
}  // namespace tapestry
