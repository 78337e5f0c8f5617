#include "autograd/kernels/gemm/gemm_grouped.h"

#include <algorithm>
#include <cassert>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_choice.h"
#include "autograd/kernels/gemm/gemm_groups.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/gemm/products_by_size.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

GroupProduct product_of_group(const GemmShape& s,
                              GroupAxis axis,
                              int64_t group,
                              int64_t begin,
                              int64_t end,
                              const GroupProduct& all) {
  GemmShape own = s;
  own.batch = 1;
  int64_t b_offset = 0;
  int64_t c_offset = 0;
  if (axis == GroupAxis::kRows) {
    own.m = end - begin;
    b_offset = group * s.stride_b;
    c_offset = begin * s.ldc;
  } else {
    own.k = end - begin;
    b_offset = begin * (s.trans_b ? 1 : s.ldb);
    c_offset = group * s.stride_c;
  }
  // Groups divide the axis of A's stored rows, or that of its columns.
  const bool stored_rows = (axis == GroupAxis::kRows) != s.trans_a;
  const int64_t a_offset = begin * (stored_rows ? s.lda : 1);
  return {own, end - begin, static_cast<const char*>(all.a) + a_offset * size_of(s.dtype),
          static_cast<const char*>(all.b) + b_offset * size_of(s.dtype),
          static_cast<char*>(all.c) + c_offset * size_of(s.c_dtype)};
}

void multiply(const GroupProduct& product) { gemm(product.shape, product.a, product.b, product.c); }

double work_of(const GroupProduct& product) {
  const GemmShape& s = product.shape;
  return static_cast<double>(s.m) * static_cast<double>(s.n) *
         static_cast<double>(std::max<int64_t>(s.k, 1));
}

/// `products` are in the order of their sizes, the largest first.
void multiply_by_size(std::span<const GroupProduct> products) {
  const auto at = [&](int64_t i) -> const GroupProduct& {
    return products[static_cast<size_t>(i)];
  };
  for_products_by_size(
      static_cast<int64_t>(products.size()), [&](int64_t i) { return work_of(at(i)); },
      [&](int64_t i) { multiply(at(i)); });
}

}  // namespace

void grouped_gemm(const GemmShape& s,
                  GroupAxis axis,
                  std::span<const int64_t> ends,
                  const void* a,
                  const void* b,
                  void* c) {
  assert(ends.empty() || ends.back() == (axis == GroupAxis::kRows ? s.m : s.k));
  if (s.n <= 0 || (axis == GroupAxis::kSum && s.m <= 0)) {
    return;
  }
  // The groups divide m or k among them: together they are one product.
  const CountedWork work(2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) *
                         static_cast<double>(s.k));
  const GroupProduct all = {s, 0, a, b, c};
  std::vector<GroupProduct> products;
  products.reserve(ends.size());
  int64_t begin = 0;
  int64_t group = 0;
  for (const int64_t end : ends) {
    assert(begin <= end);
    if (axis == GroupAxis::kSum || begin < end) {
      products.push_back(product_of_group(s, axis, group, begin, end, all));
    }
    begin = end;
    ++group;
  }
  std::stable_sort(products.begin(), products.end(),
                   [](const auto& left, const auto& right) { return left.size > right.size; });
  // Products without a sum only scale C.
  const auto with_sum = std::partition_point(
      products.begin(), products.end(),
      [&](const GroupProduct& product) { return product.shape.k > 0 && product.shape.alpha != 0; });
  const std::span<const GroupProduct> sums(products.begin(), with_sum);
  const std::span<const GroupProduct> rest(with_sum, products.end());
  if (in_exact() ? has_tiled_gemm(s.dtype) : prefers_tiles(s.dtype) && !in_one_order()) {
    tiled_group_gemm(sums);
  } else {
    multiply_by_size(sums);
  }
  if (s.beta != 1) {
    multiply_by_size(rest);
  }
}

}  // namespace tapestry::kernels
