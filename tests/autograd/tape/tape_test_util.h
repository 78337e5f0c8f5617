// Helpers of the tape's tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/message_of.h"

namespace tapestry {

/// A float32 leaf that wants a gradient.
inline Tensor leaf(std::initializer_list<float> values) {
  return tensor(values).set_requires_grad();
}

inline std::vector<float> values(const Tensor& t) { return t.to_vector<float>(); }

}  // namespace tapestry
