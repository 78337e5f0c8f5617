#include "parallel_core/transformer/linear_divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/kernels/losses/row_divergence.h"
#include "autograd/kernels/losses/row_scores.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/heads/logit_chunks.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/transformer/top_divergence.h"

namespace tapestry {

namespace {

// What backward needs of a row beside its logits, in float64 [kRowParts, n].
enum RowPart : uint8_t {
  kPartLogSum,       // of logits / temperature
  kPartPlainLogSum,  // of the logits
  kPartOtherLogSum,  // of a model's logits / temperature
  kPartMean,         // sum p g of a model, the sum of top_divergence()'s gradient else
  kRowParts
};

// Calls f(element) with that of a contiguous floating tensor.
template <class F>
void with_element(const Tensor& t, int64_t i, const F& f) {
  switch (t.dtype()) {
    case kFloat64:
      return f(t.data<double>()[i]);
    case kBFloat16:
      return f(t.data<BFloat16>()[i]);
    case kFloat16:
      return f(t.data<Float16>()[i]);
    default:
      return f(t.data<float>()[i]);
  }
}

double element(const Tensor& t, int64_t i) {
  double out = 0;
  with_element(t, i, [&](const auto& x) { out = static_cast<double>(static_cast<float>(x)); });
  return t.dtype() == kFloat64 ? t.data<double>()[i] : out;
}

void add_to_element(const Tensor& t, int64_t i, double value) {
  with_element(t, i, [&](auto& x) {
    using T = std::remove_reference_t<decltype(x)>;
    if constexpr (std::is_same_v<T, double>) {
      x += value;
    } else {
      x = T(static_cast<float>(static_cast<double>(static_cast<float>(x)) + value));
    }
  });
}

class DivergenceWork {
 public:
  DivergenceWork(const LinearDivergenceOptions& options,
                 const TensorParallelLayout& layout,
                 DivergenceTarget target,
                 const Tensor& labels)
      : options_(options),
        form_{options.logit_scale, options.logit_cap},
        group_(layout.size > 1 ? layout.group : nullptr),
        shard_(vocabulary_shard(options.vocabulary, layout.rank, layout.size)),
        target_(std::move(target)) {
    const auto* label = labels.data<int64_t>();
    for (int64_t i = 0; i < labels.numel(); ++i) {
      labels_.push_back(column_of(label[i]));
    }
  }

  int64_t count() const { return std::ssize(labels_); }

  // The three results, [3, n], with what backward needs: row parts, and gradients for the entries
  // of a likeliest list.
  Tensor forward(const Tensor& x, const Tensor& w, Tensor& parts, Tensor& gradients) const {
    const Tensor out = empty({3, count()}, kFloat64);
    parts = empty({kRowParts, count()}, kFloat64);
    if (const auto* top = std::get_if<TopLogProbs>(&target_)) {
      gradients = empty(top->ids.shape(), kFloat32);
    }
    for_chunks(x, w, count(), options_.chunk_rows,
               [&](const Tensor& logits, int64_t begin, int64_t end) {
                 form_.apply_to(logits);
                 const Chunk chunk = {logits, begin, end};
                 tell_label(chunk, out, parts);
                 if (const auto* rows = std::get_if<HeadRows>(&target_)) {
                   compare_with_model(chunk, *rows, out, parts);
                 } else {
                   compare_with_top(chunk, std::get<TopLogProbs>(target_), out, parts, gradients);
                 }
               });
    return out.to(wide_dtype(x.dtype()));
  }

