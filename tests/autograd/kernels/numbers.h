// Numbers as elements of any type that the kernels take, and back.
#pragma once

namespace tapestry::kernels {

template <class T>
T make(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
double number(T x) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(x);
  } else {
    return static_cast<double>(x);
  }
}

}  // namespace tapestry::kernels
