#include "diagnosis/profile/machine_peak.h"

#include <algorithm>

#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/profile/recording.h"

namespace tapestry::profile {

namespace {

// Seconds of the fastest of several runs.
template <class F>
double best_seconds(F&& work) {
  constexpr int64_t kBudget = 40'000'000;  // nanoseconds
  constexpr int kLeast = 3;
  work();  // fetches memory and threads
  const int64_t start = now_ns();
  int64_t best = INT64_MAX;
  for (int i = 0; i < kLeast || now_ns() - start < kBudget; ++i) {
    const int64_t begin = now_ns();
    work();
    best = std::min(best, now_ns() - begin);
  }
  return static_cast<double>(std::max<int64_t>(best, 1)) * 1e-9;
}

}  // namespace

MachinePeak measure_peak(DType dtype) {
  // An allocator of its own, so that the run's figures stay what they are.
  RankContext context;
  const RankContextGuard guard(context);
  const NoGradGuard no_grad;
  const UnobservedScope unobserved;
  constexpr int64_t kCopied = int64_t{1} << 23;
  MachinePeak peak;
  // The smaller one is through before a scheduler gives the core to another rank; units for
  // matrices are fastest at the larger one.
  for (const int64_t side : {int64_t{512}, int64_t{1024}}) {
    const Tensor a = full({side, side}, 0.5, dtype);
    const Tensor b = full({side, side}, 0.25, dtype);
    const double work = 2.0 * static_cast<double>(side * side * side);
    peak.flops = std::max(peak.flops, work / best_seconds([&] { const Tensor c = matmul(a, b); }));
  }
  const Tensor from = zeros({kCopied}, kFloat32);
  const Tensor to = zeros({kCopied}, kFloat32);
  peak.bytes = 2.0 * kCopied * size_of(kFloat32) / best_seconds([&] { copy_values(from, to); });
  return peak;
}

}  // namespace tapestry::profile
