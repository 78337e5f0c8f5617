#include "optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "nn/random_rows.h"
#include "optim/state_reader.h"

namespace tapestry::optim {

Optimizer::Optimizer(std::vector<ParamGroup> groups, GroupDefaults defaults, StateStorage storage)
    : groups_(std::move(groups), defaults),
      places_(groups_, [this] { return type_name(); }),
      masters_(storage) {
  for (size_t g = 0; g < groups_.all().size(); ++g) {
    begin_masters(g);
  }
}

Optimizer::~Optimizer() = default;

void Optimizer::begin_masters(size_t group) {
  const ParamGroup& of = groups_.all()[group];
  for (size_t i = 0; i < of.params.size(); ++i) {
    if (is_half(of.params[i].dtype())) {
      masters_.begin(of.params[i], states_[of.names[i]]);
    }
  }
}

void Optimizer::add_param_group(ParamGroup group) {
  check<RuntimeError>(!updates_pieces(), type_name(),
                      ": a group cannot be added where parameters are pieces of tensors");
  check_group(group);
  groups_.add(std::move(group));
  begin_masters(groups_.all().size() - 1);
}

Optimizer::ParamState* Optimizer::find_state(const std::string& name) {
  const auto found = states_.find(name);
  return found == states_.end() ? nullptr : &found->second;
}

const Optimizer::ParamState* Optimizer::find_state(const std::string& name) const {
  const auto found = states_.find(name);
  return found == states_.end() ? nullptr : &found->second;
}

Optimizer::OwnPart Optimizer::own_part(const std::string& parameter_name) const {
  return places_.own_part(parameter_name);
}

std::vector<Optimizer::StateEntry> Optimizer::state_entries(
    const std::string& parameter_name) const {
  if (is_fixed(parameter_name)) {
    return {};
  }
  const ParamGroup& group = groups_.group(places_.slot_of(parameter_name));
  const bool is_matrix = places_.logical_of(parameter_name).front().shape.size() >= 2;
  return places_.entries(parameter_name, state_kinds(group, is_matrix));
}

void Optimizer::add_states(const std::string& name, ParamState& state) const {
  if (state.has_states) {
    return;
  }
  const MemoryKindGuard kind(MemoryKind::kOptimizer);
  const Tensor parameter = places_.parameter_of(name);
  for (const StateEntry& entry : state_entries(name)) {
    const bool by_element = entry.extent == StateExtent::kElement;
    if (!state.tensors.contains(entry.key)) {
      state.tensors.emplace(entry.key, zeros(by_element ? parameter.shape() : entry.shape,
                                             masters_.state_dtype(entry.name, parameter)));
    }
  }
}

// Of the step that the state counts.
std::vector<kernels::RandomRows> Optimizer::rounding_of(const std::string& name,
                                                        ParamState& state) const {
  const bool rounds = std::any_of(state.tensors.begin(), state.tensors.end(),
                                  [](const auto& entry) { return is_half(entry.second.dtype()); });
  if (!rounds) {
    return {};
  }
  if (state.numbers.empty()) {
    const OwnPart part = own_part(name);
    state.numbers = nn::random_rows(name, places_.logical_of(name), part.first, part.count);
  }
  return nn::in_stream(state.numbers, static_cast<uint64_t>(state.step));
}

void Optimizer::prepare(const ParamGroups::Slot& slot, std::vector<Update>& updates) {
  const Tensor& parameter = groups_.parameter(slot);
  const Tensor grad = parameter.grad();
  if (!grad.defined()) {
    return;
  }
  const std::string& name = groups_.name(slot);
  ParamState& state = states_[name];
  add_states(name, state);
  state.has_states = true;
  ++state.step;
  const bool has_master = state.main_param.defined();
  Tensor copy = has_master ? parameter : compute_copy_buffer(parameter);
  const bool fits = has_master || parameter.dtype() == kFloat32;
  if (copy.defined() && !(fits && is_half(copy.dtype()) && copy.is_contiguous())) {
    copy = Tensor();
  }
  const std::vector<nn::LogicalTensor>& logical = places_.logical_of(name);
  updates.push_back({.group = &groups_.group(slot),
                     .values = has_master ? state.main_param : parameter,
                     .grad = dense(grad),
                     .copy = copy,
                     .state = &state,
                     .rounding = rounding_of(name, state),
                     .first = places_.first_element(name),
                     .logical = &logical,
                     .is_matrix = logical.front().shape.size() >= 2,
                     .slices = places_.slices_of(name),
                     .copies = places_.copies_of(name)});
}

void Optimizer::run(const std::vector<Update>& updates, const GradTransform& transform) {
  update(updates, transform);
  for (const Update& u : updates) {
    const bool has_master = u.state->main_param.defined();
    (has_master ? u.copy : u.values).bump_version();
    if (!has_master && u.copy.defined()) {
      set_compute_copy(u.values, u.copy);
    }
  }
}

void Optimizer::step(const GradTransform& transform) {
  std::vector<Update> updates;
  for (const ParamGroups::Slot& slot : groups_.slots()) {
    prepare(slot, updates);
  }
  run(updates, transform);
}

void Optimizer::step_parameter(const std::string& parameter_name, const GradTransform& transform) {
  std::vector<Update> updates;
  prepare(places_.slot_of(parameter_name), updates);
  run(updates, transform);
}

void Optimizer::zero_grad() {
  for (const ParamGroup& group : groups_.all()) {
    for (const Tensor& parameter : group.params) {
      if (const Tensor buffer = parameter.main_grad(); buffer.defined()) {
        copy_values(broadcast_view(scalar(0, buffer.dtype()), buffer.shape()), buffer);
      } else {
        parameter.set_grad({});
      }
    }
  }
}

Tensor Optimizer::own_main_param(const std::string& parameter_name) const {
  return masters_.values(places_.parameter_of(parameter_name), find_state(parameter_name));
}

Tensor Optimizer::main_param(const std::string& parameter_name) const {
  if (is_fixed(parameter_name)) {
    return places_.fixed_value(parameter_name);
  }
  return places_.whole_of(parameter_name, own_main_param(parameter_name), StateExtent::kElement);
}

void Optimizer::set_main_param(const std::string& parameter_name, const Tensor& value) {
  if (!is_fixed(parameter_name)) {
    const Tensor own =
        updates_pieces() ? places_.piece_of(parameter_name, value, StateExtent::kElement) : value;
    set_own_main_param(parameter_name, own);
    return;
  }
  check<ValueError>(value.defined(), type_name(), ": no values are given for '", parameter_name,
                    "'");
  set_own_main_param(parameter_name, updates_pieces() ? dense(value).view({value.numel()}) : value);
}

void Optimizer::set_own_main_param(const std::string& parameter_name, const Tensor& own) {
  const Tensor parameter = places_.parameter_of(parameter_name);
  check<ValueError>(own.defined() && own.shape() == parameter.shape(), type_name(),
                    ": the values for '", parameter_name, "' are ", describe(own),
                    ", the parameter is ", describe(parameter));
  masters_.set_values(own, parameter, find_state(parameter_name));
}

void Optimizer::store_parameter_as(const std::string& parameter_name,
                                   DType dtype,
                                   const Tensor& place) {
  const Tensor parameter = places_.parameter_of(parameter_name);
  check<TypeError>(parameter.dtype() == kFloat32 && is_half(dtype), type_name(), ": '",
                   parameter_name, "' is ", describe(parameter), "; only a float32 parameter can ",
                   "be stored as float16 or bfloat16, not one as ", name_of(dtype));
  Tensor narrow = place;
  if (!narrow.defined()) {
    const MemoryKindGuard kind(MemoryKind::kParameter);
    narrow = empty(parameter.shape(), dtype);
  }
  check<TypeError>(
      narrow.dtype() == dtype && narrow.shape() == parameter.shape() && narrow.is_contiguous(),
      type_name(), ": the place for '", parameter_name, "' is ", describe(narrow));
  masters_.narrow(parameter, narrow, states_[parameter_name]);
}

std::map<std::string, Tensor> Optimizer::state(const std::string& parameter_name) const {
  std::map<std::string, Tensor> out;
  const ParamState* found = find_state(parameter_name);
  if (found == nullptr || !found->has_states) {
    return out;
  }
  for (const StateEntry& entry : state_entries(parameter_name)) {
    const Tensor own = masters_.state_values(entry.key, *found);
    out.emplace(entry.key, places_.whole_of(parameter_name, own, entry.extent));
  }
  return out;
}

int64_t Optimizer::steps_done(const std::string& parameter_name) const {
  const ParamState* found = find_state(parameter_name);
  return found == nullptr ? 0 : found->step;
}

DType Optimizer::own_state_dtype(const std::string& parameter_name,
                                 const std::string& state_name) const {
  return masters_.state_dtype(state_name, places_.parameter_of(parameter_name));
}

std::map<std::string, Tensor> Optimizer::own_state(const std::string& parameter_name) const {
  std::map<std::string, Tensor> out;
  const ParamState* found = find_state(parameter_name);
  if (found == nullptr || !found->has_states) {
    return out;
  }
  for (const auto& [name, stored] : found->tensors) {
    out.emplace(name, masters_.stored_state(name, *found));
  }
  return out;
}

void Optimizer::set_own_state(const std::string& parameter_name,
                              int64_t updates,
                              const std::map<std::string, Tensor>& states) {
  const Tensor parameter = places_.parameter_of(parameter_name);
  check<ValueError>(updates >= 0, type_name(), ": '", parameter_name, "' cannot have had ", updates,
                    " updates");
  const std::vector<StateEntry> entries = state_entries(parameter_name);
  check<ValueError>(states.size() == entries.size(), type_name(), ": '", parameter_name, "' has ",
                    entries.size(), " states, got ", states.size());
  std::map<std::string, Tensor> loaded;
  for (const StateEntry& entry : entries) {
    const auto found = states.find(entry.key);
    const Shape& shape = entry.extent == StateExtent::kElement ? parameter.shape() : entry.shape;
    check<ValueError>(
        found != states.end() && found->second.defined() && found->second.numel() == shape.numel(),
        type_name(), ": the state ", entry.key, " of '", parameter_name, "' should have ",
        shape.numel(), " elements, got ",
        found == states.end() ? std::string("none") : describe(found->second));
    const MemoryKindGuard kind(MemoryKind::kOptimizer);
    const Tensor own = empty(shape, masters_.state_dtype(entry.name, parameter));
    copy_values(dense(found->second).view(own.shape()), own);
    loaded.emplace(entry.key, own);
  }
  if (is_fixed(parameter_name)) {
    return;  // of no states, that was all
  }
  ParamState& state = states_[parameter_name];
  state.step = updates;
  masters_.set_states(std::move(loaded), parameter, state);
}

nn::StateDict Optimizer::state_dict() const {
  nn::StateDict out;
  for (const auto& [name, own] : states_) {
    if (!own.has_states) {
      continue;
    }
    for (const auto& [state_name, tensor] : state(name)) {
      out.emplace(name + "." + state_name, tensor);
    }
    out.emplace(name + ".step", full({}, static_cast<double>(own.step), kInt64));
  }
  return out;
}

void Optimizer::load_state_dict(const nn::StateDict& state) {
  StateReader reader(state, places_, masters_, type_name());
  for (const ParamGroups::Slot& slot : groups_.slots()) {
    const std::string& name = groups_.name(slot);
    reader.read(name, state_entries(name));
  }
  std::map<std::string, ParamState> loaded = reader.take();
  for (const auto& [name, old] : states_) {  // masters stay as they are
    if (old.low_bits.defined() || old.main_param.defined()) {
      masters_.keep_master(places_.parameter_of(name), old, loaded[name]);
    }
  }
  states_ = std::move(loaded);
}

}  // namespace tapestry::optim
