#include "autograd/kernels/gemm/gemm_blas.h"

#include <cblas.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_blocks.h"
#include "autograd/kernels/gemm/gemm_choice.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/team.h"

namespace tapestry::kernels {

namespace {

/// BLAS asks for a leading dimension of at least a row even where there is only one row.
blasint leading(int64_t rows, int64_t cols, int64_t ld) {
  const int64_t least = std::max<int64_t>(1, cols);
  assert(rows <= 1 || ld >= least);
  return static_cast<blasint>(rows <= 1 ? std::max(ld, least) : ld);
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

template <class T>
void typed_gemm(const GemmShape& s, const T* a, const T* b, T* c) {
  assert(std::max({s.m, s.n, s.k, s.lda, s.ldb, s.ldc}) <= std::numeric_limits<blasint>::max());
  const LibraryAlone alone;
  const auto alpha = static_cast<T>(s.alpha);
  const auto beta = static_cast<T>(s.beta);
  const blasint lda = leading(s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k, s.lda);
  const blasint ldb = leading(s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n, s.ldb);
  const blasint ldc = leading(s.m, s.n, s.ldc);
  // A vector on one side: GEMM would first copy the matrix into its panels.
  if (s.m == 1 || s.n == 1) {
    if (beta == T(0)) {  // which GEMV multiplies by: NaN and infinity would stay
      for (int64_t i = 0; i < s.m; ++i) {
        std::fill_n(c + i * ldc, s.n, T(0));
      }
    }
    const T kept = beta == T(0) ? T(1) : beta;
    if (s.m == 1) {
      call_gemv(!s.trans_b, s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n, alpha, b, ldb, a,
                s.trans_a ? lda : 1, kept, c, 1);
    } else {
      call_gemv(s.trans_a, s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k, alpha, a, lda, b,
                s.trans_b ? 1 : ldb, kept, c, ldc);
    }
    return;
  }
  const auto op_a = s.trans_a ? CblasTrans : CblasNoTrans;
  const auto op_b = s.trans_b ? CblasTrans : CblasNoTrans;
  const auto m = static_cast<blasint>(s.m);
  const auto n = static_cast<blasint>(s.n);
  const auto k = static_cast<blasint>(s.k);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

}  // namespace

bool openblas_lacks_avx512() {
  static const bool lacks = [] {
    constexpr std::string_view kCoresWithAvx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    const auto* const end = std::end(kCoresWithAvx512);
    return std::find(std::begin(kCoresWithAvx512), end, openblas_get_corename()) == end;
  }();
  return lacks && cpu_level() >= CpuLevel::kAvx2;
}

void blas_gemm(const GemmShape& product, const void* a, const void* b, void* c) {
  multiply_blocks(product, a, b, c,
                  [](const GemmShape& block, const void* rows, const void* columns, void* out) {
                    if (block.dtype == kFloat32) {
                      typed_gemm(block, static_cast<const float*>(rows),
                                 static_cast<const float*>(columns), static_cast<float*>(out));
                    } else {
                      assert(block.dtype == kFloat64);
                      typed_gemm(block, static_cast<const double*>(rows),
                                 static_cast<const double*>(columns), static_cast<double*>(out));
                    }
                  });
}

std::string_view blas_flavour() {
  static const std::string flavour = [] {
    constexpr std::string_view kParallel[] = {"serial", "pthread", "openmp"};
    const int parallel = std::clamp(openblas_get_parallel(), 0, 2);
    return std::string(kParallel[parallel]) + ": " + openblas_get_config() + " on " +
           openblas_get_corename() +
           (prefers_tiles(kFloat32) ? "; float32 products by kernels of our own" : "");
  }();
  return flavour;
}

}  // namespace tapestry::kernels