  // The gradient of the logits of a chunk in their place, for that of forward's results.
  void pull_back(const Tensor& logits,
                 int64_t begin,
                 const double* ddivergence,
                 const double* dlog_prob,
                 const Tensor& parts,
                 const Tensor& gradients) const {
    const int64_t rows = logits.shape()[0];
    const Tensor factor = form_.apply_to(logits);
    const auto* top = std::get_if<TopLogProbs>(&target_);
    Tensor others;
    std::vector<double> weights(ddivergence + begin, ddivergence + begin + rows);
    const auto part = [&](RowPart which) { return parts.data<double>() + which * count() + begin; };
    if (top == nullptr) {
      others = logits_of(std::get<HeadRows>(target_), begin, begin + rows, logits);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        weights[static_cast<size_t>(r)] *= -part(kPartMean)[r];
      }
    }
    if (shard_.valid > 0) {
      kernels::row_divergence_backward(
          {.shape = shape_of(logits, others),
           .logits = logits.raw(),
           .others = others.defined() ? others.raw() : nullptr,
           .log_sum = part(kPartLogSum),
           .other_log_sum = part(kPartOtherLogSum),
           .mean = part(kPartMean),
           .ddivergence = weights.data(),
           .labels = labels_.data() + begin,
           .plain_log_sum = part(kPartPlainLogSum),
           .dlog_prob = dlog_prob == nullptr ? nullptr : dlog_prob + begin,
           .dlogits = logits.raw()});
    } else {
      fill_with_zeros(logits);
    }
    if (top != nullptr) {
      add_at_entries(logits, begin, ddivergence, *top, gradients);
    }
    LogitForm::pull_back(logits, factor);
  }

 private:
  struct Chunk {
    const Tensor& logits;
    int64_t begin;
    int64_t end;

    int64_t rows() const { return end - begin; }
  };

  int64_t column_of(int64_t id) const {
    const int64_t own = id - shard_.first;
    return own >= 0 && own < shard_.valid ? own : -1;
  }

  kernels::RowDivergenceShape shape_of(const Tensor& logits, const Tensor& others) const {
    return {.dtype = logits.dtype(),
            .other_dtype = others.defined() ? others.dtype() : logits.dtype(),
            .rows = logits.shape()[0],
            .vocab = shard_.rows,
            .valid_vocab = shard_.valid,
            .temperature = options_.temperature,
            .beta = options_.beta};
  }

  static Tensor logits_of(const HeadRows& rows, int64_t begin, int64_t end, const Tensor& like) {
    const NoGradGuard guard;
    Tensor logits = dense(rows.logits(begin, end));
    check<ValueError>(logits.shape() == like.shape(), "linear_divergence: logits of the teacher ",
                      logits.shape(), " must have the shape of the student's, ", like.shape());
    return logits;
  }

  // The numbers of kernels::RowScore of rows of logits / temperature, of this rank's columns.
  std::vector<double> own_scores(const Tensor& logits,
                                 const Chunk& chunk,
                                 double temperature) const {
    const int64_t rows = chunk.rows();
    std::vector<double> out(static_cast<size_t>(rows * kernels::kRowScores), 0.0);
    if (shard_.valid > 0) {
      kernels::row_scores({.shape = {.dtype = logits.dtype(),
                                     .rows = rows,
                                     .vocab = shard_.rows,
                                     .valid_vocab = shard_.valid,
                                     .temperature = temperature},
                           .logits = logits.raw(),
                           .labels = labels_.data() + chunk.begin,
                           .scores = out.data()});
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        out[static_cast<size_t>(r * kernels::kRowScores + kernels::kScoreLogSum)] =
            -std::numeric_limits<double>::infinity();
      }
    }
    return out;
  }

