// What a model tells of single tokens, for losses that are more than a mean of cross entropies.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// What is wanted beside the log-probabilities.
struct TokenScoresRequest {
  /// Logits are divided by it first.
  double temperature = 1;
  bool entropy = false;      ///< with a gradient, as log_probs
  bool logit_means = false;  ///< without one, as the rest
  bool likeliest = false;
  bool square_sums = false;
  /// Of a model that ends in a score head, which knows nothing else of its tokens.
  bool values = false;
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
  /// What the score head gives each token of a row, with a gradient; the mask has no say. That of a
  /// text is the value of its last token.
  Tensor values;
};

}  // namespace tapestry
