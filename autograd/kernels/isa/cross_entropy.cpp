#include "autograd/kernels/losses/cross_entropy.h"

#include <type_traits>

#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/wide_math.h"
#include "autograd/kernels/machine/exact.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void cross_entropy_rows(const CrossEntropyForward& call, int64_t begin, int64_t end);
void cross_entropy_backward_rows(const CrossEntropyBackward& call, int64_t begin, int64_t end);
void cross_entropy_maximum_rows(
    const CrossEntropyShape& s, const void* logits, void* maxima, int64_t begin, int64_t end);
void cross_entropy_exponential_rows(const CrossEntropyExponentials& call,
                                    int64_t begin,
                                    int64_t end);

namespace {

/// `max` or the largest of n elements, if that is more.
template <class C>
TAPESTRY_INLINE C max_of_block(int64_t n, const C* x, C max) {
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) {
    max = x[i] > max ? x[i] : max;
  }
  return max;
}

/// The sum of exp(x - shift) over at most kBlock elements, in lanes.
template <class C>
TAPESTRY_INLINE C exponentials_of_block(int64_t n, const C* x, C shift) {
  return sum_terms_in_lanes<C>(n, [&](int64_t i) { return exp(x[i] - shift); });
}

/// Over columns [begin, end) of a row: blocks are counted from the first.
template <class T, class C = compute_t<T>>
double exponentials_of_leaf(int64_t begin, int64_t end, const T* x, C shift) {
  C block[kBlock];
  double sum = 0;
  for (int64_t done = begin; done < end; done += kBlock) {
    const int64_t m = block_size(end - done);
    sum += exponentials_of_block(m, read_block(m, x + done, block), shift);
  }
  return sum;
}

/// One pass over the row: each block's maximum, then the sum of its exponentials, carried in
/// float64 around the largest maximum so far. The row is read from memory once.
template <class T>
double logsumexp_row(int64_t n, const T* x) {
  using C = compute_t<T>;
  C block[kBlock];
  const C infinity = static_cast<C>(__builtin_inf());
  C max = -infinity;
  double sum = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, block);
    const C block_max = max_of_block(m, in, -infinity);
    if (block_max > max) {
      sum *= max == -infinity || block_max == infinity
                 ? 1.0
                 : __builtin_exp(static_cast<double>(max) - block_max);
      max = block_max;
    }
    const C shift = max - max != 0 ? C(0) : max;
    sum += exponentials_of_block(m, in, shift);
  }
  return __builtin_log(sum) + (max - max != 0 ? 0.0 : static_cast<double>(max));
}

template <class T, class C = compute_t<T>>
void backward_row(int64_t vocab,
                  int64_t valid_vocab,
                  const T* logits,
                  int64_t label,
                  C lse,
                  C dloss,
                  T* dlogits) {
  C in_block[kBlock];
  C out_block[kBlock];
  for (int64_t done = 0; done < valid_vocab; done += kBlock) {
    const int64_t m = block_size(valid_vocab - done);
    const C* in = read_block(m, logits + done, in_block);
    // The label's logit is read before its gradient may overwrite it.
    const int64_t place = label - done;
    const bool here = place >= 0 && place < m;
    const C probability = here ? exp(in[place] - lse) : C(0);
    C* out = output_block(dlogits + done, out_block);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      out[i] = exp(in[i] - lse) * dloss;
    }
    if (here) {
      out[place] = (probability - C(1)) * dloss;
    }
    write_block(m, out, dlogits + done);
  }
  for (int64_t i = valid_vocab; i < vocab; ++i) {
    dlogits[i] = T{};
  }
}

#if defined(__AVX512F__)

TAPESTRY_INLINE float largest_lane(FloatVector v) {
  float lanes[kLanes<float>];
  store(lanes, v);
  return max_of_block(kLanes<float>, lanes, -kInf);
}

/// The largest of n elements.
template <class T>
float wide_maximum(int64_t n, const T* x) {
  FloatVector a = fill(-kInf);
  FloatVector b = a;
  for_wide_steps<T>(n, [&](int64_t i, auto step) {
    const WidePair in = step.read_or(-kInf, x + i);
    a = larger(in.a, a);
    b = larger(in.b, b);
  });
  return largest_lane(larger(a, b));
}

struct BlockSum {
  double sum;
  float max;
};

/// The sum of e^(x - shift) over at most kBlock elements, and the largest of them.
template <class T>
BlockSum wide_exponentials(int64_t n, const T* x, float shift) {
  using Accuracy = typename AccuracyFor<T>::type;
  FloatVector max_a = fill(-kInf);
  FloatVector max_b = max_a;
  FloatVector sum_a = fill(0);
  FloatVector sum_b = sum_a;
  for_wide_steps<T>(n, [&](int64_t i, auto step) {
    const WidePair in = step.read_or(-kInf, x + i);
    max_a = larger(in.a, max_a);
    max_b = larger(in.b, max_b);
    sum_a = sum_a + Accuracy::exp(in.a - fill(shift));
    sum_b = sum_b + Accuracy::exp(in.b - fill(shift));
  });
  LaneSum<float> sum;
  sum.add_vector<float>(0, sum_a + sum_b);
  return {sum.get(), largest_lane(larger(max_a, max_b))};
}

