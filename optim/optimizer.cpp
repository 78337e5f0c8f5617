#include "optim/optimizer.h"

#include <set>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry::optim {

Optimizer::Optimizer(std::vector<ParamGroup> groups) : groups_(std::move(groups)) {
  std::set<const TensorImpl*> seen;
  std::set<std::string> names;
  for (size_t g = 0; g < groups_.size(); ++g) {
    ParamGroup& group = groups_[g];
    if (group.names.empty()) {
      for (size_t i = 0; i < group.params.size(); ++i) {
        group.names.push_back(std::to_string(g) + "." + std::to_string(i));
      }
    }
    check<ValueError>(group.names.size() == group.params.size(), "optimizer: group ", g, " has ",
                      group.params.size(), " parameters and ", group.names.size(), " names");
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& p = group.params[i];
      check<ValueError>(p.defined() && p.is_contiguous() && p.is_leaf(), "optimizer: parameter '",
                        group.names[i], "' must be a contiguous leaf, got ", describe(p));
      check<TypeError>(p.dtype() == kFloat32 || p.dtype() == kFloat64, "optimizer: parameter '",
                       group.names[i], "' is ", describe(p),
                       "; train a float32 copy of 16-bit weights");
      check<ValueError>(seen.insert(p.impl()).second, "optimizer: parameter '", group.names[i],
                        "' appears twice");
      check<ValueError>(names.insert(group.names[i]).second, "optimizer: the name '",
                        group.names[i], "' appears twice");
    }
  }
  check<ValueError>(!seen.empty(), "optimizer: no parameters");
}

Optimizer::~Optimizer() = default;

Optimizer::ParamState& Optimizer::state_of(const std::string& name, const Tensor& parameter) {
  const auto [entry, is_new] = states_.try_emplace(name);
  if (is_new) {
    const MemoryKindGuard kind(MemoryKind::kOptimizer);
    for (const std::string& state_name : state_names()) {
      entry->second.tensors.emplace(state_name, zeros_like(parameter));
    }
  }
  return entry->second;
}

void Optimizer::step(double grad_scale) {
  for (const ParamGroup& group : groups_) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& parameter = group.params[i];
      const Tensor grad = parameter.grad();
      if (!grad.defined()) {
        continue;
      }
      ParamState& state = state_of(group.names[i], parameter);
      ++state.step;
      update(group, parameter, dense(grad), grad_scale, state);
      parameter.bump_version();
    }
  }
}

void Optimizer::zero_grad() {
  for (const ParamGroup& group : groups_) {
    for (const Tensor& parameter : group.params) {
      if (const Tensor buffer = parameter.main_grad(); buffer.defined()) {
        copy_values(broadcast_view(scalar(0, buffer.dtype()), buffer.shape()), buffer);
      } else {
        parameter.set_grad({});
      }
    }
  }
}

std::map<std::string, Tensor> Optimizer::state(const std::string& parameter_name) const {
  const auto found = states_.find(parameter_name);
  return found == states_.end() ? std::map<std::string, Tensor>() : found->second.tensors;
}

int64_t Optimizer::steps_done(const std::string& parameter_name) const {
  const auto found = states_.find(parameter_name);
  return found == states_.end() ? 0 : found->second.step;
}

nn::StateDict Optimizer::state_dict() const {
  nn::StateDict out;
  for (const auto& [name, state] : states_) {
    for (const auto& [state_name, tensor] : state.tensors) {
      out.emplace(name + "." + state_name, tensor);
    }
    out.emplace(name + ".step", full({}, static_cast<double>(state.step), kInt64));
  }
  return out;
}

void Optimizer::load_state_dict(const nn::StateDict& state) {
  std::map<std::string, ParamState> loaded;
  nn::LoadReport report;
  std::set<std::string> used;
  const auto find = [&](const std::string& key) {  // an undefined tensor counts as none
    const auto found = state.find(key);
    return found != state.end() && found->second.defined() ? found : state.end();
  };
  for (const ParamGroup& group : groups_) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      const std::string& name = group.names[i];
      const auto step = find(name + ".step");
      if (step == state.end()) {
        // Without a step the parameter has never been updated: it must have no state at all.
        bool has_state = false;
        for (const std::string& state_name : state_names()) {
          used.insert(name + "." + state_name);
          has_state = has_state || state.contains(name + "." + state_name);
        }
        if (has_state || state.contains(name + ".step")) {
          used.insert(name + ".step");
          report.missing.push_back(name + ".step");
        }
        continue;
      }
      used.insert(step->first);
      ParamState& entry = loaded[name];
      if (step->second.numel() != 1) {
        report.mismatched.push_back({step->first, Shape{}, step->second.shape()});
      } else {
        entry.step = static_cast<int64_t>(step->second.item());
        check<ValueError>(entry.step >= 0, type_name(), ": ", step->first,
                          " must not be negative, got ", entry.step);
      }
      for (const std::string& state_name : state_names()) {
        const std::string key = name + "." + state_name;
        used.insert(key);
        const auto found = find(key);
        if (found == state.end()) {
          report.missing.push_back(key);
          continue;
        }
        if (found->second.shape() != group.params[i].shape()) {
          report.mismatched.push_back({key, group.params[i].shape(), found->second.shape()});
          continue;
        }
        const MemoryKindGuard kind(MemoryKind::kOptimizer);
        const Tensor own = empty_like(group.params[i]);
        copy_values(found->second, own);
        entry.tensors.emplace(state_name, own);
      }
    }
  }
  for (const auto& [key, tensor] : state) {
    if (!used.contains(key)) {
      report.unexpected.push_back(key);
    }
  }
  check<ValueError>(report.empty(), type_name(), ": the state does not fit the parameters\n",
                    report.str());
  states_ = std::move(loaded);
}

std::vector<ParamGroup> single_group(const TensorList& params, double lr, double weight_decay) {
  ParamGroup group;
  group.params = params;
  group.lr = lr;
  group.weight_decay = weight_decay;
  return {group};
}

}  // namespace tapestry::optim
