#include "autograd/tensor/overlap.h"

#include <gtest/gtest.h>

#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

TEST(ElementsOverlap, ViewsOfADenseTensorDoNot) {
  const Tensor x = zeros({3, 4, 5});
  for (const Tensor& view : {x, x.permute({2, 0, 1}), x.slice(1, 1, 4, 2), x.select(2, 1),
                             x.slice(0, 1, 1), zeros({}), zeros({0, 3})}) {
    EXPECT_FALSE(elements_overlap(view)) << describe(view);
  }
  EXPECT_FALSE(elements_overlap(zeros({2, 1}).expand({2, 1})));
  EXPECT_FALSE(elements_overlap(alias(x, {3}, {26}, 0)));  // a diagonal
}

TEST(ElementsOverlap, ExpandedAndSlidingOnesDo) {
  const Tensor x = zeros({3, 1});
  EXPECT_TRUE(elements_overlap(x.expand({3, 4})));
  EXPECT_TRUE(elements_overlap(x.expand({2, 3, 1})));
  EXPECT_TRUE(elements_overlap(alias(zeros({6}), {4, 3}, {1, 1}, 0)));
  EXPECT_TRUE(elements_overlap(alias(zeros({6}), {2, 3}, {2, 1}, 0)));
}

}  // namespace
}  // namespace tapestry
