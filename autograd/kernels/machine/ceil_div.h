// Division of counts, rounded up.
#pragma once

#include <cstdint>

namespace tapestry::kernels {

/// How many parts of at most b > 0 cover a >= 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tapestry::kernels
