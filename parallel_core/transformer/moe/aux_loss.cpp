#include "parallel_core/transformer/moe/aux_loss.h"

#include <array>

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

struct AuxLossScale {
  double value = 1;
};

struct InjectAuxLoss {
  static constexpr OpName name = "inject_aux_loss";
  double scale;
  DType dtype = kFloat32;

  Tensor forward(const Tensor& x, const Tensor& aux_loss) {
    check<ValueError>(aux_loss.dim() == 0, name, ": the loss must be a scalar, got ",
                      describe(aux_loss));
    dtype = aux_loss.dtype();
    return x;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    // A pass through the gradients' graph would come here again and add the loss once more.
    check<RuntimeError>(!grad_enabled(), name,
                        ": gradients of gradients would count the auxiliary loss twice; add it to "
                        "the model's loss instead, or differentiate in evaluation mode");
    return {dy, needs[1] ? scalar(scale, dtype) : Tensor()};
  }
};

}  // namespace

double& aux_loss_scale() { return RankContext::current().slot<AuxLossScale>().value; }

AuxLossParts& aux_loss_parts() { return RankContext::current().slot<AuxLossParts>(); }

Tensor inject_aux_loss(const Tensor& x, const Tensor& aux_loss, double scale) {
  return apply_op(InjectAuxLoss{scale}, x, aux_loss);
}

}  // namespace tapestry
