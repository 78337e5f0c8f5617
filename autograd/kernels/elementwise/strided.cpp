#include "autograd/kernels/elementwise/strided.h"

#include <array>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

namespace {

/// An N-d loop with as few axes as the operands allow, the innermost last.
struct Loop {
  int ndim = 0;
  int num_operands = 0;
  std::array<int64_t, kMaxDims> sizes{};
  std::array<std::array<int64_t, kMaxDims>, kMaxOperands> strides{};  // in elements
  std::array<int64_t, kMaxOperands> item_sizes{};
  std::array<char*, kMaxOperands> data{};
  bool empty = false;

  int64_t row_size() const { return ndim == 0 ? 1 : sizes[ndim - 1]; }
  int64_t total() const {
    int64_t product = 1;
    for (int i = 0; i < ndim; ++i) {
      product *= sizes[i];
    }
    return product;
  }

  void swap_axes(int i, int j) {
    std::swap(sizes[i], sizes[j]);
    for (int k = 0; k < num_operands; ++k) {
      std::swap(strides[k][i], strides[k][j]);
    }
  }

  /// Whether axis i should run outside axis j: by the output's stride, then by the inputs'.
  bool outside(int i, int j) const {
    for (int k = num_operands - 1; k >= 0; --k) {
      const int64_t si = std::abs(strides[k][i]);
      const int64_t sj = std::abs(strides[k][j]);
      if (si != sj) {
        return si > sj;
      }
    }
    return false;
  }

