// Whole rows to and from the type that kernels compute in (see scratch.h).
#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void to_compute(DType dtype, int64_t n, const void* x, void* out);
void from_compute(DType dtype, int64_t n, const void* in, void* y);

void to_compute(DType dtype, int64_t n, const void* x, void* out) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    load_row(n, static_cast<const T*>(x), static_cast<compute_t<T>*>(out));
  });
}

void from_compute(DType dtype, int64_t n, const void* in, void* y) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    store_row(n, static_cast<const compute_t<T>*>(in), static_cast<T*>(y));
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
