#include "autograd/kernels/gemm/gemm.h"

#include <algorithm>
#include <cassert>
#include <type_traits>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/gemm/gemm_batch.h"
#include "autograd/kernels/gemm/gemm_blas.h"
#include "autograd/kernels/gemm/gemm_blocks.h"
#include "autograd/kernels/gemm/gemm_choice.h"
#include "autograd/kernels/gemm/gemm_few_rows.h"
#include "autograd/kernels/gemm/gemm_one_order.h"
#include "autograd/kernels/gemm/gemm_onednn.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/gemm/gemm_widened.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

/// Integers: the obvious loop, rows in parallel; unsigned arithmetic, so that it wraps.
template <class T>
void integer_gemm(const GemmShape& s, const void* a_, const void* b_, void* c_) {
  using U = std::make_unsigned_t<T>;
  const auto* a = static_cast<const T*>(a_);
  const auto* b = static_cast<const T*>(b_);
  auto* c = static_cast<T*>(c_);
  const auto alpha = static_cast<U>(static_cast<T>(s.alpha));
  const auto beta = static_cast<U>(static_cast<T>(s.beta));
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, s.n * s.k));
  parallel_for(s.m, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = c + i * s.ldc;
      for (int64_t j = 0; j < s.n; ++j) {
        row[j] = beta == 0 ? T(0) : static_cast<T>(static_cast<U>(row[j]) * beta);
      }
      for (int64_t p = 0; p < s.k; ++p) {
        const auto factor =
            static_cast<U>(alpha * static_cast<U>(s.trans_a ? a[p * s.lda + i] : a[i * s.lda + p]));
        for (int64_t j = 0; j < s.n; ++j) {
          const U right = static_cast<U>(s.trans_b ? b[j * s.ldb + p] : b[p * s.ldb + j]);
          row[j] = static_cast<T>(static_cast<U>(row[j]) + factor * right);
        }
      }
    }
  });
}

/// Whether float32 tiles are what a product runs on. A vector has no use for tiles, and for the
/// smallest products packing costs more than the work. On AVX2 (gemm_bench, Emerald Rapids forced)
/// one thread of tiles does 0.95 to 1.2 of what OpenBLAS's kernels do.
bool takes_tiles(const GemmShape& s) {
  constexpr int64_t kLeastProduct = 1 << 15;
  return s.m > 1 && s.n > 1 && s.m * s.n * s.k >= kLeastProduct && prefers_tiles(kFloat32);
}

void float32_gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  if (takes_tiles(s)) {
    tiled_gemm(s, a, b, c);
  } else {
    blas_gemm(s, a, b, c);
  }
}

/// Whether an element's bits are the same when only a block of rows that holds it is computed.
bool bits_by_element(const GemmShape& s) {
  switch (s.dtype) {
    case kFloat32:
      return takes_tiles(s);
    case kBFloat16:
    case kFloat16:
      return prefers_tiles(s.dtype);
    case kInt32:
    case kInt64:
      return true;
    default:
      return false;
  }
}

/// The sum is empty, or multiplied by 0.
void scale_only(const GemmShape& s, void* c) {
  const ScalarRow scale = scalar_row(ScalarOp::kMul, s.c_dtype);
  assert(scale != nullptr);
  for (int64_t i = 0; i < s.m; ++i) {
    char* row = static_cast<char*>(c) + i * s.ldc * size_of(s.c_dtype);
    if (s.beta == 0) {
      fill_row(s.c_dtype, s.n, 0, row, 1);
    } else {
      scale(s.n, row, 1, s.beta, row, 1);
    }
  }
}

void tiled_or_widened_gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  if (has_tiled_gemm(s.dtype)) {
    tiled_gemm(s, a, b, c);
  } else {
    widened_gemm(s, a, b, c, &float32_gemm);
  }
}

/// Whether the sum is to be one run over k, whatever the sizes and the level: exact mode.
bool wants_one_run(const GemmShape& s) {
  return in_exact() && (s.dtype == kFloat32 || s.dtype == kBFloat16 || s.dtype == kFloat16) &&
         s.k > 0 && s.alpha != 0;
}

void one_run_gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  if (has_tiled_gemm(s.dtype)) {
    tiled_gemm(s, a, b, c);
  } else {
    widened_gemm(s, a, b, c, &tiled_gemm);
  }
}

