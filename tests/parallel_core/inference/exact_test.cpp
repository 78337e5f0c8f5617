// Texts in exact mode: what is generated, and what log-probabilities tokens have, does not depend
// on the other texts, on what is kept of a text, on the CPU level or on the layout.
#include "autograd/kernels/machine/exact.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/kernels/exact/exact_class.h"
#include "autograd/tensor/dtype.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/log_likelihood.h"
#include "tests/cpu_levels.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

namespace exact_texts {

using testing::joined;
using testing::kModel;
using testing::llama;
using testing::Overrides;
using testing::small_config;
using testing::State;

struct Family {
  std::string name;
  Overrides overrides;
};

std::vector<Family> families() {
  const std::string window = kModel + "window_size=[70, 0]";
  return {
      {"Gpt2", {}},
      {"Qwen3", llama({kModel + "qk_layernorm=True"})},
      {"Softcap", llama({window, kModel + "attention_softcap=2.0", kModel + "logit_softcap=5.0",
                         kModel + "norm_placement=sandwich"})},
      {"Interleaved",
       llama({kModel + "rotary_config.rotary_interleaved=True",
              kModel + "rotary_config.rotary_percent=0.5", "dataset_config.data_layout=SBH"})},
      {"Mixtral", testing::mixtral()},
      {"GptOss", testing::gpt_oss({kModel + "window_size=[9, 0]"})},
      {"Alibi", {kModel + "position_embedding_type=alibi"}},
      {"Latent",
       llama({kModel + "group_query_attention=False", kModel + "multi_latent_attention=True",
              kModel + "kv_lora_rank=12", kModel + "q_lora_rank=10", kModel + "qk_head_dim=6",
              kModel + "qk_pos_emb_head_dim=4", kModel + "v_head_dim=8"})},
  };
}

Overrides in(const std::string& dtype) {
  return {kModel + "seq_length=128", kModel + "compute_dtype=" + dtype};
}

State weights_of(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  testing::jitter(*model, 0.3);
  return get_logical_state(*model);
}

std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> out;
  const std::array<int64_t, 4> lengths = {3, 66, 1, 17};
  for (size_t i = 0; i < lengths.size(); ++i) {
    GenerationRequest request;
    for (int64_t t = 0; t < lengths[i]; ++t) {
      request.prompt.push_back(static_cast<int32_t>((7 * i + 5 * t * t + t) % 31));
    }
    request.options = {.max_new_tokens = 4 + 3 * static_cast<int64_t>(i % 3),
                       .temperature = 0.9,
                       .seed = 11 + i,
                       .top_log_probs = 3};
    out.push_back(request);
  }
  return out;
}

/// All that is told of the texts: their tokens with the log-probabilities of these and of the
/// likeliest.
using Told = std::vector<std::vector<double>>;

Told generated(ParallelModel& model, GenerationBatch batch) {
  batch.exact = true;
  Told out;
  for (const GenerationResult& result : generate_batch(model, requests(), batch)) {
    std::vector<double>& told = out.emplace_back();
    for (const GeneratedToken& token : result.tokens) {
      told.push_back(token.id);
      told.push_back(token.log_prob);
      for (const TokenLogProb& other : token.likeliest) {
        told.push_back(other.id);
        told.push_back(other.log_prob);
      }
    }
  }
  return out;
}

Told scored(ParallelModel& model, int64_t tokens_per_pass) {
  std::vector<ScoredRow> rows;
  for (const GenerationRequest& request : requests()) {
    rows.push_back({.tokens = request.prompt});
  }
  Told out;
  for (const RowScores& scores :
       log_likelihood(model, rows, {.tokens_per_pass = tokens_per_pass, .exact = true})) {
    out.push_back(scores.log_probs);
  }
  return out;
}

/// In several ways, of which the first without a cache: as training computes a text.
Told told_by(ParallelModel& model) {
  Told expected = generated(model, {.use_cache = false});
  for (const GenerationBatch& batch :
       {GenerationBatch{.batch_size = 1}, GenerationBatch{.batch_size = 3, .prefill_tokens = 5},
        GenerationBatch{}}) {
    EXPECT_EQ(generated(model, batch), expected)
        << batch.batch_size << " texts, prompts by " << batch.prefill_tokens;
  }
  const Told alone = scored(model, 1);
  EXPECT_EQ(scored(model, 1000), alone);
  expected.insert(expected.end(), alone.begin(), alone.end());
  return expected;
}

class ExactTexts : public ::testing::TestWithParam<std::string> {};

TEST_P(ExactTexts, HaveTheSameBitsAloneAndInABatchAtEveryLevel) {
  const std::string& dtype = GetParam();
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const Overrides overrides = joined(family.overrides, in(dtype));
    const auto model = testing::model_with(small_config(overrides), weights_of(overrides));
    ASSERT_TRUE(model->takes_cache());
    std::map<std::string_view, Told> of_class;
    for (const CpuLevel level : fused_cpu_levels()) {
      SCOPED_TRACE(name_of(level));
      const CpuLevelGuard guard(level);
      const Told found = told_by(*model);
      Told& expected = of_class[exact_class(parse_dtype(dtype))];
      if (expected.empty()) {
        expected = found;
      }
      EXPECT_EQ(found, expected);
    }
  }
}

TEST_P(ExactTexts, HaveTheSameBitsOnAnyRanks) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const Overrides alone = joined(family.overrides, in(GetParam()));
    const State start = weights_of(alone);
    const Told expected = told_by(*testing::model_with(small_config(alone), start));
    for (const bool sequence : {false, true}) {
      const AllConfig config = small_config(joined(
          alone, {"parallel_config.tensor_model_parallel_size=2",
                  concat("parallel_config.sequence_parallel=", sequence ? "True" : "False")}));
      ModelParallelSizes sizes;
      sizes.tensor_model_parallel_size = 2;
      testing::run_parallel(
          2, sizes, [&] { EXPECT_EQ(told_by(*testing::model_with(config, start)), expected); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactTexts, ::testing::Values("float32", "bfloat16"));

}  // namespace exact_texts

}  // namespace
}  // namespace tapestry