  // Log sum, label's logit and mean of each row over all columns.
  struct WholeRow {
    double log_sum = 0;
    double label = 0;
    double mean = 0;
  };
  std::vector<WholeRow> whole_rows(const Tensor& logits,
                                   const Chunk& chunk,
                                   double temperature) const {
    const std::vector<double> own = own_scores(logits, chunk, temperature);
    const int64_t rows = chunk.rows();
    const int64_t ranks = group_ == nullptr ? 1 : group_->size();
    std::vector<double> all = own;
    if (group_ != nullptr) {
      const Tensor received = empty({ranks, std::ssize(own)}, kFloat64);
      group_->all_gather(received, tensor(own, {std::ssize(own)}));
      all.assign(received.data<double>(), received.data<double>() + received.numel());
    }
    const auto value = [&](int64_t rank, int64_t row, kernels::RowScore which) {
      return all[static_cast<size_t>((rank * rows + row) * kernels::kRowScores + which)];
    };
    std::vector<WholeRow> out(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      WholeRow& row = out[static_cast<size_t>(r)];
      if (ranks == 1) {
        row = {value(0, r, kernels::kScoreLogSum), value(0, r, kernels::kScoreLabel),
               value(0, r, kernels::kScoreMean)};
        continue;
      }
      double largest = -std::numeric_limits<double>::infinity();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const double next = value(rank, r, kernels::kScoreLogSum);
        largest = next > largest || std::isnan(next) ? next : largest;
      }
      double sum = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        sum += std::exp(value(rank, r, kernels::kScoreLogSum) - largest);
        row.label += value(rank, r, kernels::kScoreLabel);
      }
      row.log_sum = largest + std::log(sum);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const double share = std::exp(value(rank, r, kernels::kScoreLogSum) - row.log_sum);
        row.mean +=
            share > 0 || std::isnan(share) ? share * value(rank, r, kernels::kScoreMean) : 0;
      }
    }
    return out;
  }

  void tell_label(const Chunk& chunk, const Tensor& out, const Tensor& parts) const {
    const auto tempered = options_.temperature == 1
                              ? std::vector<WholeRow>()
                              : whole_rows(chunk.logits, chunk, options_.temperature);
    const auto plain = whole_rows(chunk.logits, chunk, 1);
    for (int64_t r = 0; r < chunk.rows(); ++r) {
      const auto i = static_cast<size_t>(r);
      const WholeRow& row = plain[i];
      auto* results = out.data<double>() + chunk.begin + r;
      results[count()] = row.label - row.log_sum;
      results[2 * count()] = row.log_sum - row.mean;
      auto* part = parts.data<double>() + chunk.begin + r;
      part[kPartPlainLogSum * count()] = row.log_sum;
      part[kPartLogSum * count()] = tempered.empty() ? row.log_sum : tempered[i].log_sum;
    }
  }

  void compare_with_model(const Chunk& chunk,
                          const HeadRows& rows,
                          const Tensor& out,
                          const Tensor& parts) const {
    const Tensor others = logits_of(rows, chunk.begin, chunk.end, chunk.logits);
    const auto teacher = whole_rows(others, chunk, options_.temperature);
    auto* part = parts.data<double>() + chunk.begin;
    for (int64_t r = 0; r < chunk.rows(); ++r) {
      part[kPartOtherLogSum * count() + r] = teacher[static_cast<size_t>(r)].log_sum;
    }
    std::vector<double> sums(static_cast<size_t>(2 * chunk.rows()), 0.0);
    if (shard_.valid > 0) {
      kernels::row_divergence({.shape = shape_of(chunk.logits, others),
                               .logits = chunk.logits.raw(),
                               .others = others.raw(),
                               .log_sum = part + kPartLogSum * count(),
                               .other_log_sum = part + kPartOtherLogSum * count(),
                               .sums = sums.data()});
    }
    if (group_ != nullptr) {
      sum_over(*group_, sums);
    }
    for (int64_t r = 0; r < chunk.rows(); ++r) {
      const auto i = static_cast<size_t>(2 * r);
      out.data<double>()[chunk.begin + r] = sums[i];
      part[kPartMean * count() + r] = sums[i + 1];
    }
  }

  void compare_with_top(const Chunk& chunk,
                        const TopLogProbs& top,
                        const Tensor& out,
                        const Tensor& parts,
                        const Tensor& gradients) const {
    const int64_t k = top.ids.shape()[1];
    const auto* ids = top.ids.data<int32_t>() + chunk.begin * k;
    std::vector<double> own(static_cast<size_t>(chunk.rows() * k), 0.0);
    for (int64_t i = 0; i < std::ssize(own); ++i) {
      const int64_t column = column_of(ids[i]);
      own[static_cast<size_t>(i)] =
          column >= 0 ? element(chunk.logits, i / k * shard_.rows + column) : 0;
    }
    if (group_ != nullptr) {
      sum_over(*group_, own);
    }
    const TopDivergenceOptions options = {
        .beta = options_.beta, .add_tail = options_.add_tail, .vocabulary = options_.vocabulary};
    auto* part = parts.data<double>() + chunk.begin;
    kernels::parallel_for(
        chunk.rows(), kernels::rows_per_thread(k), [&](int64_t first, int64_t last) {
          for (int64_t r = first; r < last; ++r) {
            const std::span<double> row =
                std::span(own).subspan(static_cast<size_t>(r * k), static_cast<size_t>(k));
            for (double& value : row) {
              value = value / options_.temperature - part[kPartLogSum * count() + r];
            }
            const int64_t at = (chunk.begin + r) * k;
            const std::span<float> gradient(gradients.data<float>() + at, row.size());
            out.data<double>()[chunk.begin + r] = top_divergence(
                row, std::span(top.log_probs.data<float>() + at, row.size()), options, gradient);
            double sum = 0;
            for (const float g : gradient) {
              sum += g;
            }
            part[kPartMean * count() + r] = sum;
            part[kPartOtherLogSum * count() + r] = 0;
          }
        });
  }

  void add_at_entries(const Tensor& logits,
                      int64_t begin,
                      const double* ddivergence,
                      const TopLogProbs& top,
                      const Tensor& gradients) const {
    const int64_t k = top.ids.shape()[1];
    for (int64_t r = 0; r < logits.shape()[0]; ++r) {
      const int64_t at = (begin + r) * k;
      const double weight = ddivergence[begin + r] / options_.temperature;
      for (int64_t j = 0; j < k; ++j) {
        if (const int64_t column = column_of(top.ids.data<int32_t>()[at + j]); column >= 0) {
          add_to_element(logits, r * shard_.rows + column,
                         weight * static_cast<double>(gradients.data<float>()[at + j]));
        }
      }
    }
  }

  LinearDivergenceOptions options_;
  LogitForm form_;
  ProcessGroup* group_;
  VocabularyShard shard_;
  DivergenceTarget target_;
  std::vector<int64_t> labels_;  // columns of this rank, or -1
};

