// What a sampler and a trainer compute of the same tokens inside a OneOrderScope, to the bit: texts
// that are sampled in any batches over a cache, and the same texts in packed rows.
#include "autograd/kernels/machine/one_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/kernels/losses/row_scores.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/ops/heads/linear_score_rows.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/lora/quantize_base.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/training/step/forward_step.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

namespace one_order_models {

using testing::joined;
using testing::kModel;
using testing::kMoe;
using testing::llama;
using testing::Overrides;
using testing::small_config;
using testing::State;

constexpr int64_t kLength = 64;

struct Family {
  std::string name;
  Overrides overrides;
};

std::vector<Family> families() {
  const std::string window = kModel + "window_size=[5, 0]";
  return {
      {"Gpt2", {}},
      {"Llama", llama()},
      {"LlamaSbh", llama({"dataset_config.data_layout=SBH"})},
      {"Qwen3", llama({kModel + "qk_layernorm=True"})},
      {"Window", llama({window})},
      {"Softcap", llama({window, kModel + "attention_softcap=2.0", kModel + "logit_softcap=5.0",
                         kModel + "norm_placement=sandwich"})},
      {"Alibi", {kModel + "position_embedding_type=alibi"}},
      {"Interleaved", llama({kModel + "rotary_config.rotary_interleaved=True",
                             kModel + "rotary_config.rotary_percent=0.5"})},
      {"Latent",
       llama({kModel + "group_query_attention=False", kModel + "multi_latent_attention=True",
              kModel + "kv_lora_rank=12", kModel + "q_lora_rank=10", kModel + "qk_head_dim=6",
              kModel + "qk_pos_emb_head_dim=4", kModel + "v_head_dim=8"})},
      {"Mixtral", testing::mixtral()},
      {"Qwen2Moe", testing::qwen2_moe()},
      {"GptOss", testing::gpt_oss({window})},
      {"Gemma4", testing::gemma4()},
      {"Gemma4Moe", testing::gemma4_moe()},
      {"Streams", llama({kModel + "enable_hyper_connections=True"})},
      {"ShortConv", llama({kModel + "layer_types=[conv, full_attention]"})},
      {"Lora", llama({"lora_config.use_lora=True",
                      "lora_config.target_cells=[{target_cells: ['.*_proj']}]"})},
      {"LoraQ8", llama({kModel + "ffn_hidden_size=64", "lora_config.use_lora=True",
                        "lora_config.base_dtype=q8_0",
                        "lora_config.target_cells=[{target_cells: ['.*_proj']}]"})},
      {"Recomputed", llama({kModel + "recompute_granularity=full"})},
  };
}

Overrides in(const std::string& dtype) {
  return {kModel + "seq_length=64", kModel + "compute_dtype=" + dtype};
}

State weights_of(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  testing::jitter(*model, 0.3);
  return get_logical_state(*model);
}

constexpr int64_t kLikeliest = 6;

std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> out;
  const std::array<int64_t, 7> lengths = {3, 1, 17, 2, 9, 30, 5};
  for (size_t i = 0; i < lengths.size(); ++i) {
    GenerationRequest request;
    for (int64_t t = 0; t < lengths[i]; ++t) {
      request.prompt.push_back(static_cast<int32_t>((7 * i + 5 * t * t + t) % 31));
    }
    request.options = {.max_new_tokens = 6 + 5 * static_cast<int64_t>(i % 3),
                       .temperature = 0.9,
                       .seed = 11 + i,
                       .top_log_probs = kLikeliest};
    out.push_back(request);
  }
  return out;
}

/// A text that was sampled, and what was recorded of each of its tokens: the log-probability of its
/// own and those of the likeliest, of a sum over all logits in float64.
struct Sampled {
  std::vector<int32_t> prompt;
  std::vector<int32_t> ids;
  std::vector<std::vector<double>> recorded;
};

