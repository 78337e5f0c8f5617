// Runs with adapters: what they save, how they go on, and what becomes of the adapter.
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/examples/gpt/adapter_run.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class AdapterRuns : public AdapterRunTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AdapterRunTest::SetUp());
    write_llama("base", "llama");
  }
  void train(const std::string& output, const std::string& more = "") {
    ASSERT_EQ(pretrain("--config_path run.yaml --from_hf base" + to(output) + more), 0) << said();
  }
  int resume(const std::string& output, const std::string& more = "") {
    return pretrain("--config_path run.yaml --from_hf base" + to(output) +
                    "--set training_config.resume_training=True " + more);
  }
  int exported(const std::string& arguments) { return run(TAPESTRY_EXPORT, arguments); }
  double evaluated(const std::string& arguments) {
    EXPECT_EQ(pretrain(arguments), 0) << said();
    const size_t at = out_.find("eval: Loss: ");
    EXPECT_NE(at, std::string::npos) << said();
    return at == std::string::npos ? 0 : std::stod(out_.substr(at + 12));
  }
};

TEST_F(AdapterRuns, SaveWhatPeftReads) {
  train("out");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir_.file(step("out", 6)))) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "adapter_config.json", "adapter_model.safetensors", "base_model.json",
                         "config.yaml", "generation_config.json", "manifest.json",
                         "training_state.json", "training_state.safetensors"));
  const Json config = json(step("out", 6) + "/adapter_config.json");
  EXPECT_EQ(config.at("r"), 3);
  EXPECT_EQ(config.at("base_model_name_or_path"), fs::canonical(dir_.file("base")).string());
  EXPECT_EQ(config.at("target_modules").size(), 7U);
  const testing::State saved = load_adapter_tensors(step("out", 6));
  EXPECT_EQ(saved.size(), 2U * 7U * kLayers);
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj.lora_";
  EXPECT_EQ(saved.at(q + "A.weight").shape(), (Shape{3, kWidth}));
  EXPECT_EQ(saved.at(q + "B.weight").shape(), (Shape{kHeads * kHead, 3}));
  EXPECT_GT(testing::largest(saved.at(q + "B.weight")), 0);
}

TEST_F(AdapterRuns, GoOnBitForBit) {
  write_llama("tied", "qwen2");
  write_gpt2("gpt2");
  struct Case {
    const char* base;
    const char* more;
  };
  const std::vector<Case> cases = {
      {"base", "--set lora_config.use_rslora=True"},
      {"base", "--set lora_config.use_dora=True"},
      {"tied", "--set lora_config.modules_to_save=[embed_tokens]"},
      {"gpt2", "--set lora_config.use_dora=True --set training_config.async_save=True"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.base) + " " + c.more);
    const std::string arguments = std::string("--config_path run.yaml --from_hf ") + c.base + " " +
                                  c.more + " --overwrite" + to("full");
    ASSERT_EQ(pretrain(arguments), 0) << said();
    copy("full", "half");
    fs::remove_all(dir_.file(step("half", 6)));
    ASSERT_EQ(pretrain(std::string("--config_path run.yaml --from_hf ") + c.base + " " + c.more +
                       to("half") + "--set training_config.resume_training=True"),
              0)
        << said();
    EXPECT_THAT(out_, HasSubstr("going on after step 3"));
    expect_same_checkpoint(step("half", 6), step("full", 6));
    EXPECT_EQ(run(TAPESTRY_COMPARE_CHECKPOINTS, step("half", 6) + " " + step("full", 6)), 0)
        << said();
    EXPECT_NE(run(TAPESTRY_COMPARE_CHECKPOINTS, step("half", 3) + " " + step("full", 6)), 0);
    ASSERT_EQ(steps("half").size(), steps("full").size());
    for (size_t i = 0; i < steps("full").size(); ++i) {
      for (const char* key : {"loss", "grad_norm", "lr"}) {
        EXPECT_EQ(steps("half")[i].at(key), steps("full")[i].at(key)) << key;
      }
    }
  }
}

