#include "diagnosis/verify/faults/reference_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;

const std::string kStored = "tests/data/golden_models/llama_tiny";

TEST(ReferenceRun, ReadsAStoredTraining) {
  const ReferenceRun run(kStored);
  EXPECT_EQ(run.steps(), 6);
  EXPECT_EQ(run.config_file(), kStored + "/config.json");
  EXPECT_EQ(run.config()->model_config.hidden_size, 24);
  EXPECT_EQ(run.config()->optimizer_config.clip_grad, 1.0);
  const ReferenceStep& step = run.step(1);
  EXPECT_DOUBLE_EQ(step.loss.value(), 3.7275158166885376);
  EXPECT_DOUBLE_EQ(step.grad_norm.value(), 2.4811215599725673);
  EXPECT_EQ(step.loss_tokens, 42);
  EXPECT_EQ(step.lr, std::vector<double>{0.0});
  EXPECT_DOUBLE_EQ(step.grad_norms.at("tok_embeddings.weight"), 1.1635261694460446);
  EXPECT_EQ(run.activations(1)->at("logits").numel(), 12 * 40);
  EXPECT_EQ(run.gradients(1)->at("lm_head.weight").shape(), (Shape{40, 24}));
  EXPECT_FALSE(run.gradients(2));
  EXPECT_FALSE(run.weights(5));
  EXPECT_TRUE(run.weights(6));  // final.safetensors
}

class BrokenReference : public ::testing::Test {
 protected:
  BrokenReference() {
    for (const char* name : {"config.json", "trace.jsonl"}) {
      fs::copy_file(kStored + "/" + name, dir_.file(name));
    }
  }
  data::TempDir dir_;
};

TEST_F(BrokenReference, SaysWhatIsMissing) {
  fs::remove(dir_.file("config.json"));
  EXPECT_ERROR(ReferenceRun(dir_.path()), IoError, "config.json is missing");
  fs::remove(dir_.file("trace.jsonl"));
  // Without a trace it could only be the output folder of a run.
  EXPECT_ERROR(ReferenceRun(dir_.path()), IoError, "metrics.jsonl is missing");
  EXPECT_ERROR(ReferenceRun(dir_.file("nowhere")), IoError, "expected a replay case");
}

TEST_F(BrokenReference, SaysWhichLineIsWrong) {
  const std::string good = dir_.read("trace.jsonl");
  dir_.write("trace.jsonl", good + "{\"step\": 7, \"loss\": }\n");
  EXPECT_ERROR(ReferenceRun(dir_.path()), IoError, "trace.jsonl:7");
  dir_.write("trace.jsonl", good + "{\"step\": 9, \"loss\": 1.0}\n");
  EXPECT_ERROR(ReferenceRun(dir_.path()), IoError, "step 9 where step 7 was expected");
  dir_.write("trace.jsonl", "");
  EXPECT_ERROR(ReferenceRun(dir_.path()), IoError, "trace.jsonl");
}

TEST_F(BrokenReference, SaysWhatIsWrongInItsConfiguration) {
  const std::string good = dir_.read("config.json");
  dir_.write("config.json", "[1, 2]");
  EXPECT_ERROR(ReferenceRun(dir_.path()), ValueError, "object");
  const size_t at = good.find("\"hidden_size\"");
  dir_.write("config.json", good.substr(0, at) + "\"hidden\"" + good.substr(at + 13));
  EXPECT_ERROR(ReferenceRun(dir_.path()), ValueError, "hidden");
}

TEST_F(BrokenReference, RefusesATensorFileThatIsNone) {
  dir_.write("grads_step_1.safetensors", "nothing of it");
  const ReferenceRun run(dir_.path());
  EXPECT_ERROR(run.gradients(1), IoError, "grads_step_1.safetensors");
}

// What a run leaves: numbers that JSON does not have are texts, and keys may be absent.
TEST(ReferenceRun, ReadsTheOutputFolderOfARun) {
  const data::TempDir dir;
  dir.write("config.yaml",
            "training_config: {training_iters: 2}\n"
            "model_config: {vocab_size: 8, num_layers: 1, hidden_size: 4, ffn_hidden_size: 4,"
            " num_attention_heads: 1, seq_length: 4}\n");
  dir.write("metrics.jsonl",
            "{\"step\": 1, \"loss\": \"nan\", \"lr\": [0.1, 0.2]}\n{\"step\": 2, \"loss\": 2.5}\n");
  const ReferenceRun run(dir.path());
  ASSERT_EQ(run.steps(), 2);
  EXPECT_TRUE(std::isnan(run.step(1).loss.value()));
  EXPECT_EQ(run.step(1).lr, (std::vector<double>{0.1, 0.2}));
  EXPECT_FALSE(run.step(1).grad_norm);
  EXPECT_FALSE(run.step(2).loss_tokens);
  EXPECT_EQ(run.step(2).loss, 2.5);
  EXPECT_FALSE(run.activations(1));
}

}  // namespace
}  // namespace tapestry