std::vector<double> numbers_of(double log_prob, std::span<const TokenLogProb> likeliest) {
  std::vector<double> out = {log_prob};
  for (const TokenLogProb& token : likeliest) {
    out.push_back(token.id);
    out.push_back(token.log_prob);
  }
  return out;
}

std::vector<Sampled> sampled(ParallelModel& model, const GenerationBatch& batch) {
  const std::vector<GenerationRequest> wanted = requests();
  const std::vector<GenerationResult> results = generate_batch(model, wanted, batch);
  std::vector<Sampled> out;
  for (size_t i = 0; i < wanted.size(); ++i) {
    Sampled& text = out.emplace_back();
    text.prompt = wanted[i].prompt;
    for (const GeneratedToken& token : results[i].tokens) {
      text.ids.push_back(token.id);
      text.recorded.push_back(numbers_of(token.log_prob, token.likeliest));
    }
  }
  return out;
}

data::Batch packed(const std::vector<Sampled>& texts,
                   const std::vector<int64_t>& order,
                   bool packing,
                   int64_t unit) {
  post_training::SequenceSet set;
  for (const Sampled& text : texts) {
    set.add(text.prompt, text.ids);
  }
  return post_training::pack_sequences(set, order,
                                       {.seq_length = kLength, .unit = unit, .packing = packing});
}

/// [B, S, V] of a forward pass as training makes it.
Tensor training_logits(ParallelModel& model, const data::Batch& batch) {
  ModelInput input = to_model_input(batch, model.sequence_unit());
  input.labels = {};
  input.loss_mask = {};
  const Tensor logits = model(input).logits.to(kFloat32);
  return dense(model.sequence_axis() == 0 ? logits.transpose(0, 1) : logits);
}

/// The same numbers of each text from a training pass.
std::vector<std::vector<std::vector<double>>> recorded_of(const Tensor& logits,
                                                          const data::Batch& batch,
                                                          const std::vector<Sampled>& texts) {
  std::vector<std::vector<std::vector<double>>> out(texts.size());
  const auto vocabulary = static_cast<size_t>(logits.size(2));
  for (size_t row = 0; row < batch.sequences.size(); ++row) {
    for (const data::RowSequence& sequence : batch.sequences[row]) {
      const Sampled& text = texts[static_cast<size_t>(sequence.number)];
      for (int64_t t = sequence.prompt; t < sequence.tokens; ++t) {
        const int64_t position =
            static_cast<int64_t>(row) * logits.size(1) + sequence.first + t - 1;
        const std::span<const float> own(
            logits.data<float>() + static_cast<size_t>(position) * vocabulary, vocabulary);
        const int32_t id = text.ids[static_cast<size_t>(t - sequence.prompt)];
        const auto found = log_probabilities(own, 0, id, kLikeliest);
        out[static_cast<size_t>(sequence.number)].push_back(
            numbers_of(found[0].log_prob, std::span(found).subspan(1)));
      }
    }
  }
  return out;
}

void expect_same(const std::vector<Sampled>& texts,
                 const std::vector<std::vector<std::vector<double>>>& trained) {
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(texts[i].recorded.size(), trained[i].size());
    for (size_t t = 0; t < trained[i].size(); ++t) {
      ASSERT_EQ(texts[i].recorded[t], trained[i][t]) << "text " << i << ", token " << t;
    }
  }
}

