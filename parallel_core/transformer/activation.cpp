#include "parallel_core/transformer/activation.h"

#include <map>

#include "autograd/ops/activation.h"
#include "autograd/tensor/error.h"

namespace tapestry {

bool is_gated(const std::string& hidden_act) {
  return hidden_act == "swiglu" || hidden_act == "fused_swiglu";
}

Activation get_act_func(const std::string& hidden_act) {
  static const std::map<std::string, Activation> table = {
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"fast_gelu", [](const Tensor& x) { return gelu_tanh(x); }},
      {"relu", [](const Tensor& x) { return relu(x); }},
      {"silu", [](const Tensor& x) { return silu(x); }},
      {"squared_relu", [](const Tensor& x) { return squared_relu(x); }},
      {"swiglu", [](const Tensor& x) { return swiglu(x); }},
      {"fused_swiglu", [](const Tensor& x) { return swiglu(x); }},
  };
  const auto found = table.find(hidden_act);
  std::string known;
  for (const auto& [name, function] : table) {
    known += (known.empty() ? "" : ", ") + name;
  }
  check<ValueError>(found != table.end(), "hidden_act '", hidden_act,
                    "' is not known; choose one of ", known);
  return found->second;
}

}  // namespace tapestry