  bool can_merge(int outer, int inner) const {
    for (int k = 0; k < num_operands; ++k) {
      if (strides[k][outer] != strides[k][inner] * sizes[inner]) {
        return false;
      }
    }
    return true;
  }
};

Loop make_loop(const Extent& extent, int num_operands, const View* operands) {
  const auto [ndim, sizes] = extent;
  assert(ndim >= 0 && ndim <= kMaxDims && num_operands >= 1 && num_operands <= kMaxOperands);
  Loop loop;
  loop.num_operands = num_operands;
  for (int k = 0; k < num_operands; ++k) {
    loop.data[k] = static_cast<char*>(operands[k].data);
    loop.item_sizes[k] = operands[k].item;
  }
  const int output = num_operands - 1;
  for (int i = 0; i < ndim; ++i) {
    assert(sizes[i] >= 0);
    loop.empty = loop.empty || sizes[i] == 0;
    if (sizes[i] == 1) {
      continue;
    }
    const bool backwards = operands[output].strides[i] < 0;
    for (int k = 0; k < num_operands; ++k) {
      const int64_t stride = operands[k].strides[i];
      if (backwards && sizes[i] > 0) {  // from the other end, so that it can merge
        loop.data[k] += (sizes[i] - 1) * stride * operands[k].item;
      }
      loop.strides[k][loop.ndim] = backwards ? -stride : stride;
    }
    loop.sizes[loop.ndim++] = sizes[i];
  }
  for (int i = 1; i < loop.ndim; ++i) {
    for (int j = i; j > 0 && loop.outside(j, j - 1); --j) {
      loop.swap_axes(j, j - 1);
    }
  }
  int last = 0;
  for (int i = 1; i < loop.ndim; ++i) {
    if (loop.can_merge(last, i)) {
      loop.sizes[last] *= loop.sizes[i];
      for (int k = 0; k < num_operands; ++k) {
        loop.strides[k][last] = loop.strides[k][i];
      }
    } else {
      loop.swap_axes(++last, i);
    }
  }
  if (loop.ndim > 0) {
    loop.ndim = last + 1;
  }
  return loop;
}

/// A short contiguous row costs more in calls than a long strided one costs in memory access.
void prefer_long_rows(Loop& loop) {
  constexpr int64_t kShortRow = 8;
  if (loop.ndim < 2 || loop.sizes[loop.ndim - 1] >= kShortRow) {
    return;
  }
  int longest = 0;
  for (int i = 1; i < loop.ndim; ++i) {
    longest = loop.sizes[i] > loop.sizes[longest] ? i : longest;
  }
  if (loop.sizes[longest] >= 2 * kShortRow) {
    loop.swap_axes(longest, loop.ndim - 1);
  }
}

/// Elements [begin, end) of the loop in its own order.
void run_part(const Loop& loop, int64_t begin, int64_t end, RowBody body, void* ctx) {
  const int outer_dims = loop.ndim > 0 ? loop.ndim - 1 : 0;
  const int64_t row_size = loop.row_size();
  std::array<int64_t, kMaxDims> index{};
  std::array<int64_t, kMaxOperands> row_strides{};
  std::array<char*, kMaxOperands> row = loop.data;
  int64_t left = begin / row_size;
  for (int i = outer_dims - 1; i >= 0; --i) {
    index[i] = left % loop.sizes[i];
    left /= loop.sizes[i];
  }
  for (int k = 0; k < loop.num_operands; ++k) {
    row_strides[k] = loop.ndim > 0 ? loop.strides[k][loop.ndim - 1] : 1;
    for (int i = 0; i < outer_dims; ++i) {
      row[k] += index[i] * loop.strides[k][i] * loop.item_sizes[k];
    }
  }
  int64_t offset = begin % row_size;
  while (begin < end) {
    const int64_t n = std::min(row_size - offset, end - begin);
    std::array<char*, kMaxOperands> ptrs = row;
    for (int k = 0; k < loop.num_operands; ++k) {
      ptrs[k] += offset * row_strides[k] * loop.item_sizes[k];
    }
    body(ctx, n, ptrs.data(), row_strides.data());
    begin += n;
    offset = 0;
    for (int i = outer_dims - 1; i >= 0; --i) {
      const bool carry = ++index[i] == loop.sizes[i];
      const int64_t steps = carry ? 1 - loop.sizes[i] : 1;
      for (int k = 0; k < loop.num_operands; ++k) {
        row[k] += steps * loop.strides[k][i] * loop.item_sizes[k];
      }
      if (!carry) {
        break;
      }
      index[i] = 0;
    }
  }
}

void run(const Loop& loop, bool parallel, RowBody body, void* ctx) {
  if (loop.empty) {
    return;
  }
  const int64_t total = loop.total();
  if (!parallel) {
    run_part(loop, 0, total, body, ctx);
    return;
  }
  parallel_for(total, kGrainSize,
               [&](int64_t begin, int64_t end) { run_part(loop, begin, end, body, ctx); });
}

// As the loops take it, which write the last operand only.
View read_only(const ConstView& view) {
  return {const_cast<void*>(view.data), view.strides, view.item};
}

constexpr int64_t kTile =
    32;  // a tile of 8-byte items fills an eighth of a small first-level cache

/// dst[p, q] = src[p, q] for a tile of at most kTile x kTile, where src is dense along q and dst
/// along p. By way of a buffer: each line of either side is touched once, whatever its alignment.
template <class Bits>
void copy_tile(int64_t p_size,
               int64_t q_size,
               const char* src_,
               int64_t src_p,
               int64_t src_q,
               char* dst_,
               int64_t dst_p,
               int64_t dst_q) {
  const auto* src = reinterpret_cast<const Bits*>(src_);
  auto* dst = reinterpret_cast<Bits*>(dst_);
  alignas(64) std::array<Bits, kTile * kTile> buffer;
  for (int64_t p = 0; p < p_size; ++p) {
    for (int64_t q = 0; q < q_size; ++q) {
      buffer[q * kTile + p] = src[p * src_p + q * src_q];
    }
  }
  for (int64_t q = 0; q < q_size; ++q) {
    for (int64_t p = 0; p < p_size; ++p) {
      dst[q * dst_q + p * dst_p] = buffer[q * kTile + p];
    }
  }
}

/// The loop's innermost axis is p; `q` is the axis along which the source is dense.
template <class Bits>
void copy_tiled(const Loop& loop, int q) {
  const int p = loop.ndim - 1;
  const auto& src_strides = loop.strides[0];
  const auto& dst_strides = loop.strides[1];
  const int64_t p_tiles = (loop.sizes[p] + kTile - 1) / kTile;
  const int64_t q_tiles = (loop.sizes[q] + kTile - 1) / kTile;
  const int64_t outer = loop.total() / (loop.sizes[p] * loop.sizes[q]);
  const int64_t grain = std::max<int64_t>(1, kGrainSize / (kTile * kTile));
  parallel_for(outer * p_tiles * q_tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t p0 = tile % p_tiles * kTile;
      const int64_t q0 = tile / p_tiles % q_tiles * kTile;
      int64_t src = p0 * src_strides[p] + q0 * src_strides[q];
      int64_t dst = p0 * dst_strides[p] + q0 * dst_strides[q];
      int64_t left = tile / (p_tiles * q_tiles);
      for (int i = p - 1; i >= 0; --i) {
        if (i != q) {
          src += left % loop.sizes[i] * src_strides[i];
          dst += left % loop.sizes[i] * dst_strides[i];
          left /= loop.sizes[i];
        }
      }
      constexpr int64_t kItem = sizeof(Bits);
      copy_tile<Bits>(std::min(kTile, loop.sizes[p] - p0), std::min(kTile, loop.sizes[q] - q0),
                      loop.data[0] + src * kItem, src_strides[p], src_strides[q],
                      loop.data[1] + dst * kItem, dst_strides[p], dst_strides[q]);
    }
  });
}

/// The axis to tile with the innermost one: where the source's stride is smallest, if that is
/// another axis and both are long enough. -1: the rows are good as they are.
int transposed_axis(const Loop& loop) {
  constexpr int64_t kMinSize = 4;
  const int p = loop.ndim - 1;
  if (loop.ndim < 2 || loop.sizes[p] < kMinSize) {
    return -1;
  }
  int q = p;
  for (int i = p - 1; i >= 0; --i) {
    const int64_t stride = std::abs(loop.strides[0][i]);
    if (loop.sizes[i] >= kMinSize && stride != 0 && stride < std::abs(loop.strides[0][q])) {
      q = i;
    }
  }
  return q == p ? -1 : q;
}

}  // namespace

