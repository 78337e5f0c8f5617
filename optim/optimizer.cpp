#include "optim/optimizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "autograd/kernels/optimizer.h"
#include "autograd/ops/map.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "nn/random_rows.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

namespace {

// Its signs belong to the parameter's low bits where there are some (split_float32).
constexpr const char* kSecondMoment = "exp_avg_sq";

bool is_half(DType dtype) { return dtype == kFloat16 || dtype == kBFloat16; }

Tensor copy_as(DType dtype, const Tensor& x) {
  Tensor out = empty(x.shape(), dtype);
  copy_values(x, out);
  return out;
}

// The statistics of a tensor's rows or columns.
Shape statistics_shape(StateExtent extent, const Shape& shape) {
  const int64_t axis = shape.size() - (extent == StateExtent::kRow ? 1 : 2);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < shape.size(); ++i) {
    if (i != axis) {
      sizes.push_back(shape[i]);
    }
  }
  return Shape(std::span<const int64_t>(sizes));
}

// A group's own number keeps its ratio to the optimizer's as the factor for schedules.
void take_default(GroupValue& own, double& factor, double of_optimizer) {
  if (!own) {
    own = of_optimizer * factor;
  } else if (*own == 0) {
    factor = 0;
  } else if (factor == 1 && of_optimizer != 0) {
    factor = *own / of_optimizer;
  }
}

uint16_t* bits_of(const Tensor& low_bits) { return static_cast<uint16_t*>(low_bits.raw()); }

}  // namespace

Optimizer::Optimizer(std::vector<ParamGroup> groups, GroupDefaults defaults, StateStorage storage)
    : groups_(std::move(groups)), defaults_(defaults), storage_(storage) {
  for (const auto& [key, dtype] : {std::pair{"exp_avg_dtype", storage.exp_avg_dtype},
                                   std::pair{"exp_avg_sq_dtype", storage.exp_avg_sq_dtype}}) {
    check<ValueError>(dtype == kFloat32 || dtype == kBFloat16, "optimizer: ", key,
                      " must be float32 or bfloat16, got ", name_of(dtype));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    register_group(g);
  }
  const bool may_be_empty = std::any_of(groups_.begin(), groups_.end(),
                                        [](const ParamGroup& group) { return group.may_be_empty; });
  check<ValueError>(may_be_empty || !slots_.empty(), "optimizer: no parameters");
}

// Checks group g, then gives its parameters their places and what they need before a first step.
void Optimizer::register_group(size_t g) {
  ParamGroup& group = groups_[g];
  std::set<const TensorImpl*> seen;
  for (const auto& [name, slot] : slots_) {  // a constructor calls this: type_name() is not there
    seen.insert(groups_[slot.group].params[slot.index].impl());
  }
  if (group.names.empty()) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      group.names.push_back(std::to_string(g) + "." + std::to_string(i));
    }
  }
  check<ValueError>(group.names.size() == group.params.size(), "optimizer: group ", g, " has ",
                    group.params.size(), " parameters and ", group.names.size(), " names");
  check_not_negative("optimizer", {{"lr of a group", group.lr.value_or(0)},
                                   {"weight_decay of a group", group.weight_decay.value_or(0)},
                                   {"lr_mult of a group", group.lr_mult},
                                   {"wd_mult of a group", group.wd_mult}});
  std::map<std::string, Slot> slots = slots_;
  for (size_t i = 0; i < group.params.size(); ++i) {
    const Tensor& p = group.params[i];
    check<ValueError>(p.defined() && p.is_contiguous() && p.is_leaf(), "optimizer: parameter '",
                      group.names[i], "' must be a contiguous leaf, got ", describe(p));
    check<TypeError>(is_floating(p.dtype()), "optimizer: parameter '", group.names[i], "' is ",
                     describe(p), "; only floating tensors are trained");
    check<ValueError>(seen.insert(p.impl()).second, "optimizer: parameter '", group.names[i],
                      "' appears twice");
    check<ValueError>(slots.emplace(group.names[i], Slot{g, i}).second, "optimizer: the name '",
                      group.names[i], "' appears twice");
  }
  slots_ = std::move(slots);
  take_default(group.lr, group.lr_mult, defaults_.lr);
  take_default(group.weight_decay, group.wd_mult, defaults_.weight_decay);
  for (size_t i = 0; i < group.params.size(); ++i) {
    const Tensor& parameter = group.params[i];
    if (!is_half(parameter.dtype())) {
      continue;
    }
    ParamState& state = states_[group.names[i]];
    if (storage_.store_param_remainders && parameter.dtype() == kBFloat16) {
      add_low_bits(parameter, state);  // of values that are their upper half already: zeros
    } else {
      const MemoryKindGuard kind(MemoryKind::kOptimizer);
      state.main_param = copy_as(kFloat32, parameter);
    }
  }
}

