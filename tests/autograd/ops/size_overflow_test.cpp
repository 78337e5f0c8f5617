// Sizes whose product does not fit are refused by name, wherever they are multiplied.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t k32 = int64_t{1} << 32;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

template <class F>
std::string refusal(const F& f) {
  return message_of<ValueError>(f);
}

TEST(SizeOverflow, Shapes) {
  EXPECT_EQ(Shape({k32, k32 / 4}).numel(), int64_t{1} << 62);
  EXPECT_THAT(refusal([] {
                (void)Shape({k32, k32 / 2}).numel();
              }),
              HasSubstr("shape [4294967296, 2147483648] is too large"));
  EXPECT_THAT(refusal([] { (void)Shape({k32, k32}).numel(); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([] { (void)Shape({0, k32, k32}).numel(); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([] { contiguous_strides({0, k32, k32}); }), HasSubstr("too large"));
  EXPECT_EQ(Shape({k32, 0}).numel(), 0);
  EXPECT_THAT(refusal([] {
                infer_shape("view", {k32, k32}, 0);
              }),
              AllOf(HasSubstr("view: shape [4294967296, 4294967296]"), HasSubstr("too large")));
  EXPECT_THAT(refusal([] { infer_shape("view", {k32, -1, k32}, 0); }), HasSubstr("too large"));
}

TEST(SizeOverflow, Factories) {
  EXPECT_THAT(refusal([] {
                empty({k32, k32 / 8});
              }),  // in bytes
              HasSubstr("empty: shape [4294967296, 536870912] is too large"));
  EXPECT_THAT(refusal([] { zeros({k32, k32}); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([] { eye(k32, k32); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([] { randn({k32, k32}); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([] { arange(0, 1e30, 1); }), HasSubstr("arange: from 0 to 1e+30"));
  float value = 0;
  EXPECT_THAT(refusal([&] {
                from_blob(&value, {k32, k32 / 8}, kFloat32);
              }),
              HasSubstr("from_blob: shape [4294967296, 536870912]"));
}

TEST(SizeOverflow, Views) {
  const Tensor one = ones({1, 1});
  EXPECT_THAT(refusal([&] {
                one.expand({k32, k32});
              }),
              HasSubstr("expand: shape [4294967296, 4294967296] is too large"));
  const Tensor wide = one.expand({k32, 1});
  const Tensor tall = one.expand({1, k32});
  EXPECT_THAT(refusal([&] { wide + tall; }),
              HasSubstr("add: shape [4294967296, 4294967296] is too large"));
  EXPECT_THAT(refusal([&] { where(ones({1, 1}, kBool), wide, tall); }), HasSubstr("where: shape"));
  EXPECT_THAT(refusal([&] { matmul(wide, tall); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([&] { einsum("ab,bc->ac", {wide, tall}); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([&] { einsum("ab,cd->abcd", {wide, tall}); }), HasSubstr("too large"));
  EXPECT_THAT(refusal([&] { repeat(wide, {1, k32}); }), HasSubstr("repeat: shape"));
  EXPECT_THAT(refusal([&] { repeat(ones({0, 2}), {1, kMost}); }), HasSubstr("repeat: shape"));
  EXPECT_THAT(refusal([&] { repeat_interleave(wide, k32, 0); }),
              HasSubstr("repeat_interleave: shape"));
  EXPECT_THAT(refusal([&] { repeat_interleave(ones({2}), full({2}, 0x1p62, kInt64), 0); }),
              HasSubstr("repeat_interleave"));
  EXPECT_THAT(refusal([&] {
                pad(ones({2}), std::vector<Padding>{{kMost, 1}});
              }),
              HasSubstr("pad: axis 0 of shape [2]"));
  EXPECT_THAT(refusal([&] { ones({0}).view({k32, k32}); }), HasSubstr("view: shape"));
}

TEST(SizeOverflow, StepsMayBeAsLargeAsTheyLike) {
  const Tensor x = arange(5);
  EXPECT_EQ(x.slice(0, 1, 5, kMost).to_vector<int64_t>(), std::vector<int64_t>{1});
  EXPECT_EQ(x.slice(0, 3, 3, kMost).numel(), 0);
}

}  // namespace
}  // namespace tapestry
