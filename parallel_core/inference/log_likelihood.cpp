#include "parallel_core/inference/log_likelihood.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "parallel_core/inference/cached_pass.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry {

namespace {

// In place of a log-probability, which is never positive: there are no such logits.
constexpr double kBeyondVocabulary = 1;

// Of one token: its log-probability, and 1 if it is the likeliest.
void score(std::span<const float> logits, int32_t id, double* out) {
  if (static_cast<size_t>(id) >= logits.size()) {
    out[0] = kBeyondVocabulary;
    return;
  }
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  const double highest = *likeliest;
  double total = 0;
  for (const float x : logits) {
    total += std::exp(x - highest);
  }
  out[0] = static_cast<double>(logits[static_cast<size_t>(id)]) - highest - std::log(total);
  out[1] = logits.begin() + id == likeliest ? 1 : 0;
}

void check_rows(std::span<const ScoredRow> rows, const LogLikelihoodOptions& options) {
  check<ValueError>(options.tokens_per_pass > 0, "log_likelihood: tokens_per_pass must be ",
                    "positive, got ", options.tokens_per_pass);
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScoredRow& row = rows[i];
    check<ValueError>(row.first >= 1 && row.first <= std::ssize(row.tokens), "log_likelihood: row ",
                      i, " of ", row.tokens.size(), " tokens is to be scored from token ",
                      row.first, " on; expected 1 to ", row.tokens.size(),
                      ", as something has to stand before it");
    for (const int32_t id : row.tokens) {
      check<IndexError>(id >= 0 && (options.vocab_size == 0 || id < options.vocab_size),
                        "log_likelihood: row ", i, " has the id ", id,
                        ", which lies outside the vocabulary of ", options.vocab_size);
    }
  }
}

// Scores of the rows, which go through the model side by side. What fills up shorter ones stands
// behind their tokens, which do not see it.
void score_rows(ParallelModel& model,
                std::span<const ScoredRow> rows,
                std::span<const size_t> chosen,
                const LogLikelihoodOptions& options,
                std::vector<RowScores>& scores) {
  data::Batch batch;
  batch.batch = std::ssize(chosen);
  for (const size_t row : chosen) {
    batch.seq = std::max(batch.seq, std::ssize(rows[row].tokens) - 1);  // nothing is after the last
  }
  struct Place {
    size_t row;    // of the batch
    size_t token;  // whose score it is
  };
  std::vector<Place> places;
  for (size_t b = 0; b < chosen.size(); ++b) {
    const ScoredRow& row = rows[chosen[b]];
    batch.tokens.insert(batch.tokens.end(), row.tokens.begin(), row.tokens.end() - 1);
    batch.tokens.resize((b + 1) * static_cast<size_t>(batch.seq), 0);
    for (auto token = static_cast<size_t>(row.first); token < row.tokens.size(); ++token) {
      places.push_back({b, token});
    }
  }
  const Tensor logits = pipeline_logits(model, batch);
  std::vector<double> values(2 * places.size());
  if (logits.defined()) {
    const int64_t vocabulary = logits.size(2);
    const int64_t counted =
        options.vocab_size > 0 ? std::min(options.vocab_size, vocabulary) : vocabulary;
    const bool sequence_first = model.sequence_axis() == 0;
    const Tensor flat =
        logits.reshape({batch.batch * batch.seq, vocabulary}).to(kFloat32).contiguous();
    const auto* first = flat.data<float>();
    kernels::parallel_for(std::ssize(places), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const auto [b, token] = places[i];
        const auto position = static_cast<int64_t>(token) - 1;
        const auto row = static_cast<int64_t>(b);
        const int64_t at =
            sequence_first ? position * batch.batch + row : row * batch.seq + position;
        score({first + at * vocabulary, static_cast<size_t>(counted)},
              rows[chosen[b]].tokens[token], &values[2 * i]);
      }
    });
  }
  take_from_last_stage(values);
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t row = chosen[places[i].row];
    check<IndexError>(values[2 * i] != kBeyondVocabulary, "log_likelihood: row ", row,
                      " has the id ", rows[row].tokens[places[i].token],
                      ", which lies outside the vocabulary");
    RowScores& out = scores[row];
    out.log_probs.push_back(values[2 * i]);
    out.is_likeliest.push_back(values[2 * i + 1] != 0 ? 1 : 0);
  }
}

}  // namespace

double RowScores::sum() const { return std::accumulate(log_probs.begin(), log_probs.end(), 0.0); }

bool RowScores::all_likeliest() const {
  return std::all_of(is_likeliest.begin(), is_likeliest.end(), [](uint8_t x) { return x != 0; });
}

std::vector<RowScores> log_likelihood(ParallelModel& model,
                                      std::span<const ScoredRow> rows,
                                      const LogLikelihoodOptions& options) {
  check_rows(rows, options);
  const ExactScope exact(options.exact || in_exact());
  const NoGradGuard guard;
  const EvaluationMode evaluation(model);
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].first < std::ssize(rows[i].tokens)) {
      order.push_back(i);
    }
  }
  // The longest first, so that the largest pass, which memory has to hold, is the first one.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return rows[a].tokens.size() > rows[b].tokens.size();
  });
  std::vector<RowScores> scores(rows.size());
  for (size_t begin = 0; begin < order.size();) {
    const auto length = std::ssize(rows[order[begin]].tokens) - 1;
    const auto most = static_cast<size_t>(std::max<int64_t>(options.tokens_per_pass / length, 1));
    const size_t count = std::min(most, order.size() - begin);
    score_rows(model, rows, std::span<const size_t>(order).subspan(begin, count), options, scores);
    begin += count;
  }
  return scores;
}

}  // namespace tapestry
