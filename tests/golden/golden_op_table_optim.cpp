// Clipping and the optimizer's update.
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "optim/adam.h"
#include "optim/grad_clip.h"
#include "tests/golden/golden_op_table.h"

namespace tapestry::golden {

void add_optimizer(OpTable& table) {
  table["clip_norm"] = [](const NamedTensors& x, const Attributes& attrs) {
    const TensorList gradients = values_of(x);
    const double norm = optim::clip_grad_norm(gradients, attrs.number("max_norm"));
    NamedTensors out{{"total_norm", scalar(norm, in(x, 0).dtype())}};
    for (const auto& [name, gradient] : x) {
      out.emplace_back("clipped." + name, gradient);
    }
    return out;
  };
  // The first input is the parameter, the others the gradients of one step each.
  table["adamw"] = [](const NamedTensors& x, const Attributes& attrs) {
    const Tensor p = in(x, 0);
    p.set_requires_grad();
    optim::AdamW optimizer({p}, {.lr = attrs.number("lr"),
                                 .beta1 = attrs.number("beta1"),
                                 .beta2 = attrs.number("beta2"),
                                 .eps = attrs.number("eps"),
                                 .weight_decay = attrs.number("weight_decay")});
    NamedTensors out;
    for (size_t t = 1; t < x.size(); ++t) {
      p.set_grad(in(x, t));
      optimizer.step();
      out.emplace_back("p_after_" + std::to_string(t), clone(p.detach()));
    }
    const std::string name = optimizer.param_groups().at(0).names.at(0);
    for (const auto& [state, value] : optimizer.state(name)) {
      out.emplace_back(state, value);
    }
    return out;
  };
}

}  // namespace tapestry::golden
