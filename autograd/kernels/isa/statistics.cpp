// Statistics of one block of elements.
#include "autograd/kernels/statistics.h"

#include "autograd/kernels/isa/elementwise_stored.h"
#include "autograd/kernels/isa/lanes.h"

// Lets the sum, maximum, ... of a loop be formed in any order.
#if defined(_OPENMP)
#define TAPESTRY_STRING(...) #__VA_ARGS__
#define TAPESTRY_SIMD_REDUCTIONS(...) _Pragma(TAPESTRY_STRING(omp simd __VA_ARGS__))
#else
#define TAPESTRY_SIMD_REDUCTIONS(...)
#endif

namespace tapestry::kernels::TAPESTRY_ISA {

void add_statistics(
    DType dtype, int64_t n, const void* x, uint32_t groups, ElementStatistics* into);

namespace {

template <class C>
inline constexpr bool kFloating = kSame<C, float> || kSame<C, double>;

/// How a floating type is made.
template <class C>
struct Format;
template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
};
template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
};

/// Whether x is neither NaN nor infinite.
template <class C>
TAPESTRY_INLINE bool is_finite(C x) {
  if constexpr (kFloating<C>) {
    return x - x == 0;
  } else {
    return true;
  }
}

template <class C>
[[gnu::noinline]] void extremes_and_sums(int64_t n, const C* x, ElementStatistics* into) {
  C largest = x[0];
  C smallest = x[0];
  double sum = 0;
  double squares = 0;
  TAPESTRY_SIMD_REDUCTIONS(reduction(max : largest) reduction(min : smallest))
  for (int64_t i = 0; i < n; ++i) {
    largest = x[i] > largest ? x[i] : largest;
    smallest = x[i] < smallest ? x[i] : smallest;
  }
  if constexpr (kFloating<C>) {
    LaneSum<double> square_sum;
    square_sum.add_dot(n, x, x);
    squares = square_sum.get();
    sum = sum_in_lanes<double>(n, x);
  } else {
    TAPESTRY_SIMD_REDUCTIONS(reduction(+ : sum, squares))
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(x[i]);
      sum += value;
      squares += value * value;
    }
  }
  if (is_finite(squares)) {  // so is every element
    into->max = static_cast<double>(largest) > into->max ? static_cast<double>(largest) : into->max;
    into->min =
        static_cast<double>(smallest) < into->min ? static_cast<double>(smallest) : into->min;
    into->sum += sum;
    into->sum_squares += squares;
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    if (is_finite(value)) {
      into->max = value > into->max ? value : into->max;
      into->min = value < into->min ? value : into->min;
      into->sum += value;
      into->sum_squares += value * value;
    }
  }
}

template <class C>
[[gnu::noinline]] void counts(int64_t n, const C* x, ElementStatistics* into) {
  int32_t negative = 0;
  int32_t positive = 0;
  int32_t zero = 0;
  int32_t finite = 0;
  TAPESTRY_SIMD_REDUCTIONS(reduction(+ : negative, positive, zero, finite))
  for (int64_t i = 0; i < n; ++i) {
    negative += x[i] < 0 ? 1 : 0;
    positive += x[i] > 0 ? 1 : 0;
    zero += x[i] == 0 ? 1 : 0;
    finite += is_finite(x[i]) ? 1 : 0;
  }
  into->negative += negative;
  into->positive += positive;
  into->zero += zero;
  into->nan += n - negative - positive - zero;
  if (finite != n) {
    for (int64_t i = 0; i < n; ++i) {
      if (!is_finite(x[i])) {
        into->negative_infinity += x[i] < 0 ? 1 : 0;
        into->positive_infinity += x[i] > 0 ? 1 : 0;
      }
    }
  }
}

/// From the highest to the lowest digit that is 1.
TAPESTRY_INLINE int64_t binary_digits(uint64_t value) {
  return value == 0 ? 0 : 64 - __builtin_clzll(value) - __builtin_ctzll(value);
}

template <class C>
[[gnu::noinline]] void mantissa_bits(int64_t n, const C* x, ElementStatistics* into) {
  int64_t most = into->bits;
  if constexpr (kFloating<C>) {
    // A normal number's digits start at its hidden one, so the lowest that is set in any of them
    // tells how many the longest has.
    using Bits = typename Format<C>::Bits;
    constexpr Bits kHidden = Bits(1) << Format<C>::kMantissa;
    constexpr Bits kMantissa = kHidden - 1;
    constexpr Bits kMagnitude = ~Bits(0) >> 1U;
    constexpr Bits kInfinity = kMagnitude - kMantissa;
    Bits used = 0;
    Bits subnormal = 0;
    TAPESTRY_SIMD_REDUCTIONS(reduction(| : used, subnormal))
    for (int64_t i = 0; i < n; ++i) {
      Bits bits;
      __builtin_memcpy(&bits, x + i, sizeof(bits));
      bits &= kMagnitude;
      const bool normal = bits >= kHidden && bits < kInfinity;
      used |= normal ? (bits & kMantissa) | kHidden : Bits(0);
      subnormal |= bits < kHidden ? bits : Bits(0);
    }
    const int64_t digits = binary_digits(used);
    most = digits > most ? digits : most;
    if (subnormal != 0) {
      for (int64_t i = 0; i < n; ++i) {
        Bits bits;
        __builtin_memcpy(&bits, x + i, sizeof(bits));
        bits &= kMagnitude;
        const int64_t own = bits < kHidden ? binary_digits(bits) : 0;
        most = own > most ? own : most;
      }
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<int64_t>(x[i]);
      const uint64_t magnitude =
          value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
      const int64_t own = binary_digits(magnitude);
      most = own > most ? own : most;
    }
  }
  into->bits = most;
}

template <class T>
void add_typed(int64_t n, const void* x_, uint32_t groups, ElementStatistics* into) {
  using C = compute_t<T>;
  const auto* x = static_cast<const T*>(x_);
  C block[kBlock];
  // Blocks stay in the first cache, so that each group can have a loop of its own.
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* elements = read_block(m, x + done, block);
    if ((groups & kExtremesAndSums) != 0) {
      extremes_and_sums(m, elements, into);
    }
    if ((groups & kElementCounts) != 0) {
      counts(m, elements, into);
    }
    if ((groups & kMantissaBits) != 0) {
      mantissa_bits(m, elements, into);
    }
  }
}

}  // namespace

void add_statistics(
    DType dtype, int64_t n, const void* x, uint32_t groups, ElementStatistics* into) {
  with_stored(dtype, [&]<class S>(S) { add_typed<typename S::T>(n, x, groups, into); });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
