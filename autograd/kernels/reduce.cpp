#include "autograd/kernels/reduce.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <type_traits>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/reduce_partial.h"

namespace tapestry::kernels {

namespace {

// Blocks depend on the sizes only, never on the team, so that sums have one order.
constexpr int64_t kRowBlock = 32768;   // elements of one partial result of a long row
constexpr int64_t kColumnBlock = 256;  // columns of one task

int64_t grain_for(int64_t work) {
  return std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, work));
}

const char* at(const void* x, DType dtype, int64_t index) {
  return static_cast<const char*>(x) + index * size_of(dtype);
}
char* at(void* x, DType dtype, int64_t index) {
  return static_cast<char*>(x) + index * size_of(dtype);
}

/// Reduces [outer, n, inner] and hands each run of partial results to finish(begin, count,
/// partials) where begin indexes [outer, inner]; from several threads.
template <class Finish>
void reduce_blocks(Reducer reducer,
                   DType dtype,
                   int64_t outer,
                   int64_t n,
                   int64_t inner,
                   const void* x,
                   const Finish& finish) {
  const auto row = TAPESTRY_DISPATCH(reduce_row);
  const auto columns = TAPESTRY_DISPATCH(reduce_columns);
  const auto merge = TAPESTRY_DISPATCH(merge_partials);
  const int64_t width = std::min(inner, kColumnBlock);
  const int64_t column_blocks = ceil_div(inner, kColumnBlock);
  const int64_t tasks = outer * column_blocks;
  if (tasks == 0) {
    return;
  }
  const auto one = [&](int64_t o, int64_t first, int64_t count, int64_t j, int64_t w,
                       int64_t* out) {
    const char* from = at(x, dtype, (o * n + first) * inner + j);
    if (inner == 1) {
      row(reducer, dtype, count, from, out);
    } else {
      columns(reducer, dtype, count, inner, w, from, out);
    }
  };
  // Few long sums are shared out along n too. Many are cut there as well, for the same order.
  constexpr int64_t kEnoughTasks = 32;
  const int64_t rows_per_block = std::max<int64_t>(1, kRowBlock / width);
  const int64_t cuts = std::max<int64_t>(1, ceil_div(n, rows_per_block));
  if (cuts == 1 || tasks >= kEnoughTasks) {
    parallel_for(tasks, grain_for(n * width), [&](int64_t begin, int64_t end) {
      int64_t partials[kColumnBlock];
      int64_t next[kColumnBlock];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t o = task / column_blocks;
        const int64_t j = task % column_blocks * kColumnBlock;
        const int64_t w = std::min(kColumnBlock, inner - j);
        one(o, 0, std::min(rows_per_block, n), j, w, partials);
        for (int64_t first = rows_per_block; first < n; first += rows_per_block) {
          one(o, first, std::min(rows_per_block, n - first), j, w, next);
          merge(reducer, dtype, w, next, partials);
        }
        finish(o * inner + j, w, partials);
      }
    });
    return;
  }
  const Scratch memory(tasks * cuts * width * static_cast<int64_t>(sizeof(int64_t)));
  auto* partials = static_cast<int64_t*>(memory.get());
  parallel_for(tasks * cuts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t task = part / cuts;
      const int64_t first = part % cuts * rows_per_block;
      const int64_t j = task % column_blocks * kColumnBlock;
      one(task / column_blocks, first, std::min(rows_per_block, n - first), j,
          std::min(kColumnBlock, inner - j), partials + part * width);
    }
  });
  for (int64_t task = 0; task < tasks; ++task) {
    int64_t* sum = partials + task * cuts * width;
    const int64_t j = task % column_blocks * kColumnBlock;
    const int64_t w = std::min(kColumnBlock, inner - j);
    for (int64_t cut = 1; cut < cuts; ++cut) {
      merge(reducer, dtype, w, sum + cut * width, sum);
    }
    finish(task / column_blocks * inner + j, w, sum);
  }
}

void reduce_to(Reducer reducer,
               DType dtype,
               int64_t outer,
               int64_t n,
               int64_t inner,
               const void* x,
               DType out_dtype,
               void* y) {
  const DType partial = has_double_partial(reducer, dtype) ? kFloat64 : kInt64;
  const UnaryRow convert = cast_row(partial, out_dtype);
  reduce_blocks(reducer, dtype, outer, n, inner, x, [&](int64_t begin, int64_t w, int64_t* sums) {
    convert(w, sums, 1, at(y, out_dtype, begin), 1);
  });
}

/// Calls body(o, j, w) for every outer index and block of w <= 64 columns from j, in parallel.
template <class Body>
void for_each_column_block(int64_t outer, int64_t n, int64_t inner, const Body& body) {
  constexpr int64_t kWidth = 64;
  const int64_t blocks = ceil_div(inner, kWidth);
  parallel_for(outer * blocks, grain_for(n * std::min(inner, kWidth)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t j = task % blocks * kWidth;
                   body(task / blocks, j, std::min(kWidth, inner - j));
                 }
               });
}

}  // namespace

