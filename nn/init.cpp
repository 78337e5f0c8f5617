#include "nn/init.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/map.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::nn::init {

namespace {

void assign(const Tensor& values, const Tensor& t) {
  copy_values(values, t);
  t.bump_version();
}

// Root of a variance over a number of units; an empty weight counts as one.
double root_over(double variance, int64_t units) {
  return std::sqrt(variance / static_cast<double>(std::max<int64_t>(units, 1)));
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Inverse of the normal distribution function by bisection on the monotone function: 60 halvings of
// [-40, 40] reach double precision.
double normal_quantile(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace

void constant_(const Tensor& t, double value) {
  check_defined("constant_", t, "t");
  assign(full(t.shape(), value, t.dtype()), t);
}

void normal_(const Tensor& t, double mean, double std, const RandomSource& source) {
  check_defined("normal_", t, "t");
  assign(normal(mean, std, t.shape(), t.dtype(), source), t);
}

void uniform_(const Tensor& t, double low, double high, const RandomSource& source) {
  check_defined("uniform_", t, "t");
  assign(uniform(low, high, t.shape(), t.dtype(), source), t);
}

void trunc_normal_(
    const Tensor& t, double mean, double std, double low, double high, const RandomSource& source) {
  check_defined("trunc_normal_", t, "t");
  check<ValueError>(low < high, "trunc_normal_: the lower cut ", low,
                    " is not below the upper cut ", high);
  check<ValueError>(std >= 0, "trunc_normal_: std must not be negative, got ", std);
  // Above 0 the distribution function is too close to 1 to tell the cuts apart: mirrored.
  const double sign = low > 0 ? -1 : 1;
  const double from = low > 0 ? -high : low;
  const double to = low > 0 ? -low : high;
  const Tensor values = uniform(normal_cdf(from), normal_cdf(to), t.shape(), kFloat64, source);
  auto* data = values.data<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    data[i] = mean + sign * std * std::clamp(normal_quantile(data[i]), from, to);
  }
  assign(values, t);
}

Fans fans_of(const Tensor& weight) {
  check_defined("fans_of", weight, "weight");
  check<ValueError>(weight.dim() >= 2, "init: a weight needs at least two axes, got ",
                    describe(weight));
  int64_t field = 1;
  for (int64_t i = 2; i < weight.dim(); ++i) {
    field *= weight.size(i);
  }
  return {weight.size(1) * field, weight.size(0) * field};
}

void xavier_uniform_(const Tensor& weight, double gain, const RandomSource& source) {
  check_defined("xavier_uniform_", weight, "weight");
  const Fans fans = fans_of(weight);
  const double a = gain * root_over(6, fans.in + fans.out);
  uniform_(weight, -a, a, source);
}

void xavier_normal_(const Tensor& weight, double gain, const RandomSource& source) {
  check_defined("xavier_normal_", weight, "weight");
  const Fans fans = fans_of(weight);
  normal_(weight, 0, gain * root_over(2, fans.in + fans.out), source);
}

void kaiming_uniform_(const Tensor& weight, double gain, const RandomSource& source) {
  check_defined("kaiming_uniform_", weight, "weight");
  const double a = gain * root_over(3, fans_of(weight).in);
  uniform_(weight, -a, a, source);
}

void kaiming_normal_(const Tensor& weight, double gain, const RandomSource& source) {
  check_defined("kaiming_normal_", weight, "weight");
  normal_(weight, 0, gain * root_over(1, fans_of(weight).in), source);
}

}  // namespace tapestry::nn::init
