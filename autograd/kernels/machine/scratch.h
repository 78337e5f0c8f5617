// Working memory of a kernel call, and rows converted to the type that kernels compute in.
#pragma once

#include <cstdint>
#include <memory>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void to_compute(DType dtype, int64_t n, const void* x, void* out);
                         void from_compute(DType dtype, int64_t n, const void* in, void* y))

/// float64 computes in float64, every other floating dtype in float32.
constexpr DType compute_dtype(DType dtype) { return dtype == kFloat64 ? kFloat64 : kFloat32; }

/// Where Scratch takes its memory from: aligned to a cache line, of any thread. The system, unless
/// a higher layer that keeps freed blocks puts its own functions here before any kernel runs;
/// memory fresh from the system costs a page fault for every 4 KiB. `allocate` throws where there
/// is none left, which parallel_for carries out of its threads.
struct ScratchSource {
  void* (*allocate)(int64_t bytes);
  void (*release)(void* memory);
};
inline constexpr int64_t kScratchAlignment = 64;
ScratchSource& scratch_source();

/// Uninitialised bytes, aligned to a cache line; released at the end of the scope.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t bytes) : memory_(scratch_source().allocate(bytes)) {}
  void* get() const { return memory_.get(); }

 private:
  struct Release {
    void operator()(void* memory) const { scratch_source().release(memory); }
  };
  std::unique_ptr<void, Release> memory_;
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
