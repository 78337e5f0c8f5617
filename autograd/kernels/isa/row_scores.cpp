#include "autograd/kernels/losses/row_scores.h"

#include <type_traits>

#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void scores_of_rows(const RowScoresForward& call, int64_t begin, int64_t end);
void scores_backward_of_rows(const RowScoresBackward& call, int64_t begin, int64_t end);

namespace {

/// Below so much under the largest an exponential is 0, and so is its product with the logit; an
/// infinite one would make it NaN.
template <class C>
inline constexpr C kLowest = sizeof(C) == sizeof(float) ? C(-105) : C(-750);

template <class C>
TAPESTRY_INLINE C not_below_lowest(C x) {
  return x < kLowest<C> ? kLowest<C> : x;
}

template <bool kTempered, class C>
TAPESTRY_INLINE C tempered(C x, C temperature) {
  return kTempered ? x / temperature : x;
}

/// Sums over a row of e = exp(z - max) around the largest z so far, carried in float64.
struct RowSums {
  double e = 0;
  double e_distance = 0;  ///< of e (z - max)
  double e_square = 0;
  double logits = 0;

  void move_to(double step) {  // max grows by -step
    const double factor = __builtin_exp(step);
    e_distance = factor * (e_distance + step * e);
    e *= factor;
    e_square *= factor * factor;
  }
};

template <bool kTempered, class C>
void add_block(int64_t m, const C* in, C temperature, C shift, RowSums& sums) {
  C values[kBlock];
  C distances[kBlock];
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < m; ++i) {
    const C distance = tempered<kTempered>(in[i], temperature) - shift;
    values[i] = exp(distance);
    distances[i] = not_below_lowest(distance);
  }
  LaneSum<C> e_distance;
  e_distance.add_dot(m, values, distances);
  LaneSum<C> e_square;
  e_square.add_dot(m, values, values);
  sums.e += sum_in_lanes<C>(m, values);
  sums.e_distance += e_distance.get();
  sums.e_square += e_square.get();
  sums.logits += sum_in_lanes<C>(m, in);
}

/// Whether no column has more than the label's, and none before it as much: the label's is `max`.
template <class T, class C = compute_t<T>>
bool is_first(const T* x, int64_t label, C max) {
  C block[kBlock];
  for (int64_t done = 0; done < label; done += kBlock) {
    const int64_t m = block_size(label - done);
    const C* in = read_block(m, x + done, block);
    int equal = 0;
#pragma omp simd reduction(+ : equal)
    for (int64_t i = 0; i < m; ++i) {
      equal += in[i] == max ? 1 : 0;
    }
    if (equal > 0) {
      return false;
    }
  }
  return true;
}

/// The row is read from memory once.
template <bool kTempered, class T, class C = compute_t<T>>
void scores_of_row(int64_t n, const T* x, int64_t label, C temperature, double* out) {
  C block[kBlock];
  const C infinity = static_cast<C>(__builtin_inf());
  C max = -infinity;
  C shift = 0;
  RowSums sums;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, block);
    C block_max = -infinity;
#pragma omp simd reduction(max : block_max)
    for (int64_t i = 0; i < m; ++i) {
      block_max = in[i] > block_max ? in[i] : block_max;
    }
    if (block_max > max) {
      const C before = shift;
      const bool had_none = max == -infinity;
      max = block_max;
      shift = max - max != 0 ? C(0) : tempered<kTempered>(max, temperature);
      if (!had_none && max != infinity) {
        sums.move_to(static_cast<double>(before) - static_cast<double>(shift));
      }
    }
    add_block<kTempered>(m, in, temperature, shift, sums);
  }
  out[kScoreLogSum] = __builtin_log(sums.e) + static_cast<double>(shift);
  out[kScoreMean] = sums.e_distance / sums.e + static_cast<double>(shift);
  out[kScoreSquareSum] = __builtin_log(sums.e_square) + 2 * static_cast<double>(shift);
  out[kScoreSum] = sums.logits;
  out[kScoreLargest] = static_cast<double>(max);
  C own = 0;
  const bool here = label >= 0 && label < n;
  if (here) {
    load_row(1, x + label, &own);
  }
  out[kScoreLabel] = static_cast<double>(tempered<kTempered>(own, temperature));
  out[kScoreIsLikeliest] = here && own == max && is_first(x, label, max) ? 1 : 0;
}

