// The temporaries of an update against those that optimizers ask the allocator for.
#include "parallel_core/estimates/update_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "optim/adafactor.h"
#include "optim/muon.h"

namespace tapestry::update_memory_test {
namespace {

constexpr int64_t kRows = 768;
constexpr int64_t kColumns = 512;

// The most that the second step takes beside what is there before it.
template <class Optimizer>
double taken_by_step(Optimizer& optimizer, const Tensor& parameter) {
  for (int step = 0; step < 2; ++step) {
    parameter.set_grad(full(parameter.shape(), 0.5));
    RankContext::current().allocator().reset_peak();
    optimizer.step();
  }
  return static_cast<double>(memory_stats().peak_bytes - memory_stats().current_bytes);
}

// What the kernels of Muon's products (optim/newton_schulz.cpp) take on this processor.
double packed_in_products(DType dtype) {
  const Tensor x = full({kRows, kColumns}, 0.1, dtype);
  const Tensor gram = full({kColumns, kColumns}, 0.1, dtype);
  const auto taken = [dtype](bool trans_a, const Tensor& a, const Tensor& b, double beta) {
    const Tensor c = zeros({trans_a ? kColumns : kRows, kColumns}, dtype);
    RankContext::current().allocator().reset_peak();
    kernels::gemm({.dtype = dtype,
                   .c_dtype = dtype,
                   .trans_a = trans_a,
                   .m = c.size(0),
                   .n = kColumns,
                   .k = a.size(trans_a ? 0 : 1),
                   .lda = kColumns,
                   .ldb = kColumns,
                   .beta = beta,
                   .ldc = kColumns},
                  a.raw(), b.raw(), c.raw());
    return static_cast<double>(memory_stats().peak_bytes - memory_stats().current_bytes);
  };
  return std::max({taken(true, x, x, 0), taken(true, gram, gram, 1), taken(false, x, gram, 1)});
}

TEST(UpdateMemory, IsWhatMuonTakes) {
  RankContext context;
  const RankContextGuard guard(context);
  for (const bool half : {false, true}) {
    const Tensor p = full({kRows, kColumns}, 0.1);
    p.set_requires_grad();
    optim::MuonOptions options;
    options.products = half ? kBFloat16 : kFloat32;
    optim::Muon muon({p}, options);
    const double estimate = muon_workspace(
        {{.rows = kRows, .columns = kColumns, .count = 1, .rows_together = kRows}}, {},
        {.half_products = half, .packed = packed_in_products(*options.products)});
    const double taken = taken_by_step(muon, p);
    EXPECT_GE(estimate + (1 << 12), taken);
    EXPECT_LE(estimate, 1.2 * taken);
  }
}

TEST(UpdateMemory, IsWhatAdafactorTakes) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor p = full({kRows, kColumns}, 0.1);
  p.set_requires_grad();
  optim::Adafactor adafactor({p});
  const double estimate = factored_workspace(
      {{.rows = kRows, .columns = kColumns, .count = 1, .rows_together = kRows}}, {});
  const double taken = taken_by_step(adafactor, p);
  EXPECT_GE(estimate + (1 << 12), taken);
  EXPECT_LE(estimate, 1.5 * taken);
}

// Two ranks have slices and two have pieces of these: a round has four matrices, and each rank one
// whole; its result is there with the matrix, slices of both, and both messages of pieces.
TEST(UpdateMemory, RanksExchangeMatrices) {
  const std::vector<UpdatedMatrices> matrices = {
      {.rows = kRows, .columns = kColumns, .count = 8, .rows_together = kRows}};
  const double whole = 4.0 * kRows * kColumns;
  const MatrixHolders holders = {.slices = 2, .copies = 2, .in_pieces = true};
  EXPECT_DOUBLE_EQ(muon_workspace(matrices, holders, {.half_products = true}), 6 * whole);
  EXPECT_DOUBLE_EQ(muon_workspace(matrices, holders, {.half_products = true, .messages = 5}),
                   6 * whole + 5);
  // Where each has all of a slice, it sends it to the other.
  EXPECT_DOUBLE_EQ(muon_workspace(matrices, {.slices = 2, .copies = 2, .in_pieces = false},
                                  {.half_products = true}),
                   8 * whole);
}

}  // namespace
}  // namespace tapestry::update_memory_test
