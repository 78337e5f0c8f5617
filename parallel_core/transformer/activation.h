// The activations that a configuration can name.
#pragma once

#include <string>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// f(x + bias); bias [last axis] may be undefined.
using Activation = Tensor (*)(const Tensor& x, const Tensor& bias);

/// True for the ones whose backward keeps their input alone, so that their output can be made again
/// from it instead of being kept for the next layer.
bool keeps_only_input(const std::string& hidden_act);

/// Whether the configuration asks for the activation in one pass.
bool uses_fused_activation(const TransformerConfig& config);

/// gelu (erf form), fast_gelu (tanh form), relu, silu, squared_relu, swiglu, fused_swiglu.
/// ValueError listing them for another name. Not fused: made of elementary ops.
Activation get_act_func(const std::string& hidden_act, bool use_fused = true);

}  // namespace tapestry