/// What the gradient of a row is made of.
struct RowGradient {
  double log_sum, entropy, dlog_prob, dentropy;
  double temperature;
};

template <bool kTempered, class T, class C = compute_t<T>>
void scores_backward_row(
    const RowScoresShape& s, const T* logits, int64_t label, const RowGradient& row, T* dlogits) {
  C in_block[kBlock];
  C out_block[kBlock];
  const C temperature = static_cast<C>(row.temperature);
  // What rounding takes off the log sum goes into the factors.
  const C shift = static_cast<C>(row.log_sum);
  const double rest = static_cast<double>(shift) - row.log_sum;
  const double factor = __builtin_exp(rest) / row.temperature;
  const C slope = static_cast<C>(-row.dentropy * factor);
  const C constant =
      static_cast<C>((-row.dlog_prob - row.dentropy * (row.entropy + rest)) * factor);
  for (int64_t done = 0; done < s.valid_vocab; done += kBlock) {
    const int64_t m = block_size(s.valid_vocab - done);
    const C* in = read_block(m, logits + done, in_block);
    // The label's logit is read before its gradient may overwrite it.
    const int64_t place = label - done;
    const bool here = place >= 0 && place < m;
    const double log_p =
        here ? static_cast<double>(tempered<kTempered>(in[place], temperature)) - row.log_sum : 0;
    C* out = output_block(dlogits + done, out_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C distance = tempered<kTempered>(in[i], temperature) - shift;
      out[i] = exp(distance) * (constant + slope * not_below_lowest(distance));
    }
    if (here) {
      const double p = __builtin_exp(log_p);
      const double of_entropy = p > 0 ? p * (log_p + row.entropy) : p;
      out[place] = static_cast<C>(
          (-row.dlog_prob * __builtin_expm1(log_p) - row.dentropy * of_entropy) / row.temperature);
    }
    write_block(m, out, dlogits + done);
  }
  for (int64_t i = s.valid_vocab; i < s.vocab; ++i) {
    dlogits[i] = T{};
  }
}

/// Calls f with a null pointer of the logits' type and whether they have to be divided.
template <class F>
void for_kinds(const RowScoresShape& s, const F& f) {
  for_floating(s.dtype, [&](auto* tag) {
    if (s.temperature == 1) {
      f(tag, std::false_type());
    } else {
      f(tag, std::true_type());
    }
  });
}

}  // namespace

void scores_of_rows(const RowScoresForward& call, int64_t begin, int64_t end) {
  const RowScoresShape& s = call.shape;
  for_kinds(s, [&](auto* tag, auto divided) {
    using T = std::remove_pointer_t<decltype(tag)>;
    for (int64_t row = begin; row < end; ++row) {
      scores_of_row<decltype(divided)::value>(
          s.valid_vocab, static_cast<const T*>(call.logits) + row * s.vocab, call.labels[row],
          static_cast<compute_t<T>>(s.temperature), call.scores + row * kRowScores);
    }
  });
}

void scores_backward_of_rows(const RowScoresBackward& call, int64_t begin, int64_t end) {
  const RowScoresShape& s = call.shape;
  for_kinds(s, [&](auto* tag, auto divided) {
    using T = std::remove_pointer_t<decltype(tag)>;
    for (int64_t row = begin; row < end; ++row) {
      scores_backward_row<decltype(divided)::value>(
          s, static_cast<const T*>(call.logits) + row * s.vocab, call.labels[row],
          {.log_sum = call.log_sum[row],
           .entropy = call.entropy[row],
           .dlog_prob = call.dlog_prob[row],
           .dentropy = call.dentropy[row],
           .temperature = s.temperature},
          static_cast<T*>(call.dlogits) + row * s.vocab);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