/// Log-probabilities of labels by the rows of logits, as TokenScores has them: each rank's part of
/// the vocabulary is summed by itself.
std::vector<float> log_probs_of(const Tensor& logits,
                                const std::vector<int64_t>& labels,
                                double temperature,
                                int ranks) {
  const int64_t rows = logits.size(0) * logits.size(1);
  const int64_t vocabulary = logits.size(2);
  const Tensor scores = empty({ranks, rows, kernels::kRowScores}, kFloat64);
  ScoredColumns columns;
  for (int rank = 0; rank < ranks; ++rank) {
    const VocabularyShard shard = vocabulary_shard(vocabulary, rank, ranks);
    columns = {vocabulary, shard.first, shard.rows, shard.valid};
    const Tensor own = dense(logits.slice(2, shard.first, shard.first + shard.valid));
    std::vector<int64_t> own_labels = labels;
    for (int64_t& label : own_labels) {
      label = label >= shard.first && label < shard.first + shard.valid ? label - shard.first : -1;
    }
    kernels::row_scores({.shape = {.rows = rows,
                                   .vocab = shard.valid,
                                   .valid_vocab = shard.valid,
                                   .temperature = temperature},
                         .logits = own.raw(),
                         .labels = own_labels.data(),
                         .scores = scores.data<double>() + rank * rows * kernels::kRowScores});
  }
  const LinearScoreRows all({.temperature = temperature}, columns, tensor(labels, {rows}));
  return all.combine(scores, kFloat32)
      .scores.slice(0, kScoreOfLabel, kScoreOfLabel + 1)
      .to_vector<float>();
}

/// The log-probabilities that losses are made of are those of the logits, with a gradient.
void expect_scores_of_logits(ParallelModel& model,
                             const data::Batch& batch,
                             const Tensor& logits,
                             int ranks) {
  constexpr double kTemperature = 0.7;
  const TokenScoresRequest wanted = {.temperature = kTemperature};
  ModelInput input = to_model_input(batch, model.sequence_unit());
  input.scores = &wanted;
  const std::optional<TokenScores> scores = model(input).scores;
  ASSERT_TRUE(scores);
  const std::vector<float> found = scores->log_probs.to_vector<float>();
  const std::vector<float> expected = log_probs_of(logits, batch.labels, kTemperature, ranks);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], batch.loss_mask[i] > 0 ? expected[i] : 0) << "token " << i;
  }
  sum(scores->log_probs).backward();
}

template <class Check>
void at_every_level(const Check& check) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512,
                               CpuLevel::kAvx512Bf16, CpuLevel::kAmx}) {
    if (level <= detected_cpu_level() && is_compiled(level)) {
      SCOPED_TRACE(name_of(level));
      set_cpu_level(level);
      check();
    }
  }
  set_cpu_level(before);
}

/// Samples in several ways, and trains in several.
void check_model(ParallelModel& model, int ranks) {
  const OneOrderScope scope;
  const std::vector<Sampled> texts = sampled(model, {.batch_size = 3, .prefill_tokens = 4});
  for (const GenerationBatch& batch :
       {GenerationBatch{.batch_size = 1}, GenerationBatch{.batch_size = 7, .prefill_tokens = 20},
        GenerationBatch{}}) {
    const std::vector<Sampled> again = sampled(model, batch);
    for (size_t i = 0; i < texts.size(); ++i) {
      ASSERT_EQ(again[i].ids, texts[i].ids);
      ASSERT_EQ(again[i].recorded, texts[i].recorded) << "text " << i;
    }
  }
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  model.train();
  for (const bool packing : {true, false}) {
    SCOPED_TRACE(packing ? "packed" : "a row for each");
    const data::Batch batch = packed(texts, order, packing, model.sequence_unit());
    const Tensor logits = training_logits(model, batch);
    expect_same(texts, recorded_of(logits, batch, texts));
    expect_scores_of_logits(model, batch, logits, ranks);
    std::reverse(order.begin(), order.end());
  }
}

struct Case {
  Family family;
  std::string dtype;
};

class SampledAndTrained : public ::testing::TestWithParam<Case> {};

TEST_P(SampledAndTrained, HaveTheSameBits) {
  const Overrides overrides = joined(GetParam().family.overrides, in(GetParam().dtype));
  const AllConfig model_config = small_config(overrides);
  const auto model = testing::model_with(model_config, weights_of(overrides));
  if (const auto format = kernels::block_format(model_config.lora_config.base_dtype)) {
    quantize_base(*model, {.format = *format});
  }
  ASSERT_TRUE(model->takes_cache());
  at_every_level([&] { check_model(*model, 1); });
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Family& family : families()) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      out.push_back({family, dtype});
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(OneOrder,
                         SampledAndTrained,
                         ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return info.param.family.name + "_" + info.param.dtype;
                         });

