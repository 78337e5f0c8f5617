#include "parallel_core/inference/top_log_probs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "autograd/kernels/losses/row_scores.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// A token with its logit / temperature.
struct Candidate {
  float value;
  int32_t id;
};
bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// The k best of a row in order. A heap of those found, whose worst one most tokens do not reach,
// costs little more than one look at each; for many the order of all is divided instead.
void select_best(std::span<const float> row,
                 int32_t first_id,
                 size_t k,
                 std::vector<Candidate>& best) {
  best.clear();
  if (k * 8 < row.size()) {
    for (size_t i = 0; i < row.size(); ++i) {
      const Candidate next = {row[i], first_id + static_cast<int32_t>(i)};
      if (best.size() < k) {
        best.push_back(next);
        std::push_heap(best.begin(), best.end(), is_likelier);
      } else if (next.value > best.front().value) {
        std::pop_heap(best.begin(), best.end(), is_likelier);
        best.back() = next;
        std::push_heap(best.begin(), best.end(), is_likelier);
      }
    }
    std::sort_heap(best.begin(), best.end(), is_likelier);
    return;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    best.push_back({row[i], first_id + static_cast<int32_t>(i)});
  }
  if (k < best.size()) {
    const auto end = best.begin() + static_cast<std::ptrdiff_t>(k);
    std::nth_element(best.begin(), end, best.end(), is_likelier);
    best.resize(k);
  }
  std::sort(best.begin(), best.end(), is_likelier);
}

// What one rank tells of a chunk of rows: of each the log sum of its columns, the label's logit,
// then k logits with their ids.
class TopOfChunk {
 public:
  TopOfChunk(const TopLogProbsOptions& options, const VocabularyShard& shard, int64_t rows)
      : options_(options), shard_(shard), rows_(rows), width_(2 + 2 * options.k) {
    values_.assign(static_cast<size_t>(rows_ * width_), kNothing);
  }

  int64_t width() const { return width_; }
  std::vector<double>& values() { return values_; }

  void look_at(const Tensor& logits, const int64_t* labels) {
    std::vector<int64_t> own;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t column = labels[r] - shard_.first;
      own.push_back(column >= 0 && column < shard_.valid ? column : -1);
    }
    std::vector<double> scores(static_cast<size_t>(rows_ * kernels::kRowScores));
    kernels::row_scores({.shape = {.dtype = logits.dtype(),
                                   .rows = rows_,
                                   .vocab = shard_.rows,
                                   .valid_vocab = shard_.valid,
                                   .temperature = options_.temperature},
                         .logits = logits.raw(),
                         .labels = own.data(),
                         .scores = scores.data()});
    const Tensor wide = logits.to(kFloat32);
    const auto k = static_cast<size_t>(std::min(options_.k, shard_.valid));
    kernels::parallel_for(rows_, 1, [&](int64_t begin, int64_t end) {
      std::vector<Candidate> best;
      for (int64_t r = begin; r < end; ++r) {
        const double* score = scores.data() + r * kernels::kRowScores;
        const double log_sum = score[kernels::kScoreLogSum];
        check<ValueError>(log_sum < std::numeric_limits<double>::infinity(),
                          "logprobs: the logits of a position are not finite; are the weights?");
        double* out = values_.data() + r * width_;
        out[0] = log_sum;
        out[1] = own[static_cast<size_t>(r)] >= 0 ? score[kernels::kScoreLabel] : kNothing;
        select_best({wide.data<float>() + r * shard_.rows, static_cast<size_t>(shard_.valid)},
                    static_cast<int32_t>(shard_.first), k, best);
        for (size_t j = 0; j < best.size(); ++j) {
          out[2 + 2 * j] = best[j].value;
          out[3 + 2 * j] = best[j].id;
        }
      }
    });
  }

 private:
  const TopLogProbsOptions& options_;
  VocabularyShard shard_;
  int64_t rows_;
  int64_t width_;
  std::vector<double> values_;
};

