#include "parallel_core/scoring/perplexity.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/scoring/text_windows.h"

namespace tapestry {

double TextScore::perplexity_per_token() const {
  return std::exp(-log_likelihood / static_cast<double>(scored_tokens));
}

double TextScore::perplexity_per_byte() const {
  return std::exp(-log_likelihood / static_cast<double>(scored_bytes));
}

double TextScore::bits_per_byte() const {
  return -log_likelihood / static_cast<double>(scored_bytes) / std::log(2.0);
}

TextScore score_text(Scorer& scorer,
                     std::string_view text,
                     int64_t stride,
                     const std::string& name) {
  const data::Encoding encoded = scorer.tokenizer().encode_with_spans(text);
  std::vector<int32_t> tokens = scorer.opened().saved.start;
  const auto begins = std::ssize(tokens);
  tokens.insert(tokens.end(), encoded.ids.begin(), encoded.ids.end());
  const int64_t first = std::max<int64_t>(begins, 1);
  TextScore score;
  score.tokens = std::ssize(encoded.ids);
  score.scored_tokens = std::ssize(tokens) - first;
  check<ValueError>(score.scored_tokens > 0, name, ": has ", score.tokens,
                    " tokens, none of which has one before it; give a longer text");
  const int64_t unscored_bytes = begins == 0 ? encoded.spans[0].end : 0;
  score.scored_bytes = std::ssize(text) - unscored_bytes;
  check<ValueError>(score.scored_bytes > 0, name, ": is one token; give a longer text");

  const std::vector<TextWindow> windows =
      text_windows(std::ssize(tokens), first, scorer.context(), stride);
  score.windows = std::ssize(windows);
  const std::vector<double> sums = scorer.sums(score.windows, [&](int64_t i) {
    const TextWindow& window = windows[static_cast<size_t>(i)];
    return ScoredRow{{tokens.begin() + window.begin, tokens.begin() + window.end}, window.first};
  });
  score.log_likelihood = std::accumulate(sums.begin(), sums.end(), 0.0);
  return score;
}

}  // namespace tapestry
