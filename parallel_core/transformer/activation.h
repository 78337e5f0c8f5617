// The activations that a configuration can name.
#pragma once

#include <functional>
#include <string>

#include "autograd/tensor/tensor.h"
#include "nn/parameter.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// f(x + bias); bias [last axis] may be undefined.
using Activation = std::function<Tensor(const Tensor& x, const Tensor& bias)>;

/// True for the ones whose backward keeps their input alone, so that their output can be made again
/// from it instead of being kept for the next layer.
bool keeps_only_input(const TransformerConfig& config);

/// Whether the configuration asks for the activation in one pass.
bool uses_fused_activation(const TransformerConfig& config);

/// gelu (erf form), fast_gelu (tanh form), relu, silu, squared_relu, swiglu, fused_swiglu.
/// Or a registered name: ValueError where what it gives has another shape or dtype than
/// ActivationFunction says. ValueError listing them for another name. Not fused: made of elementary
/// ops.
Activation get_act_func(const std::string& hidden_act, bool use_fused = true);

/// That of the configuration's MLPs: the same; clamped_swiglu, for gate and up of a last axis
/// [2F] min(gate, l) sigmoid(a min(gate, l)) (clamp(up, -l, l) + 1) (openai/gpt-oss, 2025); or with
/// gated_linear_unit any other of the gate, times up (Shazeer 2020, arXiv:2002.05202). Not for
/// xielu, which has parameters.
Activation get_act_func(const TransformerConfig& config);
inline Activation get_act_func(const AllConfig& config) {
  return get_act_func(config.model_config);
}

/// x > 0: softplus(alpha_p) x^2 + x / 2; else (0.5 + softplus(alpha_n)) (expm1(min(x, -1e-6)) - x)
/// + x / 2, for parameters [1]. Source: Huang and Schlag 2024, arXiv:2411.13010; constants as in
/// Apertus.
Tensor xielu(const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n);

}  // namespace tapestry
