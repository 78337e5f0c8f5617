#include "autograd/tensor/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "autograd/tensor/error.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

TEST(Shape, HoldsAFewValues) {
  Shape shape{4, 3};
  EXPECT_EQ(shape.size(), 2);
  EXPECT_FALSE(shape.empty());
  EXPECT_EQ(shape[0], 4);
  EXPECT_EQ(shape.back(), 3);
  EXPECT_EQ(shape.numel(), 12);
  EXPECT_EQ(shape.str(), "[4, 3]");
  shape.push_back(5);
  shape.insert(0, 2);
  EXPECT_EQ(shape, (Shape{2, 4, 3, 5}));
  shape.insert(4, 7);
  EXPECT_EQ(shape, (Shape{2, 4, 3, 5, 7}));
  shape.erase(1);
  EXPECT_EQ(shape, (Shape{2, 3, 5, 7}));
  shape.pop_back();
  EXPECT_EQ(shape, (Shape{2, 3, 5}));
  EXPECT_NE(shape, (Shape{2, 3}));
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape().str(), "[]");
  EXPECT_EQ((Shape{2, 0, 3}).numel(), 0);
  EXPECT_EQ(Shape::filled(3, 7), (Shape{7, 7, 7}));
  std::ostringstream out;
  out << Shape{1};
  EXPECT_EQ(out.str(), "[1]");
}

TEST(Shape, HasALimit) {
  const std::vector<int64_t> most(kMaxDims, 1);
  Shape shape{std::span<const int64_t>(most)};
  EXPECT_EQ(shape.size(), kMaxDims);
  EXPECT_THAT(message_of<ValueError>([&] { shape.push_back(1); }), HasSubstr("axes"));
  const std::vector<int64_t> more(kMaxDims + 1, 1);
  EXPECT_THROW(Shape(std::span<const int64_t>(more)), ValueError);
  EXPECT_THROW(Shape::filled(kMaxDims + 1, 1), ValueError);
}

TEST(Shape, ContiguousStrides) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Strides{});
  EXPECT_EQ(contiguous_strides({5}), Strides{1});
  EXPECT_EQ(contiguous_strides({2, 0, 4}).size(), 3);
}

TEST(Shape, NormalizeAxis) {
  EXPECT_EQ(normalize_axis("op", 1, 3), 1);
  EXPECT_EQ(normalize_axis("op", -1, 3), 2);
  EXPECT_EQ(normalize_axis("op", -3, 3), 0);
  EXPECT_EQ(normalize_axis("op", 0, 0), 0);  // a scalar, as PyTorch has it
  EXPECT_EQ(normalize_axis("op", -1, 0), 0);
  const std::string message = message_of<IndexError>([] { normalize_axis("softmax", 3, 3); });
  EXPECT_THAT(message, HasSubstr("softmax: axis 3"));
  EXPECT_THAT(message, HasSubstr("[-3, 2]"));
  EXPECT_THROW(normalize_axis("op", -4, 3), IndexError);
  EXPECT_THROW(normalize_axis("op", 1, 0), IndexError);
}

TEST(Shape, NormalizeAxes) {
  EXPECT_EQ(normalize_axes("op", Shape{-1, 0}, 3), (Shape{0, 2}));
  EXPECT_EQ(normalize_axes("op", Shape{}, 3), (Shape{0, 1, 2}));
  EXPECT_EQ(normalize_axes("op", Shape{}, 0), Shape{});
  EXPECT_EQ(normalize_axes("op", Shape{0}, 0), Shape{});
  EXPECT_THAT(message_of<ValueError>([] {
                normalize_axes("sum", Shape{1, -2}, 3);
              }),
              HasSubstr("named twice"));
  EXPECT_THROW(normalize_axes("op", Shape{3}, 3), IndexError);
}

TEST(Shape, Broadcasting) {
  EXPECT_EQ(broadcast_shapes("op", {3, 4}, {4}), (Shape{3, 4}));
  EXPECT_EQ(broadcast_shapes("op", {3, 1}, {1, 4}), (Shape{3, 4}));
  EXPECT_EQ(broadcast_shapes("op", {}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes("op", {}, {}), Shape{});
  EXPECT_EQ(broadcast_shapes("op", {0, 3}, {1, 3}), (Shape{0, 3}));
  EXPECT_EQ(broadcast_shapes("op", {1}, {0}), Shape{0});
  EXPECT_EQ(broadcast_shapes("op", {2, 1, 3}, {4, 1}), (Shape{2, 4, 3}));
  const std::string message = message_of<ValueError>([] {
    broadcast_shapes("add", {2, 3}, {2, 4});
  });
  EXPECT_THAT(message, HasSubstr("add: "));
  EXPECT_THAT(message, HasSubstr("[2, 3] and [2, 4]"));
  EXPECT_THROW(broadcast_shapes("op", {0}, {2}), ValueError);
}

TEST(Shape, InferShape) {
  EXPECT_EQ(infer_shape("op", {2, -1}, 6), (Shape{2, 3}));
  EXPECT_EQ(infer_shape("op", {-1}, 0), Shape{0});
  EXPECT_EQ(infer_shape("op", {}, 1), Shape{});
  EXPECT_THROW(infer_shape("op", {4, -1}, 6), ValueError);
  EXPECT_THROW(infer_shape("op", {-1, -1}, 6), ValueError);
  EXPECT_THROW(infer_shape("op", {-2, 3}, 6), ValueError);
  EXPECT_THROW(infer_shape("op", {0, -1}, 0), ValueError);  // any size would do
  EXPECT_THAT(message_of<ValueError>([] { infer_shape("view", {5}, 6); }),
              HasSubstr("view: shape [5]"));
}

TEST(Shape, ReducedShape) {
  EXPECT_EQ(reduced_shape({2, 3, 4}, {0, 2}, false), Shape{3});
  EXPECT_EQ(reduced_shape({2, 3, 4}, {0, 2}, true), (Shape{1, 3, 1}));
  EXPECT_EQ(reduced_shape({2}, {0}, false), Shape{});
  EXPECT_EQ(reduced_shape({2}, {}, false), Shape{2});
}

}  // namespace
}  // namespace tapestry