void one_product(const GemmShape& s, const void* a, const void* b, void* c) {
  // With alpha = 0 oneDNN 2.6 scales accumulators that it never set.
  if (s.k <= 0 || s.alpha == 0) {
    scale_only(s, c);
    return;
  }
  if (has_onednn_gemm(s.dtype)) {
    GemmShape single = s;
    single.batch = 1;
    multiply_blocks(single, a, b, c,
                    [](const GemmShape& block, const void* rows, const void* columns, void* out) {
                      if (!onednn_gemm(block, rows, columns, out)) {
                        tiled_or_widened_gemm(block, rows, columns, out);
                      }
                    });
    return;
  }
  switch (s.dtype) {
    case kFloat32:
      return float32_gemm(s, a, b, c);
    case kFloat64:
      return blas_gemm(s, a, b, c);
    case kInt8:
      return integer_gemm<int8_t>(s, a, b, c);
    case kUInt8:
      return integer_gemm<uint8_t>(s, a, b, c);
    case kInt32:
      return integer_gemm<int32_t>(s, a, b, c);
    case kInt64:
      return integer_gemm<int64_t>(s, a, b, c);
    default:
      return tiled_or_widened_gemm(s, a, b, c);
  }
}

}  // namespace

void gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  assert(s.dtype != kBool);
  assert(s.c_dtype == s.dtype ||
         ((s.dtype == kBFloat16 || s.dtype == kFloat16) && s.c_dtype == kFloat32));
  assert(s.batch <= 1 || s.stride_c != 0);
  if (s.batch <= 0 || s.m <= 0 || s.n <= 0) {
    return;
  }
  const CountedWork work(2.0 * static_cast<double>(s.batch) * static_cast<double>(s.m) *
                         static_cast<double>(s.n) * static_cast<double>(s.k));
  const bool one_run = wants_one_run(s);
  if (!one_run && wants_one_order(s)) {
    for (int64_t i = 0; i < s.batch; ++i) {
      one_order_gemm(s, static_cast<const char*>(a) + i * s.stride_a * size_of(s.dtype),
                     static_cast<const char*>(b) + i * s.stride_b * size_of(s.dtype),
                     static_cast<char*>(c) + i * s.stride_c * size_of(s.c_dtype));
    }
    return;
  }
  const bool few_rows = !one_run && prefers_few_rows(s);
  const bool divisible = one_run || few_rows || bits_by_element(s);
  const GemmBatch spread = spread_batch(s, num_threads(), divisible);
  const auto one = [&](int64_t i, int64_t part) {
    const int64_t row = part * spread.rows;
    GemmShape own = s;
    own.m = std::min(spread.rows, s.m - row);
    const char* left = static_cast<const char*>(a) +
                       (i * s.stride_a + row * (s.trans_a ? 1 : s.lda)) * size_of(s.dtype);
    const char* right = static_cast<const char*>(b) + i * s.stride_b * size_of(s.dtype);
    char* out = static_cast<char*>(c) + (i * s.stride_c + row * s.ldc) * size_of(s.c_dtype);
    if (one_run) {
      one_run_gemm(own, left, right, out);
    } else if (few_rows) {
      few_rows_gemm(own, left, right, out);
    } else if (s.dtype == kFloat32 && divisible && s.k > 0 && s.alpha != 0) {
      tiled_gemm(own, left, right, out);  // as the whole product, however few rows these are
    } else {
      one_product(own, left, right, out);
    }
  };
  if (spread.spread) {
    const int64_t unit_work = spread.rows * s.n * std::max<int64_t>(s.k, 1);
    const int64_t grain = std::max<int64_t>(1, 4 * kGrainSize / unit_work);
    parallel_for(s.batch * spread.parts, grain, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        one(unit / spread.parts, unit % spread.parts);
      }
    });
  } else {
    for (int64_t i = 0; i < s.batch; ++i) {
      one(i, 0);
    }
  }
}

void gemm_with_tail(
    const GemmShape& s, const void* a, const void* b, void* c, const GemmTail& tail) {
  assert(s.batch == 1);
  const bool has_tiles = s.dtype == kFloat32 ? takes_tiles(s) : prefers_tiles(s.dtype);
  if (has_tiles && takes_tail(s, tail) && !wants_one_run(s) && !wants_one_order(s) &&
      !prefers_few_rows(s) && s.m > 0 && s.n > 0 && s.k > 0 && tail.k > 0 && s.alpha != 0) {
    const CountedWork work(2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) *
                           static_cast<double>(s.k + tail.k));
    tiled_gemm(s, a, b, c, tail);
    return;
  }
  gemm(s, a, b, c);
  GemmShape rest = s;
  rest.trans_a = false;
  rest.trans_b = tail.trans_e;
  rest.k = tail.k;
  rest.lda = tail.ldd;
  rest.ldb = tail.lde;
  rest.beta = 1;
  gemm(rest, tail.d, tail.e, c);
}

bool has_native_gemm(DType dtype) {
  return dtype == kBFloat16 && (has_onednn_gemm(dtype) || prefers_bfloat16_pairs());
}

}  // namespace tapestry::kernels
