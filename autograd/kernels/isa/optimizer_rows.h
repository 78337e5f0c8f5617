// How the passes of optimizers read gradients and write what they change.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>
#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

template <class C>
[[gnu::always_inline]] inline C root_of(C x) {
  if constexpr (sizeof(C) == 4) {
    return __builtin_sqrtf(x);
  } else {
    return __builtin_sqrt(x);
  }
}

template <class C>
[[gnu::always_inline]] inline C limited(C x, C limit) {
  const C below = x > limit ? limit : x;  // a comparison with NaN is false: it passes through
  return below < -limit ? -limit : below;
}

/// n elements of any floating dtype in the type C: in place, or widened into `block`.
template <class C>
[[gnu::always_inline]] inline const C* read_any(
    DType dtype, int64_t n, const void* x, int64_t at, C* block) {
  const C* out = nullptr;
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    out = read_block(n, static_cast<const T*>(x) + at, block);
  });
  return out;
}

/// n elements to be changed, of type C or bfloat16: in place, or widened into `block`.
template <class C>
[[gnu::always_inline]] inline C* open_state(DType dtype, int64_t n, void* x, int64_t at, C* block) {
  if (dtype != kBFloat16) {
    return static_cast<C*>(x) + at;
  }
  load_row(n, static_cast<const BFloat16*>(x) + at, block);
  return block;
}

[[gnu::always_inline]] inline void store_copy(
    DType dtype, int64_t n, const float* p, void* copy, int64_t at) {
  if (copy == nullptr) {
    return;
  }
  if (dtype == kBFloat16) {
    store_row(n, p, static_cast<BFloat16*>(copy) + at);
  } else {
    store_row(n, p, static_cast<Float16*>(copy) + at);
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
