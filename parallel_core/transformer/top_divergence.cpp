#include "parallel_core/transformer/top_divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapestry {

namespace {

constexpr double kLargestLogSum = -1e-7;  // TRL's: keeps the rest's probability above 0

bool is_known(float log_prob) { return log_prob > -std::numeric_limits<float>::infinity(); }

// One entry of the two distributions: its term, and the gradient for the own log-probability.
struct Term {
  double value = 0;
  double gradient = 0;
};

Term term_of(double own, double teacher, double beta) {
  const double p = std::exp(own);
  const double q = std::exp(teacher);
  if (beta == 0) {
    return {q > 0 ? q * (teacher - own) : 0, -q};
  }
  if (beta == 1) {
    return p > 0 ? Term{p * (own - teacher), p * (own - teacher + 1)} : Term{};
  }
  const double mixture = (1 - beta) * p + beta * q;
  if (mixture == 0) {
    return {};
  }
  const double log_m = std::log(mixture);
  const double mine = p > 0 ? (1 - beta) * p * (own - log_m) : 0;
  return {mine + (q > 0 ? beta * q * (teacher - log_m) : 0), mine};
}

template <class T>
double log_sum_of(std::span<const T> values, std::span<const float> known) {
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t j = 0; j < values.size(); ++j) {
    largest = is_known(known[j]) ? std::max(largest, static_cast<double>(values[j])) : largest;
  }
  if (std::isinf(largest)) {
    return largest;
  }
  double sum = 0;
  for (size_t j = 0; j < values.size(); ++j) {
    sum += is_known(known[j]) ? std::exp(static_cast<double>(values[j]) - largest) : 0;
  }
  return largest + std::log(sum);
}

double log_of_rest(double log_sum) {
  return std::log(-std::expm1(std::min(log_sum, kLargestLogSum)));
}

}  // namespace

double top_divergence(std::span<const double> own,
                      std::span<const float> teacher,
                      const TopDivergenceOptions& options,
                      std::span<float> gradient) {
  const double own_sum = log_sum_of(own, teacher);
  const double teacher_sum = log_sum_of(teacher, teacher);
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  const auto known = std::count_if(teacher.begin(), teacher.end(), is_known);
  const bool has_tail = options.add_tail && known < options.vocabulary;
  if (known == 0 || (known == 1 && !has_tail)) {
    return 0;  // one entry alone has all of the probability
  }
  double total = 0;
  double sum_of_gradients = 0;
  for (size_t j = 0; j < own.size(); ++j) {
    if (!is_known(teacher[j])) {
      continue;
    }
    const Term term =
        term_of(own[j] - (has_tail ? 0 : own_sum),
                static_cast<double>(teacher[j]) - (has_tail ? 0 : teacher_sum), options.beta);
    total += term.value;
    sum_of_gradients += term.gradient;
    gradient[j] = static_cast<float>(term.gradient);
  }
  double pull = sum_of_gradients / std::exp(own_sum);  // on each probability
  if (has_tail) {
    const Term rest = term_of(log_of_rest(own_sum), log_of_rest(teacher_sum), options.beta);
    total += rest.value;
    // Held at its limit the rest does not move.
    pull = own_sum > kLargestLogSum ? 0 : rest.gradient / -std::expm1(own_sum);
  }
  for (size_t j = 0; j < own.size(); ++j) {
    if (is_known(teacher[j])) {
      gradient[j] = static_cast<float>(gradient[j] - pull * std::exp(own[j]));
    }
  }
  return total;
}

}  // namespace tapestry
