#include "autograd/kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/elementwise.h"
#include "autograd/kernels/gemm_onednn.h"
#include "autograd/kernels/gemm_tiled.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

namespace {

/// BLAS asks for a leading dimension of at least a row even where there is only one row.
blasint leading(int64_t rows, int64_t cols, int64_t ld) {
  const int64_t least = std::max<int64_t>(1, cols);
  assert(rows <= 1 || ld >= least);
  return static_cast<blasint>(rows <= 1 ? std::max(ld, least) : ld);
}

template <class T>
void scale_matrix(int64_t m, int64_t n, T beta, T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      // Not a product: beta = 0 removes NaN and infinity.
      c[i * ldc + j] = beta == T(0) ? T(0) : static_cast<T>(c[i * ldc + j] * beta);
    }
  }
}

template <class T>
void call_gemv(bool trans,
               int64_t rows,
               int64_t cols,
               T alpha,
               const T* a,
               blasint lda,
               const T* x,
               int64_t incx,
               T beta,
               T* y,
               int64_t incy) {
  const auto op = trans ? CblasTrans : CblasNoTrans;
  const auto r = static_cast<blasint>(rows);
  const auto c = static_cast<blasint>(cols);
  const auto ix = static_cast<blasint>(incx);
  const auto iy = static_cast<blasint>(incy);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemv(CblasRowMajor, op, r, c, alpha, a, lda, x, ix, beta, y, iy);
  } else {
    cblas_dgemv(CblasRowMajor, op, r, c, alpha, a, lda, x, ix, beta, y, iy);
  }
}

/// OpenBLAS chooses its kernels by the processor's model and gives an AVX-512 processor that it
/// does not know kernels for AVX2, half as fast.
bool openblas_lacks_avx512() {
  static const bool lacks = [] {
    constexpr std::string_view kCoresWithAvx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    const auto* const end = std::end(kCoresWithAvx512);
    return std::find(std::begin(kCoresWithAvx512), end, openblas_get_corename()) == end;
  }();
  return lacks && cpu_level() >= CpuLevel::kAvx512;
}

