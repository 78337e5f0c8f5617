// Completions that are exchanged within the steps of a run, whatever the number of examples.
#include "parallel_core/post_training/examples/mismatched_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "parallel_core/post_training/rows/unit_source.h"

namespace tapestry::post_training {
namespace mismatched_pairs_test {
namespace {

// Prompt of unit u: 10 + u; its completion: 100 + u.
std::shared_ptr<SequenceSet> examples(int64_t units) {
  auto set = std::make_shared<SequenceSet>(1);
  for (int32_t u = 0; u < units; ++u) {
    set->add(std::vector<int32_t>{10 + u}, std::vector<int32_t>{100 + u, 7});
  }
  return set;
}

std::string pair_text(const SequenceSet& pairs, int64_t number) {
  std::string text;
  for (const int32_t id : pairs.ids(number)) {
    text += std::to_string(id) + " ";
  }
  return text;
}

// Goes through the steps of three epochs as the run draws them.
void expect_partners(int64_t units, int64_t group, bool shuffle, int64_t ranks) {
  const auto set = examples(units);
  UnitOrder order(units, shuffle, 3, EpochOrder::kOfFirst, group);
  const SequenceSet pairs = mismatched_pairs(
      *set,
      {{.first = 0, .count = units, .order = [&](int64_t place) { return order.unit(place); }}},
      group, 10);
  UnitSource source(set, UnitOrder(units, shuffle, 3, EpochOrder::kOfFirst, group),
                    RowRoom{.seq_length = 8});
  const int64_t steps = (units + group - 1) / group;
  for (int64_t step = 0; step < 3 * steps; ++step) {
    std::vector<int64_t> drawn;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const data::Batch batch =
          source.micro_batch({step, step * group}, 0, 1, group / ranks, rank, ranks);
      for (const auto& row : batch.sequences) {
        for (const data::RowSequence& sequence : row) {
          drawn.push_back(sequence.number);
        }
      }
    }
    const int64_t count = std::min(group, units - step % steps * group);
    ASSERT_EQ(std::ssize(drawn), count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t unit = order.unit(step * group + i);
      const int64_t partner = order.unit(step * group + (i + count - 1) % count);
      EXPECT_THAT(drawn, ::testing::Contains(unit));
      EXPECT_EQ(pair_text(pairs, unit),
                std::to_string(10 + unit) + " " + std::to_string(100 + partner) + " 7 ")
          << "step " << step << ", place " << i;
    }
  }
}

TEST(MismatchedPairs, AreThoseOfEveryStep) {
  expect_partners(8, 4, false, 1);
  expect_partners(8, 4, true, 2);
  expect_partners(8, 8, true, 1);
  expect_partners(7, 4, false, 1);
  expect_partners(7, 4, true, 2);
  expect_partners(6, 4, false, 2);
  expect_partners(5, 2, true, 1);
  expect_partners(3, 4, false, 4);
}

TEST(MismatchedPairs, AreCutAtTheEnd) {
  SequenceSet set(1);
  set.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{3});
  set.add(std::vector<int32_t>{4}, std::vector<int32_t>{5, 6, 7, 8});
  const SequenceSet pairs = mismatched_pairs(
      set, {{.first = 0, .count = 2, .order = [](int64_t place) { return place; }}}, 2, 4);
  EXPECT_EQ(pair_text(pairs, 0), "1 2 5 6 ");
  EXPECT_EQ(pairs.prompt_tokens(0), 2);
  EXPECT_EQ(pair_text(pairs, 1), "4 3 ");
}

TEST(MismatchedPairs, PartsExchangeAmongThemselves) {
  const auto set = examples(5);
  const auto same = [](int64_t place) { return place; };
  const SequenceSet pairs = mismatched_pairs(
      *set, {{.first = 0, .count = 2, .order = same}, {.first = 2, .count = 2, .order = same}}, 2,
      9);
  EXPECT_EQ(pair_text(pairs, 0), "10 101 7 ");
  EXPECT_EQ(pair_text(pairs, 3), "13 102 7 ");
  EXPECT_EQ(pair_text(pairs, 4), "");  // of no step
}

}  // namespace
}  // namespace mismatched_pairs_test
}  // namespace tapestry::post_training
