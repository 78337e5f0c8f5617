#include "parallel_core/inference/cached_pass.h"

#include <gtest/gtest.h>

#include "autograd/tape/grad_mode.h"
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

}  // namespace
}  // namespace tapestry
