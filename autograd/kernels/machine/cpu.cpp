#include "autograd/kernels/machine/cpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

namespace tapestry {

namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"portable", "avx2", "avx512",
                                                         "avx512_bf16", "amx"};

CpuLevel detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // NOLINTBEGIN(readability-implicit-bool-conversion): the built-in gives int in GCC, bool in Clang
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  // NOLINTEND(readability-implicit-bool-conversion)
  if (bf16) {
    // CPUID leaf 7: EDX bit 22 is AMX-BF16, bit 24 AMX-TILE.
    unsigned eax = 7;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    constexpr unsigned kAmxBits = (1U << 22U) | (1U << 24U);
    return (edx & kAmxBits) == kAmxBits ? CpuLevel::kAmx : CpuLevel::kAvx512Bf16;
  }
  if (avx512) {
    return CpuLevel::kAvx512;
  }
  return avx2 ? CpuLevel::kAvx2 : CpuLevel::kPortable;
#else
  return CpuLevel::kPortable;
#endif
}

CpuLevel initial_level() {
  if (const char* forced = std::getenv("TAPESTRY_CPU_LEVEL"); forced != nullptr) {
    const auto* found = std::find(kLevelNames.begin(), kLevelNames.end(), forced);
    if (found != kLevelNames.end()) {
      return std::min(static_cast<CpuLevel>(found - kLevelNames.begin()), detected_cpu_level());
    }
  }
  return detected_cpu_level();
}

std::atomic<CpuLevel>& level_in_use() {
  static std::atomic<CpuLevel> level{initial_level()};
  return level;
}

}  // namespace

CpuLevel detected_cpu_level() {
  static const CpuLevel level = detect();
  return level;
}

CpuLevel cpu_level() { return level_in_use().load(std::memory_order_relaxed); }

void set_cpu_level(CpuLevel level) { level_in_use() = std::min(level, detected_cpu_level()); }

std::string_view name_of(CpuLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

}  // namespace tapestry