/// float and double by BLAS; m, n, k > 0.
template <class T>
void gemm_blas(bool trans_a,
               bool trans_b,
               int64_t m,
               int64_t n,
               int64_t k,
               T alpha,
               const T* a,
               int64_t lda_,
               const T* b,
               int64_t ldb_,
               T beta,
               T* c,
               int64_t ldc_) {
  assert(std::max({m, n, k, lda_, ldb_, ldc_}) <= std::numeric_limits<blasint>::max());
#ifndef _OPENMP
  // The library beneath still has its team; it is set per thread.
  thread_local const bool single = (openblas_set_num_threads(1), true);
  (void)single;
#endif
  const blasint lda = leading(trans_a ? k : m, trans_a ? m : k, lda_);
  const blasint ldb = leading(trans_b ? n : k, trans_b ? k : n, ldb_);
  const blasint ldc = leading(m, n, ldc_);
  // A vector on one side: GEMM would first copy the matrix into its panels.
  if (m == 1 || n == 1) {
    if (beta == T(0)) {
      scale_matrix(m, n, beta, c, ldc);
    }
    const T kept = beta == T(0) ? T(1) : beta;
    if (m == 1) {
      call_gemv(!trans_b, trans_b ? n : k, trans_b ? k : n, alpha, b, ldb, a, trans_a ? lda : 1,
                kept, c, 1);
    } else {
      call_gemv(trans_a, trans_a ? k : m, trans_a ? m : k, alpha, a, lda, b, trans_b ? 1 : ldb,
                kept, c, ldc);
    }
    return;
  }
  const auto op_a = trans_a ? CblasTrans : CblasNoTrans;
  const auto op_b = trans_b ? CblasTrans : CblasNoTrans;
  const auto mi = static_cast<blasint>(m);
  const auto ni = static_cast<blasint>(n);
  const auto ki = static_cast<blasint>(k);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, op_a, op_b, mi, ni, ki, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    cblas_dgemm(CblasRowMajor, op_a, op_b, mi, ni, ki, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

/// A vector has no use for tiles, and for the smallest products packing costs more than the work.
bool is_tiled_float32(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kLeastProduct = 1 << 15;
  return m > 1 && n > 1 && m * n * k >= kLeastProduct && openblas_lacks_avx512();
}

void gemm_float32(bool trans_a,
                  bool trans_b,
                  int64_t m,
                  int64_t n,
                  int64_t k,
                  float alpha,
                  const float* a,
                  int64_t lda,
                  const float* b,
                  int64_t ldb,
                  float beta,
                  float* c,
                  int64_t ldc) {
  if (is_tiled_float32(m, n, k)) {
    tiled_gemm(kFloat32, kFloat32, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    gemm_blas<float>(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

/// Integers: the obvious loop, rows in parallel; unsigned arithmetic, so that it wraps.
template <class T>
void gemm_integer(bool trans_a,
                  bool trans_b,
                  int64_t m,
                  int64_t n,
                  int64_t k,
                  double alpha_,
                  const T* a,
                  int64_t lda,
                  const T* b,
                  int64_t ldb,
                  double beta_,
                  T* c,
                  int64_t ldc) {
  using U = std::make_unsigned_t<T>;
  const auto alpha = static_cast<U>(static_cast<T>(alpha_));
  const auto beta = static_cast<U>(static_cast<T>(beta_));
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, n * k));
  parallel_for(m, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = c + i * ldc;
      for (int64_t j = 0; j < n; ++j) {
        row[j] = beta == 0 ? T(0) : static_cast<T>(static_cast<U>(row[j]) * beta);
      }
      for (int64_t p = 0; p < k; ++p) {
        const U factor = alpha * static_cast<U>(trans_a ? a[p * lda + i] : a[i * lda + p]);
        for (int64_t j = 0; j < n; ++j) {
          const U right = static_cast<U>(trans_b ? b[j * ldb + p] : b[p * ldb + j]);
          row[j] = static_cast<T>(static_cast<U>(row[j]) + factor * right);
        }
      }
    }
  });
}

/// Working memory that a thread keeps between calls: fresh pages would cost more than the copies.
float* scratch(int which, int64_t count) {
  struct Buffer {
    std::unique_ptr<float[]> data;
    int64_t size = 0;
  };
  thread_local Buffer buffers[3];
  Buffer& buffer = buffers[which];
  if (buffer.size < count) {
    buffer.data.reset();
    buffer.data.reset(new float[static_cast<size_t>(count)]);
    buffer.size = count;
  }
  return buffer.data.get();
}

/// rows x cols from 16-bit rows to a dense float32 matrix.
void widen(DType dtype, int64_t rows, int64_t cols, const char* x, int64_t ld, float* y) {
  const UnaryRow row = cast_row(dtype, kFloat32);
  const int64_t item = size_of(dtype);
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, cols));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      row(cols, x + i * ld * item, 1, y + i * cols, 1);
    }
  });
}

/// c = sums + beta c, rounded once, for 16-bit c.
void round_into(
    DType dtype, int64_t m, int64_t n, const float* sums, double beta, char* c, int64_t ldc) {
  const UnaryRow narrow = cast_row(kFloat32, dtype);
  const UnaryRow wide = cast_row(dtype, kFloat32);
  const int64_t item = size_of(dtype);
  constexpr int64_t kPart = 512;
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, n));
  parallel_for(m, grain, [&](int64_t begin, int64_t end) {
    float old[kPart];
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; j += kPart) {
        const int64_t count = std::min(kPart, n - j);
        char* out = c + (i * ldc + j) * item;
        const float* sum = sums + i * n + j;
        if (beta == 0) {
          narrow(count, sum, 1, out, 1);
          continue;
        }
        wide(count, out, 1, old, 1);
        for (int64_t q = 0; q < count; ++q) {
          old[q] = sum[q] + static_cast<float>(beta) * old[q];
        }
        narrow(count, old, 1, out, 1);
      }
    }
  });
}

