// GGUF files where programs take the folder of a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "autograd/io/json.h"
#include "autograd/io/tensor_io.h"
#include "autograd/ops/ops.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/golden/gguf_file.h"
#include "tests/says.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class GgufPrograms : public ProgramTest {
 protected:
  void SetUp() override {
    const fs::path cases = fs::path(TAPESTRY_SOURCE_DIR) / "tests/data/golden_gguf/llama";
    fs::copy(cases / "hf", dir_.file("hf"), fs::copy_options::recursive);
    for (const char* type : {"F32", "Q8_0"}) {
      fs::copy(cases / (std::string(type) + ".gguf"), dir_.file(std::string(type) + ".gguf"));
    }
    const fs::path gpt2 = fs::path(TAPESTRY_SOURCE_DIR) / "tests/data/golden_gguf/gpt2";
    fs::copy(gpt2 / "hf", dir_.file("gpt2"), fs::copy_options::recursive);
    fs::copy(gpt2 / "F32.gguf", dir_.file("gpt2.gguf"));
    std::string examples;
    for (int i = 0; i < 64; ++i) {
      examples += Json{{"prompt", "say " + std::string(1 + static_cast<size_t>(i % 5), 'a')},
                       {"completion", "the end"}}
                      .dump() +
                  "\n";
    }
    dir_.write("examples.jsonl", examples);
  }
};

TEST_F(GgufPrograms, TextAndItsProbabilityAreThoseOfTheFolder) {
  const std::string options = " --prompt \"the \" --temperature 0 --max_new_tokens 12";
  ASSERT_EQ(generate("--checkpoint gpt2" + options), 0) << said();
  const std::string wanted = out_;
  ASSERT_EQ(generate("--checkpoint gpt2.gguf" + options), 0) << said();
  EXPECT_EQ(out_, wanted);
  ASSERT_EQ(generate("--checkpoint Q8_0.gguf" + options), 0) << said();
  EXPECT_THAT(err_, HasSubstr("Q8_0.gguf: 9 tensors of Q8_0 stay in blocks"));
  ASSERT_EQ(generate("--checkpoint Q8_0.gguf --dtype bfloat16" + options), 0) << said();
  EXPECT_THAT(err_, HasSubstr("9 tensors of Q8_0 are widened"));
  dir_.write("text.txt", "the cat sat on the mat\nand the dog ran.\n");
  const auto likelihood = [&](const std::string& model) {
    EXPECT_EQ(run(TAPESTRY_EVALUATE, "--checkpoint " + model + " --text text.txt"), 0) << said();
    return Json::parse(out_).at("results")[0].at("log_likelihood").get<double>();
  };
  const double of_folder = likelihood("hf");
  EXPECT_NEAR(likelihood("F32.gguf"), of_folder, 1e-4 * std::abs(of_folder));
  EXPECT_NEAR(likelihood("Q8_0.gguf"), of_folder, 0.05 * std::abs(of_folder));
}

TEST_F(GgufPrograms, ComeOutAsTheyWentIn) {
  ASSERT_EQ(run(TAPESTRY_EXPORT, "--checkpoint F32.gguf --to hf --output out"), 0) << said();
  const NamedTensorMap wanted = load_safetensors(dir_.file("hf/model.safetensors"));
  const NamedTensorMap found = load_safetensors(dir_.file("out/model.safetensors"));
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_EQ(found.at(name).to_vector<float>(), tensor.to_vector<float>()) << name;
  }
  ASSERT_EQ(
      run(TAPESTRY_EXPORT, "--checkpoint Q8_0.gguf --to gguf --type Q8_0 --output again.gguf"), 0)
      << said();
  const testing::GgufFile in = testing::read_gguf_file(dir_.file("Q8_0.gguf"));
  const testing::GgufFile again = testing::read_gguf_file(dir_.file("again.gguf"));
  EXPECT_TRUE(in.tensors == again.tensors);
  for (const auto& [key, value] : in.metadata) {
    EXPECT_TRUE(again.metadata.contains(key) && again.metadata.at(key) == value) << key;
  }
}

TEST_F(GgufPrograms, AdaptersAreTunedBesideThemAndMerged) {
  ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT,
                "--from_hf Q8_0.gguf --data examples.jsonl --output_dir tuned --epochs 1 "
                "--learning_rate 1e-3 --export hf adapter"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("Q8_0.gguf: 9 tensors of Q8_0 stay in blocks"));
  EXPECT_THAT(dir_.read("tuned/finetune.yaml"), HasSubstr("base_dtype: q8_0"));
  const std::string options = " --prompt \"say aa\" --temperature 0 --max_new_tokens 8";
  ASSERT_EQ(generate("--checkpoint Q8_0.gguf --dtype float32 --adapter tuned/adapter" + options), 0)
      << said();
  const std::string wanted = out_;
  ASSERT_EQ(generate("--checkpoint tuned --dtype float32" + options), 0) << said();
  EXPECT_EQ(out_, wanted);
  ASSERT_EQ(generate("--checkpoint tuned/hf" + options), 0) << said();
  EXPECT_EQ(out_, wanted);
  ASSERT_EQ(run(TAPESTRY_EXPORT,
                "--checkpoint Q8_0.gguf --adapter tuned/adapter --merge --to gguf "
                "--output merged.gguf"),
            0)
      << said();
  ASSERT_EQ(generate("--checkpoint merged.gguf" + options), 0) << said();
  EXPECT_EQ(out_, wanted);
  EXPECT_FALSE(fs::exists(dir_.file("merged.gguf.merged")));
  // All weights, widened.
  ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT,
                "--from_hf Q8_0.gguf --data examples.jsonl --output_dir full --epochs 1 --full "
                "--export gguf --type Q8_0"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("9 tensors of Q8_0 are widened"));
  ASSERT_EQ(generate("--checkpoint full/model.gguf" + options), 0) << said();
}

TEST_F(GgufPrograms, BrokenFilesEndInAMessage) {
  dir_.write("cut.gguf", dir_.read("F32.gguf").substr(0, 5000));
  dir_.write("text.gguf", "no model");
  for (const char* file : {"cut.gguf", "text.gguf", "none.gguf"}) {
    for (const std::string& arguments :
         {std::string("--checkpoint ") + file + " --prompt a --max_new_tokens 1"}) {
      EXPECT_EQ(generate(arguments), 2) << said();
      EXPECT_THAT(err_, Says(file));
    }
    EXPECT_EQ(
        run(TAPESTRY_EVALUATE, std::string("--checkpoint ") + file + " --text examples.jsonl"), 2)
        << said();
    EXPECT_THAT(err_, Says(file));
    EXPECT_EQ(run(TAPESTRY_EXPORT, std::string("--checkpoint ") + file + " --to hf --output out"),
              2)
        << said();
    EXPECT_THAT(err_, Says(file));
    EXPECT_EQ(run(TAPESTRY_FINETUNE_GPT,
                  std::string("--from_hf ") + file + " --data examples.jsonl --output_dir tuned"),
              2)
        << said();
    EXPECT_THAT(err_, Says(file));
  }
}

}  // namespace
}  // namespace tapestry
