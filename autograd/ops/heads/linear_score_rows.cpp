#include "autograd/ops/heads/linear_score_rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "autograd/kernels/losses/row_scores.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/cross_entropy_rows.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/math.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"

namespace tapestry {

namespace {

constexpr int64_t kParts = kernels::kRowScores;

// The numbers of one row on all ranks.
struct RowOnRanks {
  const double* scores;
  int64_t ranks;
  int64_t stride;

  double value(int64_t rank, kernels::RowScore which) const {
    return scores[rank * stride + which];
  }
  double log_sum(kernels::RowScore which) const {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t r = 0; r < ranks; ++r) {
      const double next = value(r, which);
      largest = next > largest || std::isnan(next) ? next : largest;
    }
    if (ranks == 1 || std::isinf(largest)) {
      return largest;
    }
    double sum = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      sum += std::exp(value(r, which) - largest);
    }
    return largest + std::log(sum);
  }
  // sum p z, p over all columns
  double mean(double log_sum) const {
    if (ranks == 1) {
      return value(0, kernels::kScoreMean);
    }
    double sum = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const double share = std::exp(value(r, kernels::kScoreLogSum) - log_sum);
      sum += share > 0 || std::isnan(share) ? share * value(r, kernels::kScoreMean) : 0;
    }
    return sum;
  }
  double logit_sum() const {
    double sum = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      sum += value(r, kernels::kScoreSum);
    }
    return sum;
  }
  bool is_likeliest(int64_t owner) const {
    if (value(owner, kernels::kScoreIsLikeliest) == 0) {
      return false;
    }
    const double own = value(owner, kernels::kScoreLargest);
    for (int64_t r = 0; r < ranks; ++r) {
      const double other = value(r, kernels::kScoreLargest);
      if (other > own || (r < owner && other == own)) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace

LinearScoreRows::LinearScoreRows(const LinearTokenScoresOptions& options,
                                 const ScoredColumns& columns,
                                 const Tensor& labels)
    : one_order_(in_one_order()),
      form_{options.logit_scale, options.logit_cap},
      temperature_(options.temperature),
      chunk_rows_(options.chunk_rows),
      columns_(columns),
      shape_(labels.shape()),
      total_(labels.numel()) {
  const Tensor all = dense(labels);
  const auto* label = all.data<int64_t>();
  for (int64_t i = 0; i < total_; ++i) {
    if (label[i] == options.ignore_index) {
      continue;
    }
    rows_.push_back(i);
    labels_.push_back(label[i]);
    const int64_t own = label[i] - columns.first;
    own_labels_.push_back(own >= 0 && own < columns.valid ? own : -1);
  }
}

// Where all rows count they are used in place.
Tensor LinearScoreRows::rows_of_chunk(const Tensor& x,
                                      const Tensor& space,
                                      int64_t begin,
                                      int64_t end) const {
  const int64_t h = x.shape().back();
  if (takes_all()) {
    return rows_between(x, h, begin, end);
  }
  const size_t bytes = static_cast<size_t>(h) * size_of(x.dtype());
  const auto* from = static_cast<const char*>(x.raw());
  auto* to = static_cast<char*>(space.raw());
  for (int64_t i = begin; i < end; ++i, to += bytes) {
    std::memcpy(to, from + static_cast<size_t>(rows_[static_cast<size_t>(i)]) * bytes, bytes);
  }
  return rows_between(space, h, 0, end - begin);
}

// Calls f(rows of x, logits, begin, end) for the chunks of the rows that count.
template <class F>
void LinearScoreRows::for_row_chunks(const Tensor& x, const Tensor& weight, const F& f) const {
  const int64_t h = x.shape().back();
  const Tensor logits_memory = logits_space(count(), chunk_rows_, columns_.rows, x.dtype());
  const Tensor rows_memory =
      takes_all() ? Tensor() : logits_space(count(), chunk_rows_, h, x.dtype());
  for (int64_t begin = 0; begin < count(); begin += chunk_rows_) {
    const int64_t end = std::min(count(), begin + chunk_rows_);
    const Tensor rows = rows_of_chunk(x, rows_memory, begin, end);
    const Tensor logits = rows_between(logits_memory, columns_.rows, 0, end - begin);
    {
      const OneOrderScope order(one_order_);
      multiply_into(rows, false, weight, true, 0, logits);
    }
    f(rows, logits, begin, end);
  }
}

Tensor LinearScoreRows::scores_of_columns(const Tensor& hidden, const Tensor& weight) const {
  Tensor out = empty({count(), kParts}, kFloat64);
  auto* scores = out.data<double>();
  if (columns_.valid == 0) {
    for (int64_t i = 0; i < out.numel(); ++i) {
      const int64_t part = i % kParts;
      scores[i] = part == kernels::kScoreLogSum || part == kernels::kScoreSquareSum ||
                          part == kernels::kScoreLargest
                      ? -std::numeric_limits<double>::infinity()
                      : 0;
    }
    return out;
  }
  const Tensor x = dense(hidden);
  for_row_chunks(x, weight,
                 [&](const Tensor& /*rows*/, const Tensor& logits, int64_t begin, int64_t end) {
                   form_.apply_to(logits);
                   kernels::row_scores({.shape = {.dtype = logits.dtype(),
                                                  .rows = end - begin,
                                                  .vocab = columns_.rows,
                                                  .valid_vocab = columns_.valid,
                                                  .temperature = temperature_},
                                        .logits = logits.raw(),
                                        .labels = own_labels_.data() + begin,
                                        .scores = scores + begin * kParts});
                 });
  return out;
}

LinearScoreRows::Combined LinearScoreRows::combine(const Tensor& of_ranks, DType dtype) const {
  Tensor scores = empty({kTokenScores, total_}, kFloat64);
  fill_with_zeros(scores);
  Combined out = {
      .scores = {}, .log_sum = empty({count()}, kFloat64), .entropy = empty({count()}, kFloat64)};
  auto* of_token = scores.data<double>();
  auto* log_sums = out.log_sum.data<double>();
  auto* entropies = out.entropy.data<double>();
  const auto* from = of_ranks.data<double>();
  for (int64_t i = 0; i < count(); ++i) {
    const RowOnRanks row = {from + i * kParts, of_ranks.shape()[0], count() * kParts};
    const int64_t token = rows_[static_cast<size_t>(i)];
    const int64_t owner = labels_[static_cast<size_t>(i)] / columns_.rows;
    const double log_sum = row.log_sum(kernels::kScoreLogSum);
    const auto put = [&](TokenScoreIndex which, double value) {
      of_token[which * total_ + token] = value;
    };
    log_sums[i] = log_sum;
    entropies[i] = log_sum - row.mean(log_sum);
    put(kScoreOfLabel, row.value(owner, kernels::kScoreLabel) - log_sum);
    put(kScoreEntropy, entropies[i]);
    put(kScoreLogitMean, row.logit_sum() / static_cast<double>(columns_.vocabulary));
    put(kScoreLikeliest, row.is_likeliest(owner) ? 1 : 0);
    put(kScoreSquares, row.log_sum(kernels::kScoreSquareSum) - 2 * log_sum);
  }
  Shape shape = shape_;
  shape.insert(0, kTokenScores);
  out.scores = scores.view(shape).to(dtype);
  return out;
}

TensorList LinearScoreRows::backward(const Tensor& hidden,
                                     const Tensor& exact,
                                     const Tensor& weight,
                                     const Tensor& log_sum,
                                     const Tensor& entropy,
                                     const Tensor& dy,
                                     NeedsGrad needs) const {
  const Tensor x = dense(hidden);
  const int64_t h = x.shape().back();
  Tensor dx = needs[0] ? empty_like(x) : Tensor();
  const auto [main_grad, overwrite] =
      needs[1] && x.dtype() != kFloat64 ? main_grad_target(exact) : MainGradTarget{};
  const bool to_main_grad = main_grad.defined();
  Tensor dw = main_grad;
  bool first = overwrite || !to_main_grad;
  if (needs[1] && !to_main_grad) {
    dw = empty(exact.shape(), wide_dtype(exact.dtype()));
  }
  const bool has_work = count() > 0 && columns_.valid > 0;
  if (dw.defined() && first && !has_work) {
    fill_with_zeros(dw);
  }
  if (dx.defined() && (!takes_all() || !has_work)) {
    fill_with_zeros(dx);
  }
  if (has_work) {
    const Tensor wide = dense(dy.to(kFloat64));
    const auto gradient_of = [&](TokenScoreIndex which) {
      std::vector<double> out;
      const double* d = wide.data<double>() + which * total_;
      for (const int64_t row : rows_) {
        out.push_back(d[row]);
      }
      return out;
    };
    const std::vector<double> dlog_prob = gradient_of(kScoreOfLabel);
    const std::vector<double> dentropy = gradient_of(kScoreEntropy);
    const Tensor dx_memory =
        needs[0] && !takes_all() ? logits_space(count(), chunk_rows_, h, x.dtype()) : Tensor();
    // The logits were counted in forward.
    const double products = (needs[0] ? 1 : 0) + (needs[1] ? 1 : 0);
    const kernels::CountedWork work(2 * products * static_cast<double>(count()) *
                                    static_cast<double>(weight.numel()));
    for_row_chunks(
        x, weight, [&](const Tensor& rows, const Tensor& logits, int64_t begin, int64_t end) {
          const Tensor factor = form_.apply_to(logits);
          kernels::row_scores_backward({.shape = {.dtype = logits.dtype(),
                                                  .rows = end - begin,
                                                  .vocab = columns_.rows,
                                                  .valid_vocab = columns_.valid,
                                                  .temperature = temperature_},
                                        .logits = logits.raw(),
                                        .labels = own_labels_.data() + begin,
                                        .log_sum = log_sum.data<double>() + begin,
                                        .entropy = entropy.data<double>() + begin,
                                        .dlog_prob = dlog_prob.data() + begin,
                                        .dentropy = dentropy.data() + begin,
                                        .dlogits = logits.raw()});
          LogitForm::pull_back(logits, factor);
          if (needs[0] && takes_all()) {
            multiply_into(logits, false, weight, false, 0, rows_between(dx, h, begin, end));
          } else if (needs[0]) {
            const Tensor part = rows_between(dx_memory, h, 0, end - begin);
            multiply_into(logits, false, weight, false, 0, part);
            const size_t bytes = static_cast<size_t>(h) * size_of(x.dtype());
            const auto* from = static_cast<const char*>(part.raw());
            auto* to = static_cast<char*>(dx.raw());
            for (int64_t i = begin; i < end; ++i, from += bytes) {
              std::memcpy(to + static_cast<size_t>(rows_[static_cast<size_t>(i)]) * bytes, from,
                          bytes);
            }
          }
          if (needs[1]) {
            multiply_into(logits, true, rows, false, first ? 0 : 1, dw);
            first = false;
          }
        });
  }
  return {dx, to_main_grad || !dw.defined() ? dw : dw.to(exact.dtype())};
}

TensorList LinearScoreRows::composed_backward(const Tensor& hidden,
                                              const Tensor& weight,
                                              const Tensor& dy,
                                              const std::function<Tensor(const Tensor&)>& total,
                                              const std::function<void(Tensor&)>& largest) const {
  const Tensor rows = tensor(rows_, {count()});
  const Tensor own = tensor(own_labels_, {count()});
  const auto over_ranks = [&](const Tensor& part) { return total ? total(part) : part; };
  const auto twin = [&](const TensorList& in) {
    const Tensor x = index_select(in[0].reshape({total_, in[0].shape().back()}), 0, rows);
    const Tensor products = linear(x, in[1].to(x.dtype()));
    const Tensor logits = form_.is_plain() ? products : soft_cap(products, form_.scale, form_.cap);
    const Tensor z = mul(slice(widen(logits), -1, 0, columns_.valid), 1 / temperature_);
    // Only a shift: without a gradient, and the same on every rank.
    Tensor shift = columns_.valid > 0
                       ? dense_copy(finite_max(z.detach(), {1}))
                       : full({count(), 1}, -std::numeric_limits<double>::infinity(), z.dtype());
    if (largest) {
      largest(shift);
    }
    const Tensor distance = sub(z, shift);
    const Tensor e = exp(distance);
    const Tensor sums = over_ranks(sum(e, {-1}));
    const Tensor log_sum = log(sums);
    const Tensor of_label = over_ranks(pick_columns(distance, own));
    const Tensor mean = div(over_ranks(sum(mul(e, distance), {-1})), sums);
    return stack({sub(of_label, log_sum), sub(log_sum, mean)}, 0);
  };
  const Tensor d = index_select(slice(dy.reshape({kTokenScores, total_}), 0, 0, 2), 1, rows);
  return vjp(twin, d, {hidden, weight});
}

void check_token_scores(std::string_view op,
                        const Tensor& hidden,
                        const Tensor& weight,
                        const Tensor& labels,
                        const LinearTokenScoresOptions& options,
                        int64_t vocabulary) {
  check_defined(op, hidden, "hidden", weight, "weight", labels, "labels");
  check<ValueError>(options.chunk_rows >= 1, op, ": chunk_rows must be positive, got ",
                    options.chunk_rows);
  check<ValueError>(options.logit_cap >= 0, op, ": logit_cap must not be negative, got ",
                    options.logit_cap);
  check<ValueError>(options.temperature > 0 && std::isfinite(options.temperature), op,
                    ": temperature must be above 0, got ", options.temperature);
  check<ValueError>(weight.dim() == 2, op, ": weight must be [V, H], it is ", weight.shape());
  check<ValueError>(hidden.dim() >= 1 && hidden.shape().back() == weight.shape()[1], op,
                    ": the last axis of hidden ", hidden.shape(), " must be that of weight ",
                    weight.shape());
  const bool mixed = size_of(hidden.dtype()) == 2 && weight.dtype() == kFloat32;
  check<TypeError>(hidden.dtype() == weight.dtype() || mixed, op, ": the dtypes of hidden (",
                   name_of(hidden.dtype()), ") and weight (", name_of(weight.dtype()),
                   ") differ, and are not a 16-bit one and float32");
  check<TypeError>(
      !options.rounded.defined() || (mixed && options.rounded.dtype() == hidden.dtype()), op,
      ": the rounded weight stands for a float32 weight in hidden's dtype");
  check<ValueError>(!options.rounded.defined() || options.rounded.shape() == weight.shape(), op,
                    ": the rounded weight must have the shape of weight ", weight.shape());
  Shape logits = hidden.shape();
  logits.back() = vocabulary;
  check_labels(op, logits, hidden.dtype(), labels, vocabulary, options.ignore_index);
}

RowTokenScores split_token_scores(const Tensor& scores) {
  const auto part = [&](TokenScoreIndex which) { return select(scores, 0, which); };
  return {.log_probs = part(kScoreOfLabel),
          .entropy = part(kScoreEntropy),
          .logit_means = part(kScoreLogitMean).detach(),
          .likeliest = part(kScoreLikeliest).detach(),
          .square_sums = part(kScoreSquares).detach()};
}

}  // namespace tapestry
