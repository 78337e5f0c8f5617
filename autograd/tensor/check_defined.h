// The check that begins every function of tensors.
#pragma once

#include <string_view>

#include "autograd/tensor/tensor.h"

namespace tapestry {

namespace detail {
[[noreturn, gnu::cold, gnu::noinline]] void throw_undefined_argument(std::string_view function,
                                                                     std::string_view argument);
[[noreturn, gnu::cold, gnu::noinline]] void throw_undefined_argument(std::string_view function,
                                                                     std::string_view argument,
                                                                     size_t number);
}  // namespace detail

/// RuntimeError, naming function and argument, for a Tensor that is undefined. It costs a
/// comparison with null.
inline void check_defined(std::string_view function,
                          const Tensor& tensor,
                          std::string_view argument) {
  if (!tensor.defined()) [[unlikely]] {
    detail::throw_undefined_argument(function, argument);
  }
}
inline void check_defined(std::string_view function,
                          const TensorList& tensors,
                          std::string_view argument) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) [[unlikely]] {
      detail::throw_undefined_argument(function, argument, i);
    }
  }
}
/// The same for several arguments, each followed by its name.
template <class T, class... Rest>
void check_defined(std::string_view function,
                   const T& tensors,
                   std::string_view argument,
                   const Rest&... rest) {
  check_defined(function, tensors, argument);
  check_defined(function, rest...);
}

}  // namespace tapestry
