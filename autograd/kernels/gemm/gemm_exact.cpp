#include "autograd/kernels/gemm/gemm_exact.h"

#include <algorithm>
#include <cassert>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_leaf_plan.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

const char* elements_of(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

/// Slots that blocks of the sum keep for one another, of one block of rows.
class KeptSlots {
 public:
  KeptSlots(const LeafPlan& plan, int64_t rows, int64_t n) {
    const int64_t columns = TAPESTRY_DISPATCH(tile_columns)();
    const int64_t tile = TAPESTRY_DISPATCH(tile_rows)();
    row_size_ = ceil_div(n, columns) * columns;
    for (unsigned slot = 0; slot < kLeafSlots; ++slot) {
      if ((plan.kept >> slot & 1U) != 0) {
        memory_[slot] = Scratch(ceil_div(rows, tile) * tile * row_size_ * size_of(kFloat32));
      }
    }
  }

  void give(LeafSums& leaves) const {
    for (size_t slot = 0; slot < kLeafSlots; ++slot) {
      leaves.kept[slot] = static_cast<float*>(memory_[slot].get());
    }
    leaves.row_size = row_size_;
  }

 private:
  Scratch memory_[kLeafSlots];
  int64_t row_size_;
};

/// The sums go to c, of s.c_dtype: a tree unless that is float64.
void multiply_leaves(
    const GemmShape& s, const LeafPlan& plan, const void* a, const void* b, void* c, bool pairs) {
  const bool packs_a = !plan.in_place || (s.dtype != kFloat32 && !pairs);
  const int64_t block_m = rows_of_block(s.m, packs_a);
  const KeptSlots kept(plan, std::min(block_m, s.m), s.n);
  for (int64_t i = 0; i < s.m; i += block_m) {
    for (const LeafBlock& block : plan.blocks) {
      LeafSums leaves{};
      leaves.runs = block.runs.data();
      leaves.run_count = std::ssize(block.runs);
      leaves.pieces = block.pieces.data();
      leaves.piece_count = std::ssize(block.pieces);
      leaves.items = block.items;
      leaves.in_place = plan.in_place;
      kept.give(leaves);
      TiledProduct product{};
      product.dtype = s.dtype;
      product.c_dtype = s.c_dtype;
      product.pairs = pairs;
      product.trans_a = s.trans_a;
      product.trans_b = s.trans_b;
      product.m = std::min(block_m, s.m - i);
      product.n = s.n;
      product.k = block.elements;
      product.a = elements_of(a, s.dtype, s.trans_a ? i : i * s.lda);
      product.lda = s.lda;
      product.b = b;
      product.ldb = s.ldb;
      product.c = const_cast<char*>(elements_of(c, s.c_dtype, i * s.ldc));
      product.ldc = s.ldc;
      product.alpha = static_cast<float>(s.alpha);
      product.beta = static_cast<float>(s.beta);
      product.leaves = &leaves;
      multiply_tiled(product);
    }
  }
}

int64_t elements_in(const LeafPlan& plan) {
  int64_t elements = 0;
  for (const LeafBlock& block : plan.blocks) {
    elements += block.elements;
  }
  return elements;
}

/// A factor in float32, at levels that do not multiply its dtype: rows x columns as stored.
Scratch widened(DType dtype, int64_t rows, int64_t columns, const void* x, int64_t ld) {
  Scratch wide(std::max<int64_t>(1, rows * columns * size_of(kFloat32)));
  const UnaryRow cast = cast_row(dtype, kFloat32);
  auto* out = static_cast<float*>(wide.get());
  parallel_for(rows, rows_per_thread(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      cast(columns, elements_of(x, dtype, row * ld), 1, out + row * columns, 1);
    }
  });
  return wide;
}

/// Calls multiply(shape, a, b) with both factors in float32.
template <class Multiply>
void with_wide_factors(const GemmShape& s,
                       std::span<const SumRun> runs,
                       const void* a,
                       const void* b,
                       const Multiply& multiply) {
  int64_t k = 0;
  for (const SumRun& run : runs) {
    k = std::max(k, run.end);
  }
  GemmShape own = s;
  own.dtype = kFloat32;
  own.lda = s.trans_a ? s.m : k;
  own.ldb = s.trans_b ? k : s.n;
  const Scratch wide_a = widened(s.dtype, s.trans_a ? k : s.m, own.lda, a, s.lda);
  const Scratch wide_b = widened(s.dtype, s.trans_b ? s.n : k, own.ldb, b, s.ldb);
  multiply(own, wide_a.get(), wide_b.get());
}

