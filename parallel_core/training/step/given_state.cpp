#include "parallel_core/training/step/given_state.h"

#include <set>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

enum class StateOf : uint8_t { kWeights, kGradients };

void check_fits(const nn::Module& model,
                const LogicalState& state,
                const std::string& source,
                StateOf of) {
  nn::LoadReport report = compare_logical_state(model, state);
  std::set<std::string> not_needed;
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    not_needed.insert(entry.logical);
  }
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      if (of == StateOf::kGradients && !entry.parameter->requires_grad()) {
        not_needed.insert(logical.name);
      }
    }
  }
  std::erase_if(report.missing, [&](const std::string& name) { return not_needed.contains(name); });
  check<ValueError>(report.empty(), source, ": the ",
                    of == StateOf::kWeights ? "weights" : "gradients", " do not fit the model\n",
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
  check_fits(model, state, source, StateOf::kWeights);
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
  check_fits(model, state, source, StateOf::kGradients);
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
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
