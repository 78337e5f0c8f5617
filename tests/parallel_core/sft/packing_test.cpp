#include "parallel_core/sft/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/sft/row_order.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::sft {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<int32_t>> rows_of(const RowLists& lists) {
  std::vector<std::vector<int32_t>> rows;
  for (int64_t k = 0; k < lists.size(); ++k) {
    rows.emplace_back(lists.row(k).begin(), lists.row(k).end());
  }
  return rows;
}

std::vector<std::vector<int32_t>> rows_of(const RowOrder& order) {
  std::vector<std::vector<int32_t>> rows;
  for (int64_t k = 0; k < order.num_rows(); ++k) {
    rows.emplace_back(order.row(k).begin(), order.row(k).end());
  }
  return rows;
}

std::vector<int64_t> random_lengths(int64_t count, int64_t low, int64_t high) {
  std::mt19937 random(7);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    lengths.push_back(low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1)));
  }
  return lengths;
}

TEST(PackRows, TheFullestRowThatHasRoom) {
  const std::vector<int64_t> lengths = {4, 7, 2, 3, 6, 10, 1};
  EXPECT_THAT(rows_of(pack_rows(lengths, 10)),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 3), ElementsAre(2, 6), ElementsAre(5)));
  EXPECT_THAT(rows_of(pack_rows({}, 10)), ElementsAre());
}

TEST(PackRows, RefusesWhatFitsInNoRow) {
  EXPECT_ERROR(pack_rows(std::vector<int64_t>{3, 11}, 10), ValueError,
               "example 1 has 11 tokens, expected 1 .. 10");
  EXPECT_ERROR(pack_rows(std::vector<int64_t>{0}, 10), ValueError, "example 0 has 0 tokens");
}

// Few examples waste little; nothing is lost, split, or twice there.
TEST(PackRows, FillsRowsOf1024) {
  for (const int64_t count : {200, 2000, 4096}) {
    const std::vector<int64_t> lengths = random_lengths(count, 20, 600);
    const RowLists rows = pack_rows(lengths, 1025);
    std::set<int32_t> seen;
    int64_t tokens = 0;
    for (int64_t k = 0; k < rows.size(); ++k) {
      int64_t of_row = 0;
      for (const int32_t i : rows.row(k)) {
        EXPECT_TRUE(seen.insert(i).second);
        of_row += lengths[static_cast<size_t>(i)];
      }
      EXPECT_LE(of_row, 1025);
      tokens += of_row;
    }
    EXPECT_EQ(std::ssize(seen), count);
    EXPECT_GE(static_cast<double>(tokens), 0.95 * 1024 * static_cast<double>(rows.size())) << count;
  }
}

RowOrder order_of(const std::vector<std::vector<int64_t>>& lengths,
                  const std::vector<double>& weights = {},
                  bool packing = true,
                  bool shuffle = true,
                  int64_t seed = 5) {
  return {
      lengths, weights, {.capacity = 1025, .packing = packing, .shuffle = shuffle, .seed = seed}};
}

TEST(RowOrder, AnEpochHasEachExampleOnce) {
  const std::vector<std::vector<int64_t>> lengths = {random_lengths(6000, 20, 600),
                                                     random_lengths(37, 5, 9)};
  RowOrder order = order_of(lengths);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const int64_t begin = order.num_rows();
    EXPECT_EQ(order.epoch_of(begin), epoch);
    order.add_epoch();
    EXPECT_EQ(order.epoch_of(order.num_rows() - 1), epoch);
    EXPECT_EQ(order.rows_before(epoch), begin);
    std::vector<int32_t> seen;
    for (int64_t k = begin; k < order.num_rows(); ++k) {
      seen.insert(seen.end(), order.row(k).begin(), order.row(k).end());
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(std::ssize(seen), order.num_examples());
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i], static_cast<int32_t>(i));
    }
  }
  EXPECT_EQ(order.num_epochs(), 3);
  EXPECT_ERROR(order.rows_before(4), IndexError, "epoch 4 of 3");
}

TEST(RowOrder, EpochsDifferAndSeedsRepeat) {
  const std::vector<std::vector<int64_t>> lengths = {random_lengths(300, 20, 600)};
  const auto epochs = [&](int64_t seed, bool shuffle, bool packing) {
    RowOrder order = order_of(lengths, {}, packing, shuffle, seed);
    order.add_epoch();
    const auto one = rows_of(order);
    order.add_epoch();
    auto two = rows_of(order);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), two.begin()));  // the first does not change
    two.erase(two.begin(), two.begin() + std::ssize(one));
    return std::pair{one, two};
  };
  const auto [first, second] = epochs(5, true, true);
  EXPECT_NE(first, second);
  EXPECT_EQ(epochs(5, true, true), (std::pair{first, second}));
  EXPECT_NE(epochs(6, true, true).first, first);
  const auto [plain, again] = epochs(5, false, true);
  EXPECT_EQ(plain, again);
  EXPECT_EQ(plain[0][0], 0);
  const auto [alone, alone_again] = epochs(5, true, false);
  EXPECT_EQ(alone.size(), 300U);
  EXPECT_NE(alone, alone_again);
  const auto in_order = epochs(5, false, false).first;
  for (size_t k = 0; k < in_order.size(); ++k) {
    EXPECT_THAT(in_order[k], ElementsAre(static_cast<int32_t>(k)));
  }
}

// Packing sorts by length; which examples meet, and when, must not be a matter of it.
TEST(RowOrder, LongExamplesAreNotAllAtTheFront) {
  const std::vector<std::vector<int64_t>> lengths = {random_lengths(2000, 20, 600)};
  RowOrder order = order_of(lengths);
  order.add_epoch();
  const int64_t half = order.num_rows() / 2;
  double examples[2] = {0, 0};
  for (int64_t k = 0; k < 2 * half; ++k) {
    examples[k / half] += static_cast<double>(order.row(k).size());
  }
  EXPECT_NEAR(examples[0] / examples[1], 1, 0.1);
}

TEST(RowOrder, WeightsAreSharesOfExamples) {
  const std::vector<std::vector<int64_t>> lengths = {random_lengths(90, 20, 600),
                                                     random_lengths(10, 20, 600)};
  RowOrder order = order_of(lengths, {1, 3});
  order.add_epoch();
  order.add_epoch();
  std::vector<int64_t> drawn(100, 0);
  for (int64_t k = 0; k < order.num_rows(); ++k) {
    for (const int32_t i : order.row(k)) {
      ++drawn[static_cast<size_t>(i)];
    }
  }
  const int64_t of_first = std::accumulate(drawn.begin(), drawn.begin() + 90, int64_t{0});
  EXPECT_EQ(of_first, 50);  // of 2 x 100
  EXPECT_EQ(*std::max_element(drawn.begin(), drawn.begin() + 90), 1);
  for (size_t i = 90; i < 100; ++i) {
    EXPECT_EQ(drawn[i], 15);
  }
}

TEST(RowOrder, RefusesWhatCannotBe) {
  EXPECT_ERROR(order_of({{}}), ValueError, "there are no examples");
  EXPECT_ERROR(order_of({{3}, {4}}, {1}), ValueError, "1 weights of 2 files");
  EXPECT_ERROR(order_of({{3}, {}}, {1, 1}), ValueError, "1 ... weight and no examples");
  EXPECT_ERROR(order_of({{3}, {4}}, {1, -1}), ValueError, "weight -1");
  RowOrder order = order_of({{3}, {2000}});
  EXPECT_ERROR(order.add_epoch(), ValueError, "has 2000 tokens");
}

}  // namespace
}  // namespace tapestry::sft
