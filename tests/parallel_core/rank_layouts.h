// How many ranks share a model and how, for tests that go through layouts.
#pragma once

#include <string>

#include "autograd/tensor/error.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

inline const std::string kParallel = "parallel_config.";

/// Parts of a Layout's overrides.
inline Overrides tp(int ranks) { return {concat(kParallel, "tensor_model_parallel_size=", ranks)}; }
inline Overrides pp(int ranks) {
  return {concat(kParallel, "pipeline_model_parallel_size=", ranks)};
}
inline Overrides ep(int ranks) { return {concat(kParallel, "expert_model_parallel_size=", ranks)}; }
inline Overrides zero(const char* level) { return {concat(kParallel, "zero_level=", level)}; }

struct RankLayout {
  int ranks;
  Overrides overrides;
};

}  // namespace tapestry::testing