void reduce(
    ReduceOp op, DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y) {
  assert(n > 0 || (op != ReduceOp::kMax && op != ReduceOp::kMin) || outer * inner == 0);
  assert(!(dtype == kInt8 || dtype == kUInt8) || op == ReduceOp::kMax || op == ReduceOp::kMin);
  constexpr Reducer kReducers[] = {Reducer::kSum, Reducer::kProd, Reducer::kMax, Reducer::kMin,
                                   Reducer::kSumSquares};
  if (dtype == kBool && n == 0 && (op == ReduceOp::kSum || op == ReduceOp::kSumSquares)) {
    fill_row(kBool, outer * inner, 0, y, 1);  // the empty `or`; its extreme has no identity here
    return;
  }
  reduce_to(kReducers[static_cast<int>(op)], dtype, outer, n, inner, x, dtype, y);
}

void reduce_bool(
    bool any, DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, bool* y) {
  reduce_to(any ? Reducer::kAny : Reducer::kAll, dtype, outer, n, inner, x, kBool, y);
}

void arg_reduce(bool max,
                DType dtype,
                int64_t outer,
                int64_t n,
                int64_t inner,
                const void* x_,
                void* values_,
                int64_t* indices) {
  assert(n > 0 || outer * inner == 0);
  dispatch_compared(dtype, [&]<class T, class C>() {
    const auto* x = static_cast<const T*>(x_);
    auto* values = static_cast<T*>(values_);
    for_each_column_block(outer, n, inner, [&](int64_t o, int64_t j, int64_t w) {
      C best[64] = {};
      int64_t index[64] = {};
      const T* from = x + o * n * inner + j;
      for (int64_t q = 0; q < w; ++q) {
        best[q] = static_cast<C>(from[q]);
      }
      for (int64_t i = 1; i < n; ++i) {
        for (int64_t q = 0; q < w; ++q) {
          const C candidate = static_cast<C>(from[i * inner + q]);
          const bool better = (max ? candidate > best[q] : candidate < best[q]) ||
                              (candidate != candidate && best[q] == best[q]);
          best[q] = better ? candidate : best[q];
          index[q] = better ? i : index[q];
        }
      }
      for (int64_t q = 0; q < w; ++q) {
        const int64_t out = o * inner + j + q;
        if (values != nullptr) {
          values[out] = from[index[q] * inner + q];
        }
        if (indices != nullptr) {
          indices[out] = index[q];
        }
      }
    });
  });
}

void cumsum(
    DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x_, void* y_, bool reverse) {
  assert(dtype != kBool);
  dispatch_compared(dtype, [&]<class T, class C>() {
    using Carry = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    const auto* x = static_cast<const T*>(x_);
    auto* y = static_cast<T*>(y_);
    for_each_column_block(outer, n, inner, [&](int64_t o, int64_t j, int64_t w) {
      Carry carry[64] = {};
      for (int64_t step = 0; step < n; ++step) {
        const int64_t i = reverse ? n - 1 - step : step;
        const int64_t base = (o * n + i) * inner + j;
        for (int64_t q = 0; q < w; ++q) {
          carry[q] += static_cast<Carry>(static_cast<C>(x[base + q]));
          y[base + q] = static_cast<T>(static_cast<C>(carry[q]));
        }
      }
    });
  });
}

double sum_of_squares(DType dtype, int64_t n, const void* x) {
  if (is_floating(dtype)) {
    double result = 0;
    reduce_to(Reducer::kSumSquares, dtype, 1, n, 1, x, kFloat64, &result);
    return result;
  }
  // Squares of integers do not fit the integers' partial results.
  constexpr int64_t kPart = 512;
  const UnaryRow convert = cast_row(dtype, kFloat64);
  double part[kPart];
  double result = 0;
  for (int64_t i = 0; i < n; i += kPart) {
    const int64_t count = std::min(kPart, n - i);
    convert(count, at(x, dtype, i), 1, part, 1);
    for (int64_t q = 0; q < count; ++q) {
      result += part[q] * part[q];
    }
  }
  return result;
}

bool all_finite(DType dtype, int64_t n, const void* x) {
  if (!is_floating(dtype)) {
    return true;
  }
  bool result = true;
  reduce_to(Reducer::kAllFinite, dtype, 1, n, 1, x, kBool, &result);
  return result;
}

void scale_inplace(DType dtype, int64_t n, double s, void* x) {
  assert(is_floating(dtype));
  const ScalarRow row = scalar_row(ScalarOp::kMul, dtype);
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    row(end - begin, at(x, dtype, begin), 1, s, at(x, dtype, begin), 1);
  });
}

void axpy(DType dtype, int64_t n, double a, const void* x, void* y) {
  assert(is_floating(dtype));
  const auto row = TAPESTRY_DISPATCH(axpy_row);
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    row(dtype, end - begin, a, at(x, dtype, begin), at(y, dtype, begin));
  });
}

}  // namespace tapestry::kernels
