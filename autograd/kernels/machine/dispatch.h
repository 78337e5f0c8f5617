// From a run-time dtype to a template argument.
#pragma once

#include <type_traits>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry {

/// Calls f.template operator()<T>() with the element type of any dtype.
template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool:
      return f.template operator()<bool>();
    case DType::kInt8:
      return f.template operator()<int8_t>();
    case DType::kUInt8:
      return f.template operator()<uint8_t>();
    case DType::kInt32:
      return f.template operator()<int32_t>();
    case DType::kInt64:
      return f.template operator()<int64_t>();
    case DType::kFloat16:
      return f.template operator()<Float16>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16>();
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kFloat64:
      break;
  }
  return f.template operator()<double>();
}

/// Calls f.template operator()<T, C>() with the element type, uint8_t for bool, and the type in
/// which elements are compared: float for those of 16 bits.
template <class F>
decltype(auto) dispatch_compared(DType dtype, F&& f) {
  return dispatch_all(dtype, [&]<class Element>() -> decltype(auto) {
    using T = std::conditional_t<std::is_same_v<Element, bool>, uint8_t, Element>;
    constexpr bool kNarrow = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
    return f.template operator()<T, std::conditional_t<kNarrow, float, T>>();
  });
}

}  // namespace tapestry
