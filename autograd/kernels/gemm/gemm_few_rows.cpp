#include "autograd/kernels/gemm/gemm_few_rows.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "autograd/kernels/gemm/gemm_onednn.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

FewRowsForm few_rows_form(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return FewRowsForm::kFloat32;
    case kFloat16:
      return FewRowsForm::kFloat16;
    default:
      assert(dtype == kBFloat16);
      return prefers_bfloat16_pairs() ? FewRowsForm::kBFloat16Pairs : FewRowsForm::kBFloat16;
  }
}

bool multiplies_pairs(FewRowsForm form) {
  return form == FewRowsForm::kBFloat16Pairs || form == FewRowsForm::kQ8Pairs ||
         form == FewRowsForm::kQ4Pairs;
}

}  // namespace

int64_t most_few_rows(DType dtype) {
  // few_rows_bench: 5632 x 2048, 2 threads of a Zen 4, at each level.
  const bool narrow = dtype == kBFloat16 || dtype == kFloat16;
  if (!narrow && dtype != kFloat32) {
    return 0;
  }
  if (has_onednn_gemm(dtype)) {
    return 16;
  }
  if (dtype == kBFloat16 && prefers_bfloat16_pairs()) {
    return 32;
  }
  if (cpu_level() >= CpuLevel::kAvx512) {
    return 64;
  }
  if (cpu_level() == CpuLevel::kAvx2) {
    return narrow ? 64 : 32;
  }
  return 12;
}

bool prefers_few_rows(const GemmShape& s) {
  return s.trans_b && !s.trans_a && s.k > 0 && s.alpha != 0 && s.m <= most_few_rows(s.dtype);
}

FewRowsProduct few_rows_of(const GemmShape& s, const void* a, const void* b, void* c) {
  assert(s.trans_b && !s.trans_a && s.m > 0 && s.n > 0 && s.k > 0);
  return {.form = few_rows_form(s.dtype),
          .x_dtype = s.dtype,
          .y_dtype = s.c_dtype,
          .n = s.m,
          .out = s.n,
          .k = s.k,
          .x = a,
          .ldx = s.lda,
          .w = b,
          .w_stride = s.ldb * size_of(s.dtype),
          .y = c,
          .ldy = s.ldc,
          .alpha = static_cast<float>(s.alpha),
          .beta = static_cast<float>(s.beta)};
}

int64_t few_rows_item_bytes(FewRowsForm form) {
  return size_of(multiplies_pairs(form) ? kBFloat16 : kFloat32);
}

void few_rows_gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  few_rows_product(few_rows_of(s, a, b, c));
}

void few_rows_product(const FewRowsProduct& product) {
  // A thread takes a unit of W at a time. Their number is a multiple of the threads', so that none
  // waits for the last; what is fetched ahead at the end of one may be for another thread.
  constexpr int64_t kUnitBytes = 512 << 10;
  constexpr int64_t kUnitStripes = 4;
  constexpr int64_t kUnitsOfThread = 4;
  constexpr int64_t kRowsTogether = 12;  // a multiple of what tiles have at any level
  // What meets all rows of x, and what is fetched meanwhile, are in the second-level cache.
  constexpr int64_t kStripeRows = 2 * kRowsTogether;
  const bool pairs = multiplies_pairs(product.form);
  const Scratch packed(TAPESTRY_DISPATCH_PAIRS(pairs, few_rows_packed_bytes)(product));
  parallel_for(product.n, std::max<int64_t>(1, kGrainSize / product.k),
               [&](int64_t begin, int64_t end) {
                 TAPESTRY_DISPATCH_PAIRS(pairs, pack_few_rows)(product, begin, end, packed.get());
               });
  const int64_t threads = std::min<int64_t>(num_threads(), ceil_div(product.out, kRowsTogether));
  const int64_t unit_rows =
      std::max(kUnitBytes / std::max<int64_t>(1, product.w_stride), kUnitStripes * kStripeRows);
  const int64_t units =
      std::max(kUnitsOfThread, ceil_div(product.out, unit_rows * threads)) * threads;
  const auto start = [&](int64_t unit) {
    return unit < units ? product.out * unit / units / kRowsTogether * kRowsTogether : product.out;
  };
  std::atomic<int64_t> taken = 0;
  parallel_for(threads, 1, [&](int64_t, int64_t) {
    for (int64_t unit = taken++; unit < units; unit = taken++) {
      const int64_t end = start(unit + 1);
      for (int64_t stripe = start(unit), stop = stripe; stripe < end; stripe = stop) {
        stop = end - stripe < 2 * kStripeRows ? end : stripe + kStripeRows;
        const int64_t next = stop < end ? stop : start(taken);
        TAPESTRY_DISPATCH_PAIRS(pairs, multiply_few_rows)
        (product, stripe, stop, next, packed.get());
      }
    }
  });
}

}  // namespace tapestry::kernels
