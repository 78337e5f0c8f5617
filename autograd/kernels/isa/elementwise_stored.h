// From a dtype to the types in which its elements are stored and computed with, for loops that take
// every dtype.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// C: what elements stored as T are loaded to. V: what they are stored from.
template <class T_, class C_ = compute_t<T_>, class V_ = C_>
struct Stored {
  using T = T_;
  using C = C_;
  using V = V_;
};
using Bool = Stored<uint8_t, int32_t, bool>;

/// f(Stored<...>{}) for a dtype.
template <class F>
auto with_stored(DType dtype, const F& f) {
  switch (dtype) {
    case kBool:
      return f(Bool{});
    case kInt8:
      return f(Stored<int8_t, int32_t>{});
    case kUInt8:
      return f(Stored<uint8_t, int32_t>{});
    case kInt32:
      return f(Stored<int32_t>{});
    case kInt64:
      return f(Stored<int64_t>{});
    case kFloat16:
      return f(Stored<Float16>{});
    case kBFloat16:
      return f(Stored<BFloat16>{});
    case kFloat32:
      return f(Stored<float>{});
    case kFloat64:
      break;
  }
  return f(Stored<double>{});
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