void Optimizer::add_param_group(ParamGroup group) {
  check<RuntimeError>(shards_ == nullptr, type_name(),
                      ": a group cannot be added where parameters are pieces of tensors");
  check_group(group);
  groups_.push_back(std::move(group));
  try {
    register_group(groups_.size() - 1);
  } catch (...) {
    groups_.pop_back();
    throw;
  }
}

Optimizer::~Optimizer() = default;

const Optimizer::Slot& Optimizer::slot_of(const std::string& name) const {
  const auto found = slots_.find(name);
  check<ValueError>(found != slots_.end(), type_name(), ": there is no parameter '", name, "'");
  return found->second;
}

void Optimizer::set_fixed(std::map<std::string, Tensor> parameters) {
  for (const auto& [name, parameter] : parameters) {
    check<ValueError>(!slots_.contains(name), type_name(), ": '", name,
                      "' is updated, so it is not fixed");
  }
  fixed_ = std::move(parameters);
}

Tensor Optimizer::parameter_of(const std::string& name) const {
  if (const auto fixed = fixed_.find(name); fixed != fixed_.end()) {
    const Tensor whole = fixed->second.detach();
    return shards_ == nullptr ? whole : whole.view({whole.numel()});
  }
  const Slot& slot = slot_of(name);
  return groups_[slot.group].params[slot.index];
}

const std::vector<nn::LogicalTensor>& Optimizer::logical_of(const std::string& name) const {
  std::vector<nn::LogicalTensor>& logical = logical_[name];
  if (logical.empty() && layout_ != nullptr) {
    logical = layout_->logical(name);
  }
  if (logical.empty()) {
    const Shape shape = shards_ == nullptr ? parameter_of(name).shape() : shards_->shape(name);
    const int64_t size = shape.numel();
    logical = {{.name = name, .shape = shape, .view_shape = {size}, .axis = 0, .end = size}};
  }
  return logical;
}

std::vector<Optimizer::StateEntry> Optimizer::state_entries(
    const std::string& parameter_name) const {
  if (is_fixed(parameter_name)) {
    return {};
  }
  const Slot& slot = slot_of(parameter_name);
  const std::vector<nn::LogicalTensor>& logical = logical_of(parameter_name);
  const bool is_matrix = logical.front().shape.size() >= 2;
  std::vector<StateEntry> entries;
  for (const StateKind& kind : state_kinds(groups_[slot.group], is_matrix)) {
    if (kind.extent == StateExtent::kElement) {
      entries.push_back({kind.name, kind.name, kind.extent, 0, own_part(parameter_name).shape});
      continue;
    }
    for (size_t i = 0; i < logical.size(); ++i) {
      entries.push_back({i == 0 ? kind.name : concat(kind.name, ".", i), kind.name, kind.extent, i,
                         statistics_shape(kind.extent, logical[i].shape)});
    }
  }
  return entries;
}

DType Optimizer::state_dtype(const std::string& state_name, const Tensor& parameter) const {
  if (parameter.dtype() == kFloat64) {
    return kFloat64;
  }
  if (state_name == "exp_avg") {
    return storage_.exp_avg_dtype;
  }
  return state_name == kSecondMoment ? storage_.exp_avg_sq_dtype : kFloat32;
}

void Optimizer::add_low_bits(const Tensor& parameter, ParamState& state) const {
  const MemoryKindGuard kind(MemoryKind::kOptimizer);
  state.low_bits = zeros(parameter.shape(), kBFloat16);
  state.tensors[kSecondMoment] = zeros(parameter.shape(), state_dtype(kSecondMoment, parameter));
}

