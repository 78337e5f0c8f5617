// oneDNN's products called by themselves: which processors gemm() leaves to them is another matter.
#include "autograd/kernels/gemm_onednn.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "tests/autograd/kernels/gemm_testing.h"

// Without OpenMP nothing is sent to oneDNN.
#if defined(_OPENMP) && defined(__x86_64__)
namespace tapestry::kernels {
namespace {

/// As gemm_batched; counts the products that oneDNN took.
struct ByOneDnn {
  int* taken;

  void operator()(DType dtype,
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
                  int64_t stride_c) const {
    if (onednn_gemm({dtype, c_dtype, trans_a, trans_b, batch, m, n, k, lda, stride_a, ldb, stride_b,
                     ldc, stride_c, static_cast<float>(alpha), static_cast<float>(beta)},
                    a, b, c)) {
      ++*taken;
    } else {
      // Declined: what it promises then is that C is as it was, which gemm() then computes.
      for (int64_t i = 0; i < batch; ++i) {
        const int64_t size = size_of(dtype);
        const auto* ai = static_cast<const char*>(a) + i * stride_a * size;
        const auto* bi = static_cast<const char*>(b) + i * stride_b * size;
        auto* ci = static_cast<char*>(c) + i * stride_c * size_of(c_dtype);
        const auto loop = [&](auto in, auto out) {
          using T = decltype(in);
          using Out = decltype(out);
          reference::gemm(trans_a, trans_b, m, n, k, alpha, reinterpret_cast<const T*>(ai), lda,
                          reinterpret_cast<const T*>(bi), ldb, beta, reinterpret_cast<Out*>(ci),
                          ldc);
        };
        if (dtype == kFloat32) {
          loop(float{}, float{});
        } else if (c_dtype == kFloat32) {
          loop(BFloat16{}, float{});
        } else {
          loop(BFloat16{}, BFloat16{});
        }
      }
    }
  }
};

TEST(GemmOneDnn, AllOrientationsStridesAndBatches) {
  if (!__builtin_cpu_supports("avx512bf16")) {
    GTEST_SKIP() << "without products of bfloat16 oneDNN declines them all";
  }
  int taken = 0;
  for (const int64_t batch : {1, 3}) {
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{1, 9, 4}, {17, 33, 20}, {64, 48, 257}}) {
      for (int flags = 0; flags < 16; ++flags) {
        gemm_testing::Case given{.batch = batch, .m = m, .n = n, .k = k};
        given.trans_a = (flags & 1) != 0;
        given.trans_b = (flags & 2) != 0;
        given.padded = (flags & 4) != 0;
        given.share_b = (flags & 8) != 0;
        for (const auto& [alpha, beta] :
             std::vector<std::pair<double, double>>{{1, 0}, {1, 1}, {2, -3}}) {
          given.alpha = alpha;
          given.beta = beta;
          gemm_testing::check<BFloat16, BFloat16>(ByOneDnn{&taken}, given);
          gemm_testing::check<BFloat16, float>(ByOneDnn{&taken}, given);
          gemm_testing::check<float, float>(ByOneDnn{&taken}, given);
        }
      }
    }
  }
  EXPECT_GT(taken, 300);  // of 864: an implementation that declines everything proves nothing
}

}  // namespace
}  // namespace tapestry::kernels
#endif