// From what all ranks have told of a row.
void join_row(std::span<const double* const> of_ranks,
              const TopLogProbsOptions& options,
              int32_t* ids,
              float* log_probs,
              float* label) {
  double largest = kNothing;
  double of_label = kNothing;
  for (const double* rank : of_ranks) {
    largest = std::max(largest, rank[0]);
    of_label = std::max(of_label, rank[1]);
  }
  double log_sum = largest;
  if (of_ranks.size() > 1) {
    double sum = 0;
    for (const double* rank : of_ranks) {
      sum += std::exp(rank[0] - largest);
    }
    log_sum = largest + std::log(sum);
  }
  *label = static_cast<float>(of_label - log_sum);
  const auto k = static_cast<size_t>(options.k);
  const auto candidate = [&](size_t rank, size_t j) {
    return Candidate{static_cast<float>(of_ranks[rank][2 + 2 * j]),
                     static_cast<int32_t>(of_ranks[rank][3 + 2 * j])};
  };
  std::vector<size_t> next(of_ranks.size(), 0);
  for (size_t i = 0; i < k; ++i) {
    size_t best = of_ranks.size();
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (next[rank] < k && of_ranks[rank][3 + 2 * next[rank]] >= 0 &&
          (best == of_ranks.size() ||
           is_likelier(candidate(rank, next[rank]), candidate(best, next[best])))) {
        best = rank;
      }
    }
    const Candidate found = candidate(best, next[best]++);
    ids[i] = found.id;
    log_probs[i] =
        static_cast<float>(static_cast<double>(found.value) / options.temperature - log_sum);
  }
}

}  // namespace

ScoredTop top_log_probs(const HeadRows& rows,
                        const Tensor& labels,
                        const TopLogProbsOptions& options,
                        const TensorParallelLayout& layout) {
  check<ValueError>(options.k >= 1 && options.k <= options.vocabulary,
                    "logprobs: expected a number from 1 to the vocabulary's ", options.vocabulary,
                    ", got ", options.k);
  const NoGradGuard guard;
  const VocabularyShard shard = vocabulary_shard(options.vocabulary, layout.rank, layout.size);
  ScoredTop out = {.top = {.ids = empty({rows.count, options.k}, kInt32),
                           .log_probs = empty({rows.count, options.k}, kFloat32)},
                   .log_probs = empty({rows.count}, kFloat32)};
  const Tensor y = labels.to(kInt64).contiguous();
  for (int64_t begin = 0; begin < rows.count; begin += options.chunk_rows) {
    const int64_t end = std::min(rows.count, begin + options.chunk_rows);
    TopOfChunk own(options, shard, end - begin);
    if (shard.valid > 0) {
      own.look_at(rows.logits(begin, end).contiguous(), y.data<int64_t>() + begin);
    }
    const int64_t size = std::ssize(own.values());
    std::vector<double> all = std::move(own.values());
    if (layout.size > 1) {
      const Tensor received = empty({layout.size, size}, kFloat64);
      layout.group->all_gather(received, tensor(all, {size}));
      all.assign(received.data<double>(), received.data<double>() + received.numel());
    }
    kernels::parallel_for(end - begin, 1, [&](int64_t first, int64_t last) {
      std::vector<const double*> of_ranks(static_cast<size_t>(layout.size));
      for (int64_t r = first; r < last; ++r) {
        for (int rank = 0; rank < layout.size; ++rank) {
          of_ranks[static_cast<size_t>(rank)] = all.data() + rank * size + r * own.width();
        }
        join_row(of_ranks, options, out.top.ids.data<int32_t>() + (begin + r) * options.k,
                 out.top.log_probs.data<float>() + (begin + r) * options.k,
                 out.log_probs.data<float>() + begin + r);
      }
    });
  }
  return out;
}

}  // namespace tapestry
