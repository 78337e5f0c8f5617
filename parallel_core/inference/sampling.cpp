#include "parallel_core/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The logits that count, all of which have an order: -infinity is a token that must not be chosen.
std::span<const float> checked_logits(std::span<const float> logits, int64_t vocab_size) {
  const size_t vocab =
      vocab_size > 0 ? std::min(logits.size(), static_cast<size_t>(vocab_size)) : logits.size();
  check<ValueError>(vocab > 0, "sample_token: there are no logits to choose from");
  const std::span<const float> out = logits.first(vocab);
  const auto bad = std::find_if_not(out.begin(), out.end(), [](float x) { return x < kInfinity; });
  check<ValueError>(bad == out.end(), "sample_token: logit ", bad - out.begin(), " is ",
                    bad == out.end() ? 0.0F : *bad, "; are the weights finite?");
  return out;
}

// Equal logits go by number.
struct Likelier {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

// Tokens in the order of their likelihood, of which only as many are sorted as are asked for.
class LikeliestFirst {
 public:
  LikeliestFirst(std::span<const float> logits, std::vector<int32_t> ids)
      : likelier_{logits}, ids_(std::move(ids)) {}

  size_t size() const { return ids_.size(); }
  int32_t operator[](size_t i) {
    while (i >= sorted_) {
      const size_t end = std::min(ids_.size(), sorted_ == 0 ? kFirst : 4 * sorted_);
      const auto at = [&](size_t n) { return ids_.begin() + static_cast<std::ptrdiff_t>(n); };
      if (end < ids_.size()) {
        std::nth_element(at(sorted_), at(end), ids_.end(), likelier_);
      }
      std::sort(at(sorted_), at(end), likelier_);
      sorted_ = end;
    }
    return ids_[i];
  }

 private:
  static constexpr size_t kFirst = 64;
  Likelier likelier_;
  std::vector<int32_t> ids_;
  size_t sorted_ = 0;
};

}  // namespace

void check_generation_options(const GenerationOptions& o) {
  check<ValueError>(o.max_new_tokens >= 0, "max_new_tokens must not be negative, got ",
                    o.max_new_tokens);
  check<ValueError>(o.temperature >= 0 && std::isfinite(o.temperature),
                    "temperature must not be negative, got ", o.temperature);
  check<ValueError>(o.top_k >= 0, "top_k must not be negative, got ", o.top_k);
  check<ValueError>(o.top_p > 0 && o.top_p <= 1, "top_p must lie in (0, 1], got ", o.top_p);
  check<ValueError>(o.min_p >= 0 && o.min_p <= 1, "min_p must lie in [0, 1], got ", o.min_p);
  check<ValueError>(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty),
                    "repetition_penalty must be positive, got ", o.repetition_penalty);
  check<ValueError>(o.top_log_probs >= -1, "top_log_probs must be at least -1 (none), got ",
                    o.top_log_probs);
  check<ValueError>(o.max_context >= 0, "max_context must not be negative, got ", o.max_context);
}

int64_t sample_token(std::span<const float> logits, const GenerationOptions& options, double draw) {
  const std::span<const float> counted = checked_logits(logits, options.vocab_size);
  const auto likeliest = std::max_element(counted.begin(), counted.end()) - counted.begin();
  if (options.temperature == 0) {
    return likeliest;
  }
  const double highest = counted[static_cast<size_t>(likeliest)];
  const auto weight = [&](int32_t id) {
    return std::exp((counted[static_cast<size_t>(id)] - highest) / options.temperature);
  };
  // Weights of less than exp(-60), 1e-26, change no choice even where a million tokens have them.
  const double least = highest - 60 * options.temperature;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i] >= least) {
      ids.push_back(static_cast<int32_t>(i));
    }
  }
  LikeliestFirst order(counted, std::move(ids));
  size_t count = order.size();
  if (options.top_k > 0) {
    count = std::min(count, static_cast<size_t>(options.top_k));
  }
  double total = 0;
  if (count < order.size()) {
    for (size_t i = 0; i < count; ++i) {
      total += weight(order[i]);
    }
  } else {
    for (size_t i = 0; i < counted.size(); ++i) {
      total += counted[i] >= least ? weight(static_cast<int32_t>(i)) : 0;
    }
  }
  // The shortest list of the likeliest that reaches top_p, of those that min_p leaves.
  double kept = total;
  if (options.top_p < 1 || options.min_p > 0) {
    kept = 0;
    size_t n = 0;
    while (n < count &&
           (n == 0 || (kept < options.top_p * total && weight(order[n]) >= options.min_p))) {
      kept += weight(order[n++]);
    }
    if (options.top_p >= 1 && n == count) {
      kept = total;
    }
    count = n;
  }
  double left = draw * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= weight(order[i]);
    if (left < 0) {
      return order[i];
    }
  }
  return order[count - 1];
}

void penalize_repetition(std::span<float> logits, std::span<const int32_t> ids, double penalty) {
  if (penalty == 1) {
    return;
  }
  std::vector<uint8_t> seen(logits.size());
  for (const int32_t id : ids) {
    const auto at = static_cast<size_t>(id);
    if (at < logits.size() && seen[at] == 0) {
      seen[at] = 1;
      const double x = logits[at];
      logits[at] = static_cast<float>(x < 0 ? x * penalty : x / penalty);
    }
  }
}

std::vector<TokenLogProb> log_probabilities(std::span<const float> logits,
                                            int64_t vocab_size,
                                            int32_t chosen,
                                            int64_t top) {
  const std::span<const float> counted = checked_logits(logits, vocab_size);
  const double highest = *std::max_element(counted.begin(), counted.end());
  double total = 0;
  for (const float x : counted) {
    total += std::exp(x - highest);
  }
  const double log_total = highest + std::log(total);
  const auto entry = [&](int32_t id) {
    return TokenLogProb{id, static_cast<double>(logits[static_cast<size_t>(id)]) - log_total};
  };
  std::vector<TokenLogProb> out = {entry(chosen)};
  if (top > 0) {
    std::vector<int32_t> ids(counted.size());
    std::iota(ids.begin(), ids.end(), 0);
    LikeliestFirst order(counted, std::move(ids));
    for (size_t i = 0; i < std::min(order.size(), static_cast<size_t>(top)); ++i) {
      out.push_back(entry(order[i]));
    }
  }
  return out;
}

}  // namespace tapestry
