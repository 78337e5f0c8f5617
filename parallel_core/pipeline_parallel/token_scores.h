// What a model tells of single tokens, for losses that are more than a mean of cross entropies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// The tokens of a micro-batch whose label counts, those of this rank in the order of its hidden
/// states, before the head has made logits of them. Refers to the model.
struct HeadRows {
  int64_t count = 0;
  std::function<Tensor(int64_t begin, int64_t end)> logits;  ///< [end - begin, own columns]
};

/// The likeliest tokens of `count` positions. Of entries with log-probability -infinity there is
/// nothing known.
struct TopLogProbs {
  Tensor ids;        ///< int32 [count, k], in a row all different
  Tensor log_probs;  ///< float32 [count, k]
};

/// A distribution for each token that counts.
using DivergenceTarget = std::variant<HeadRows, TopLogProbs>;

/// Of the model's distributions, softmax(logits / temperature), from those of a teacher: see
/// kernels/row_divergence.h, and linear_divergence.h for the likeliest tokens alone.
struct DivergenceRequest {
  double temperature = 1;
  double beta = 0;       ///< 0: forward, 1: reverse
  bool add_tail = true;  ///< the tokens beside the likeliest are one more entry
  /// What tokens of a micro-batch are held against, given their positions row * S + column in whole
  /// rows. Logits have as many columns as the model's own on this rank.
  std::function<DivergenceTarget(int64_t micro_batch, const std::vector<int64_t>& positions)>
      target;
};

/// What is wanted beside the log-probabilities.
struct TokenScoresRequest {
  /// Logits are divided by it first.
  double temperature = 1;
  bool entropy = false;      ///< with a gradient, as log_probs
  bool logit_means = false;  ///< without one, as the rest
  bool likeliest = false;
  bool square_sums = false;
  /// With a gradient; then log_probs and entropy come with it, of a temperature of 1 and without a
  /// gradient of the entropy, and nothing else does. Outlives the request.
  const DivergenceRequest* divergence = nullptr;
  bool head_rows = false;  ///< nothing but these
  /// False: none has a gradient, and nothing is kept for backward.
  bool gradients = true;
};

/// Of each position of a micro-batch whose label counts (ModelInput::loss_mask above 0), 0 of all
/// others. All are float32 [B, S] of whole rows, the same on every rank of tensor- and
/// context-parallel groups, whatever the data layout; undefined unless asked for. A gradient that
/// every such rank computes from them alike becomes that of the rank's own tokens.
struct TokenScores {
  Tensor log_probs;    ///< ln p(label), p = softmax(logits / temperature)
  Tensor entropy;      ///< -sum p ln p
  Tensor logit_means;  ///< mean of the logits over the vocabulary, before the temperature
  Tensor likeliest;    ///< 1 where the label is the likeliest token
  Tensor square_sums;  ///< ln sum p^2
  Tensor divergence;   ///< from DivergenceRequest::target
  std::optional<HeadRows> head_rows;
};

}  // namespace tapestry
