// int8 and uint8 through the ops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/print.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor bytes(const std::vector<uint8_t>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}
Tensor small(const std::vector<int8_t>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}
std::vector<int64_t> integers_of(const Tensor& x) { return x.to_vector<int64_t>(); }

TEST(SmallIntegers, ArithmeticWraps) {
  const Tensor a = bytes({250, 3, 200});
  const Tensor b = bytes({10, 5, 200});
  EXPECT_EQ((a + b).dtype(), kUInt8);
  EXPECT_THAT(integers_of(a + b), ElementsAre(4, 8, 144));
  EXPECT_THAT(integers_of(b - a), ElementsAre(16, 2, 0));
  EXPECT_THAT(integers_of(a * b), ElementsAre(196, 15, 64));
  EXPECT_THAT(integers_of(a + 300), ElementsAre(38, 47, 244));
  EXPECT_THAT(integers_of(1 - a), ElementsAre(7, 254, 57));
  EXPECT_THAT(integers_of(neg(a)), ElementsAre(6, 253, 56));
  EXPECT_THAT(integers_of(square(small({-128, 12, -7}))), ElementsAre(0, -112, 49));
  EXPECT_THAT(integers_of(abs(small({-128, -1, 127}))), ElementsAre(-128, 1, 127));
  EXPECT_THAT(integers_of(pow(bytes({2, 3}), bytes({7, 6}))), ElementsAre(128, 217));
  EXPECT_THAT(integers_of(floor_divide(small({-7, 7, -128}), small({2, -2, -1}))),
              ElementsAre(-4, -4, -128));
  EXPECT_THAT(integers_of(remainder(small({-7, 7}), small({3, -3}))), ElementsAre(2, -2));
  EXPECT_THAT(integers_of(clamp(a, 10, 220)), ElementsAre(220, 10, 200));
  EXPECT_EQ((a / b).dtype(), kFloat32);
  EXPECT_EQ((a * 1.5).dtype(), kFloat32);
  EXPECT_EQ((a + tensor({1}).to(kInt8)).dtype(), kInt32);
  const Tensor x = a.clone();
  x += 10;
  x *= b;
  EXPECT_THAT(integers_of(x), ElementsAre(40, 65, 16));
}

TEST(SmallIntegers, ComparisonsAreThoseOfTheNumbers) {
  const Tensor a = bytes({0, 128, 255});
  EXPECT_THAT(integers_of(gt(a, small({-1, 127, 127}))), ElementsAre(1, 1, 1));
  EXPECT_THAT(integers_of(lt(a, 300)), ElementsAre(1, 1, 1));
  EXPECT_THAT(integers_of(ge(small({-1, 1, 0}), bytes({255, 1, 0}))), ElementsAre(0, 1, 1));
  EXPECT_THAT(integers_of(logical_not(a)), ElementsAre(1, 0, 0));
  EXPECT_THAT(integers_of(where(gt(a, 100), a, bytes({9, 9, 9}))), ElementsAre(9, 128, 255));
}

TEST(SmallIntegers, ReductionsAndOrder) {
  const Tensor a = bytes({200, 7, 200, 255}).view({2, 2});
  EXPECT_EQ(sum(a).dtype(), kInt64);
  EXPECT_EQ(sum(a).item(), 662);
  EXPECT_EQ(prod(small({-100, 100, 2})).item(), -20000);
  EXPECT_THAT(integers_of(cumsum(a, 1)), ElementsAre(200, 207, 200, 455));
  EXPECT_EQ(max(a).dtype(), kUInt8);
  EXPECT_EQ(max(a).item(), 255);
  EXPECT_THAT(integers_of(min(a, 0).values), ElementsAre(200, 7));
  EXPECT_EQ(argmax(a).item(), 3);
  const Tensor b = small({-3, 100, -128, 100, 0});
  EXPECT_EQ(max(b).item(), 100);
  EXPECT_EQ(min(b).item(), -128);
  EXPECT_EQ(argmin(b).item(), 2);
  EXPECT_EQ(any(b).item(), 1);
  EXPECT_EQ(all(b).item(), 0);
  EXPECT_THAT(integers_of(sort(b).values), ElementsAre(-128, -3, 0, 100, 100));
  EXPECT_THAT(integers_of(amax(b.view({5, 1}), {0})), ElementsAre(100));
  EXPECT_THAT(integers_of(matmul(bytes({20, 2}).view({1, 2}), bytes({20, 3}).view({2, 1}))),
              ElementsAre(150));
}

TEST(SmallIntegers, AreMovedAndPrinted) {
  const Tensor a = small({-1, 2, 3});
  EXPECT_THAT(integers_of(cat({a, a})), ElementsAre(-1, 2, 3, -1, 2, 3));
  EXPECT_THAT(integers_of(index_select(a, 0, tensor({2, 0}).to(kInt64))), ElementsAre(3, -1));
  EXPECT_THAT(integers_of(index_add(a, 0, tensor({0, 0}).to(kInt64), small({-100, -100}))),
              ElementsAre(55, 2, 3));
  EXPECT_THAT(integers_of(a.index({gt(a, 0)})), ElementsAre(2, 3));
  EXPECT_THAT(integers_of(bytes({255, 7}).to(kInt8)), ElementsAre(-1, 7));
  EXPECT_THAT(integers_of(tensor({-1.5F, 300.0F}).to(kUInt8)), ElementsAre(255, 44));
  EXPECT_EQ(a.data<int8_t>()[0], -1);
  EXPECT_EQ(a.to_vector<int8_t>()[0], -1);
  EXPECT_EQ(bytes({200}).to_vector<uint8_t>()[0], 200);
  std::ostringstream text;
  text << bytes({200, 7}) << full({}, -5, kInt8);
  EXPECT_EQ(text.str(), "tensor([200,   7], dtype=uint8)tensor(-5, dtype=int8)");
  const Tensor drawn = randint(250, 256, {100}, kUInt8);
  EXPECT_GE(min(drawn).item(), 250);
  EXPECT_THAT(message_of<ValueError>([] { randint(0, 129, {2}, kInt8); }),
              HasSubstr("[0, 129) exceeds int8"));
  EXPECT_THAT(message_of<ValueError>([] { full({2}, 256, kUInt8); }),
              HasSubstr("256 is outside uint8, [0, 255]"));
}

TEST(SmallIntegers, AreNeitherMasksNorPositionsNorDifferentiable) {
  const Tensor x = tensor({1, 2, 3});
  const Tensor mask = bytes({1, 0, 1});
  EXPECT_THAT(message_of<TypeError>([&] { x.index({mask}); }),
              Says("uint8 ... no mask ... to(kBool)"));
  EXPECT_THAT(message_of<TypeError>([&] { x.index({small({0})}); }), HasSubstr("int8 [1]"));
  EXPECT_THAT(message_of<TypeError>([&] { masked_select(x, mask); }), HasSubstr("uint8"));
  EXPECT_THAT(message_of<TypeError>([&] { where(mask, x, x); }), HasSubstr("uint8"));
  EXPECT_THAT(message_of<TypeError>([&] { index_select(x, 0, mask); }), HasSubstr("uint8"));
  EXPECT_THAT(message_of<TypeError>([&] { mask.set_requires_grad(); }),
              Says("only floating ... uint8 [3]"));
}

}  // namespace
}  // namespace tapestry
