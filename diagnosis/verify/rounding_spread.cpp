#include "diagnosis/verify/rounding_spread.h"

#include <algorithm>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/generator.h"

namespace tapestry {

namespace {

constexpr double kFloat32Rounding = 0x1p-24;

double largest_rounding(DType dtype) {
  return dtype == kBFloat16 ? 0x1p-8 : (dtype == kFloat16 ? 0x1p-11 : kFloat32Rounding);
}

std::pair<Compared, ZeroGradient> kind_of(const Finding& f) {
  return {f.what == Compared::kGradNorm ? Compared::kLoss : f.what, f.zero_gradient};
}

}  // namespace

LogicalState moved_by_rounding(const LogicalState& weights, DType compute_dtype, uint64_t draw) {
  const NoGradGuard guard;
  const double step = largest_rounding(compute_dtype);
  const uint64_t one_in = compute_dtype == kFloat32 ? 1 : 12;
  LogicalState out;
  for (const auto& [name, value] : weights) {
    const uint64_t stream = combine(stream_of("rounding." + name), draw);
    Tensor moved = dense_copy(value.to(kFloat64));
    auto* w = moved.data<double>();
    for (int64_t i = 0; i < moved.numel(); ++i) {
      const uint64_t chance = combine(stream, static_cast<uint64_t>(i));
      if (chance % one_in == 0) {
        w[i] *= 1 + ((chance >> 63U) != 0 ? step : -step);
      }
    }
    out.emplace(name, moved.to(kFloat32));
  }
  return out;
}

void RoundingSpread::add(const Finding& finding) {
  double& largest = largest_[kind_of(finding)][finding.step];
  largest = std::max(largest, finding.distance);
}

double RoundingSpread::bound_of(const Finding& finding) const {
  double largest = kFloat32Rounding;
  if (const auto found = largest_.find(kind_of(finding)); found != largest_.end()) {
    for (const auto& [step, distance] : found->second) {
      largest = step <= finding.step ? std::max(largest, distance) : largest;
    }
  }
  return kMultiple * largest;
}

}  // namespace tapestry
