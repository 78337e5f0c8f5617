#include "autograd/kernels/losses/row_divergence.h"

#include <type_traits>

#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void row_divergence_rows(const RowDivergenceForward& call, int64_t begin, int64_t end);
void row_divergence_backward_rows(const RowDivergenceBackward& call, int64_t begin, int64_t end);

namespace {

// The logarithm of a mixture of which both probabilities may vanish.
template <class C>
TAPESTRY_INLINE C log_of_mixture(C p, C q, C beta) {
  const C least = kSame<C, float> ? C(0x1p-126) : C(0x1p-1022);
  const C mixture = multiply_add(beta, q, (C(1) - beta) * p);
  return log(mixture > least ? mixture : least);
}

// What a row needs in every column.
template <class C>
struct DivergenceRow {
  C scale;  // 1 / temperature
  C beta;
  C log_sum;
  C other_log_sum;
};

struct DivergenceSums {
  double divergence = 0;
  double mean = 0;
};

template <class C>
DivergenceSums block_sums(int64_t m, const C* x, const C* y, const DivergenceRow<C>& row) {
  C terms[kBlock];
  if (row.beta == 0) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C t = y[i] * row.scale - row.other_log_sum;
      terms[i] = exp(t) * (t - (x[i] * row.scale - row.log_sum));
    }
  } else if (row.beta == 1) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C s = x[i] * row.scale - row.log_sum;
      terms[i] = exp(s) * (s - (y[i] * row.scale - row.other_log_sum));
    }
  } else {
    C own_terms[kBlock];
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C s = x[i] * row.scale - row.log_sum;
      const C t = y[i] * row.scale - row.other_log_sum;
      const C p = exp(s);
      const C q = exp(t);
      const C log_m = log_of_mixture(p, q, row.beta);
      const C own = (C(1) - row.beta) * p * (s - log_m);
      terms[i] = multiply_add(row.beta * q, t - log_m, own);
      own_terms[i] = own;
    }
    return {sum_in_lanes<C>(m, terms), sum_in_lanes<C>(m, own_terms)};
  }
  const double divergence = sum_in_lanes<C>(m, terms);
  return {divergence, row.beta == 1 ? divergence : 0.0};
}

// out = factor times the gradient for x / temperature; out may be x.
template <class C>
void block_gradient(
    int64_t m, const C* x, const C* y, const DivergenceRow<C>& row, C mean, C factor, C* out) {
  if (y == nullptr) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = factor * exp(x[i] * row.scale - row.log_sum);
    }
  } else if (row.beta == 0) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C p = exp(x[i] * row.scale - row.log_sum);
      out[i] = factor * (p - exp(y[i] * row.scale - row.other_log_sum));
    }
  } else if (row.beta == 1) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C s = x[i] * row.scale - row.log_sum;
      out[i] = factor * exp(s) * (s - (y[i] * row.scale - row.other_log_sum) - mean);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C s = x[i] * row.scale - row.log_sum;
      const C p = exp(s);
      const C q = exp(y[i] * row.scale - row.other_log_sum);
      const C log_m = log_of_mixture(p, q, row.beta);
      out[i] = factor * p * ((C(1) - row.beta) * (s - log_m) - mean);
    }
  }
}

// The part of the label's log-probability of one row, added to the gradients of a block.
template <class C>
struct LabelPart {
  int64_t label = -1;
  C log_sum = 0;
  C factor = 0;

  void add(int64_t done, int64_t m, const C* x, C* out) const {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] -= factor * exp(x[i] - log_sum);
    }
    if (label >= done && label < done + m) {
      out[label - done] += factor;
    }
  }
};

