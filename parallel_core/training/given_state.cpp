#include "parallel_core/training/given_state.h"

#include <set>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

void check_fits(const nn::Module& model,
                const LogicalState& state,
                const std::string& source,
                const char* what) {
  nn::LoadReport report = compare_logical_state(model, state);
  std::set<std::string> buffers;
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    buffers.insert(entry.logical);
  }
  std::erase_if(report.missing, [&](const std::string& name) { return buffers.contains(name); });
  check<ValueError>(report.empty(), source, ": the ", what, " do not fit the model\n",
                    report.str());
}

// This rank's slices of the logical tensors that a parameter is made of.
Tensor parameter_of(const nn::Parameter& parameter, const Shape& shape, const LogicalState& state) {
  Tensor out = zeros(shape);
  for (const nn::LogicalTensor& logical : parameter.logical()) {
    const Tensor piece = logical.view_of(out);
    copy_values(dense(logical.slice_of(state.at(logical.name))).view(piece.shape()), piece);
  }
  return out;
}

Tensor elements(const Tensor& whole, int64_t first, int64_t count) {
  return alias(whole, {count}, {1}, first);
}

}  // namespace

void set_weights(const nn::Module& model,
                 optim::Optimizer& optimizer,
                 const LogicalState& state,
                 const std::string& source) {
  check_fits(model, state, source, "weights");
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const optim::Optimizer::OwnPart part = optimizer.own_part(entry.name);
    const Tensor whole = parameter_of(*entry.parameter, part.shape, state);
    optimizer.set_own_main_param(
        entry.name, optimizer.updates_pieces()
                        ? dense_copy(elements(whole, part.count > 0 ? part.first : 0, part.count))
                        : whole);
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    const auto found = state.find(entry.logical);
    if (found != state.end()) {
      copy_values(found->second, entry.buffer);
    }
  }
}

void set_gradients(const nn::Module& model,
                   ModelGradients& gradients,
                   const LogicalState& state,
                   const std::string& source) {
  check_fits(model, state, source, "gradients");
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const ModelGradients::Held held = gradients.held_gradient(entry);
    if (!held.elements.defined() || held.elements.numel() == 0) {
      continue;
    }
    const int64_t count = held.elements.numel();
    const Tensor whole = parameter_of(*entry.parameter, entry.parameter->shape(), state);
    copy_values(elements(whole, held.first, count),
                alias(held.elements, {count}, {1}, held.elements.offset()));
  }
  gradients.scale(1);  // what was measured on the way is no longer theirs
}

}  // namespace tapestry
