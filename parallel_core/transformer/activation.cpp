#include "parallel_core/transformer/activation.h"

#include <map>

#include "autograd/ops/activation.h"
#include "autograd/tensor/error.h"

namespace tapestry {

bool is_gated(const std::string& hidden_act) {
  return hidden_act == "swiglu" || hidden_act == "fused_swiglu";
}

Activation get_act_func(const std::string& hidden_act, bool fused) {
  struct Forms {
    Activation fused;
    Activation composed;
  };
  static const Forms kSwiglu = {[](const Tensor& x) { return swiglu(x); },
                                [](const Tensor& x) { return composed_swiglu(x); }};
  static const std::map<std::string, Forms> table = {
      {"gelu", {gelu, composed_gelu}},
      {"fast_gelu", {gelu_tanh, composed_gelu_tanh}},
      {"relu", {relu, relu}},
      {"silu", {silu, composed_silu}},
      {"squared_relu", {squared_relu, squared_relu}},
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
  return fused ? found->second.fused : found->second.composed;
}

}  // namespace tapestry