template <class T, class U, class C = compute_t<T>>
void gradient_row(const RowDivergenceShape& shape,
                  const T* x,
                  const U* y,
                  const DivergenceRow<C>& row,
                  C mean,
                  C factor,
                  const LabelPart<C>* label,
                  T* dx) {
  C x_block[kBlock];
  C y_block[kBlock];
  C out[kBlock];
  for (int64_t done = 0; done < shape.valid_vocab; done += kBlock) {
    const int64_t m = block_size(shape.valid_vocab - done);
    const C* in = read_block(m, x + done, x_block);
    const C* other = nullptr;
    if (y != nullptr) {
      other = read_block(m, y + done, y_block);
    }
    block_gradient(m, in, other, row, mean, factor, out);
    if (label != nullptr) {
      label->add(done, m, in, out);
    }
    store_row(m, out, dx + done);
  }
  for (int64_t i = shape.valid_vocab; i < shape.vocab; ++i) {
    dx[i] = T{};
  }
}

template <class Call, class F>
void for_dtypes(const Call& call, const F& f) {
  for_floating(call.shape.dtype,
               [&](auto* x) { for_floating(call.shape.other_dtype, [&](auto* y) { f(x, y); }); });
}

}  // namespace

void row_divergence_rows(const RowDivergenceForward& call, int64_t begin, int64_t end) {
  const RowDivergenceShape& shape = call.shape;
  for_dtypes(call, [&](auto* x_tag, auto* y_tag) {
    using T = std::remove_pointer_t<decltype(x_tag)>;
    using U = std::remove_pointer_t<decltype(y_tag)>;
    using C = compute_t<T>;
    C x_block[kBlock];
    C y_block[kBlock];
    for (int64_t r = begin; r < end; ++r) {
      const T* x = static_cast<const T*>(call.logits) + r * shape.vocab;
      const U* y = static_cast<const U*>(call.others) + r * shape.vocab;
      const DivergenceRow<C> row = {static_cast<C>(1 / shape.temperature),
                                    static_cast<C>(shape.beta), static_cast<C>(call.log_sum[r]),
                                    static_cast<C>(call.other_log_sum[r])};
      DivergenceSums sums;
      for (int64_t done = 0; done < shape.valid_vocab; done += kBlock) {
        const int64_t m = block_size(shape.valid_vocab - done);
        const DivergenceSums part = block_sums<C>(m, read_block(m, x + done, x_block),
                                                  read_block(m, y + done, y_block), row);
        sums.divergence += part.divergence;
        sums.mean += part.mean;
      }
      call.sums[2 * r] = sums.divergence;
      call.sums[2 * r + 1] = sums.mean;
    }
  });
}

void row_divergence_backward_rows(const RowDivergenceBackward& call, int64_t begin, int64_t end) {
  const RowDivergenceShape& shape = call.shape;
  for_dtypes(call, [&](auto* x_tag, auto* y_tag) {
    using T = std::remove_pointer_t<decltype(x_tag)>;
    using U = std::remove_pointer_t<decltype(y_tag)>;
    using C = compute_t<T>;
    const bool compares = call.others != nullptr;
    for (int64_t r = begin; r < end; ++r) {
      const DivergenceRow<C> row = {static_cast<C>(1 / shape.temperature),
                                    static_cast<C>(shape.beta), static_cast<C>(call.log_sum[r]),
                                    compares ? static_cast<C>(call.other_log_sum[r]) : C(0)};
      LabelPart<C> label;
      if (call.dlog_prob != nullptr) {
        label = {call.labels[r] < shape.valid_vocab ? call.labels[r] : -1,
                 static_cast<C>(call.plain_log_sum[r]), static_cast<C>(call.dlog_prob[r])};
      }
      gradient_row(shape, static_cast<const T*>(call.logits) + r * shape.vocab,
                   compares ? static_cast<const U*>(call.others) + r * shape.vocab : nullptr, row,
                   compares ? static_cast<C>(call.mean[r]) : C(0),
                   static_cast<C>(call.ddivergence[r] / shape.temperature),
                   call.dlog_prob != nullptr ? &label : nullptr,
                   static_cast<T*>(call.dlogits) + r * shape.vocab);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
