// What make_golden.py has computed of MindFormers 2.0's formulas, and the weights that it used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/tensor.h"

namespace tapestry::testing {

/// golden.json, which make_golden.py beside it writes.
const nlohmann::json& golden_formulas();

/// `count` numbers from 0 to bound - 1 that follow from the name: integers() of make_golden.py.
std::vector<int64_t> named_integers(const std::string& name, int64_t count, int64_t bound);
/// The tensor of this name in make_golden.py, float32; exact.
Tensor named_weight(const std::string& name, const Shape& shape, double factor = 1);

/// max|found - expected|; infinite if something is not a number.
double largest_error(const Tensor& found, const std::vector<double>& expected);
/// That in units of max|expected|.
double relative_error(const Tensor& found, const std::vector<double>& expected);

}  // namespace tapestry::testing
