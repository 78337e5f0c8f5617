#include "parallel_core/inference/open_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/log_likelihood.h"
#include "tests/message_of.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

const std::string kConfig =
    "training_config: {training_iters: 20, seed: 7}\n"
    "dataset_config: {tokenizer_type: byte}\n"
    "model_config:\n  vocab_size: 260\n  num_layers: 4\n  num_attention_heads: 4\n"
    "  hidden_size: 256\n  ffn_hidden_size: 1024\n  seq_length: 32\n  init_method_std: 0.05\n"
    "  position_embedding_type: rope\n  normalization: RMSNorm\n  hidden_act: swiglu\n"
    "  add_bias_linear: False\n  untie_embeddings_and_output_weights: True\n"
    "optimizer_config: {learning_rate: 0.01}\n";

class OpenModelTest : public ::testing::Test {
 protected:
  // A checkpoint of a model with these settings.
  std::string saved(const testing::Overrides& overrides = {}) {
    AllConfig config = init_configs_from_text(kConfig, "run.yaml", {.overrides = overrides});
    config.dataset_config.tokenizer_type = "byte";
    model_ = get_model(config);
    testing::jitter(*model_, 0.05);
    std::string text = kConfig;
    for (const std::string& more : overrides) {
      const std::string key = more.substr(more.find('.') + 1);
      const size_t equals = key.find('=');
      text.insert(text.find("  vocab_size"),
                  "  " + key.substr(0, equals) + ": " + key.substr(equals + 1) + "\n");
    }
    return write_checkpoint(*model_, config.model_config, 1,
                            {.directory = dir_.file("checkpoint"), .resolved_config = text});
  }
  // Of a text, by the model as opened.
  static double score(ParallelModel& model) {
    const ScoredRow row = {{10, 200, 30, 40, 5, 60, 70}, 1};
    return log_likelihood(model, {&row, 1}).front().sum();
  }
  data::TempDir dir_;
  std::unique_ptr<GPTModel> model_;
};

TEST_F(OpenModelTest, AsItWasSaved) {
  const OpenModel opened = open_model({.checkpoint = saved()});
  EXPECT_FALSE(opened.model->is_training());
  for (const auto& entry : opened.model->named_parameters()) {
    EXPECT_FALSE(entry.parameter->requires_grad()) << entry.name;
    EXPECT_EQ(entry.parameter->dtype(), kFloat32) << entry.name;
  }
  testing::expect_states_equal(get_logical_state(*opened.model), get_logical_state(*model_));
  EXPECT_EQ(opened.stop_ids, std::vector<int32_t>{256});
  EXPECT_EQ(score(*opened.model), score(*model_));
  const std::vector<int32_t> prompt = {1, 2, 3};
  const GenerationOptions options = {.max_new_tokens = 8, .temperature = 0};
  EXPECT_EQ(generate(*opened.model, prompt, options), generate(*model_, prompt, options));
}

// What predicts further tokens is for training alone.
TEST_F(OpenModelTest, HasNoLayersAhead) {
  const std::string folder = saved({"model_config.mtp_num_layers=2"});
  const OpenModel opened = open_model({.checkpoint = folder});
  EXPECT_EQ(opened.model->tokens_ahead(), 0);
  testing::State expected = get_logical_state(*model_);
  EXPECT_GT(std::erase_if(expected,
                          [](const auto& entry) {
                            return entry.first.starts_with("layers.4.") ||
                                   entry.first.starts_with("layers.5.");
                          }),
            0U);
  testing::expect_states_equal(get_logical_state(*opened.model), expected);
  EXPECT_EQ(score(*opened.model), score(*model_));
}

// What a run computes in 16 bits is rounded once, where it is loaded: nothing else changes.
TEST_F(OpenModelTest, ProductsInTheRunsPrecision) {
  const OpenModel opened =
      open_model({.checkpoint = saved({"model_config.compute_dtype=bfloat16"})});
  EXPECT_EQ(score(*opened.model), score(*model_));
  for (const auto& entry : opened.model->named_parameters()) {
    EXPECT_EQ(entry.parameter->dtype(), entry.parameter->flags().matmul ? kBFloat16 : kFloat32)
        << entry.name;
  }
}

TEST_F(OpenModelTest, OtherPrecisions) {
  const std::string folder = saved();
  const double exact = score(*model_);
  const OpenModel rounded = open_model({.checkpoint = folder, .dtype = "bfloat16"});
  for (const auto& entry : rounded.model->named_parameters()) {
    EXPECT_EQ(entry.parameter->dtype(), kBFloat16) << entry.name;
  }
  EXPECT_NE(score(*rounded.model), exact);
  EXPECT_NEAR(score(*rounded.model), exact, 0.02 * std::abs(exact));
  for (const BlockFormat format : kernels::kBlockFormats) {
    const OpenModel blocks =
        open_model({.checkpoint = folder, .dtype = std::string(kernels::name_of(format))});
    int quantized = 0;
    for (const auto& entry : blocks.model->named_parameters()) {
      const nn::Parameter& parameter = *entry.parameter;
      EXPECT_EQ(parameter.is_quantized(), parameter.flags().matmul) << entry.name;
      EXPECT_TRUE(!parameter.is_quantized() || parameter.quantized().format() == format);
      quantized += parameter.is_quantized() ? 1 : 0;
    }
    EXPECT_EQ(quantized, 4 * 4 + 1);
    EXPECT_NE(score(*blocks.model), exact);
    EXPECT_NEAR(score(*blocks.model), exact,
                (format == BlockFormat::kQ8_0 ? 0.02 : 0.2) * std::abs(exact));
  }
  EXPECT_THAT(message_of<ValueError>([&] { open_model({.checkpoint = folder, .dtype = "int4"}); }),
              Says("expected ... float32, bfloat16 ... q8_0 ... q4_0"));
}

// Memory peaks at the weights' own bytes and a piece of a file.
TEST_F(OpenModelTest, WeightsComeStraight) {
  const std::string folder = saved();
  model_.reset();
  CachingAllocator& allocator = RankContext::current().allocator();
  for (const char* dtype : {"float32", "bfloat16", "q8_0", "q4_0"}) {
    allocator.release_cache();
    const int64_t before = allocator.stats().current_bytes;
    allocator.reset_peak();
    const OpenModel opened = open_model({.checkpoint = folder, .dtype = dtype});
    const int64_t held = allocator.stats().current_bytes - before;
    const int64_t peak = allocator.stats().peak_bytes - before;
    // The largest matrix is a part in five of a layer; two of its pieces may be there.
    EXPECT_LE(peak, held + held / 4 + (int64_t{4} << 20)) << dtype;
  }
}

TEST_F(OpenModelTest, WrongLayouts) {
  const std::string folder = saved();
  EXPECT_THAT(
      message_of<ValueError>([&] { open_model({.checkpoint = folder, .tensor_parallel = 2}); }),
      Says("2 ... but there are ... 1; ... -n 2"));
  EXPECT_THROW(open_model({.checkpoint = folder, .pipeline_parallel = 0}), ValueError);
  EXPECT_THROW(open_model({.checkpoint = dir_.file("none")}), IoError);
}

}  // namespace
}  // namespace tapestry