void Optimizer::add_states(const std::string& name, ParamState& state) const {
  if (state.has_states) {
    return;
  }
  const MemoryKindGuard kind(MemoryKind::kOptimizer);
  const Tensor parameter = parameter_of(name);
  for (const StateEntry& entry : state_entries(name)) {
    const bool by_element = entry.extent == StateExtent::kElement;
    if (!state.tensors.contains(entry.key)) {
      state.tensors.emplace(entry.key, zeros(by_element ? parameter.shape() : entry.shape,
                                             state_dtype(entry.name, parameter)));
    }
  }
}

Tensor Optimizer::logical_state(const std::string& state_name, const ParamState& state) const {
  const Tensor& stored = state.tensors.at(state_name);
  const bool has_marks = state.low_bits.defined() && state_name == kSecondMoment;
  if (!is_half(stored.dtype()) && !has_marks) {
    return stored;
  }
  Tensor out = copy_as(kFloat32, stored);
  return has_marks ? map_unary("optimizer", kernels::UnaryOp::kAbs, out) : out;
}

Tensor Optimizer::joined(const Tensor& parameter, const ParamState& state) const {
  const Tensor& marks = state.tensors.at(kSecondMoment);
  Tensor out = empty(parameter.shape());
  kernels::join_float32(parameter.numel(), parameter.data<BFloat16>(), bits_of(state.low_bits),
                        marks.dtype(), marks.raw(), out.data<float>());
  return out;
}

void Optimizer::split(const Tensor& values,
                      const Tensor& parameter,
                      const ParamState& state) const {
  const Tensor& marks = state.tensors.at(kSecondMoment);
  kernels::split_float32(parameter.numel(), values.data<float>(), parameter.data<BFloat16>(),
                         bits_of(state.low_bits), marks.dtype(), marks.raw());
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
    state.numbers = nn::random_rows(name, logical_of(name), part.first, part.count);
  }
  return nn::in_stream(state.numbers, static_cast<uint64_t>(state.step));
}

void Optimizer::prepare(const Slot& slot, std::vector<Update>& updates) {
  const ParamGroup& group = groups_[slot.group];
  const Tensor& parameter = group.params[slot.index];
  const Tensor grad = parameter.grad();
  if (!grad.defined()) {
    return;
  }
  const std::string& name = group.names[slot.index];
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
  const std::vector<nn::LogicalTensor>& logical = logical_of(name);
  updates.push_back({.group = &group,
                     .values = has_master ? state.main_param : parameter,
                     .grad = dense(grad),
                     .copy = copy,
                     .state = &state,
                     .rounding = rounding_of(name, state),
                     .first = shards_ != nullptr ? shards_->first_element(name) : 0,
                     .logical = &logical,
                     .is_matrix = logical.front().shape.size() >= 2,
                     .slices = layout_ != nullptr ? layout_->slices_of(name) : nullptr,
                     .copies = layout_ != nullptr ? layout_->copies_of(name) : nullptr});
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
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g].params.size(); ++i) {
      prepare({g, i}, updates);
    }
  }
  run(updates, transform);
}

void Optimizer::step_parameter(const std::string& parameter_name, const GradTransform& transform) {
  std::vector<Update> updates;
  prepare(slot_of(parameter_name), updates);
  run(updates, transform);
}

Tensor Optimizer::own_main_param(const std::string& parameter_name) const {
  const Tensor parameter = parameter_of(parameter_name);
  const auto found = states_.find(parameter_name);
  if (found == states_.end()) {
    return parameter;
  }
  const ParamState& state = found->second;
  if (state.low_bits.defined()) {
    return joined(parameter, state);
  }
  return state.main_param.defined() ? state.main_param : parameter;
}

Tensor Optimizer::main_param(const std::string& parameter_name) const {
  if (const auto fixed = fixed_.find(parameter_name); fixed != fixed_.end()) {
    return fixed->second.detach();
  }
  const Tensor own = own_main_param(parameter_name);
  return shards_ == nullptr ? own : shards_->whole_of(parameter_name, own);
}