struct LinearDivergenceOp {
  static constexpr OpName name = "linear_divergence";
  static constexpr bool communicates = true;
  std::shared_ptr<const DivergenceWork> work;
  int64_t chunk_rows;
  Tensor rounded;
  SavedTensor hidden = {}, weight = {}, parts = {}, gradients = {};

  void for_float64() { rounded = {}; }

  Tensor forward(const Tensor& hidden_, const Tensor& weight_) {
    hidden.save(hidden_);
    weight.save(weight_);
    if (weight_.dtype() != hidden_.dtype() && !rounded.defined()) {
      rounded = weight_.to(hidden_.dtype());
    }
    Tensor row_parts;
    Tensor entry_gradients;
    Tensor out = work->forward(dense(hidden_), dense(rounded.defined() ? rounded : weight_),
                               row_parts, entry_gradients);
    parts.save(row_parts);
    if (entry_gradients.defined()) {
      gradients.save(entry_gradients);
    }
    return out;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    check<RuntimeError>(!grad_enabled(), "linear_divergence: has no gradients of gradients");
    const Tensor exact = weight;  // notices a change in place also where the copy is used
    const Tensor x = dense(hidden.get());
    const Tensor w = dense(rounded.defined() ? rounded : exact);
    const int64_t count = work->count();
    const int64_t h = x.shape().back();
    const Tensor wide = dense(dy.to(kFloat64));
    const double* ddivergence = wide.data<double>();
    const double* dlog_prob = ddivergence + count;
    if (std::all_of(dlog_prob, dlog_prob + count, [](double d) { return d == 0; })) {
      dlog_prob = nullptr;
    }
    const Tensor dx = needs[0] ? empty_like(x) : Tensor();
    const auto [main_grad, overwrite] =
        needs[1] && x.dtype() != kFloat64 ? main_grad_target(exact) : MainGradTarget{};
    const bool to_main_grad = main_grad.defined();
    Tensor dw = main_grad;
    bool first = overwrite || !to_main_grad;
    if (needs[1] && !to_main_grad) {
      dw = empty(exact.shape(), wide_dtype(exact.dtype()));
    }
    if (dw.defined() && first && count == 0) {
      fill_with_zeros(dw);
    }
    const double products = (needs[0] ? 1 : 0) + (needs[1] ? 1 : 0);
    const kernels::CountedWork counted(2 * products * static_cast<double>(count) *
                                       static_cast<double>(w.numel()));
    const Tensor row_parts = parts;
    const Tensor entry_gradients = gradients;
    for_chunks(x, w, count, chunk_rows, [&](const Tensor& logits, int64_t begin, int64_t end) {
      work->pull_back(logits, begin, ddivergence, dlog_prob, row_parts, entry_gradients);
      if (needs[0]) {
        multiply_into(logits, false, w, false, 0, rows_between(dx, h, begin, end));
      }
      if (needs[1]) {
        multiply_into(logits, true, rows_between(x, h, begin, end), false, first ? 0 : 1, dw);
        first = false;
      }
    });
    return {dx, to_main_grad || !dw.defined() ? dw : dw.to(exact.dtype())};
  }
};

