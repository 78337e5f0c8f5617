// oneDNN's products called by themselves: which processors gemm() leaves to them is another matter.
#include "autograd/kernels/gemm/gemm_onednn.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "tests/autograd/kernels/gemm_testing.h"

// Without OpenMP nothing is sent to oneDNN.
#if defined(_OPENMP) && defined(__x86_64__)
namespace tapestry::kernels {
namespace {

/// Counts the products that oneDNN took; those that it declined have to be as if it had not been
/// asked.
struct ByOneDnn {
  int* taken;

  void operator()(const GemmShape& s, const void* a, const void* b, void* c) const {
    if (onednn_gemm(s, a, b, c)) {
      ++*taken;
      return;
    }
    gemm(s, a, b, c);
  }
};

TEST(GemmOneDnn, AllOrientationsStridesAndBatches) {
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
  if (__builtin_cpu_supports("avx512bf16")) {  // on older processors it may decline them all
    EXPECT_GT(taken, 300) << "of 864";
  }
}

}  // namespace
}  // namespace tapestry::kernels
#endif