struct Layout {
  std::string name;
  int64_t tensor = 1;
  Overrides more = {};
};

class SampledAndTrainedOnRanks : public ::testing::TestWithParam<Layout> {};

TEST_P(SampledAndTrainedOnRanks, HaveTheSameBits) {
  const Layout& layout = GetParam();
  for (const Family& family :
       {Family{"gpt2", {}}, Family{"llama", llama()}, Family{"gemma4", testing::gemma4_moe()},
        Family{"mixtral", testing::mixtral()}}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      SCOPED_TRACE(family.name + " " + dtype);
      const Overrides alone = joined(family.overrides, in(dtype));
      const State start = weights_of(alone);
      const AllConfig config = small_config(
          joined({alone,
                  {concat("parallel_config.tensor_model_parallel_size=", layout.tensor)},
                  layout.more}));
      ModelParallelSizes sizes;
      sizes.tensor_model_parallel_size = static_cast<int>(layout.tensor);
      testing::run_parallel(static_cast<int>(layout.tensor), sizes, [&] {
        const auto model = testing::model_with(config, start);
        check_model(*model, static_cast<int>(layout.tensor));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    OneOrder,
    SampledAndTrainedOnRanks,
    ::testing::Values(Layout{"Tp2", 2},
                      Layout{"Tp2Sp", 2, {"parallel_config.sequence_parallel=True"}},
                      Layout{"Tp2SpSbh",
                             2,
                             {"parallel_config.sequence_parallel=True",
                              "dataset_config.data_layout=SBH"}}),
    [](const ::testing::TestParamInfo<Layout>& info) { return info.param.name; });

/// Texts of any tokens in packed rows.
data::Batch packed_texts(int64_t unit) {
  std::vector<Sampled> texts;
  std::vector<int64_t> order;
  for (int32_t i = 0; i < 9; ++i) {
    Sampled& text = texts.emplace_back();
    for (int32_t t = 0; t < 3 + 5 * (i % 4); ++t) {
      (t < 2 ? text.prompt : text.ids).push_back((7 * i + 5 * t * t + t) % 31);
    }
    order.push_back(i);
  }
  return packed(texts, order, /*packing=*/true, unit);
}

std::vector<float> scores_of(ParallelModel& model, const data::Batch& batch) {
  const OneOrderScope scope;
  const TokenScoresRequest wanted;
  ModelInput input = to_model_input(batch, model.sequence_unit());
  input.scores = &wanted;
  return model(input).scores.value().log_probs.to_vector<float>();
}

/// Ranks that divide sequences or experts, and no sum, have the bits of one process.
TEST(OneOrderOnRanks, ContextAndExpertsChangeNoBit) {
  constexpr int64_t kUnit = 4;
  const data::Batch batch = packed_texts(kUnit);
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const bool experts : {false, true}) {
      SCOPED_TRACE(std::string(dtype) + (experts ? ", experts" : ", context"));
      const Overrides alone =
          joined(experts ? testing::mixtral() : llama({kModel + "window_size=[5, 0]"}), in(dtype));
      const State start = weights_of(alone);
      const std::vector<float> expected =
          scores_of(*testing::model_with(small_config(alone), start), batch);
      EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float x) { return x < 0; }), 40);
      const AllConfig config = small_config(joined(
          alone, {concat("parallel_config.",
                         experts ? "expert_model_parallel_size" : "context_parallel_size", "=2")}));
      ModelParallelSizes sizes;
      (experts ? sizes.expert_model_parallel_size : sizes.context_parallel_size) = 2;
      testing::run_parallel(2, sizes, [&] {
        EXPECT_EQ(scores_of(*testing::model_with(config, start), batch), expected);
      });
    }
  }
}

}  // namespace one_order_models

}  // namespace
}  // namespace tapestry