void check_target(const DivergenceTarget& target, int64_t count, int64_t vocabulary) {
  if (const auto* rows = std::get_if<HeadRows>(&target)) {
    check<ValueError>(rows->count == count, "linear_divergence: the teacher has ", rows->count,
                      " rows, the student ", count);
    return;
  }
  const auto& top = std::get<TopLogProbs>(target);
  check<ValueError>(
      top.ids.dim() == 2 && top.ids.shape()[0] == count && top.ids.shape() == top.log_probs.shape(),
      "linear_divergence: the likeliest tokens must be [", count, ", k], ids are ", top.ids.shape(),
      ", log-probabilities ", top.log_probs.shape());
  check<TypeError>(top.ids.dtype() == kInt32 && top.log_probs.dtype() == kFloat32,
                   "linear_divergence: the likeliest tokens are int32 with float32, got ",
                   name_of(top.ids.dtype()), " with ", name_of(top.log_probs.dtype()));
  const auto* ids = top.ids.data<int32_t>();
  for (int64_t i = 0; i < top.ids.numel(); ++i) {
    check<IndexError>(ids[i] >= 0 && ids[i] < vocabulary, "linear_divergence: id ", ids[i],
                      " lies outside the vocabulary of ", vocabulary);
  }
}

}  // namespace

LinearDivergence linear_divergence(const Tensor& hidden,
                                   const Tensor& weight,
                                   const Tensor& labels,
                                   const DivergenceTarget& target,
                                   const LinearDivergenceOptions& options,
                                   const TensorParallelLayout& layout) {
  check<ValueError>(options.temperature > 0 && std::isfinite(options.temperature),
                    "linear_divergence: temperature must be above 0, got ", options.temperature);
  check<ValueError>(options.beta >= 0 && options.beta <= 1,
                    "linear_divergence: beta must lie in [0, 1], got ", options.beta);
  check<ValueError>(options.chunk_rows >= 1, "linear_divergence: chunk_rows must be positive, got ",
                    options.chunk_rows);
  check<ValueError>(hidden.dim() == 2 && weight.dim() == 2 &&
                        hidden.shape()[1] == weight.shape()[1] &&
                        labels.shape() == Shape{hidden.shape()[0]},
                    "linear_divergence: hidden must be [n, H], weight [V, H], labels [n], got ",
                    hidden.shape(), ", ", weight.shape(), ", ", labels.shape());
  check_target(target, labels.numel(), options.vocabulary);
  const Tensor y = dense(labels.to(kInt64));
  const Tensor all = apply_op(
      LinearDivergenceOp{std::make_shared<const DivergenceWork>(options, layout, target, y),
                         options.chunk_rows, options.rounded},
      hidden, weight);
  return {.divergence = select(all, 0, 0),
          .log_probs = select(all, 0, 1),
          .entropy = select(all, 0, 2).detach()};
}

}  // namespace tapestry
