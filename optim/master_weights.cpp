#include "optim/master_weights.h"

#include <utility>

#include "autograd/kernels/optimizer.h"
#include "autograd/ops/map.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry::optim {

namespace {

// Its signs belong to the parameter's low bits where there are some (split_float32).
constexpr const char* kSecondMoment = "exp_avg_sq";

Tensor copy_as(DType dtype, const Tensor& x) {
  Tensor out = empty(x.shape(), dtype);
  copy_values(x, out);
  return out;
}

uint16_t* bits_of(const Tensor& low_bits) { return static_cast<uint16_t*>(low_bits.raw()); }

Tensor without_signs(const Tensor& x) { return map_unary("optimizer", kernels::UnaryOp::kAbs, x); }

bool has_marks(const std::string& state_name, const ParamState& state) {
  return state.low_bits.defined() && state_name == kSecondMoment;
}

}  // namespace

bool is_half(DType dtype) { return dtype == kFloat16 || dtype == kBFloat16; }

MasterWeights::MasterWeights(const StateStorage& storage) : storage_(storage) {
  for (const auto& [key, dtype] : {std::pair{"exp_avg_dtype", storage.exp_avg_dtype},
                                   std::pair{"exp_avg_sq_dtype", storage.exp_avg_sq_dtype}}) {
    check<ValueError>(dtype == kFloat32 || dtype == kBFloat16, "optimizer: ", key,
                      " must be float32 or bfloat16, got ", name_of(dtype));
  }
}

DType MasterWeights::state_dtype(const std::string& state_name, const Tensor& parameter) const {
  if (parameter.dtype() == kFloat64) {
    return kFloat64;
  }
  if (state_name == "exp_avg") {
    return storage_.exp_avg_dtype;
  }
  return state_name == kSecondMoment ? storage_.exp_avg_sq_dtype : kFloat32;
}

void MasterWeights::begin(const Tensor& parameter, ParamState& state) const {
  if (storage_.store_param_remainders && parameter.dtype() == kBFloat16) {
    add_low_bits(parameter, state);  // of values that are their upper half already: zeros
  } else {
    const MemoryKindGuard kind(MemoryKind::kOptimizer);
    state.main_param = copy_as(kFloat32, parameter);
  }
}

void MasterWeights::narrow(const Tensor& parameter, const Tensor& place, ParamState& state) const {
  const Tensor values = alias(parameter);
  set_data(parameter, place);
  if (storage_.store_param_remainders && place.dtype() == kBFloat16) {
    add_low_bits(parameter, state);
    split(values, parameter, state);
  } else {
    state.main_param = values;
    copy_values(values, parameter);
  }
}

void MasterWeights::keep_master(const Tensor& parameter,
                                const ParamState& old,
                                ParamState& state) const {
  if (!old.low_bits.defined()) {
    state.main_param = old.main_param;
    return;
  }
  const Tensor values = joined(parameter, old);
  if (!state.has_states) {
    add_low_bits(parameter, state);
  }
  state.low_bits = old.low_bits;
  split(values, parameter, state);
}

Tensor MasterWeights::values(const Tensor& parameter, const ParamState* state) const {
  if (state == nullptr) {
    return parameter;
  }
  if (state->low_bits.defined()) {
    return joined(parameter, *state);
  }
  return state->main_param.defined() ? state->main_param : parameter;
}

void MasterWeights::set_values(const Tensor& values,
                               const Tensor& parameter,
                               ParamState* state) const {
  if (state != nullptr && state->low_bits.defined()) {
    split(copy_as(kFloat32, values), parameter, *state);
  } else {
    if (state != nullptr && state->main_param.defined()) {
      copy_values(values, state->main_param);
    }
    copy_values(values, parameter);
  }
  parameter.bump_version();
}

void MasterWeights::set_states(std::map<std::string, Tensor> tensors,
                               const Tensor& parameter,
                               ParamState& state) const {
  const Tensor values = state.low_bits.defined() ? joined(parameter, state) : Tensor();
  state.has_states = true;
  state.tensors = std::move(tensors);
  if (values.defined()) {  // part of them lies in the signs of a moment
    split(values, parameter, state);
  }
}

Tensor MasterWeights::state_values(const std::string& state_name, const ParamState& state) const {
  const Tensor& stored = state.tensors.at(state_name);
  if (!is_half(stored.dtype()) && !has_marks(state_name, state)) {
    return stored;
  }
  Tensor out = copy_as(kFloat32, stored);
  return has_marks(state_name, state) ? without_signs(out) : out;
}

Tensor MasterWeights::stored_state(const std::string& state_name, const ParamState& state) const {
  const Tensor& stored = state.tensors.at(state_name);
  return has_marks(state_name, state) ? without_signs(stored) : stored;
}

void MasterWeights::add_low_bits(const Tensor& parameter, ParamState& state) const {
  const MemoryKindGuard kind(MemoryKind::kOptimizer);
  state.low_bits = zeros(parameter.shape(), kBFloat16);
  state.tensors[kSecondMoment] = zeros(parameter.shape(), state_dtype(kSecondMoment, parameter));
}

Tensor MasterWeights::joined(const Tensor& parameter, const ParamState& state) const {
  const Tensor& marks = state.tensors.at(kSecondMoment);
  Tensor out = empty(parameter.shape());
  kernels::join_float32(parameter.numel(), parameter.data<BFloat16>(), bits_of(state.low_bits),
                        marks.dtype(), marks.raw(), out.data<float>());
  return out;
}

void MasterWeights::split(const Tensor& values,
                          const Tensor& parameter,
                          const ParamState& state) const {
  const Tensor& marks = state.tensors.at(kSecondMoment);
  kernels::split_float32(parameter.numel(), values.data<float>(), parameter.data<BFloat16>(),
                         bits_of(state.low_bits), marks.dtype(), marks.raw());
}

}  // namespace tapestry::optim