/// 16-bit inputs block by block through float32: for processors without 16-bit products. Blocks are
/// large enough that conversion is a small part of the time, and bound the working memory (16 MB).
void gemm_widened(DType dtype,
                  DType c_dtype,
                  bool trans_a,
                  bool trans_b,
                  int64_t m,
                  int64_t n,
                  int64_t k,
                  double alpha,
                  const char* a,
                  int64_t lda,
                  const char* b,
                  int64_t ldb,
                  double beta,
                  char* c,
                  int64_t ldc) {
  constexpr int64_t kBlock = 1024;
  constexpr int64_t kDepth = 512;
  const int64_t item = size_of(dtype);
  const int64_t c_item = size_of(c_dtype);
  for (int64_t j = 0; j < n; j += kBlock) {
    const int64_t nj = std::min(kBlock, n - j);
    for (int64_t i = 0; i < m; i += kBlock) {
      const int64_t mi = std::min(kBlock, m - i);
      char* c_block = c + (i * ldc + j) * c_item;
      const bool direct = c_dtype == kFloat32;
      float* sums = direct ? reinterpret_cast<float*>(c_block) : scratch(2, mi * nj);
      const int64_t ld_sums = direct ? ldc : nj;
      for (int64_t p = 0; p < k; p += kDepth) {
        const int64_t kp = std::min(kDepth, k - p);
        float* a_wide = scratch(0, mi * kp);
        float* b_wide = scratch(1, kp * nj);
        widen(dtype, trans_a ? kp : mi, trans_a ? mi : kp,
              a + (trans_a ? p * lda + i : i * lda + p) * item, lda, a_wide);
        widen(dtype, trans_b ? nj : kp, trans_b ? kp : nj,
              b + (trans_b ? j * ldb + p : p * ldb + j) * item, ldb, b_wide);
        const double kept = p > 0 ? 1.0 : (direct ? beta : 0.0);
        gemm_float32(trans_a, trans_b, mi, nj, kp, static_cast<float>(alpha), a_wide,
                     trans_a ? mi : kp, b_wide, trans_b ? kp : nj, static_cast<float>(kept), sums,
                     ld_sums);
      }
      if (!direct) {
        round_into(c_dtype, mi, nj, sums, beta, c_block, ldc);
      }
    }
  }
}

/// k == 0 or alpha == 0.
void scale_only(DType dtype, int64_t m, int64_t n, double beta, void* c, int64_t ldc) {
  const ScalarRow scale = scalar_row(ScalarOp::kMul, dtype);
  assert(scale != nullptr);
  for (int64_t i = 0; i < m; ++i) {
    char* row = static_cast<char*>(c) + i * ldc * size_of(dtype);
    if (beta == 0) {
      fill_row(dtype, n, 0, row, 1);
    } else {
      scale(n, row, 1, beta, row, 1);
    }
  }
}

}  // namespace

void gemm(DType dtype,
          DType c_dtype,
          bool trans_a,
          bool trans_b,
          int64_t m,
          int64_t n,
          int64_t k,
          double alpha,
          const void* a,
          int64_t lda,
          const void* b,
          int64_t ldb,
          double beta,
          void* c,
          int64_t ldc) {
  gemm_batched(dtype, c_dtype, trans_a, trans_b, 1, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c,
               ldc, 0);
}