// Without the base's folder in its configuration, a run goes on with what its checkpoint says.
TEST_F(AdapterRuns, FindTheirBase) {
  train("full");
  const std::string go_on = "--config_path " + step("full", 3) + "/config.yaml" + to("other") +
                            "--set training_config.load_checkpoint=" + step("full", 3) +
                            " --set training_config.resume_training=True ";
  ASSERT_EQ(pretrain(go_on), 0) << said();
  EXPECT_THAT(out_,
              HasSubstr("the adapter's base is " + fs::canonical(dir_.file("base")).string()));
  expect_same_checkpoint(step("other", 6), step("full", 6));

  fs::rename(dir_.file("base"), dir_.file("moved"));
  ASSERT_EQ(resume("full"), 2);
  EXPECT_THAT(said(), Says("base: ... no such folder"));
  EXPECT_EQ(pretrain("--evaluate " + step("full", 6)), 2);
  EXPECT_THAT(said(), HasSubstr("base"));

  // It may lie elsewhere, but it has to be the one.
  fs::remove_all(dir_.file(step("full", 6)));
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf moved" + to("full") +
                     "--set training_config.resume_training=True"),
            0)
      << said();
  expect_same_checkpoint(step("full", 6), step("other", 6));
  testing::State state = tensors("moved");
  Tensor& weight = state.at("model.layers.1.mlp.down_proj.weight");
  weight = weight + 1e-3;
  write_state(dir_.file("moved/model.safetensors"), state);
  fs::remove_all(dir_.file(step("full", 6)));
  EXPECT_EQ(pretrain("--config_path run.yaml --from_hf moved" + to("full") +
                     "--set training_config.resume_training=True"),
            2);
  EXPECT_THAT(said(),
              AllOf(HasSubstr("moved"), Says("that the adapter in"), HasSubstr("fingerprint")));
}

// from_hf says what the model is; the weights may be others.
TEST_F(AdapterRuns, TheBaseMayBeACheckpoint) {
  const std::string whole =
      "--set lora_config.use_lora=False --set training_config.save_interval=6";
  train("whole", whole);
  const std::string base = " --set training_config.load_checkpoint=" + step("whole", 6) + " ";
  train("full", base);
  copy("full", "half");
  fs::remove_all(dir_.file(step("half", 6)));
  ASSERT_EQ(resume("half", base), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 3"));
  expect_same_checkpoint(step("half", 6), step("full", 6));
  const double adapted = evaluated("--evaluate full");
  ASSERT_EQ(exported("--adapter full --merge --to hf --output merged"), 0) << said();
  const double merged = evaluated(
      "--config_path run.yaml --from_hf merged --set lora_config.use_lora=False --evaluate merged");
  EXPECT_NEAR(merged, adapted, 2e-6 * adapted);
}

TEST_F(AdapterRuns, StartFromAnAdapter) {
  train("first");
  fs::create_directories(dir_.file("peft"));
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy(dir_.file(step("first", 6) + "/" + name), dir_.file(std::string("peft/") + name));
  }
  // Something that PEFT writes and nobody here asks for stays.
  Json config = json("peft/adapter_config.json");
  config["peft_version"] = "0.17.0";
  config["base_model_name_or_path"] = "somebody/a-llama";
  dir_.write("peft/adapter_config.json", config.dump(1));
  const std::string nothing =
      "--set lora_config.adapter=peft --set optimizer_config.learning_rate=1e-30 "
      "--set optimizer_config.weight_decay=0 ";
  train("second", nothing);
  EXPECT_THAT(out_, Says("starts as that in"));
  EXPECT_EQ(dir_.read(step("second", 6) + "/adapter_model.safetensors"),
            dir_.read("peft/adapter_model.safetensors"));
  EXPECT_EQ(dir_.read(step("second", 6) + "/adapter_config.json"),
            dir_.read("peft/adapter_config.json"));

  EXPECT_EQ(pretrain("--config_path run.yaml --from_hf base" + to("third") + nothing +
                     "--set lora_config.lora_rank=4"),
            2);
  EXPECT_THAT(said(), AllOf(HasSubstr("peft/adapter_config.json"), HasSubstr("the rank of"),
                            HasSubstr("is 3")));
  config["bias"] = "all";
  dir_.write("peft/adapter_config.json", config.dump(1));
  EXPECT_EQ(pretrain("--config_path run.yaml --from_hf base" + to("third") + nothing), 2);
  EXPECT_THAT(said(), HasSubstr("bias is \"all\""));
  EXPECT_FALSE(fs::exists(dir_.file("third/metrics.jsonl")));
}

TEST_F(AdapterRuns, SayWhatIsWrongWithACheckpoint) {
  train("out");
  const std::string weights = dir_.file(step("out", 6) + "/adapter_model.safetensors");
  fs::remove_all(dir_.file(step("out", 3)));

  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf base" + to("whole") +
                     "--set training_config.load_checkpoint=" + step("out", 6) +
                     " --set lora_config.use_lora=False"),
            2);
  EXPECT_THAT(said(), AllOf(HasSubstr("step_00000006"), HasSubstr("lora_config.use_lora")));

  fs::resize_file(weights, fs::file_size(weights) - 4);
  EXPECT_EQ(resume("out"), 2);
  EXPECT_THAT(said(), AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("bytes")));
  fs::remove(weights);
  EXPECT_EQ(resume("out"), 2);
  EXPECT_THAT(said(), HasSubstr("adapter_model.safetensors"));
}

