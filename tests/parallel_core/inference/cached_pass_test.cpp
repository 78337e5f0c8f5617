#include "parallel_core/inference/cached_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "autograd/ops/softmax.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/training/training.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::Overrides;

constexpr int64_t kTokens = 8;

// What a pass over a text leaves in the cache.
int64_t bytes_kept(const Overrides& overrides) {
  const AllConfig config = testing::small_config(overrides);
  const auto model = get_model(config);
  const NoGradGuard guard;
  const EvaluationMode mode(*model);
  KeyValueCache cache(/*slots=*/1, /*longest_segment=*/kTokens);
  cache.reserve(kTokens);
  cached_logits(*model, std::vector<int64_t>(kTokens, 1),
                {.cache = &cache, .segments = {{0, 0, kTokens}}, .logits_of = {kTokens - 1}});
  return cache.bytes();
}

// One vector for all heads, of 12 channels and the 4 that are rotated, in place of keys and values
// of each head.
TEST(CachedPass, LatentAttentionKeepsTheShortVectorAlone) {
  const Overrides plain = {"model_config.position_embedding_type=rope",
                           "model_config.num_attention_heads=4"};
  const AllConfig config = testing::small_config(plain);
  const int64_t of_head = 2 * config.model_config.hidden_size / 4;
  const int64_t latent = bytes_kept(
      joined(plain, {"model_config.multi_latent_attention=True", "model_config.kv_lora_rank=12",
                     "model_config.qk_head_dim=6", "model_config.qk_pos_emb_head_dim=4",
                     "model_config.v_head_dim=8"}));
  EXPECT_EQ(latent * 4 * of_head, bytes_kept(plain) * (12 + 4));
  EXPECT_GE(latent, config.model_config.num_layers * kTokens * (12 + 4) *
                        static_cast<int64_t>(sizeof(float)));
}

// Models whose layers keep a state.
struct Recurrent {
  std::string name;
  Overrides overrides;
};

std::vector<Recurrent> recurrent_models() {
  const std::string m = "model_config.";
  const Overrides common = {m + "normalization=RMSNorm", m + "hidden_act=swiglu",
                            m + "num_layers=3", "dataset_config.data_layout=BSH"};
  const auto by = [&](const std::string& types, const Overrides& more) {
    return joined(joined(common, {m + "layer_types=" + types}), more);
  };
  return {{"gated_delta_net", by("[linear_attention, linear_attention, full_attention]",
                                 {m + "linear_num_key_heads=2", m + "linear_num_value_heads=4",
                                  m + "linear_key_head_dim=6", m + "linear_value_head_dim=10",
                                  m + "position_embedding_type=rope"})},
          {"short_conv", by("[conv, full_attention, conv]", {m + "position_embedding_type=rope"})},
          {"mamba", by("[mamba, mamba, full_attention]",
                       {m + "mamba_num_heads=4", m + "mamba_head_dim=6", m + "mamba_state_dim=5",
                        m + "position_embedding_type=none"})},
          {"sequence_first",
           by("[mamba, conv, linear_attention]",
              {m + "mamba_num_heads=4", m + "mamba_head_dim=6", m + "linear_num_key_heads=2",
               m + "linear_num_value_heads=2", m + "linear_key_head_dim=6",
               m + "linear_value_head_dim=5", "dataset_config.data_layout=SBH",
               m + "position_embedding_type=none"})}};
}

class CachedState : public ::testing::TestWithParam<Recurrent> {
 protected:
  CachedState() : config_(testing::small_config(GetParam().overrides)), model_(get_model(config_)) {
    for (int64_t i = 0; i < kLength; ++i) {
      tokens_.push_back((7 * i * i + 3 * i + 1) % config_.model_config.vocab_size);
    }
  }