void Optimizer::set_main_param(const std::string& parameter_name, const Tensor& value) {
  const bool is_whole = shards_ == nullptr || is_fixed(parameter_name);
  check<ValueError>(!is_fixed(parameter_name) || value.defined(), type_name(),
                    ": no values are given for '", parameter_name, "'");
  if (is_fixed(parameter_name) && shards_ != nullptr) {
    set_own_main_param(parameter_name, dense(value).view({value.numel()}));
    return;
  }
  set_own_main_param(parameter_name, is_whole ? value : shards_->piece_of(parameter_name, value));
}

void Optimizer::set_own_main_param(const std::string& parameter_name, const Tensor& own) {
  const Tensor parameter = parameter_of(parameter_name);
  check<ValueError>(own.defined() && own.shape() == parameter.shape(), type_name(),
                    ": the values for '", parameter_name, "' are ", describe(own),
                    ", the parameter is ", describe(parameter));
  const auto found = states_.find(parameter_name);
  if (found != states_.end() && found->second.low_bits.defined()) {
    split(copy_as(kFloat32, own), parameter, found->second);
  } else {
    if (found != states_.end() && found->second.main_param.defined()) {
      copy_values(own, found->second.main_param);
    }
    copy_values(own, parameter);
  }
  parameter.bump_version();
}

