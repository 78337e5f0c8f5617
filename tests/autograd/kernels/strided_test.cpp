#include "autograd/kernels/elementwise/strided.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

std::vector<int64_t> contiguous(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, sizes[i]);
  }
  return strides;
}

int64_t count(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Calls visit(index) for every index of an array.
template <class Visit>
void for_each_index(const std::vector<int64_t>& sizes, const Visit& visit) {
  std::vector<int64_t> index(sizes.size());
  for (int64_t flat = 0; flat < count(sizes); ++flat) {
    int64_t left = flat;
    for (size_t i = sizes.size(); i-- > 0;) {
      index[i] = left % sizes[i];
      left /= sizes[i];
    }
    visit(index);
  }
}

int64_t offset(const std::vector<int64_t>& index, const std::vector<int64_t>& strides) {
  return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
}

struct Layout {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t start;  // of element 0 in memory
  int64_t memory;
};

std::vector<Layout> layouts() {
  return {
      {{}, {}, 0, 1},
      {{7}, {1}, 0, 7},
      {{7}, {-1}, 6, 7},
      {{5}, {0}, 0, 1},
      {{0, 3}, {3, 1}, 0, 1},
      {{1, 1, 1}, {9, 5, 3}, 0, 1},
      {{4, 6}, {6, 1}, 0, 24},
      {{4, 6}, {1, 4}, 0, 24},
      {{4, 6}, {0, 1}, 0, 6},
      {{4, 6}, {1, 0}, 0, 4},
      {{33, 70}, {1, 40}, 0, 3000},
      {{33, 70}, {-70, -1}, 33 * 70 - 1, 33 * 70},
      {{33, 70}, {-1, 33}, 32, 33 * 70},
      {{2, 3, 4, 5}, {60, 20, 5, 1}, 0, 120},
      {{2, 3, 4, 5}, {1, 2, 6, 24}, 0, 120},
      {{2, 3, 4, 5}, {60, 5, 15, 1}, 0, 120},
      {{3, 2, 40, 36}, {2 * 40 * 36, 1, 2, 80}, 0, 3 * 2 * 40 * 36},
      {{2, 3, 1, 2, 2, 1, 3, 2}, {1, 2, 0, 6, 12, 0, 24, 72}, 0, 144},
      {{5, 4, 3}, {40, 10, 2}, 0, 200},
      {{300, 2}, {1, 1000}, 0, 1300},
      {{300, 3}, {5, 1}, 0, 1500},
      {{257, 259}, {1, 257}, 0, 257 * 259},
      {{70000}, {1}, 0, 70000},
  };
}

TEST(StridedTest, UnaryAndCopyFollowAnyLayout) {
  at_every_cpu_level([] {
    for (const Layout& l : layouts()) {
      std::vector<float> x(static_cast<size_t>(l.memory));
      std::iota(x.begin(), x.end(), 1.0F);
      const auto out = contiguous(l.sizes);
      const auto ndim = static_cast<int>(l.sizes.size());
      std::vector<float> negated(static_cast<size_t>(std::max<int64_t>(1, count(l.sizes))), -7);
      std::vector<float> copied = negated;
      const Extent extent = {ndim, l.sizes.data()};
      const View in = {x.data() + l.start, l.strides.data(), 4};
      apply_unary(unary_row(UnaryOp::kNeg, kFloat32), extent, in, {negated.data(), out.data(), 4});
      copy_strided(kFloat32, extent, in, {copied.data(), out.data(), 4});
      for_each_index(l.sizes, [&](const std::vector<int64_t>& index) {
        const float expected = x[l.start + offset(index, l.strides)];
        ASSERT_EQ(negated[offset(index, out)], -expected);
        ASSERT_EQ(copied[offset(index, out)], expected);
      });
    }
  });
}

TEST(StridedTest, OutputsMayBeStridedAndOnlyTheirElementsChange) {
  for (const Layout& l : layouts()) {
    bool overlaps = false;
    for (size_t i = 0; i < l.sizes.size(); ++i) {
      overlaps = overlaps || (l.strides[i] == 0 && l.sizes[i] > 1);
    }
    if (overlaps) {
      continue;
    }
    const auto in = contiguous(l.sizes);
    const auto ndim = static_cast<int>(l.sizes.size());
    std::vector<double> x(static_cast<size_t>(std::max<int64_t>(1, count(l.sizes))));
    std::iota(x.begin(), x.end(), 1.0);
    std::vector<double> y(static_cast<size_t>(l.memory), -1);
    std::vector<double> expected = y;
    const Extent extent = {ndim, l.sizes.data()};
    const View source = {x.data(), in.data(), 8};
    const View destination = {y.data() + l.start, l.strides.data(), 8};
    copy_strided(kFloat64, extent, source, destination);
    for_each_index(l.sizes, [&](const std::vector<int64_t>& index) {
      expected[l.start + offset(index, l.strides)] = x[offset(index, in)];
    });
    EXPECT_EQ(y, expected);
    apply_scalar(scalar_row(ScalarOp::kAdd, kFloat64), extent, source, 0.5, destination);
    for_each_index(l.sizes, [&](const std::vector<int64_t>& index) {
      expected[l.start + offset(index, l.strides)] += 0.5;
    });
    EXPECT_EQ(y, expected);
  }
}

TEST(StridedTest, TransposesEveryItemSize) {
  for (const DType dtype : {kBool, kBFloat16, kInt32, kInt64}) {
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {4, 4}, {31, 33}, {32, 64}, {100, 3}, {3, 100}, {130, 257}}) {
      const auto item = static_cast<size_t>(size_of(dtype));
      std::vector<char> x(static_cast<size_t>(rows * cols) * item);
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<char>(i * 31 % 251);
      }
      std::vector<char> y(x.size());
      const int64_t sizes[] = {cols, rows};
      const int64_t src[] = {1, cols};
      const int64_t dst[] = {rows, 1};
      copy_strided(dtype, {2, sizes}, {x.data(), src, size_of(dtype)},
                   {y.data(), dst, size_of(dtype)});
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          ASSERT_EQ(std::memcmp(y.data() + static_cast<size_t>(j * rows + i) * item,
                                x.data() + static_cast<size_t>(i * cols + j) * item, item),
                    0);
        }
      }
    }
  }
}

