// Random numbers that do not depend on how a job is split: every number is a function of the run's
// seed, of what it is for, and of a position in a global tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/tensor/generator.h"
#include "autograd/tensor/tensor.h"
#include "parallel_core/sequence_part.h"

namespace tapestry {

/// Places in a layer where dropout, or other noise, is applied; part of the random stream, so the
/// numbers are fixed.
enum class DropoutSite : uint64_t {
  kEmbedding = 0,
  kAttentionProbs = 1,
  kAttentionOutput = 2,
  kMlpOutput = 3,
  kRouterInput = 4,   ///< input_jitter()
  kRouterLogits = 5,  ///< random_logits()
};

/// What the current rank's random streams are derived from. The training loop sets it before each
/// micro-batch; checkpoint() puts back what a function had the first time.
struct RandomContext {
  uint64_t seed = 0;
  int64_t step = 0;                 ///< optimizer step, from 0
  std::vector<int64_t> sample_ids;  ///< global sample index of each row of the micro-batch
};

/// The current rank's context.
RandomContext& random_context();

/// Stream of a parameter's initial values; the counter is the element's index in the global
/// logical tensor.
RandomKey initialization_key(std::string_view logical_name);

/// The stream that one dropout site of a layer has in the current step; each sample's own stream is
/// combine(stream, global sample index), and the counter is an element's index in that sample's
/// logical tensor.
RandomKey dropout_key(int64_t layer, DropoutSite site);

/// Rows [begin, end) of the current micro-batch whose global sample indices are consecutive.
struct SampleRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first_sample = 0;
};
/// The micro-batch as such runs, usually one. ValueError if it does not have `rows` rows.
std::vector<SampleRun> sample_runs(int64_t rows);

/// Dropout on hidden states: zeroes each element with probability p and scales the others by
/// 1 / (1 - p). x is [B, S, H], or [S, B, H] with batch_axis 1; the counter of an element is
/// s * H + h with s the token's position, of which x has `part`. x itself if p is 0. ValueError
/// unless 0 <= p < 1 and the micro-batch of random_context() has B rows.
Tensor hidden_dropout(const Tensor& x,
                      double p,
                      int64_t layer,
                      DropoutSite site,
                      int64_t batch_axis,
                      const SequencePart& part = {});

/// The stream of dropout that belongs to something with a logical name, in the current step;
/// samples and counters as above.
RandomKey dropout_key(std::string_view logical_name);

/// Where hidden states [B, S, H], or [S, B, H] with batch_axis 1, lie in those of all ranks: the
/// positions of their tokens, and features from `first_feature` of `features` (0: x has all).
struct DropoutPlace {
  int64_t batch_axis = 0;
  SequencePart part = {};
  int64_t first_feature = 0;
  int64_t features = 0;
};
/// hidden_dropout() with the numbers of `key`; the counter of an element is s * features + h.
Tensor hidden_dropout(const Tensor& x, double p, const RandomKey& key, const DropoutPlace& place);

/// What a router of experts reads: each element of x times a number uniform on [1 - eps, 1 + eps).
/// x is [T, H], floating, with the tokens of the current micro-batch that have `numbers` (row *
/// seq_length + position); the counter of an element is position * H + h. Differentiable any number
/// of times. x itself if eps is 0. ValueError unless 0 <= eps < 1, there is a number for each
/// token, and each is one of a row of random_context()'s micro-batch. Source: Fedus et al. 2021,
/// arXiv:2101.03961, section 2.2.
Tensor input_jitter(const Tensor& x,
                    double eps,
                    int64_t layer,
                    std::span<const int64_t> numbers,
                    int64_t seq_length);

/// Standard normal numbers in place of a router's logits [T, E], whose tokens are as in
/// input_jitter(); the counter of an element is position * E + e. The gradient goes to `logits` as
/// it comes (straight-through estimator, Bengio et al. 2013, arXiv:1308.3432). ValueError as there.
Tensor random_logits(const Tensor& logits,
                     int64_t layer,
                     std::span<const int64_t> numbers,
                     int64_t seq_length);

}  // namespace tapestry
