#include "autograd/kernels/machine/bfloat16_pairs.h"

#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

bool has_bfloat16_pairs() { return cpu_level() >= CpuLevel::kAvx512Bf16; }

bool prefers_bfloat16_pairs() {
#if defined(__x86_64__)
  // Multiply-adds of both kinds on registers alone, in GFLOP/s: Zen 5 does 985 in pairs and 499 in
  // float32; one core of an Emerald Rapids, whose way to do that work is AMX, 85 and 175.
  static const bool slow_pairs = [] {
    __builtin_cpu_init();
    // NOLINTNEXTLINE(readability-implicit-bool-conversion): GCC's gives int, Clang's bool
    return __builtin_cpu_is("intel") != 0;
  }();
  return !slow_pairs && has_bfloat16_pairs();
#else
  return false;
#endif
}

}  // namespace tapestry::kernels