/// As logsumexp_row(), but a block is summed around a maximum of those before: only where it is
/// far above that, e^kFarAbove times, has it to be summed again, so that sums stay finite.
template <class T>
double wide_logsumexp_row(int64_t n, const T* x) {
  constexpr float kFarAbove = 40;
  const auto shift_of = [](float max) { return max - max != 0 ? 0.0F : max; };
  float max = wide_maximum(block_size(n), x);
  double sum = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    BlockSum block = wide_exponentials(m, x + done, shift_of(max));
    if (block.max > max + kFarAbove || (max == -kInf && block.max > max)) {
      sum *= max == -kInf || block.max == kInf
                 ? 1.0
                 : __builtin_exp(static_cast<double>(max) - block.max);
      max = block.max;
      block = wide_exponentials(m, x + done, shift_of(max));
    }
    sum += block.sum;
  }
  return __builtin_log(sum) + static_cast<double>(shift_of(max));
}

template <class T>
void wide_backward_row(int64_t vocab,
                       int64_t valid_vocab,
                       const T* logits,
                       int64_t label,
                       float lse,
                       float dloss,
                       T* dlogits) {
  using Accuracy = typename AccuracyFor<T>::type;
  const float logit = label >= 0 && label < valid_vocab ? get(logits[label]) : 0.0F;
  const auto f = [&](FloatVector x) { return Accuracy::exp(x - fill(lse)) * fill(dloss); };
  for_wide_steps<T>(valid_vocab, [&](int64_t i, auto step) {
    const WidePair in = step.read(logits + i);
    step.write({f(in.a), f(in.b)}, dlogits + i);
  });
  if (label >= 0 && label < valid_vocab) {
    const float probability = exp(logit - lse);
    put((probability - 1.0F) * dloss, dlogits[label]);
  }
  for (int64_t i = valid_vocab; i < vocab; ++i) {
    dlogits[i] = T{};
  }
}

#endif

}  // namespace

void cross_entropy_rows(const CrossEntropyForward& call, int64_t begin, int64_t end) {
  const CrossEntropyShape& s = call.shape;
  for_floating(s.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    auto* logsumexp = &logsumexp_row<T>;
#if defined(__AVX512F__)
    if constexpr (kIsWide<T>) {
      logsumexp = &wide_logsumexp_row<T>;
    }
#endif
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(call.logits) + row * s.vocab;
      const int64_t label = call.labels[row];
      const double lse = logsumexp(s.valid_vocab, x);
      static_cast<C*>(call.lse)[row] = static_cast<C>(lse);
      double loss = 0;
      if (label != s.ignore_index && label >= 0 && label < s.valid_vocab) {
        C logit = 0;
        load_row(1, x + label, &logit);
        loss = lse - logit;
      }
      static_cast<C*>(call.loss)[row] = static_cast<C>(loss);
    }
  });
}

void cross_entropy_maximum_rows(
    const CrossEntropyShape& s, const void* logits, void* maxima, int64_t begin, int64_t end) {
  for_floating(s.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    C block[kBlock];
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(logits) + row * s.vocab;
      C max = -static_cast<C>(__builtin_inf());
      for (int64_t done = 0; done < s.valid_vocab; done += kBlock) {
        const int64_t m = block_size(s.valid_vocab - done);
        max = max_of_block(m, read_block(m, x + done, block), max);
      }
      static_cast<C*>(maxima)[row] = max;
    }
  });
}

void cross_entropy_exponential_rows(const CrossEntropyExponentials& call,
                                    int64_t begin,
                                    int64_t end) {
  const CrossEntropyShape& s = call.shape;
  const auto border = [&](int64_t leaf) {
    const int64_t at = leaf * s.vocab / call.leaves;
    return at < s.valid_vocab ? at : s.valid_vocab;
  };
  for_floating(s.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(call.logits) + row * s.vocab;
      const C max = static_cast<const C*>(call.maxima)[row];
      const C shift = max - max != 0 ? C(0) : max;
      double sums[kSumLeaves];
      for (int64_t leaf = 0; leaf < call.leaves; ++leaf) {
        sums[leaf] = exponentials_of_leaf(border(leaf), border(leaf + 1), x, shift);
      }
      for (int64_t count = call.leaves / 2; count > 0; count /= 2) {
        for (int64_t i = 0; i < count; ++i) {
          sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
      }
      call.sums[row] = sums[0];
    }
  });
}

void cross_entropy_backward_rows(const CrossEntropyBackward& call, int64_t begin, int64_t end) {
  const CrossEntropyShape& s = call.shape;
  for_floating(s.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    const auto* lse = static_cast<const C*>(call.lse);
    const auto* dloss = static_cast<const C*>(call.dloss);
    auto* backward = &backward_row<T, C>;
#if defined(__AVX512F__)
    if constexpr (kIsWide<T>) {
      backward = in_exact() ? backward : &wide_backward_row<T>;
    }
#endif
    for (int64_t row = begin; row < end; ++row) {
      T* dlogits = static_cast<T*>(call.dlogits) + row * s.vocab;
      if (call.labels[row] == s.ignore_index) {
        for (int64_t i = 0; i < s.vocab; ++i) {
          dlogits[i] = T{};
        }
      } else {
        backward(s.vocab, s.valid_vocab, static_cast<const T*>(call.logits) + row * s.vocab,
                 call.labels[row], lse[row], dloss[row], dlogits);
      }
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
