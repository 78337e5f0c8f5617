#include "autograd/kernels/optimizer.h"

#include <cassert>
#include <cmath>
#include <vector>

#include "autograd/kernels/machine/element_ranges.h"
#include "autograd/kernels/optimizer_constants.h"

namespace tapestry::kernels {

namespace {

// Where some are needed, the first element has random numbers, and so have all.
[[maybe_unused]] bool has_numbers(int64_t n, std::span<const RandomRows> rounding, bool needed) {
  return n == 0 || !needed || (!rounding.empty() && rounding.front().begin == 0);
}

[[maybe_unused]] bool is_valid(const AdamTensor& t) {
  const bool split = t.param_dtype == kBFloat16 && t.low_bits != nullptr;
  const DType compute = t.param_dtype == kFloat64 ? kFloat64 : kFloat32;
  const auto moment = [&](DType dtype) {
    return dtype == compute || (dtype == kBFloat16 && compute == kFloat32);
  };
  return (split || t.param_dtype == compute) && is_floating(t.grad_dtype) &&
         moment(t.exp_avg_dtype) && moment(t.exp_avg_sq_dtype) && t.step >= 1 &&
         has_numbers(t.n, t.rounding,
                     t.exp_avg_dtype != compute || t.exp_avg_sq_dtype != compute) &&
         (t.copy == nullptr || compute == kFloat32);
}

[[maybe_unused]] bool is_valid(const SgdTensor& t) {
  return (t.param_dtype == kFloat32 || t.param_dtype == kFloat64) && is_floating(t.grad_dtype) &&
         (t.copy == nullptr || t.param_dtype == kFloat32);
}

[[maybe_unused]] bool is_valid(const LionTensor& t) {
  const DType compute = t.param_dtype == kFloat64 ? kFloat64 : kFloat32;
  return t.param_dtype == compute && is_floating(t.grad_dtype) &&
         (t.exp_avg_dtype == compute || (t.exp_avg_dtype == kBFloat16 && compute == kFloat32)) &&
         has_numbers(t.n, t.rounding, t.exp_avg_dtype != compute) &&
         (t.copy == nullptr || compute == kFloat32);
}

AdamConstants constants_of(const AdamTensor& t, const AdamSettings& s) {
  const auto count = static_cast<double>(t.step);
  return {
      .grad_scale = s.grad_scale,
      .grad_limit = s.grad_limit,
      .coupled_decay = s.decoupled ? 0.0 : t.weight_decay,
      .decoupled_decay = s.decoupled ? t.lr * t.weight_decay : 0.0,
      .beta1 = s.beta1,
      .rest1 = 1.0 - s.beta1,
      .beta2 = s.beta2,
      .rest2 = 1.0 - s.beta2,
      .step_size = t.lr / (1.0 - std::pow(s.beta1, count)),
      .root_scale = 1.0 / std::sqrt(1.0 - std::pow(s.beta2, count)),
      .eps = s.eps,
      .seed = s.seed,
  };
}

SgdConstants constants_of(const SgdTensor& t, const SgdSettings& s) {
  return {
      .grad_scale = s.grad_scale,
      .grad_limit = s.grad_limit,
      .decay = t.weight_decay,
      .keep = s.momentum,
      .take = 1.0 - s.dampening,
      .from_grad = s.nesterov ? 1.0 : 0.0,
      .from_buffer = s.nesterov ? s.momentum : 1.0,
      .lr = t.lr,
  };
}

LionConstants constants_of(const LionTensor& t, const LionSettings& s) {
  return {
      .grad_scale = s.grad_scale,
      .grad_limit = s.grad_limit,
      .decay = t.lr * t.weight_decay,
      .beta1 = s.beta1,
      .rest1 = 1.0 - s.beta1,
      .beta2 = s.beta2,
      .rest2 = 1.0 - s.beta2,
      .lr = t.lr,
      .seed = s.seed,
  };
}

}  // namespace

void adamw(std::span<const AdamTensor> tensors, const AdamSettings& settings) {
  std::vector<AdamConstants> constants;
  for (const AdamTensor& t : tensors) {
    assert(is_valid(t));
    constants.push_back(constants_of(t, settings));
  }
  const auto run = TAPESTRY_DISPATCH(adamw_range);
  for_all_elements(tensors, [&](size_t i, int64_t begin, int64_t end) {
    run(tensors[i], constants[i], begin, end);
  });
}

void sgd(std::span<const SgdTensor> tensors, const SgdSettings& settings) {
  std::vector<SgdConstants> constants;
  for (const SgdTensor& t : tensors) {
    assert(is_valid(t));
    constants.push_back(constants_of(t, settings));
  }
  const auto run = TAPESTRY_DISPATCH(sgd_range);
  for_all_elements(tensors, [&](size_t i, int64_t begin, int64_t end) {
    run(tensors[i], constants[i], begin, end);
  });
}

void lion(std::span<const LionTensor> tensors, const LionSettings& settings) {
  std::vector<LionConstants> constants;
  for (const LionTensor& t : tensors) {
    assert(is_valid(t));
    constants.push_back(constants_of(t, settings));
  }
  const auto run = TAPESTRY_DISPATCH(lion_range);
  for_all_elements(tensors, [&](size_t i, int64_t begin, int64_t end) {
    run(tensors[i], constants[i], begin, end);
  });
}

void muon_momentum(std::span<const MuonMomentum> tensors, const MuonSettings& settings) {
  const auto run = TAPESTRY_DISPATCH(momentum_range);
  for_all_elements(tensors, [&](size_t i, int64_t begin, int64_t end) {
    run(tensors[i], settings, begin, end);
  });
}

void muon_apply(std::span<const MuonApply> tensors) {
  const auto run = TAPESTRY_DISPATCH(apply_range);
  for_all_elements(tensors,
                   [&](size_t i, int64_t begin, int64_t end) { run(tensors[i], begin, end); });
}

void split_float32(int64_t n,
                   const float* x,
                   BFloat16* high,
                   uint16_t* low_bits,
                   DType exp_avg_sq_dtype,
                   void* exp_avg_sq) {
  assert(exp_avg_sq_dtype == kFloat32 || exp_avg_sq_dtype == kBFloat16);
  const auto run = TAPESTRY_DISPATCH(split_range);
  for_elements(n, [&](int64_t begin, int64_t end) {
    run(begin, end, x, high, low_bits, exp_avg_sq_dtype, exp_avg_sq);
  });
}

void join_float32(int64_t n,
                  const BFloat16* high,
                  const uint16_t* low_bits,
                  DType exp_avg_sq_dtype,
                  const void* exp_avg_sq,
                  float* x) {
  assert(exp_avg_sq_dtype == kFloat32 || exp_avg_sq_dtype == kBFloat16);
  const auto run = TAPESTRY_DISPATCH(join_range);
  for_elements(n, [&](int64_t begin, int64_t end) {
    run(begin, end, high, low_bits, exp_avg_sq_dtype, exp_avg_sq, x);
  });
}

void add_stochastic(DType dtype,
                    int64_t n,
                    const void* x,
                    uint64_t seed,
                    std::span<const RandomRows> rounding,
                    BFloat16* sum) {
  assert(is_floating(dtype) && has_numbers(n, rounding, true));
  const auto run = TAPESTRY_DISPATCH(add_stochastic_range);
  for_elements(n, [&](int64_t begin, int64_t end) {
    run(dtype, begin, end, x, seed, rounding.data(), std::ssize(rounding), sum);
  });
}

}  // namespace tapestry::kernels