void gemm_batched(DType dtype,
                  DType c_dtype,
                  bool trans_a,
                  bool trans_b,
                  int64_t batch,
                  int64_t m,
                  int64_t n,
                  int64_t k,
                  double alpha,
                  const void* a,
                  int64_t lda,
                  int64_t stride_a,
                  const void* b,
                  int64_t ldb,
                  int64_t stride_b,
                  double beta,
                  void* c,
                  int64_t ldc,
                  int64_t stride_c) {
  const bool narrow = dtype == kBFloat16 || dtype == kFloat16;
  assert(dtype != kBool);
  assert(c_dtype == dtype || (narrow && c_dtype == kFloat32));
  assert(batch <= 1 || stride_c != 0);
  if (batch <= 0 || m <= 0 || n <= 0) {
    return;
  }
  // With alpha = 0 oneDNN 2.6 scales accumulators that it never set.
  const bool empty_sum = k <= 0 || alpha == 0;
  if (!empty_sum && has_onednn_gemm(dtype) &&
      onednn_gemm({dtype, c_dtype, trans_a, trans_b, batch, m, n, k, lda, stride_a, ldb, stride_b,
                   ldc, stride_c, static_cast<float>(alpha), static_cast<float>(beta)},
                  a, b, c)) {
    return;
  }
  const auto one = [&](int64_t i) {
    const auto* ai = static_cast<const char*>(a) + i * stride_a * size_of(dtype);
    const auto* bi = static_cast<const char*>(b) + i * stride_b * size_of(dtype);
    auto* ci = static_cast<char*>(c) + i * stride_c * size_of(c_dtype);
    if (empty_sum) {
      scale_only(c_dtype, m, n, beta, ci, ldc);
      return;
    }
    if (narrow && has_native_gemm(dtype)) {
      tiled_gemm(dtype, c_dtype, trans_a, trans_b, m, n, k, static_cast<float>(alpha), ai, lda, bi,
                 ldb, static_cast<float>(beta), ci, ldc);
      return;
    }
    const auto typed = [&](auto zero) {
      using T = decltype(zero);
      const auto* at = reinterpret_cast<const T*>(ai);
      const auto* bt = reinterpret_cast<const T*>(bi);
      auto* ct = reinterpret_cast<T*>(ci);
      if constexpr (std::is_integral_v<T>) {
        gemm_integer<T>(trans_a, trans_b, m, n, k, alpha, at, lda, bt, ldb, beta, ct, ldc);
      } else if constexpr (std::is_same_v<T, float>) {
        gemm_float32(trans_a, trans_b, m, n, k, static_cast<T>(alpha), at, lda, bt, ldb,
                     static_cast<T>(beta), ct, ldc);
      } else {
        gemm_blas<T>(trans_a, trans_b, m, n, k, static_cast<T>(alpha), at, lda, bt, ldb,
                     static_cast<T>(beta), ct, ldc);
      }
    };
    switch (dtype) {
      case kFloat32:
        return typed(float{});
      case kFloat64:
        return typed(double{});
      case kInt32:
        return typed(int32_t{});
      case kInt64:
        return typed(int64_t{});
      default:
        gemm_widened(dtype, c_dtype, trans_a, trans_b, m, n, k, alpha, ai, lda, bi, ldb, beta, ci,
                     ldc);
    }
  };
  // A serial product wastes nothing on synchronisation, so enough of them beat one shared product.
  constexpr int64_t kSmallProduct = int64_t{1} << 21;  // multiplications: about 30 us
  const int64_t work = m * n * std::max<int64_t>(k, 1);
  if (batch >= 4 * num_threads() || work < kSmallProduct) {
    const int64_t grain = std::max<int64_t>(1, 4 * kGrainSize / work);
    parallel_for(batch, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        one(i);
      }
    });
  } else {
    for (int64_t i = 0; i < batch; ++i) {
      one(i);
    }
  }
}

bool has_native_gemm(DType dtype) {
  return dtype == kBFloat16 && (has_onednn_gemm(dtype) || has_tiled_gemm(dtype));
}

std::string_view blas_flavour() {
  static const std::string flavour = [] {
    constexpr std::string_view kParallel[] = {"serial", "pthread", "openmp"};
    const int parallel = std::clamp(openblas_get_parallel(), 0, 2);
    return std::string(kParallel[parallel]) + ": " + openblas_get_config() + " on " +
           openblas_get_corename() +
           (openblas_lacks_avx512() ? "; float32 products by kernels of our own for AVX-512" : "");
  }();
  return flavour;
}

}  // namespace tapestry::kernels
