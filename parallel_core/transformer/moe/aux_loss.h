// How losses of layers reach backward, which starts from the model's loss alone.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// What the gradient of the current rank's auxiliary losses is multiplied by: the loss scale
/// divided by the number of micro-batches of the step over all data-parallel ranks, also where the
/// model's loss is a mean over tokens. 1 until the training loop sets it.
double& aux_loss_scale();

/// The same for exact mode, where the auxiliary losses are sums over sequences: the gradient of a
/// micro-batch's is multiplied by loss_scale / (micro_batches * its sequences).
struct AuxLossParts {
  double loss_scale = 1;
  double micro_batches = 1;  ///< of the step, over all data-parallel ranks
};
AuxLossParts& aux_loss_parts();

/// x as it is. In backward x's gradient passes, and aux_loss, a floating scalar, gets the gradient
/// `scale`: as if scale * aux_loss were added to the loss that backward starts from, wherever in
/// the model the layer is. Source: the "auxiliary loss auto scaler" of Megatron-LM.
/// ValueError unless aux_loss is a scalar; RuntimeError in a backward pass that is recorded.
Tensor inject_aux_loss(const Tensor& x, const Tensor& aux_loss, double scale);

}  // namespace tapestry
