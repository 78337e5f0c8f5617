#include "nn/init.h"

#include <cmath>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::nn::init {

namespace {

void assign(const Tensor& values, const Tensor& t) {
  copy_values(values, t);
  t.bump_version();
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

void constant_(const Tensor& t, double value) { assign(full(t.shape(), value, t.dtype()), t); }

void normal_(const Tensor& t, double mean, double std, const RandomSource& source) {
  assign(normal(mean, std, t.shape(), t.dtype(), source), t);
}

void uniform_(const Tensor& t, double low, double high, const RandomSource& source) {
  assign(uniform(low, high, t.shape(), t.dtype(), source), t);
}

void trunc_normal_(
    const Tensor& t, double mean, double std, double low, double high, const RandomSource& source) {
  check<ValueError>(low < high, "trunc_normal_: the lower cut ", low,
                    " is not below the upper cut ", high);
  const Tensor values = uniform(normal_cdf(low), normal_cdf(high), t.shape(), kFloat64, source);
  auto* data = values.data<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    data[i] = mean + std * std::min(std::max(normal_quantile(data[i]), low), high);
  }
  assign(values, t);
}

Fans fans_of(const Tensor& weight) {
  check<ValueError>(weight.dim() >= 2, "init: a weight needs at least two axes, got ",
                    describe(weight));
  int64_t field = 1;
  for (int64_t i = 2; i < weight.dim(); ++i) {
    field *= weight.size(i);
  }
  return {weight.size(1) * field, weight.size(0) * field};
}

void xavier_uniform_(const Tensor& weight, double gain, const RandomSource& source) {
  const Fans fans = fans_of(weight);
  const double a = gain * std::sqrt(6.0 / static_cast<double>(fans.in + fans.out));
  uniform_(weight, -a, a, source);
}

void xavier_normal_(const Tensor& weight, double gain, const RandomSource& source) {
  const Fans fans = fans_of(weight);
  normal_(weight, 0, gain * std::sqrt(2.0 / static_cast<double>(fans.in + fans.out)), source);
}

void kaiming_uniform_(const Tensor& weight, double gain, const RandomSource& source) {
  const double a = gain * std::sqrt(3.0 / static_cast<double>(fans_of(weight).in));
  uniform_(weight, -a, a, source);
}

void kaiming_normal_(const Tensor& weight, double gain, const RandomSource& source) {
  normal_(weight, 0, gain / std::sqrt(static_cast<double>(fans_of(weight).in)), source);
}

}  // namespace tapestry::nn::init