void for_each_row(const Extent& extent,
                  int num_operands,
                  const View* operands,
                  bool parallel,
                  RowBody body,
                  void* ctx) {
  Loop loop = make_loop(extent, num_operands, operands);
  prefer_long_rows(loop);
  run(loop, parallel, body, ctx);
}

void apply_unary(UnaryRow row, const Extent& extent, const ConstView& x, const View& y) {
  const View operands[] = {read_only(x), y};
  const RowBody body = [](void* ctx, int64_t n, char** ptrs, const int64_t* strides) {
    (*static_cast<UnaryRow*>(ctx))(n, ptrs[0], strides[0], ptrs[1], strides[1]);
  };
  for_each_row(extent, 2, operands, /*parallel=*/true, body, &row);
}

void apply_binary(
    BinaryRow row, const Extent& extent, const ConstView& a, const ConstView& b, const View& y) {
  const View operands[] = {read_only(a), read_only(b), y};
  const RowBody body = [](void* ctx, int64_t n, char** ptrs, const int64_t* s) {
    (*static_cast<BinaryRow*>(ctx))(n, ptrs[0], s[0], ptrs[1], s[1], ptrs[2], s[2]);
  };
  for_each_row(extent, 3, operands, /*parallel=*/true, body, &row);
}

void apply_ternary(TernaryRow row,
                   const Extent& extent,
                   const ConstView& condition,
                   const ConstView& a,
                   const ConstView& b,
                   const View& y) {
  const View operands[] = {read_only(condition), read_only(a), read_only(b), y};
  const RowBody body = [](void* ctx, int64_t n, char** ptrs, const int64_t* s) {
    (*static_cast<TernaryRow*>(ctx))(n, ptrs[0], s[0], ptrs[1], s[1], ptrs[2], s[2], ptrs[3], s[3]);
  };
  for_each_row(extent, 4, operands, /*parallel=*/true, body, &row);
}

void apply_scalar(
    ScalarRow row, const Extent& extent, const ConstView& x, double s, const View& y) {
  struct Context {
    ScalarRow row;
    double s;
  } context{row, s};
  const View operands[] = {read_only(x), y};
  const RowBody body = [](void* ctx, int64_t n, char** ptrs, const int64_t* strides) {
    const auto* c = static_cast<Context*>(ctx);
    c->row(n, ptrs[0], strides[0], c->s, ptrs[1], strides[1]);
  };
  for_each_row(extent, 2, operands, /*parallel=*/true, body, &context);
}

void apply_unary_contiguous(
    UnaryRow row, int64_t n, const void* x, int64_t x_item, void* y, int64_t y_item) {
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    row(end - begin, static_cast<const char*>(x) + begin * x_item, 1,
        static_cast<char*>(y) + begin * y_item, 1);
  });
}

void apply_binary_contiguous(
    BinaryRow row, int64_t n, const void* a, const void* b, int64_t item, void* y, int64_t y_item) {
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    row(end - begin, static_cast<const char*>(a) + begin * item, 1,
        static_cast<const char*>(b) + begin * item, 1, static_cast<char*>(y) + begin * y_item, 1);
  });
}

void join_rows(int64_t rows, std::span<const Rows> parts, void* out) {
  int64_t bytes = 0;
  for (const Rows& part : parts) {
    bytes += part.bytes;
  }
  if (bytes == 0) {
    return;
  }
  constexpr int64_t kGrainBytes = 4 * kGrainSize;
  parallel_for(rows, kGrainBytes / bytes, [&](int64_t begin, int64_t end) {
    char* to = static_cast<char*>(out) + begin * bytes;
    for (int64_t row = begin; row < end; ++row) {
      for (const Rows& part : parts) {
        std::memcpy(to, static_cast<const char*>(part.data) + row * part.bytes,
                    static_cast<size_t>(part.bytes));
        to += part.bytes;
      }
    }
  });
}

void copy_strided(DType dtype, const Extent& extent, const ConstView& src, const View& dst) {
  const View operands[] = {read_only(src), dst};
  Loop loop = make_loop(extent, 2, operands);
  if (loop.empty) {
    return;
  }
  if (const int q = transposed_axis(loop); q >= 0) {
    switch (size_of(dtype)) {
      case 1:
        return copy_tiled<uint8_t>(loop, q);
      case 2:
        return copy_tiled<uint16_t>(loop, q);
      case 4:
        return copy_tiled<uint32_t>(loop, q);
      default:
        return copy_tiled<uint64_t>(loop, q);
    }
  }
  prefer_long_rows(loop);
  UnaryRow row = cast_row(dtype, dtype);
  const RowBody body = [](void* ctx, int64_t n, char** ptrs, const int64_t* strides) {
    (*static_cast<UnaryRow*>(ctx))(n, ptrs[0], strides[0], ptrs[1], strides[1]);
  };
  run(loop, /*parallel=*/true, body, &row);
}

}  // namespace tapestry::kernels
