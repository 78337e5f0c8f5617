#include "autograd/tape/gradcheck.h"

#include "autograd/tape/op.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

// A derivative that is wrong by one part in a hundred.
struct Slightly {
  static constexpr OpName name = "test_slightly_wrong";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return x_ * x_;
  }
  Tensor backward(const Tensor& dy) const { return dy * x.get() * 2.02; }
};

// A right derivative that forgets to depend on x.
struct Forgetful {
  static constexpr OpName name = "test_forgetful";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return x_ * x_;
  }
  Tensor backward(const Tensor& dy) const { return dy * x.get().detach() * 2; }
};

Tensor input() { return tensor(std::vector<double>{0.5, -1.5, 2, 3}, {2, 2}).set_requires_grad(); }

TEST(Gradcheck, AcceptsRightDerivatives) {
  const auto f = [](const TensorList& in) -> TensorList { return {tanh(in[0]), in[0] * in[0]}; };
  EXPECT_TRUE(gradcheck(f, {input()}));
  EXPECT_TRUE(gradgradcheck(f, {input()}));
}

TEST(Gradcheck, NoticesAWrongDerivative) {
  const auto f = [](const TensorList& in) -> TensorList { return {apply_op(Slightly{}, in[0])}; };
  const GradcheckResult result = gradcheck(f, {input()});
  EXPECT_FALSE(result);
  EXPECT_THAT(result.message, HasSubstr("input 0 (float64 [2, 2]), element at offset 0"));
}

TEST(Gradcheck, NoticesALostGraph) {
  const auto f = [](const TensorList& in) -> TensorList { return {in[0].detach() * 2}; };
  EXPECT_FALSE(gradcheck(f, {input()}));
}

TEST(Gradcheck, AcceptsFlatFunctions) {
  const auto f = [](const TensorList& in) -> TensorList { return {floor(in[0] + 0.3)}; };
  EXPECT_TRUE(gradcheck(f, {input()}));
  EXPECT_TRUE(gradgradcheck(f, {input()}));
}

TEST(Gradgradcheck, NoticesAWrongSecondDerivative) {
  const auto f = [](const TensorList& in) -> TensorList { return {apply_op(Forgetful{}, in[0])}; };
  EXPECT_TRUE(gradcheck(f, {input()}));
  EXPECT_FALSE(gradgradcheck(f, {input()}));
}

TEST(Gradcheck, ExpandedInputs) {
  const Tensor x = tensor(std::vector<double>{0.5, 2}, {2}).expand({3, 2}).detach();
  x.set_requires_grad();
  const auto f = [](const TensorList& in) -> TensorList { return {in[0] * in[0]}; };
  EXPECT_TRUE(gradcheck(f, {x})) << gradcheck(f, {x}).message;
}

TEST(Gradcheck, Errors) {
  const auto f = [](const TensorList& in) -> TensorList { return {in[0]}; };
  EXPECT_THROW(gradcheck(f, {leaf({1})}), TypeError);
  EXPECT_THROW(gradcheck(f, {tensor({1})}), ValueError);
}

}  // namespace
}  // namespace tapestry