  // Of the token after each one, with the text in pieces of these sizes, again and again.
  std::vector<float> log_probabilities(const std::vector<int64_t>& pieces,
                                       KeyValueCache& cache,
                                       int64_t slot) {
    const NoGradGuard guard;
    const EvaluationMode mode(*model_);
    std::vector<float> out;
    int64_t done = 0;
    for (size_t piece = 0; done < kLength; ++piece) {
      const int64_t count = std::min(pieces[piece % pieces.size()], kLength - done);
      CachedStep step{.cache = &cache, .segments = {{slot, done, count}}, .logits_of = {}};
      for (int64_t i = 0; i < count; ++i) {
        step.logits_of.push_back(i);
      }
      const auto first = tokens_.begin() + done;
      const Tensor logits = cached_logits(*model_, {first, first + count}, step);
      const std::vector<float> rows = log_softmax(logits, -1).to_vector<float>();
      out.insert(out.end(), rows.begin(), rows.end());
      done += count;
    }
    return out;
  }

  static constexpr int64_t kLength = 150;
  AllConfig config_;
  std::unique_ptr<ParallelModel> model_;
  std::vector<int64_t> tokens_;
};

TEST_P(CachedState, GoesOnAlikeHoweverTheTextIsCut) {
  KeyValueCache cache(/*slots=*/2, kLength);
  cache.reserve(kLength);
  const int64_t empty_bytes = cache.bytes();
  const std::vector<float> at_once = log_probabilities({kLength}, cache, 0);
  EXPECT_GT(cache.bytes(), empty_bytes);
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{1}, {64}, {2, 1, 67, 3}, {kLength - 1, 1}}) {
    // A slot that another text has been in.
    const std::vector<float> in_pieces = log_probabilities(pieces, cache, 1);
    ASSERT_EQ(in_pieces.size(), at_once.size());
    for (size_t i = 0; i < at_once.size(); ++i) {
      ASSERT_NEAR(in_pieces[i], at_once[i], 1e-5) << "piece of " << pieces[0] << ", number " << i;
    }
  }
}

TEST_P(CachedState, IsThatOfTrainingsForwardPass) {
  KeyValueCache cache(/*slots=*/1, kLength);
  cache.reserve(kLength);
  const std::vector<float> cached = log_probabilities({kLength}, cache, 0);
  const NoGradGuard guard;
  const EvaluationMode mode(*model_);
  const Tensor ids = tensor(tokens_, {1, kLength});
  Tensor logits = model_->forward({.tokens = ids}).logits;
  if (model_->sequence_axis() == 0) {
    logits = logits.transpose(0, 1);
  }
  const std::vector<float> whole = log_softmax(logits, -1).to_vector<float>();
  ASSERT_EQ(whole.size(), cached.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_NEAR(whole[i], cached[i], 1e-5) << i;
  }
}

// A state does not grow with the text, and cannot go back.
TEST_P(CachedState, IsOfConstantSizeAndHasNoWayBack) {
  KeyValueCache cache(/*slots=*/2, kLength);
  cache.reserve(kLength);
  log_probabilities({50}, cache, 0);
  EXPECT_TRUE(cache.can_rewind(kLength, kLength));
  EXPECT_TRUE(cache.can_rewind(kLength, 0));
  EXPECT_FALSE(cache.can_rewind(kLength, kLength - 1));
  if (has_mixer(config_.model_config, MixerKind::kAttention)) {
    return;
  }
  const int64_t bytes = cache.bytes();
  cache.reserve(100 * kLength);
  EXPECT_EQ(cache.bytes(), bytes);
}

// The state of a text goes with it to another slot.
TEST_P(CachedState, MovesWithItsText) {
  KeyValueCache cache(/*slots=*/2, kLength);
  cache.reserve(kLength);
  const std::vector<float> whole = log_probabilities({kLength}, cache, 0);
  const NoGradGuard guard;
  const EvaluationMode mode(*model_);
  const int64_t first = 90;
  cached_logits(*model_, {tokens_.begin(), tokens_.begin() + first},
                {.cache = &cache, .segments = {{1, 0, first}}, .logits_of = {}});
  cache.move(1, 0, first);
  const Tensor logits = cached_logits(
      *model_, {tokens_[first]}, {.cache = &cache, .segments = {{0, first, 1}}, .logits_of = {0}});
  const std::vector<float> next = log_softmax(logits, -1).to_vector<float>();
  for (size_t i = 0; i < next.size(); ++i) {
    EXPECT_NEAR(next[i], whole[static_cast<size_t>(first) * next.size() + i], 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers,
                         CachedState,
                         ::testing::ValuesIn(recurrent_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tapestry
