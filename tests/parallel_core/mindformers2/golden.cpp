#include "tests/parallel_core/mindformers2/golden.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::testing {

const nlohmann::json& golden_formulas() {
  static const nlohmann::json golden = [] {
    std::ifstream file("tests/parallel_core/mindformers2/golden.json");
    check<ValueError>(file.good(), "tests/parallel_core/mindformers2/golden.json cannot be read");
    return nlohmann::json::parse(file);
  }();
  return golden;
}

std::vector<int64_t> named_integers(const std::string& name, int64_t count, int64_t bound) {
  constexpr int64_t kModulus = int64_t{1} << 31U;
  int64_t state = 12345;
  for (const char byte : name) {
    state = (state * 33 + byte) % kModulus;
  }
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) {
    state = (state * 1103515245 + 12345) % kModulus;
    out.push_back((state >> 12U) % bound);
  }
  return out;
}

Tensor named_weight(const std::string& name, const Shape& shape, double factor) {
  int64_t count = 1;
  for (int64_t axis = 0; axis < shape.size(); ++axis) {
    count *= shape[axis];
  }
  std::vector<float> values;
  for (const int64_t number : named_integers(name, count, 257)) {
    double value = static_cast<double>(number - 128) / 512;
    if (name.ends_with("norm.weight")) {
      value = 1 + value / 2;
    } else if (name.starts_with("tok_embeddings")) {
      value *= 4;
    } else if (name.ends_with("expert_bias")) {
      value = std::nearbyint(value * 256 / 4) / 256;
    }
    values.push_back(static_cast<float>(value * factor));
  }
  return tensor(values, shape);
}

double largest_error(const Tensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = found.to_vector<double>();
  check<ValueError>(values.size() == expected.size(), "largest_error: ", values.size(),
                    " numbers, expected ", expected.size());
  double out = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double own = std::abs(values[i] - expected[i]);
    out = std::max(out, std::isnan(own) ? std::numeric_limits<double>::infinity() : own);
  }
  return out;
}

double relative_error(const Tensor& found, const std::vector<double>& expected) {
  double largest = 0;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  return largest_error(found, expected) / largest;
}

}  // namespace tapestry::testing
