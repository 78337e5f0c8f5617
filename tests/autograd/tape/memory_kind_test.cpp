// Under which kind the tape's memory is counted.
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {
namespace {

constexpr int64_t kSize = 1 << 16;
constexpr int64_t kBytes = kSize * 4;

int64_t peak(MemoryKind kind) { return memory_stats().peak_by_kind[static_cast<size_t>(kind)]; }
int64_t current(MemoryKind kind) {
  return memory_stats().current_by_kind[static_cast<size_t>(kind)];
}

struct Peaks {
  int64_t activations;
  int64_t workspace;
};

Peaks peaks_of(bool recompute) {
  const Tensor x = ones({kSize}).set_requires_grad();
  x.set_main_grad(zeros({kSize}));
  RankContext::current().allocator().reset_peak();
  const int64_t activations = current(MemoryKind::kActivation);
  const int64_t workspace = current(MemoryKind::kWorkspace);
  const auto chain = [](const TensorList& in) {
    Tensor y = in[0];
    for (int i = 0; i < 6; ++i) {
      y = exp(y * 0.1);
    }
    return y;
  };
  sum(recompute ? checkpoint(chain, {x}) : chain({x})).backward();
  return {peak(MemoryKind::kActivation) - activations, peak(MemoryKind::kWorkspace) - workspace};
}

TEST(MemoryKind, BackwardMakesWorkspaceAndRecomputationActivations) {
  const Peaks plain = peaks_of(false);
  EXPECT_GE(plain.activations, 6 * kBytes);
  EXPECT_GE(plain.workspace, kBytes);
  EXPECT_LE(plain.workspace, 5 * kBytes);
  const Peaks recomputed = peaks_of(true);
  EXPECT_GE(recomputed.activations, 6 * kBytes);
  EXPECT_LE(recomputed.workspace, 6 * kBytes);
}

}  // namespace
}  // namespace tapestry
