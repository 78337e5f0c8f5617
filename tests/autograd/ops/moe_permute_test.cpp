#include "autograd/ops/transformer/moe_permute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/reduction.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RowMapTest, SortsByExpertThenByToken) {
  std::vector<int64_t> counts;
  const std::vector<int32_t> experts = {2, 0, 1, 2, 0, 2};
  const RowMap map = row_map(experts, 2, 4, {}, counts);
  EXPECT_EQ(map.tokens, 3);
  EXPECT_EQ(map.topk, 2);
  EXPECT_THAT(counts, ElementsAre(2, 1, 3, 0));
  EXPECT_THAT(map.rows, ElementsAre(3, 0, 2, 4, 1, 5));
  EXPECT_THAT(map.sources, ElementsAre(1, 4, 2, 0, 3, 5));
}

TEST(RowMapTest, LeavesOutWhatIsNotKept) {
  std::vector<int64_t> counts = {9};
  const std::vector<int32_t> experts = {2, 0, 1, 2, 0, 2};
  const std::vector<uint8_t> kept = {0, 1, 0, 1, 1, 1};
  const RowMap map = row_map(experts, 2, 3, kept, counts);
  EXPECT_THAT(counts, ElementsAre(2, 0, 2));
  EXPECT_THAT(map.rows, ElementsAre(-1, 0, -1, 2, 1, 3));
  EXPECT_THAT(map.sources, ElementsAre(1, 4, 3, 5));
}

TEST(RowMapTest, NothingAndEverythingToOneExpert) {
  std::vector<int64_t> counts;
  const RowMap none = row_map({}, 3, 2, {}, counts);
  EXPECT_EQ(none.tokens, 0);
  EXPECT_THAT(none.sources, IsEmpty());
  EXPECT_THAT(counts, ElementsAre(0, 0));
  const std::vector<int32_t> all(4, 1);
  EXPECT_THAT(row_map(all, 1, 3, {}, counts).rows, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(counts, ElementsAre(0, 4, 0));
  const std::vector<uint8_t> kept(4, 0);
  EXPECT_THAT(row_map(all, 2, 3, kept, counts).rows, ElementsAre(-1, -1, -1, -1));
}

template <class E>
void expect_error(const std::vector<int32_t>& experts,
                  int64_t topk,
                  int64_t num_experts,
                  const std::vector<uint8_t>& kept,
                  const char* message) {
  std::vector<int64_t> counts;
  try {
    row_map(experts, topk, num_experts, kept, counts);
    ADD_FAILURE() << message << ": nothing was thrown";
  } catch (const E& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(RowMapTest, RefusesWhatDoesNotFit) {
  expect_error<ValueError>({0, 1, 0}, 2, 2, {}, "3 assignments are not 2 for each token");
  expect_error<ValueError>({0, 1}, 0, 2, {}, "must be at least 1");
  expect_error<ValueError>({}, 1, 0, {}, "must be at least 1");
  expect_error<ValueError>({0, 1}, 2, 2, {1}, "kept has 1 entries");
  expect_error<IndexError>({0, 2}, 2, 2, {}, "expert 2 of assignment 1 is outside [0, 2)");
  expect_error<IndexError>({-1, 0}, 2, 2, {0, 1}, "expert -1 of assignment 0");
}

TEST(MoePermute, BackIsTheSumOverChoices) {
  std::vector<int64_t> counts;
  const std::vector<int32_t> experts = {1, 0, 0, 1, 1, 0};
  const std::vector<uint8_t> kept = {1, 1, 1, 0, 0, 0};
  const RowMap map = row_map(experts, 2, 2, kept, counts);
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}).reshape({3, 2});
  EXPECT_THAT(moe_permute(x, map).to_vector<float>(), ElementsAreArray({1, 2, 3, 4, 1, 2}));
  const Tensor gates = tensor({0.5, 0.25, 2, 100, 100, 100}).reshape({3, 2});
  EXPECT_THAT(moe_unpermute(moe_permute(x, map), gates, map).to_vector<float>(),
              ElementsAreArray({0.75, 1.5, 6.0, 8.0, 0.0, 0.0}));
}

TEST(MoePermute, DroppedAssignmentsHaveNoGradient) {
  std::vector<int64_t> counts;
  const std::vector<int32_t> experts = {1, 0, 0, 1};
  const std::vector<uint8_t> kept = {1, 0, 0, 0};
  const RowMap map = row_map(experts, 2, 2, kept, counts);
  const Tensor rows = tensor({3, 4}).reshape({1, 2}).clone().set_requires_grad();
  const Tensor gates = tensor({2, 5, 7, 9}).reshape({2, 2}).clone().set_requires_grad();
  moe_unpermute(rows, gates, map).backward(tensor({1, 10, 100, 1000}).reshape({2, 2}));
  EXPECT_THAT(rows.grad().to_vector<float>(), ElementsAre(2, 20));
  EXPECT_THAT(gates.grad().to_vector<float>(), ElementsAre(43, 0, 0, 0));
}

// 1 + 2^-8 + 2^-8: each step in bfloat16 would stay at 1. Likewise the gradient of a token.
TEST(MoePermute, SixteenBitSumsAreRoundedOnce) {
  std::vector<int64_t> counts;
  const std::vector<int32_t> experts = {0, 1, 2};
  const RowMap map = row_map(experts, 3, 3, {}, counts);
  const Tensor rows = tensor({1, 0.00390625, 0.00390625}).to(kBFloat16).reshape({3, 1});
  EXPECT_EQ(moe_unpermute(rows, ones({1, 3}), map).item(), 1.0078125);
  const Tensor x = ones({1, 1}, kBFloat16).set_requires_grad();
  moe_permute(x, map).backward(rows);
  EXPECT_EQ(x.grad().item(), 1.0078125);
}

TEST(MoePermute, GatesOf16BitRowsAreFloat32) {
  std::vector<int64_t> counts;
  const std::vector<int32_t> experts = {0, 1};
  const RowMap map = row_map(experts, 2, 2, {}, counts);
  EXPECT_THROW(moe_unpermute(ones({2, 3}, kBFloat16), ones({1, 2}, kBFloat16), map), TypeError);
  EXPECT_EQ(moe_unpermute(ones({2, 3}, kBFloat16), ones({1, 2}), map).dtype(), kBFloat16);
}

}  // namespace
}  // namespace tapestry
