// Folders as people have downloaded or saved them: what is read all the same, and what the message
// says of the rest.
#include <limits>
#include <string>

#include "autograd/tensor/factory.h"
#include "tests/examples/gpt/adapter_run.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ForeignFolders : public AdapterRunTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AdapterRunTest::SetUp());
    write_llama("model", "llama");
  }
  std::string text_of(const std::string& folder) {
    EXPECT_EQ(generate("--checkpoint " + folder +
                       " --prompt And --max_new_tokens 6 --temperature 0 --json"),
              0)
        << said();
    return Json::parse(out_).at("tokens").dump();
  }
  void expect_refused(const std::string& arguments, const ::testing::Matcher<std::string>& says) {
    EXPECT_EQ(generate("--prompt And --max_new_tokens 1 " + arguments), 2) << said();
    EXPECT_THAT(err_, says);
  }
  void rewrite(const std::string& folder, const testing::State& state) {
    write_state(dir_.file(folder) + "/model.safetensors", state);
  }
  void change_config(const std::string& folder, const Json& changes) {
    Json config = json(folder + "/config.json");
    config.update(changes);
    dir_.write(folder + "/config.json", config.dump());
  }
};

TEST_F(ForeignFolders, PointersOfGitLfs) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  for (const char* name : {"model.safetensors", "config.json"}) {
    copy("model", "lfs");
    dir_.write(std::string("lfs/") + name, pointer);
    expect_refused("--checkpoint lfs",
                   AllOf(Says(std::string("lfs/") + name), HasSubstr("Git LFS pointer"),
                         HasSubstr("git lfs pull")));
  }
}

TEST_F(ForeignFolders, PartsWithoutTheirIndexAndPickles) {
  copy("model", "parts");
  fs::rename(dir_.file("parts/model.safetensors"),
             dir_.file("parts/model-00001-of-00002.safetensors"));
  expect_refused("--checkpoint parts", AllOf(HasSubstr("model-00001-of-00002.safetensors"),
                                             HasSubstr("not model.safetensors.index.json")));
  copy("model", "pickle");
  fs::rename(dir_.file("pickle/model.safetensors"),
             dir_.file("pickle/pytorch_model-00001-of-00002.bin"));
  expect_refused("--checkpoint pickle", HasSubstr("pytorch_model-00001-of-00002.bin, a pickle"));
  dir_.write("adapter/adapter_config.json",
             R"({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]})");
  expect_refused("--checkpoint model --adapter adapter",
                 HasSubstr("adapter_config.json, but no adapter_model.safetensors"));
  dir_.write("adapter/adapter_model.bin", "x");
  expect_refused("--checkpoint model --adapter adapter",
                 AllOf(HasSubstr("adapter_model.bin, a pickle"), HasSubstr("save the adapter as")));
}

TEST_F(ForeignFolders, NamesBehindWrappers) {
  copy("model", "wrapped");
  for (const auto& [prefix, maker] :
       {std::pair{"_orig_mod.", "torch.compile"}, std::pair{"module.", "DistributedDataParallel"},
        std::pair{"module._orig_mod.", "torch.compile"},
        std::pair{"some.wrapper.", "some.wrapper."}}) {
    testing::State state;
    for (const auto& [name, tensor] : tensors("model")) {
      state[prefix + name] = tensor;
    }
    rewrite("wrapped", state);
    expect_refused("--checkpoint wrapped", AllOf(Says(std::string("begin with \"") + prefix + "\""),
                                                 Says(maker), HasSubstr("out of the names")));
  }
}

TEST_F(ForeignFolders, OutputLayersThatConfigJsonSaysOtherwiseOf) {
  copy("model", "tied");
  change_config("tied", {{"tie_word_embeddings", true}});
  expect_refused("--checkpoint tied", AllOf(HasSubstr("unexpected: lm_head.weight"),
                                            Says("tie_word_embeddings: ... true"),
                                            Says("tie_word_embeddings: ... false")));
  copy("model", "headless");
  testing::State state = tensors("model");
  state.erase("lm_head.weight");
  rewrite("headless", state);
  expect_refused("--checkpoint headless",
                 AllOf(HasSubstr("missing: lm_head.weight"), Says("tie_word_embeddings: ... true"),
                       HasSubstr("LlamaModel")));
}

// As LlamaModel.save_pretrained has it: without "model." in front, and another class.
TEST_F(ForeignFolders, TheModelWithoutItsHead) {
  write_llama("whole", "qwen2");
  const std::string expected = text_of("whole");
  copy("whole", "bare");
  testing::State state;
  for (const auto& [name, tensor] : tensors("whole")) {
    state[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  }
  rewrite("bare", state);
  change_config("bare", {{"architectures", {"Qwen2Model"}}});
  EXPECT_EQ(text_of("bare"), expected);
  // What is saved has an output layer, and says so.
  dir_.write("plain.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path plain.yaml --from_hf bare" + to("out")), 0) << said();
  EXPECT_EQ(json(step("out", 1) + "/config.json").at("architectures"),
            Json::array({"Qwen2ForCausalLM"}));
  EXPECT_EQ(text_of(step("out", 1)), expected);
}

TEST_F(ForeignFolders, AnAdapterThatHasDiverged) {
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf model" + to("out")), 0) << said();
  const std::string folder = step("out", 6);
  testing::State state = load_adapter_tensors(folder);
  const std::string name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight";
  state.at(name).data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  fs::create_directory(dir_.file("nan"));
  fs::copy(dir_.file(folder + "/adapter_config.json"), dir_.file("nan/adapter_config.json"));
  write_state(dir_.file("nan/adapter_model.safetensors"), state);
  expect_refused("--checkpoint model --adapter nan",
                 AllOf(Says(name), HasSubstr("not finite"), HasSubstr("nan")));
}

}  // namespace
}  // namespace tapestry::hf_test
