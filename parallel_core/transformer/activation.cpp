#include "parallel_core/transformer/activation.h"

#include <limits>
#include <map>
#include <utility>

#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/math.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "parallel_core/precision.h"
#include "parallel_core/register.h"

namespace tapestry {

bool keeps_only_input(const TransformerConfig& config) {
  const std::string& act = config.hidden_act;
  return act == "swiglu" || act == "fused_swiglu" ||
         (!has_gated_mlp(config) && (act == "gelu" || act == "fast_gelu" || act == "silu"));
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

struct GateAndUp {
  Tensor gate, up;
};

GateAndUp halves_of(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  const int64_t size = x.size(last) / 2;
  return {x.slice(last, 0, size), x.slice(last, size, 2 * size)};
}

Tensor clamped_swiglu(const Tensor& x, double limit, double alpha) {
  const auto [gate, up] = halves_of(float_or_wider(x));
  const Tensor low = clamp(gate, -std::numeric_limits<double>::infinity(), limit);
  return (low * sigmoid(low * alpha) * (clamp(up, -limit, limit) + 1)).to(x.dtype());
}

// A registered one, whose results are looked at: it may be anything.
Activation own_activation(const std::string& name) {
  return [name, own = ModuleRegistry::get_item<ModuleType::kActivationFunc>(name)](
             const Tensor& x, const Tensor& bias) {
    Shape expected = x.shape();
    expected.back() /= own.gated ? 2 : 1;
    Tensor y = own.function(add_bias(x, bias));
    check<ValueError>(y.defined() && y.shape() == expected && y.dtype() == x.dtype(), "hidden_act ",
                      name, ": of ", describe(x), " it makes ", describe(y), ", expected shape ",
                      expected, " and dtype ", name_of(x.dtype()));
    return y;
  };
}

}  // namespace

Tensor xielu(const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n) {
  constexpr double kBeta = 0.5;
  constexpr double kEps = -1e-6;
  const Tensor wide = float_or_wider(x);
  const Tensor positive = softplus(float_or_wider(alpha_p)) * (wide * wide);
  const Tensor below = clamp(wide, -std::numeric_limits<double>::infinity(), kEps);
  const Tensor negative = (softplus(float_or_wider(alpha_n)) + kBeta) * (expm1(below) - wide);
  return (where(gt(wide, 0), positive, negative) + wide * kBeta).to(x.dtype());
}

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
  if (found == table.end() && ModuleRegistry::has_item(ModuleType::kActivationFunc, hidden_act)) {
    return own_activation(hidden_act);
  }
  std::string known;
  for (const auto& [name, forms] : table) {
    known += (known.empty() ? "" : ", ") + name;
  }
  for (const std::string& name : config::registered_names(ModuleType::kActivationFunc)) {
    known += ", " + name;
  }
  check<ValueError>(found != table.end(), "hidden_act '", hidden_act,
                    "' is not known; choose one of ", known);
  return use_fused ? found->second.fused : found->second.composed;
}

Activation get_act_func(const TransformerConfig& config) {
  if (config.hidden_act == "clamped_swiglu") {
    return [limit = config.swiglu_limit, alpha = config.swiglu_alpha](const Tensor& x,
                                                                      const Tensor& bias) {
      return clamped_swiglu(add_bias(x, bias), limit, alpha);
    };
  }
  Activation plain = get_act_func(config.hidden_act, uses_fused_activation(config));
  if (!has_gated_mlp(config) || is_gated(config.hidden_act)) {
    return plain;
  }
  return [plain = std::move(plain)](const Tensor& x, const Tensor& bias) {
    const auto [gate, up] = halves_of(add_bias(x, bias));
    return plain(gate, {}) * up;
  };
}

}  // namespace tapestry
