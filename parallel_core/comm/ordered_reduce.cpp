#include "parallel_core/comm/ordered_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstring>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry {

namespace {

constexpr int64_t kBlock = 2048;  // elements that stay in the first-level cache

kernels::BinaryOp kernel_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return kernels::BinaryOp::kMaximum;
    case ReduceOp::kMin:
      return kernels::BinaryOp::kMinimum;
    case ReduceOp::kSum:
      break;
  }
  return kernels::BinaryOp::kAdd;
}

const std::byte* at(const void* base, int64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

// Sums of 1, 2, 4 ... inputs wait for their neighbours, as the digits of a binary number do.
void tree_reduce(
    ReduceOp op, DType dtype, int64_t n, const std::vector<const void*>& inputs, void* y) {
  assert(std::has_single_bit(inputs.size()));
  constexpr int64_t kTreeBlock = 512;
  const DType sum_dtype = carried_dtype(dtype);
  const kernels::BinaryRow combine = kernels::binary_row(kernel_of(op), sum_dtype);
  const kernels::UnaryRow to_sum = kernels::cast_row(dtype, sum_dtype);
  const kernels::UnaryRow from_sum = kernels::cast_row(sum_dtype, dtype);
  const int64_t size = size_of(dtype);
  const auto levels = static_cast<size_t>(std::bit_width(inputs.size()));
  kernels::parallel_for(n, kernels::kGrainSize, [&](int64_t begin, int64_t end) {
    std::vector<double> memory((levels + 1) * kTreeBlock);
    for (int64_t i = begin; i < end; i += kTreeBlock) {
      const int64_t count = std::min(kTreeBlock, end - i);
      for (size_t r = 0; r < inputs.size(); ++r) {
        double* sum = memory.data() + levels * kTreeBlock;
        to_sum(count, at(inputs[r], i * size), 1, sum, 1);
        size_t level = 0;
        for (; (r >> level & 1U) != 0; ++level) {
          combine(count, memory.data() + level * kTreeBlock, 1, sum, 1, sum, 1);
        }
        std::copy_n(sum, kTreeBlock, memory.data() + level * kTreeBlock);
      }
      from_sum(count, memory.data() + (levels - 1) * kTreeBlock, 1,
               static_cast<std::byte*>(y) + i * size, 1);
    }
  });
}

}  // namespace

DType carried_dtype(DType dtype) {
  return dtype == kFloat16 || dtype == kBFloat16 ? kFloat32 : dtype;
}

void reduce_step(ReduceOp op,
                 DType dtype,
                 int64_t n,
                 const void* before,
                 DType before_dtype,
                 const void* x,
                 void* y,
                 DType y_dtype) {
  const DType sum_dtype = carried_dtype(dtype);
  const kernels::BinaryRow combine = kernels::binary_row(kernel_of(op), sum_dtype);
  const kernels::UnaryRow from_before = kernels::cast_row(before_dtype, sum_dtype);
  const kernels::UnaryRow from_x = kernels::cast_row(dtype, sum_dtype);
  const kernels::UnaryRow to_y = kernels::cast_row(sum_dtype, y_dtype);
  kernels::parallel_for(n, kernels::kGrainSize, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<std::byte, kBlock * sizeof(double)> sum;
    alignas(64) std::array<std::byte, kBlock * sizeof(double)> other;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t count = std::min(kBlock, end - i);
      from_before(count, at(before, i * size_of(before_dtype)), 1, sum.data(), 1);
      const void* addend = at(x, i * size_of(dtype));
      if (dtype != sum_dtype) {
        from_x(count, addend, 1, other.data(), 1);
        addend = other.data();
      }
      combine(count, sum.data(), 1, addend, 1, sum.data(), 1);
      to_y(count, sum.data(), 1, static_cast<std::byte*>(y) + i * size_of(y_dtype), 1);
    }
  });
}

ReduceOrder reduce_order(ReduceOp op, DType dtype, int ranks) {
  const bool is_tree = in_exact() && op == ReduceOp::kSum && carried_dtype(dtype) == kFloat32 &&
                       std::has_single_bit(static_cast<unsigned>(ranks));
  return is_tree ? ReduceOrder::kTree : ReduceOrder::kRanks;
}

void ordered_reduce(ReduceOp op,
                    DType dtype,
                    int64_t n,
                    const std::vector<const void*>& inputs,
                    void* y,
                    ReduceOrder order) {
  if (order == ReduceOrder::kTree) {
    tree_reduce(op, dtype, n, inputs, y);
    return;
  }
  const DType sum_dtype = carried_dtype(dtype);
  const bool widen = sum_dtype != dtype;
  const kernels::BinaryRow combine = kernels::binary_row(kernel_of(op), sum_dtype);
  const kernels::UnaryRow to_sum = kernels::cast_row(dtype, sum_dtype);
  const kernels::UnaryRow from_sum = kernels::cast_row(sum_dtype, dtype);
  const int64_t size = size_of(dtype);
  kernels::parallel_for(n, kernels::kGrainSize, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<std::byte, kBlock * sizeof(double)> sum;
    alignas(64) std::array<std::byte, kBlock * sizeof(float)> wide;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t count = std::min(kBlock, end - i);
      to_sum(count, at(inputs[0], i * size), 1, sum.data(), 1);
      for (size_t r = 1; r < inputs.size(); ++r) {
        const void* x = at(inputs[r], i * size);
        if (widen) {
          to_sum(count, x, 1, wide.data(), 1);
          x = wide.data();
        }
        combine(count, sum.data(), 1, x, 1, sum.data(), 1);
      }
      from_sum(count, sum.data(), 1, static_cast<std::byte*>(y) + i * size, 1);
    }
  });
}

}  // namespace tapestry
