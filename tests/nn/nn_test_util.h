// Shared by the tests of nn and optim.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/tensor.h"
#include "tests/says.h"

namespace tapestry {

inline std::vector<float> values(const Tensor& t) { return t.to_vector<float>(); }

/// A float32 matrix, by rows.
inline Tensor matrix(int64_t rows, int64_t columns, const std::vector<float>& elements) {
  return tensor(elements, {rows, columns});
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

/// The call throws an E whose message says all fragments.
template <class E, class F>
void expect_throws(const F& call, std::initializer_list<std::string> fragments) {
  try {
    call();
  } catch (const E& e) {
    for (const std::string& fragment : fragments) {
      EXPECT_THAT(e.what(), Says(fragment));
    }
    return;
  }
  FAIL() << "nothing was thrown; expected a message with '" << *fragments.begin() << "'";
}

}  // namespace tapestry