TEST_F(AdapterRuns, NameTensorsThatDoNotFit) {
  train("out");
  const std::string file = dir_.file(step("out", 6) + "/adapter_model.safetensors");
  testing::State state = load_adapter_tensors(step("out", 6));
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  const Tensor b = state.at(q + "B.weight");
  const std::string start =
      "--config_path run.yaml --from_hf base" + to("next") + "--set lora_config.adapter=peft";
  fs::create_directories(dir_.file("peft"));
  fs::copy(dir_.file(step("out", 6) + "/adapter_config.json"), dir_.file("peft"));
  state.erase(q + "B.weight");
  state["base_model.model.model.layers.0.self_attn.x_proj.lora_B.weight"] = b;
  write_state(dir_.file("peft/adapter_model.safetensors"), state);
  EXPECT_EQ(pretrain(start), 2);
  EXPECT_THAT(said(), AllOf(HasSubstr("missing"), HasSubstr("layers.0.attention.wq.lora_B.weight"),
                            HasSubstr("unexpected"), HasSubstr("x_proj.lora_B.weight")));
  state.erase("base_model.model.model.layers.0.self_attn.x_proj.lora_B.weight");
  state[q + "B.weight"] = b.view({3, kHeads * kHead});
  write_state(dir_.file("peft/adapter_model.safetensors"), state);
  EXPECT_EQ(pretrain(start), 2);
  EXPECT_THAT(said(), AllOf(Says(q + "B.weight"), HasSubstr("[24, 3]")));
  fs::remove(dir_.file("peft/adapter_model.safetensors"));
  dir_.write("peft/adapter_model.bin", "pickle");
  EXPECT_EQ(pretrain(start), 2);
  EXPECT_THAT(said(), HasSubstr("adapter"));
}

TEST_F(AdapterRuns, TheOldestGoAndTheLatestIsFound) {
  train("out", "--set training_config.save_interval=1 --set training_config.keep_checkpoint_max=2");
  EXPECT_FALSE(fs::exists(dir_.file(step("out", 4))));
  EXPECT_TRUE(fs::exists(dir_.file(step("out", 5))));
  ASSERT_EQ(generate("--checkpoint out --prompt And --max_new_tokens 4 --temperature 0"), 0)
      << said();
  EXPECT_THAT(err_, HasSubstr("step_00000006"));
}

TEST_F(AdapterRuns, LayoutsAreVerified) {
  train("out");
  const std::string verify = "--config_path run.yaml --from_hf base --verify_layout ";
  EXPECT_EQ(pretrain(verify + "tp=2"), 0) << said();
  EXPECT_EQ(pretrain(verify + "pp=2 --set training_config.load_checkpoint=" + step("out", 3)), 0)
      << said();
}

TEST_F(AdapterRuns, MergedTheyGiveTheSameLoss) {
  train("out", "--set lora_config.use_dora=True");
  const double adapted = evaluated("--evaluate out");
  ASSERT_EQ(exported("--adapter out --merge --to hf --output merged"), 0) << said();
  EXPECT_THAT(err_, HasSubstr("with 14 matrices merged"));
  const std::string plain =
      "--config_path run.yaml --from_hf merged --set lora_config.use_lora=False --evaluate ";
  const double merged = evaluated(plain + "merged");
  EXPECT_NEAR(merged, adapted, 2e-6 * adapted);  // printed with six decimals
  const double base = evaluated(plain + "base");
  EXPECT_GT(std::abs(base - adapted), 1e-3);
  EXPECT_EQ(dir_.read("merged/config.json"), dir_.read("base/config.json"));

  ASSERT_EQ(exported("--adapter out --to hf --output peft"), 0) << said();
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    EXPECT_EQ(dir_.read(std::string("peft/") + name), dir_.read(step("out", 6) + "/" + name));
  }
  EXPECT_FALSE(fs::exists(dir_.file("peft/training_state.json")));
  EXPECT_EQ(exported("--checkpoint base --to hf --merge --output x"), 2);
  EXPECT_THAT(said(), HasSubstr("--merge is for --adapter"));
  ASSERT_EQ(exported("--checkpoint base --adapter peft --merge --to hf --type BF16 --output half"),
            0)
      << said();
  EXPECT_EQ(json("half/config.json").at("torch_dtype"), "bfloat16");
}

}  // namespace
}  // namespace tapestry::hf_test