TEST(StridedTest, BinaryBroadcastsAndTernaryMixesItemSizes) {
  const std::vector<int64_t> sizes = {17, 5, 33};
  const auto out = contiguous(sizes);
  const int64_t row[] = {0, 0, 1};
  const int64_t column[] = {5, 1, 0};
  std::vector<float> a(33);
  std::vector<float> b(85);
  std::iota(a.begin(), a.end(), 0.0F);
  std::iota(b.begin(), b.end(), 100.0F);
  std::vector<uint8_t> less(17 * 5 * 33);
  const Extent extent = {3, sizes.data()};
  const View rows = {a.data(), row, 4};
  const View columns = {b.data(), column, 4};
  apply_binary(binary_row(BinaryOp::kLt, kFloat32), extent, columns, rows,
               {less.data(), out.data(), 1});
  std::vector<float> y(less.size());
  for (size_t i = 0; i < less.size(); ++i) {
    EXPECT_EQ(less[i], 0);
    less[i] = i % 3 == 0 ? 1 : 0;
  }
  apply_ternary(where_row(kFloat32), extent, {less.data(), out.data(), 1}, rows, columns,
                {y.data(), out.data(), 4});
  for_each_index(sizes, [&](const std::vector<int64_t>& i) {
    const int64_t flat = offset(i, out);
    ASSERT_EQ(y[flat], flat % 3 == 0 ? a[i[2]] : b[i[0] * 5 + i[1]]);
  });
}

TEST(StridedTest, RowsCoverEveryElementOnceWithAxesMerged) {
  struct Seen {
    int64_t rows = 0;
    int64_t elements = 0;
  } seen;
  std::vector<int32_t> x(24 * 1000);
  const int64_t sizes[] = {4, 6, 1000};
  const RowBody body = [](void* ctx, int64_t n, char** ptrs, const int64_t* strides) {
    auto* s = static_cast<Seen*>(ctx);
    ++s->rows;
    s->elements += n;
    for (int64_t i = 0; i < n; ++i) {
      ++reinterpret_cast<int32_t*>(ptrs[0])[i * strides[0]];
    }
  };
  const int64_t strides_of_x[] = {6000, 1000, 1};
  const View whole = {x.data(), strides_of_x, 4};
  for_each_row({3, sizes}, 1, &whole, /*parallel=*/false, body, &seen);
  EXPECT_EQ(seen.rows, 1);
  EXPECT_EQ(seen.elements, 24000);
  for (const int32_t visits : x) {
    ASSERT_EQ(visits, 1);
  }
  const int64_t none[] = {4, 0, 1000};
  for_each_row({3, none}, 1, &whole, /*parallel=*/true, body, &seen);
  EXPECT_EQ(seen.rows, 1);
}

}  // namespace
}  // namespace tapestry::kernels
