// Reductions of one block, and y += a x.
#include "autograd/kernels/isa/elementwise_loops.h"
#include "autograd/kernels/isa/elementwise_stored.h"
#include "autograd/kernels/isa/lanes.h"
#include "autograd/kernels/reduce_partial.h"

// Lets the sum, product, ... of a loop be formed in any order.
#if defined(_OPENMP)
#define TAPESTRY_STRING(...) #__VA_ARGS__
#define TAPESTRY_SIMD_REDUCTION(operation, variable) \
  _Pragma(TAPESTRY_STRING(omp simd reduction(operation : variable)))
#else
#define TAPESTRY_SIMD_REDUCTION(operation, variable)
#endif

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

template <Reducer kReducer, class C>
inline constexpr bool kDouble = std::is_floating_point_v<C>&& kReducer <= Reducer::kSumSquares;

template <Reducer kReducer, class C>
using partial_t = std::conditional_t<kDouble<kReducer, C>, double, int64_t>;

template <class P>
TAPESTRY_INLINE P wrapping_add(P a, P b) {
  return static_cast<P>(wrapping(a) + wrapping(b));
}
template <class P>
TAPESTRY_INLINE P wrapping_mul(P a, P b) {
  return static_cast<P>(wrapping(a) * wrapping(b));
}

/// The partial result of one element.
template <Reducer kReducer, class C>
TAPESTRY_INLINE partial_t<kReducer, C> lift(C x) {
  using P = partial_t<kReducer, C>;
  if constexpr (kReducer == Reducer::kAny || kReducer == Reducer::kAll) {
    return x != 0 ? 1 : 0;
  } else if constexpr (kReducer == Reducer::kAllFinite) {
    return x - x == 0 ? 1 : 0;
  } else if constexpr (kReducer == Reducer::kSumSquares) {
    return wrapping_mul(static_cast<P>(x), static_cast<P>(x));
  } else {
    return static_cast<P>(x);
  }
}

/// NaN on either side gives NaN.
template <Reducer kReducer, class P>
TAPESTRY_INLINE P merge(P a, P b) {
  if constexpr (kReducer == Reducer::kSum || kReducer == Reducer::kSumSquares) {
    return wrapping_add(a, b);
  } else if constexpr (kReducer == Reducer::kProd) {
    return wrapping_mul(a, b);
  } else if constexpr (kReducer == Reducer::kMax || kReducer == Reducer::kAny) {
    return a != a ? a : (a > b ? a : b);  // b NaN: a > b is false
  } else {
    return a != a ? a : (a < b ? a : b);
  }
}

template <Reducer kReducer, class P>
TAPESTRY_INLINE P identity() {
  constexpr bool kFloating = std::is_same_v<P, double>;
  if constexpr (kReducer == Reducer::kSum || kReducer == Reducer::kSumSquares ||
                kReducer == Reducer::kAny) {
    return P(0);
  } else if constexpr (kReducer == Reducer::kMax) {
    return kFloating ? P(-__builtin_inf()) : P(INT64_MIN);
  } else if constexpr (kReducer == Reducer::kMin) {
    return kFloating ? P(__builtin_inf()) : P(INT64_MAX);
  } else {
    return P(1);
  }
}

template <class C>
double product_in_lanes(int64_t n, const C* x) {
  double lane[kSumLanes];
  for (double& product : lane) {
    product = 1;
  }
  for (int64_t i = 0; i < n; ++i) {
    lane[i % kSumLanes] *= static_cast<double>(x[i]);
  }
  double product = 1;
  for (const double part : lane) {
    product *= part;
  }
  return product;
}

/// At most kBlock contiguous elements.
template <Reducer kReducer, class C>
[[gnu::noinline]] partial_t<kReducer, C> reduce_chunk(int64_t n, const C* x) {
  using P = partial_t<kReducer, C>;
  if constexpr (kDouble<kReducer, C> && kReducer == Reducer::kSum) {
    return sum_in_lanes<double>(n, x);
  } else if constexpr (kDouble<kReducer, C> && kReducer == Reducer::kSumSquares) {
    LaneSum<double> sum;
    sum.add_dot(n, x, x);
    return sum.get();
  } else if constexpr (kDouble<kReducer, C> && kReducer == Reducer::kProd) {
    return product_in_lanes(n, x);
  } else if constexpr (kReducer == Reducer::kSum || kReducer == Reducer::kSumSquares) {
    auto sum = wrapping(P(0));
    TAPESTRY_SIMD_REDUCTION(+, sum)
    for (int64_t i = 0; i < n; ++i) {
      sum += wrapping(lift<kReducer>(x[i]));
    }
    return static_cast<P>(sum);
  } else if constexpr (kReducer == Reducer::kProd) {
    auto product = wrapping(P(1));
    TAPESTRY_SIMD_REDUCTION(*, product)
    for (int64_t i = 0; i < n; ++i) {
      product *= wrapping(lift<kReducer>(x[i]));
    }
    return static_cast<P>(product);
  } else if constexpr (kDouble<kReducer, C>) {  // extremes in C, NaN counted apart
    constexpr bool kMax = kReducer == Reducer::kMax;
    C best = static_cast<C>(kMax ? -__builtin_inf() : __builtin_inf());
    int32_t nans = 0;
    if constexpr (kMax) {
      TAPESTRY_SIMD_REDUCTION(max, best)
      for (int64_t i = 0; i < n; ++i) {
        best = x[i] > best ? x[i] : best;
      }
    } else {
      TAPESTRY_SIMD_REDUCTION(min, best)
      for (int64_t i = 0; i < n; ++i) {
        best = x[i] < best ? x[i] : best;
      }
    }
    TAPESTRY_SIMD_REDUCTION(+, nans)
    for (int64_t i = 0; i < n; ++i) {
      nans += x[i] != x[i] ? 1 : 0;
    }
    return nans != 0 ? __builtin_nan("") : static_cast<double>(best);
  } else {
    P result = identity<kReducer, P>();
    for (int64_t i = 0; i < n; ++i) {
      result = merge<kReducer>(result, lift<kReducer>(x[i]));
    }
    return result;
  }
}

