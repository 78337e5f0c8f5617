// The choice of a text's next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tapestry {

struct GenerationOptions {
  int64_t max_new_tokens = 100;
  double temperature = 1;  ///< divides the logits; 0: always the likeliest token
  int64_t top_k = 0;       ///< only among the k likeliest; 0: all
  double top_p = 1;        ///< only among the likeliest that together have this probability
  uint64_t seed = 0;
  int64_t vocab_size = 0;   ///< ids at and above are never chosen (padding of the vocabulary)
  int64_t eod_id = -1;      ///< ends the text; -1: none
  int64_t max_context = 0;  ///< the model sees at most so many last tokens; 0: any number
  double min_p = 0;         ///< only tokens with this share of the likeliest one's probability
  /// Logits of tokens that the prompt or the text has already are divided by it where they are
  /// positive, else multiplied, before all else. Source: Keskar et al. 2019, arXiv:1909.05858.
  double repetition_penalty = 1;
  std::vector<int32_t> stop_ids = {};  ///< further ids that end the text
  /// Log-probabilities of the chosen token and of so many likeliest ones; -1: none are computed.
  int64_t top_log_probs = -1;
  /// Log-probabilities of chosen tokens are those that training has of them (training_log_probs.h)
  /// and divides logits by the temperature for, or by 1 where that is 0.
  bool training_log_probs = false;
  /// Ends a text that fills max_context, in place of forgetting its first tokens.
  bool stops_at_context = false;
};

/// A token and the logarithm of its probability after what stands before it, in the model's own
/// distribution: softmax of the logits of ids below vocab_size, before penalty, temperature and
/// what follows.
struct TokenLogProb {
  int32_t id = 0;
  double log_prob = 0;
};

/// ValueError, naming the option, for one outside its range.
void check_generation_options(const GenerationOptions& options);

/// Chooses the next token from the logits of one position. `draw` in [0, 1) decides. In this order:
/// temperature, top_k, top_p (of what top_k left), min_p. ValueError if there are no logits or one
/// of those looked at is NaN or +infinity.
int64_t sample_token(std::span<const float> logits, const GenerationOptions& options, double draw);

/// Applies repetition_penalty to the logits of `ids`, each counted once.
void penalize_repetition(std::span<float> logits, std::span<const int32_t> ids, double penalty);

/// The log-probabilities of `chosen`, first, and of the `top` likeliest tokens in their order
/// (equal ones by their numbers), among the first vocab_size logits (0: all).
std::vector<TokenLogProb> log_probabilities(std::span<const float> logits,
                                            int64_t vocab_size,
                                            int32_t chosen,
                                            int64_t top);

}  // namespace tapestry
