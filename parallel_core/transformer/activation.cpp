#include "parallel_core/transformer/activation.h"

#include <map>

#include "autograd/ops/activation.h"
#include "autograd/tensor/error.h"
#include "parallel_core/precision.h"

namespace tapestry {

bool keeps_only_input(const std::string& hidden_act) {
  return is_gated(hidden_act) || hidden_act == "gelu" || hidden_act == "fast_gelu" ||
         hidden_act == "silu";
}

namespace {

// Both in one pass.
template <Tensor (*f)(const Tensor&), Tensor (*f_of_sum)(const Tensor&, const Tensor&)>
Tensor fused(const Tensor& x, const Tensor& bias) {
  return bias.defined() ? f_of_sum(x, bias) : f(x);
}

template <Tensor (*f)(const Tensor&)>
Tensor apart(const Tensor& x, const Tensor& bias) {
  return f(add_bias(x, bias));
}

}  // namespace

bool uses_fused_activation(const TransformerConfig& config) {
  return has_gated_mlp(config) ? config.apply_swiglu_fusion.value_or(config.use_fused_kernels)
                               : config.use_fused_kernels;
}

Activation get_act_func(const std::string& hidden_act, bool use_fused) {
  struct Forms {
    Activation fused;
    Activation composed;
  };
  static const Forms kSwiglu = {apart<swiglu>, apart<composed_swiglu>};
  static const std::map<std::string, Forms> table = {
      {"gelu", {fused<gelu, bias_gelu>, apart<composed_gelu>}},
      {"fast_gelu", {fused<gelu_tanh, bias_gelu_tanh>, apart<composed_gelu_tanh>}},
      {"relu", {apart<relu>, apart<relu>}},
      {"silu", {fused<silu, bias_silu>, apart<composed_silu>}},
      {"squared_relu", {apart<squared_relu>, apart<squared_relu>}},
      {"swiglu", kSwiglu},
      {"fused_swiglu", kSwiglu},
  };
  const auto found = table.find(hidden_act);
  std::string known;
  for (const auto& [name, forms] : table) {
    known += (known.empty() ? "" : ", ") + name;
  }
  check<ValueError>(found != table.end(), "hidden_act '", hidden_act,
                    "' is not known; choose one of ", known);
  return use_fused ? found->second.fused : found->second.composed;
}

}  // namespace tapestry
