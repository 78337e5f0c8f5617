#include "autograd/tensor/storage.h"

#include <gtest/gtest.h>

#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

Tensor on(const Ref<Storage>& storage, int64_t offset, const Shape& shape) {
  return Tensor(make_ref<TensorImpl>(storage, offset, shape, contiguous_strides(shape), kFloat32));
}

TEST(Storage, AWindowOpensWhenItIsTouched) {
  std::vector<float> memory = {1, 2, 3, 4};
  int opened = 0;
  const auto window = make_ref<Storage>(16, [&] {
    ++opened;
    return reinterpret_cast<std::byte*>(memory.data());
  });
  const Tensor x = on(window, 1, {3});
  EXPECT_FALSE(window->is_open());
  EXPECT_EQ(x.numel(), 3);
  EXPECT_EQ(opened, 0);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2, 3, 4}));
  EXPECT_EQ(x.at({2}), 4);
  EXPECT_TRUE(window->is_open());
  EXPECT_EQ(opened, 1);
  x.bump_version();
  window->close();
  memory = {5, 6, 7, 8};
  EXPECT_EQ(alias(x).to_vector<float>(), (std::vector<float>{6, 7, 8}));
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(x.version(), 1U);
}

TEST(Storage, WhatOpeningThrowsIsThrownByTheTouch) {
  const auto window = make_ref<Storage>(4, []() -> std::byte* { throw RuntimeError("not there"); });
  EXPECT_THROW(on(window, 0, {1}).item(), RuntimeError);
  EXPECT_FALSE(window->is_open());
}

TEST(Storage, AScopeLeasesTheWindowsThatItTouches) {
  std::vector<float> memory = {1, 2};
  const auto window = [&] {
    return make_ref<Storage>(8, [&] { return reinterpret_cast<std::byte*>(memory.data()); });
  };
  const auto a = window();
  const auto b = window();
  const Tensor ordinary = zeros({2});
  on(a, 0, {2}).raw();
  EXPECT_FALSE(a->is_leased());  // nobody runs
  {
    const LeaseScope outer;
    on(a, 0, {2}).raw();  // open already
    on(a, 1, {1}).raw();
    ordinary.raw();
    EXPECT_TRUE(a->is_leased());
    EXPECT_FALSE(ordinary.storage()->is_leased());
    {
      const LeaseScope inner;
      on(a, 0, {2}).raw();
      on(b, 0, {2}).raw();
      EXPECT_TRUE(b->is_leased());
    }
    EXPECT_TRUE(a->is_leased());
    EXPECT_FALSE(b->is_leased());
    EXPECT_TRUE(b->is_open());  // to be closed by whoever opened it
  }
  EXPECT_FALSE(a->is_leased());
}

TEST(Storage, EmptyMemoryIsNoWindow) { EXPECT_EQ(zeros({0}).to_vector<float>().size(), 0U); }

}  // namespace
}  // namespace tapestry
