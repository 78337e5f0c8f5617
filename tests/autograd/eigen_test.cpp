#include "autograd/eigen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Eigen, MatrixOfATensorSharesItsMemory) {
  const Tensor x = arange(6, kFloat64).view({2, 3});
  const uint32_t version = x.version();
  auto m = eigen_matrix<double>(x);
  EXPECT_EQ(m.rows(), 2);
  EXPECT_EQ(m.cols(), 3);
  EXPECT_EQ(m.data(), x.data<double>());
  EXPECT_EQ(m(1, 2), 5);
  m(0, 1) = 10;
  m.row(1) *= 2;
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(0, 10, 2, 6, 8, 10));
  EXPECT_EQ(x.version(), version + 1);
  EXPECT_EQ(const_eigen_matrix<double>(x).sum(), 36);
  EXPECT_EQ(x.version(), version + 1);  // nothing can be written through it
}

TEST(Eigen, SmallIntegersHaveViews) {
  const Tensor x = tensor(std::vector<uint8_t>{1, 2, 3, 250}, {2, 2});
  eigen_matrix<uint8_t>(x)(0, 0) = 200;
  EXPECT_THAT(x.to_vector<int32_t>(), ElementsAre(200, 2, 3, 250));
  const Tensor y = tensor(std::vector<int8_t>{-3, 4}, {2});
  EXPECT_EQ(const_eigen_vector<int8_t>(y)[0], -3);
  EXPECT_THAT(message_of<TypeError>([&] { eigen_vector<int8_t>(x.select(0, 0)); }),
              HasSubstr("uint8"));
}

TEST(Eigen, ViewsKeepTheirStrides) {
  const Tensor x = arange(24, kFloat32).view({4, 6});
  const Tensor part = x.slice(0, 1, 4, 2).slice(1, 0, 6, 3).t();  // [[6, 18], [9, 21]]
  const auto m = const_eigen_matrix<float>(part);
  EXPECT_EQ(m(0, 1), 18);
  EXPECT_EQ(m(1, 0), 9);
  eigen_matrix<float>(part).setZero();
  EXPECT_EQ(sum(x).item(), 276 - 6 - 9 - 18 - 21);
  const Tensor column = x.select(1, 5);
  eigen_vector<float>(column) << 1, 2, 3, 4;
  EXPECT_EQ(x.at({2, 5}), 3);
  EXPECT_EQ(const_eigen_vector<float>(column).squaredNorm(), 30);
  // Repeated elements can be read.
  EXPECT_EQ(const_eigen_matrix<float>(tensor({1, 2}).expand({5, 2})).sum(), 15);
  EXPECT_EQ(const_eigen_matrix<float>(zeros({0, 3})).rows(), 0);
}

TEST(Eigen, WhatCannotBeViewedIsRefused) {
  const Tensor x = zeros({2, 3});
  EXPECT_THAT(message_of<TypeError>([&] { eigen_matrix<double>(x); }), HasSubstr("float32"));
  EXPECT_THAT(message_of<ValueError>([&] { eigen_vector<float>(x); }),
              HasSubstr("eigen_vector: needs a tensor of 1 axis, got float32 [2, 3]"));
  EXPECT_THAT(message_of<ValueError>([&] { const_eigen_matrix<float>(zeros({3})); }),
              HasSubstr("needs a tensor of 2 axes"));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                eigen_matrix<float>(zeros({1, 3}).expand({2, 3}));
              }),
              HasSubstr("share memory"));
  x.set_requires_grad();
  EXPECT_THAT(message_of<RuntimeError>([&] { eigen_matrix<float>(x); }),
              HasSubstr("requires a gradient"));
  EXPECT_EQ(const_eigen_matrix<float>(x).sum(), 0);
  const NoGradGuard guard;
  eigen_matrix<float>(x).setOnes();
  EXPECT_EQ(sum(x).item(), 6);
}

TEST(Eigen, WhatBackwardNeedsIsProtectedFromEigen) {
  const Tensor x = tensor({1, 2});
  x.set_requires_grad();
  const Tensor y = sum(square(x));
  eigen_vector<float>(x.detach()).setZero();
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }), HasSubstr("changed in place"));
}

TEST(Eigen, TensorOfAMatrixSharesItsMemory) {
  Eigen::MatrixXd columns(2, 3);  // column-major
  columns << 1, 2, 3, 4, 5, 6;
  const Tensor x = tensor_view(columns);
  EXPECT_EQ(x.shape(), (Shape{2, 3}));
  EXPECT_EQ(x.strides(), (Shape{1, 2}));
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(1, 2, 3, 4, 5, 6));
  columns(1, 0) = 40;
  EXPECT_EQ(x.at({1, 0}), 40);
  eigen_matrix<double>(x)(0, 2) = 30;
  EXPECT_EQ(columns(0, 2), 30);

  EigenMatrix<int64_t> rows(2, 2);
  rows << 1, 2, 3, 4;
  EXPECT_TRUE(tensor_view(rows).is_contiguous());
  EXPECT_EQ(tensor_view(rows).dtype(), kInt64);
  const Tensor block = tensor_view(columns.block(0, 1, 2, 2));
  EXPECT_THAT(block.to_vector<double>(), ElementsAre(2, 30, 5, 6));
  const Tensor row = tensor_view(columns.row(1));
  EXPECT_EQ(row.shape(), Shape{3});
  EXPECT_THAT(row.to_vector<double>(), ElementsAre(40, 5, 6));
  Eigen::Vector3f fixed(1, 2, 3);
  EXPECT_THAT(tensor_view(fixed).to_vector<float>(), ElementsAre(1, 2, 3));
  Eigen::MatrixXf nothing(0, 3);
  EXPECT_EQ(tensor_view(nothing).shape(), (Shape{0, 3}));
}

TEST(Eigen, TensorTakesAMatrixOver) {
  Eigen::MatrixXf m = Eigen::MatrixXf::Identity(30, 20);
  const float* const memory = m.data();
  Tensor view;
  {
    const Tensor x = to_tensor(std::move(m));
    EXPECT_EQ(x.data<float>(), memory);  // not copied
    view = x.select(0, 3);
  }
  EXPECT_EQ(view.at({3}), 1);  // the memory lives as long as a tensor on it
  EXPECT_EQ(sum(view).item(), 1);
  const Eigen::Vector2d kept(1, 2);
  EXPECT_THAT(to_tensor(Eigen::Vector2d(kept)).to_vector<double>(), ElementsAre(1, 2));
}

TEST(Eigen, GradientsGoThroughTensorsOnEigensMemory) {
  Eigen::Matrix2d weight;
  weight << 1, 2, 3, 4;
  const Tensor w = tensor_view(weight);
  w.set_requires_grad();
  sum(square(matmul(ones({1, 2}, kFloat64), w))).backward();
  const Eigen::Matrix2d expected = (Eigen::Matrix2d() << 8, 12, 8, 12).finished();
  EXPECT_EQ(const_eigen_matrix<double>(w.grad()), expected);
}

}  // namespace
}  // namespace tapestry