template <Reducer kReducer, class T>
void row(int64_t n, const void* x_, void* partial) {
  using C = compute_t<T>;
  using P = partial_t<kReducer, C>;
  const auto* x = static_cast<const T*>(x_);
  P result = identity<kReducer, P>();
  C chunk[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    if constexpr (kIsNarrow<T>) {
      load<T>(m, x + done, 1, chunk);
      result = merge<kReducer>(result, reduce_chunk<kReducer, C>(m, chunk));
    } else {
      result = merge<kReducer>(result, reduce_chunk<kReducer, C>(m, x + done));
    }
  }
  *static_cast<P*>(partial) = result;
}

template <Reducer kReducer, class T>
void columns(int64_t n, int64_t stride, int64_t count, const void* x_, void* partials_) {
  using C = compute_t<T>;
  using P = partial_t<kReducer, C>;
  const auto* x = static_cast<const T*>(x_);
  auto* partials = static_cast<P*>(partials_);
  for (int64_t j = 0; j < count; ++j) {
    partials[j] = identity<kReducer, P>();
  }
  C chunk[kBlock];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t m = block_size(count - done);
      const C* source = chunk;
      if constexpr (kIsNarrow<T>) {
        load<T>(m, x + i * stride + done, 1, chunk);
      } else {
        source = x + i * stride + done;
      }
      P* into = partials + done;
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < m; ++j) {
        into[j] = merge<kReducer>(into[j], lift<kReducer>(source[j]));
      }
    }
  }
}

template <Reducer kReducer, class P>
void merge_all(int64_t n, const void* from_, void* into_) {
  const auto* from = static_cast<const P*>(from_);
  auto* into = static_cast<P*>(into_);
  for (int64_t i = 0; i < n; ++i) {
    into[i] = merge<kReducer>(into[i], from[i]);
  }
}

struct Functions {
  void (*row)(int64_t n, const void* x, void* partial);
  void (*columns)(int64_t n, int64_t stride, int64_t count, const void* x, void* partials);
  void (*merge)(int64_t n, const void* from, void* into);
};

template <Reducer kReducer, class T>
Functions functions() {
  return {row<kReducer, T>, columns<kReducer, T>,
          merge_all<kReducer, partial_t<kReducer, compute_t<T>>>};
}

template <class T>
Functions functions_of(Reducer reducer) {
  // bool: `or` and `and` are the extremes.
  constexpr bool kBool = std::is_same_v<T, uint8_t>;
  switch (reducer) {
    case Reducer::kSum:
      return functions < kBool ? Reducer::kMax : Reducer::kSum, T > ();
    case Reducer::kProd:
      return functions < kBool ? Reducer::kMin : Reducer::kProd, T > ();
    case Reducer::kMax:
      return functions<Reducer::kMax, T>();
    case Reducer::kMin:
      return functions<Reducer::kMin, T>();
    case Reducer::kSumSquares:
      return functions < kBool ? Reducer::kMax : Reducer::kSumSquares, T > ();
    case Reducer::kAny:
      return functions<Reducer::kAny, T>();
    case Reducer::kAll:
      return functions<Reducer::kAll, T>();
    case Reducer::kAllFinite:
      return functions<Reducer::kAllFinite, T>();
  }
  return {};
}

/// What int8 has; it is not 0 where uint8 is not.
Functions functions_of_int8(Reducer reducer) {
  return reducer == Reducer::kMax   ? functions<Reducer::kMax, int8_t>()
         : reducer == Reducer::kMin ? functions<Reducer::kMin, int8_t>()
                                    : functions_of<uint8_t>(reducer);
}

Functions functions_of(Reducer reducer, DType dtype) {
  return with_stored(dtype, [&]<class S>(S) {
    if constexpr (std::is_same_v<typename S::T, int8_t>) {
      return functions_of_int8(reducer);
    } else {
      return functions_of<typename S::T>(reducer);  // of uint8 nobody asks for sums
    }
  });
}

template <class T>
void axpy_typed(int64_t n, double a_, const void* x_, void* y_) {
  using C = compute_t<T>;
  const C a = static_cast<C>(a_);
  const auto* x = static_cast<const T*>(x_);
  auto* y = static_cast<T*>(y_);
  if constexpr (kIsNarrow<T>) {
    C left[kBlock];
    C right[kBlock];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      load<T>(m, x + done, 1, left);
      load<T>(m, y + done, 1, right);
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        right[i] += a * left[i];
      }
      store<T>(m, right, y + done, 1);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] += a * x[i];
    }
  }
}

}  // namespace

void reduce_row(Reducer reducer, DType dtype, int64_t n, const void* x, void* partial) {
  functions_of(reducer, dtype).row(n, x, partial);
}

void reduce_columns(Reducer reducer,
                    DType dtype,
                    int64_t n,
                    int64_t stride,
                    int64_t count,
                    const void* x,
                    void* partials) {
  functions_of(reducer, dtype).columns(n, stride, count, x, partials);
}

void merge_partials(Reducer reducer, DType dtype, int64_t n, const void* from, void* into) {
  functions_of(reducer, dtype).merge(n, from, into);
}

void axpy_row(DType dtype, int64_t n, double a, const void* x, void* y) {
  for_floating(dtype,
               [&](auto* tag) { axpy_typed<std::remove_pointer_t<decltype(tag)>>(n, a, x, y); });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