/// c = alpha sums + beta c, for 16-bit c.
void finish_wide(const GemmShape& s, const float* sums, void* c) {
  const UnaryRow from_c = cast_row(s.c_dtype, kFloat32);
  const UnaryRow to_c = cast_row(kFloat32, s.c_dtype);
  const auto alpha = static_cast<float>(s.alpha);
  const auto beta = static_cast<float>(s.beta);
  parallel_for(s.m, rows_per_thread(s.n), [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(s.n));
    std::vector<float> old(beta != 0 ? values.size() : 0);
    for (int64_t row = begin; row < end; ++row) {
      auto* out = const_cast<char*>(elements_of(c, s.c_dtype, row * s.ldc));
      std::transform(sums + row * s.n, sums + (row + 1) * s.n, values.begin(),
                     [&](float x) { return x * alpha; });
      if (beta != 0) {
        from_c(s.n, out, 1, old.data(), 1);
        std::transform(values.begin(), values.end(), old.begin(), values.begin(),
                       [&](float x, float y) { return x + beta * y; });
      }
      to_c(s.n, values.data(), 1, out, 1);
    }
  });
}

LeafPlan plan_of(const GemmShape& s, std::span<const SumRun> runs, bool tree, bool pairs) {
  assert(s.dtype == kFloat32 || s.dtype == kBFloat16 || s.dtype == kFloat16);
  assert(std::all_of(runs.begin(), runs.end(), [&](const SumRun& run) {
    return run.step == 1 || (run.step > 1 && s.trans_a && !s.trans_b);
  }));
  const int64_t per_item = pairs ? 2 : 1;
  const bool in_place = !s.trans_a && (s.dtype == kFloat32 || pairs) && s.lda % per_item == 0;
  return plan_leaves(runs, per_item, tree, in_place);
}

bool multiplies_in_pairs(const GemmShape& s) {
  return s.dtype == kBFloat16 && prefers_bfloat16_pairs();
}

CountedWork counted(const GemmShape& s, const LeafPlan& plan) {
  return CountedWork(2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) *
                     static_cast<double>(elements_in(plan)));
}

}  // namespace

void tree_gemm(
    const GemmShape& s, std::span<const SumRun> runs, const void* a, const void* b, void* c) {
  if (s.m <= 0 || s.n <= 0) {
    return;
  }
  assert(!runs.empty());
  const bool pairs = multiplies_in_pairs(s);
  const LeafPlan plan = plan_of(s, runs, true, pairs);
  if (plan.blocks.empty() || s.alpha == 0) {
    GemmShape empty = s;
    empty.batch = 1;
    empty.k = 0;
    gemm(empty, a, b, c);
    return;
  }
  const CountedWork work = counted(s, plan);
  if (has_tiled_gemm(s.dtype)) {
    multiply_leaves(s, plan, a, b, c, pairs);
    return;
  }
  with_wide_factors(s, runs, a, b, [&](const GemmShape& wide, const void* left, const void* right) {
    GemmShape own = wide;
    own.c_dtype = kFloat32;
    if (s.c_dtype == kFloat32) {
      multiply_leaves(own, plan, left, right, c, false);
      return;
    }
    own.alpha = 1;
    own.beta = 0;
    own.ldc = s.n;
    const Scratch sums(s.m * s.n * size_of(kFloat32));
    multiply_leaves(own, plan, left, right, sums.get(), false);
    finish_wide(s, static_cast<const float*>(sums.get()), c);
  });
}

void exact_sum_gemm(
    const GemmShape& s, std::span<const SumRun> runs, const void* a, const void* b, double* sums) {
  if (s.m <= 0 || s.n <= 0) {
    return;
  }
  const bool pairs = multiplies_in_pairs(s);
  const LeafPlan plan = plan_of(s, runs, false, pairs);
  const CountedWork work = counted(s, plan);
  GemmShape own = s;
  own.c_dtype = kFloat64;
  if (has_tiled_gemm(s.dtype)) {
    multiply_leaves(own, plan, a, b, sums, pairs);
    return;
  }
  with_wide_factors(own, runs, a, b,
                    [&](const GemmShape& wide, const void* left, const void* right) {
                      multiply_leaves(wide, plan, left, right, sums, false);
                    });
}

}  // namespace tapestry::kernels