void Optimizer::store_parameter_as(const std::string& parameter_name,
                                   DType dtype,
                                   const Tensor& place) {
  const Tensor parameter = parameter_of(parameter_name);
  check<TypeError>(parameter.dtype() == kFloat32 && is_half(dtype), type_name(), ": '",
                   parameter_name, "' is ", describe(parameter), "; only a float32 parameter can ",
                   "be stored as float16 or bfloat16, not one as ", name_of(dtype));
  const Tensor values = alias(parameter);
  Tensor narrow = place;
  if (!narrow.defined()) {
    const MemoryKindGuard kind(MemoryKind::kParameter);
    narrow = empty(parameter.shape(), dtype);
  }
  check<TypeError>(
      narrow.dtype() == dtype && narrow.shape() == parameter.shape() && narrow.is_contiguous(),
      type_name(), ": the place for '", parameter_name, "' is ", describe(narrow));
  set_data(parameter, narrow);
  ParamState& state = states_[parameter_name];
  if (storage_.store_param_remainders && dtype == kBFloat16) {
    add_low_bits(parameter, state);
    split(values, parameter, state);
  } else {
    state.main_param = values;
    copy_values(values, parameter);
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
  std::map<std::string, Tensor> out;
  const auto found = states_.find(parameter_name);
  if (found == states_.end() || !found->second.has_states) {
    return out;
  }
  for (const StateEntry& entry : state_entries(parameter_name)) {
    const Tensor own = logical_state(entry.key, found->second);
    const bool is_whole = shards_ == nullptr || entry.extent != StateExtent::kElement;
    out.emplace(entry.key, is_whole ? own : shards_->whole_of(parameter_name, own));
  }
  return out;
}

int64_t Optimizer::steps_done(const std::string& parameter_name) const {
  const auto found = states_.find(parameter_name);
  return found == states_.end() ? 0 : found->second.step;
}

Optimizer::OwnPart Optimizer::own_part(const std::string& parameter_name) const {
  const Tensor own = parameter_of(parameter_name);
  if (is_fixed(parameter_name)) {
    return {.shape = fixed_.at(parameter_name).shape(), .first = 0, .count = own.numel()};
  }
  if (shards_ == nullptr) {
    return {.shape = own.shape(), .first = 0, .count = own.numel()};
  }
  return {.shape = shards_->shape(parameter_name),
          .first = shards_->first_element(parameter_name),
          .count = own.numel()};
}

DType Optimizer::own_state_dtype(const std::string& parameter_name,
                                 const std::string& state_name) const {
  return state_dtype(state_name, parameter_of(parameter_name));
}

std::map<std::string, Tensor> Optimizer::own_state(const std::string& parameter_name) const {
  std::map<std::string, Tensor> out;
  const auto found = states_.find(parameter_name);
  if (found == states_.end() || !found->second.has_states) {
    return out;
  }
  for (const auto& [name, stored] : found->second.tensors) {
    const bool has_marks = found->second.low_bits.defined() && name == kSecondMoment;
    out.emplace(name, has_marks ? map_unary("optimizer", kernels::UnaryOp::kAbs, stored) : stored);
  }
  return out;
}

void Optimizer::set_own_state(const std::string& parameter_name,
                              int64_t updates,
                              const std::map<std::string, Tensor>& states) {
  const Tensor parameter = parameter_of(parameter_name);
  check<ValueError>(updates >= 0, type_name(), ": '", parameter_name, "' cannot have had ", updates,
                    " updates");
  const std::vector<StateEntry> entries = state_entries(parameter_name);
  check<ValueError>(states.size() == entries.size(), type_name(), ": '", parameter_name, "' has ",
                    entries.size(), " states, got ", states.size());
  ParamState loaded;
  for (const StateEntry& entry : entries) {
    const auto found = states.find(entry.key);
    const Shape& shape = entry.extent == StateExtent::kElement ? parameter.shape() : entry.shape;
    check<ValueError>(
        found != states.end() && found->second.defined() && found->second.numel() == shape.numel(),
        type_name(), ": the state ", entry.key, " of '", parameter_name, "' should have ",
        shape.numel(), " elements, got ",
        found == states.end() ? std::string("none") : describe(found->second));
    const MemoryKindGuard kind(MemoryKind::kOptimizer);
    const Tensor own = empty(shape, state_dtype(entry.name, parameter));
    copy_values(dense(found->second).view(own.shape()), own);
    loaded.tensors.emplace(entry.key, own);
  }
  if (is_fixed(parameter_name)) {
    return;  // of no states, that was all
  }
  ParamState& state = states_[parameter_name];
  const Tensor values = state.low_bits.defined() ? joined(parameter, state) : Tensor();
  state.step = updates;
  state.has_states = true;
  state.tensors = std::move(loaded.tensors);
  if (values.defined()) {  // part of them lies in the signs of a moment
    split(values, parameter, state);
  }
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
        for (const StateEntry& expected : state_entries(name)) {
          used.insert(name + "." + expected.key);
          has_state = has_state || state.contains(name + "." + expected.key);
        }
        if (has_state || state.contains(name + ".step")) {
          used.insert(name + ".step");
          report.missing.push_back(name + ".step");
        }
        continue;
      }
      used.insert(step->first);
      ParamState& entry = loaded[name];
      entry.has_states = true;
      if (step->second.numel() != 1) {
        report.mismatched.push_back({step->first, Shape{}, step->second.shape()});
      } else {
        entry.step = static_cast<int64_t>(step->second.item());
        check<ValueError>(entry.step >= 0, type_name(), ": ", step->first,
                          " must not be negative, got ", entry.step);
      }
      for (const StateEntry& expected : state_entries(name)) {
        const std::string key = name + "." + expected.key;
        used.insert(key);
        const auto found = find(key);
        if (found == state.end()) {
          report.missing.push_back(key);
          continue;
        }
        if (found->second.shape() != expected.shape) {
          report.mismatched.push_back({key, expected.shape, found->second.shape()});
          continue;
        }
        const bool is_whole = shards_ == nullptr || expected.extent != StateExtent::kElement;
        const Tensor value = is_whole ? found->second : shards_->piece_of(name, found->second);
        const MemoryKindGuard kind(MemoryKind::kOptimizer);
        const Tensor own = empty(value.shape(), state_dtype(expected.name, group.params[i]));
        copy_values(value, own);
        entry.tensors.emplace(expected.key, own);
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
  for (const auto& [name, old] : states_) {  // masters stay as they are
    if (old.low_bits.defined()) {
      const Tensor parameter = parameter_of(name);
      const Tensor values = joined(parameter, old);
      ParamState& entry = loaded[name];
      if (!entry.has_states) {
        add_low_bits(parameter, entry);
      }
      entry.low_bits = old.low_bits;
      split(values, parameter, entry);
    } else if (old.main_param.defined()) {
      loaded[name].main_param = old.main_param;
    }
  }
  states_ = std::move(loaded);
}

std::vector<ParamGroup> single_group(const TensorList& params,
                                     std::optional<double> lr,
                                     std::optional<double> weight_decay) {
  ParamGroup group;
  group.params = params;
  group.lr = lr;
  group.weight_decay = weight_decay;
  return {group};
}

}  // namespace tapestry::optim
