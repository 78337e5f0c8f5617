#include "parallel_core/transformer/moe/aux_loss.h"

#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry {
namespace {

TEST(InjectAuxLoss, AddsToTheGradientOnly) {
  const Tensor x = tensor({1.0F, 2.0F, 3.0F}).set_requires_grad();
  const auto gradient = [&](bool inject) {
    const Tensor aux = sum(square(x));
    const Tensor y = inject ? inject_aux_loss(x * 2, aux, 0.25) : x * 2;
    EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{2, 4, 6}));
    return grad(sum(y * y), {x}).front().to_vector<float>();
  };
  EXPECT_EQ(gradient(false), (std::vector<float>{8, 16, 24}));
  EXPECT_EQ(gradient(true), (std::vector<float>{8.5, 17, 25.5}));  // + 0.25 * 2 x
}

TEST(InjectAuxLoss, RefusesToBeDifferentiatedTwice) {
  const Tensor x = tensor({1.0F, 2.0F, 3.0F}).set_requires_grad();
  const Tensor y = inject_aux_loss(x * 2, sum(x * x * x), 0.25);
  EXPECT_THROW(grad(sum(y * y), {x}, {}, {.create_graph = true}), RuntimeError);
}

TEST(InjectAuxLoss, LowPrecisionLeavesTheLossAsItIs) {
  const Tensor x = tensor({1.0F, 2.0F}).set_requires_grad();
  const Tensor aux = sum(x);
  const Tensor y = inject_aux_loss(x.to(kBFloat16), aux, 1e-3);
  EXPECT_EQ(y.dtype(), kBFloat16);
  EXPECT_EQ(grad(sum(y.to(kFloat32)), {x}).front().to_vector<float>(),
            (std::vector<float>(2, 1 + 1e-3F)));
}

TEST(InjectAuxLoss, WorksWhereValuesAreMadeAgain) {
  const Tensor x = tensor({1.0F, 2.0F, 3.0F}).set_requires_grad();
  RecomputedValues values;
  Tensor loss;
  {
    const RecomputeScope scope(&values);
    const Tensor y = inject_aux_loss(x * 2, sum(square(x)), 0.25);
    loss = sum(square(y));
  }
  values.keep(loss);
  values.drop();
  EXPECT_EQ(grad(loss, {x}).front().to_vector<float>(), (std::vector<float>{8.5, 17, 25.5}));
}

TEST(InjectAuxLoss, RefusesWhatIsNoScalar) {
  EXPECT_THROW(inject_aux_loss(zeros({2}), zeros({1}), 1), ValueError);
}

TEST(AuxLossScale, IsOfARank) {
  EXPECT_EQ(aux_loss_scale(), 1);
  testing::run_parallel(2, {}, [] {
    EXPECT_EQ(aux_loss_scale(), 1);
    aux_loss_scale() = 2 + get_data_parallel_rank();
    get_data_parallel_group().barrier();
    EXPECT_EQ(aux_loss_scale(), 2 + get_data_parallel_rank());
  });
  EXPECT_EQ(aux_loss_scale(), 1);
}

}  // namespace
}  // namespace tapestry
