// Working memory of a kernel call, and rows converted to the type that kernels compute in.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void to_compute(DType dtype, int64_t n, const void* x, void* out);
                         void from_compute(DType dtype, int64_t n, const void* in, void* y))

/// float64 computes in float64, every other floating dtype in float32.
constexpr DType compute_dtype(DType dtype) { return dtype == kFloat64 ? kFloat64 : kFloat32; }

/// Uninitialised bytes, aligned to a cache line; freed at the end of the scope.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t bytes)
      : memory_(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded(bytes)))) {
    assert(memory_ != nullptr);
  }
  void* get() const { return memory_.get(); }

 private:
  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t rounded(int64_t bytes) { return (bytes / kAlignment + 1) * kAlignment; }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

/// n elements in the compute type: the array itself where it is that (or null), else a copy.
class ComputeView {
 public:
  ComputeView(DType dtype, int64_t n, const void* x) : data_(x) {
    if (x != nullptr && dtype != compute_dtype(dtype)) {
      copy_ = Scratch(n * size_of(compute_dtype(dtype)));
      TAPESTRY_DISPATCH(to_compute)(dtype, n, x, copy_.get());
      data_ = copy_.get();
    }
  }
  const void* get() const { return data_; }

 private:
  Scratch copy_;
  const void* data_;
};

}  // namespace tapestry::kernels
