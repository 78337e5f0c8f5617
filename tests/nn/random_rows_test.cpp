#include "nn/random_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "autograd/ops/ops.h"
#include "autograd/tensor/factory.h"

namespace tapestry::nn {
namespace {

using kernels::RandomRows;
using ::testing::SizeIs;

/// A random number: its stream, and which of it.
using Number = std::pair<uint64_t, int64_t>;

std::vector<Number> numbers_of(const std::vector<RandomRows>& rows, int64_t count) {
  std::vector<Number> numbers;
  size_t now = 0;
  for (int64_t i = 0; i < count; ++i) {
    now += now + 1 < rows.size() && rows[now + 1].begin == i ? 1 : 0;
    const RandomRows& entry = rows.at(now);
    const int64_t position = i - entry.begin + entry.within;
    numbers.emplace_back(
        entry.stream, entry.first + position / entry.width * entry.stride + position % entry.width);
  }
  return numbers;
}

/// By the tensors themselves: where each element of the parameter is in the whole; of an element
/// that belongs to none, nothing.
std::map<int64_t, Number> expected_numbers(const std::vector<LogicalTensor>& logical) {
  std::map<int64_t, Number> out;
  for (const LogicalTensor& tensor : logical) {
    const Tensor elements = arange(static_cast<double>(tensor.view_shape.numel()));
    const Tensor whole = arange(static_cast<double>(tensor.shape.numel())).view(tensor.shape);
    const std::vector<float> element = tensor.view_of(elements).to_vector<float>();
    const std::vector<float> position = tensor.slice_of(whole).to_vector<float>();
    EXPECT_EQ(element.size(), position.size());
    for (size_t i = 0; i < element.size(); ++i) {
      out[static_cast<int64_t>(element[i])] = {stream_of(tensor.name),
                                               static_cast<int64_t>(position[i])};
    }
  }
  return out;
}

/// Of every part of the parameter.
void expect_numbers(const std::vector<LogicalTensor>& logical) {
  const int64_t size = logical.front().view_shape.numel();
  const std::map<int64_t, Number> expected = expected_numbers(logical);
  const std::vector<Number> all = numbers_of(random_rows("p", logical, 0, size), size);
  for (int64_t i = 0; i < size; ++i) {
    const auto found = expected.find(i);
    if (found != expected.end()) {
      EXPECT_EQ(all[static_cast<size_t>(i)], found->second) << i;
    } else {
      for (const LogicalTensor& tensor : logical) {
        EXPECT_NE(all[static_cast<size_t>(i)].first, stream_of(tensor.name)) << i;
      }
    }
  }
  for (int64_t first = 0; first < size; ++first) {
    for (int64_t end = first + 1; end <= size; ++end) {
      const std::vector<Number> part =
          numbers_of(random_rows("p", logical, first, end - first), end - first);
      ASSERT_EQ(part, std::vector<Number>(all.begin() + first, all.begin() + end))
          << first << ".." << end;
    }
  }
}

TEST(RandomRows, AParameterByItself) {
  EXPECT_EQ(numbers_of(random_rows("p", {}, 0, 3), 3),
            (std::vector<Number>{{stream_of("p"), 0}, {stream_of("p"), 1}, {stream_of("p"), 2}}));
  EXPECT_EQ(numbers_of(random_rows("p", {}, 64, 1), 1),
            (std::vector<Number>{{stream_of("p"), 64}}));
  expect_numbers({{.name = "w", .shape = {4, 5}, .view_shape = {20}, .end = 20}});
}

TEST(RandomRows, RowsOfAMatrix) {
  const std::vector<LogicalTensor> rows = {{.name = "w",
                                            .shape = {9, 5},
                                            .view_shape = {3, 5},
                                            .end = 3,
                                            .offset = {6, 0},
                                            .slice_shape = {3, 5}}};
  expect_numbers(rows);
  EXPECT_THAT(random_rows("p", rows, 0, 15), SizeIs(1));
}

// However many rows there are, one entry speaks of them all.
TEST(RandomRows, ColumnsOfAMatrix) {
  const std::vector<LogicalTensor> columns = {{.name = "w",
                                               .shape = {6, 9},
                                               .view_shape = {6, 3},
                                               .axis = 1,
                                               .end = 3,
                                               .offset = {0, 3},
                                               .slice_shape = {6, 3}}};
  expect_numbers(columns);
  EXPECT_THAT(random_rows("p", columns, 0, 18), SizeIs(1));
  EXPECT_THAT(random_rows("p", columns, 4, 13), SizeIs(1));
}

TEST(RandomRows, CutAlongSeveralAxes) {
  expect_numbers({{.name = "w",
                   .shape = {5, 4, 6},
                   .view_shape = {2, 3, 2},
                   .end = 2,
                   .offset = {3, 1, 4},
                   .slice_shape = {2, 3, 2}}});
}

// Two groups of two query heads with a key and a value head each, of a rank that has half of them.
TEST(RandomRows, FusedProjections) {
  const Shape view = {2, 4, 3, 2};  // groups, heads, features of a head, inputs
  const auto part = [&](const char* name, int64_t begin, int64_t end) {
    const int64_t own = 2 * (end - begin) * 3;
    return LogicalTensor{.name = name,
                         .shape = {2 * own, 2},
                         .view_shape = view,
                         .axis = 1,
                         .begin = begin,
                         .end = end,
                         .offset = {own, 0},
                         .slice_shape = {own, 2}};
  };
  expect_numbers({part("q", 0, 2), part("k", 2, 3), part("v", 3, 4)});
}

// The second of two experts' matrices, each as columns, one below the other.
TEST(RandomRows, ColumnsOfGroupedExperts) {
  std::vector<LogicalTensor> experts;
  for (int64_t e = 0; e < 3; ++e) {
    experts.push_back({.name = "experts." + std::to_string(e),
                       .shape = {4, 6},
                       .view_shape = {12, 3},
                       .begin = 4 * e,
                       .end = 4 * (e + 1),
                       .offset = {0, 3},
                       .slice_shape = {4, 3}});
  }
  expect_numbers(experts);
  EXPECT_THAT(random_rows("p", experts, 0, 36), SizeIs(3));
}

TEST(RandomRows, RowsThatFillATableUpHaveNumbersOfTheirOwn) {
  const auto table = [](int64_t own) {
    return std::vector<LogicalTensor>{{.name = "table",
                                       .shape = {7, 3},
                                       .view_shape = {4, 3},
                                       .end = own,
                                       .offset = {7 - own, 0},
                                       .slice_shape = {own, 3}}};
  };
  expect_numbers(table(3));
  expect_numbers(table(0));
}

TEST(RandomRows, InAStreamOfAStep) {
  const std::vector<RandomRows> rows = random_rows("p", {}, 5, 3);
  const std::vector<RandomRows> moved = in_stream(rows, 17);
  EXPECT_EQ(moved.front().stream, combine(stream_of("p"), 17));
  EXPECT_EQ(moved.front().first, 5);
}

}  // namespace
}  // namespace tapestry::nn
