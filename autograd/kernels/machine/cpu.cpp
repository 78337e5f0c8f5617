#include "autograd/kernels/machine/cpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

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

// The highest level up to this one that this build has.
CpuLevel compiled_up_to(CpuLevel level) {
  while (!is_compiled(level)) {
    level = static_cast<CpuLevel>(static_cast<int>(level) - 1);
  }
  return level;
}

CpuLevel initial_level() {
  const char* forced = std::getenv("TAPESTRY_CPU_LEVEL");
  const auto* found = forced == nullptr ? kLevelNames.end()
                                        : std::find(kLevelNames.begin(), kLevelNames.end(), forced);
  if (found == kLevelNames.end()) {
    return detected_cpu_level();
  }
  const auto level =
      std::min(static_cast<CpuLevel>(found - kLevelNames.begin()), processor_cpu_level());
  if (!is_compiled(level)) {  // another level's numbers are not what was asked for
    throw std::runtime_error("TAPESTRY_CPU_LEVEL is " + std::string(forced) +
                             ", but this build has no loops for " + std::string(name_of(level)) +
                             "; build it with cmake -DTAPESTRY_CPU_LEVELS=all");
  }
  return level;
}

std::atomic<CpuLevel>& level_in_use() {
  static std::atomic<CpuLevel> level{initial_level()};
  return level;
}

}  // namespace

CpuLevel processor_cpu_level() {
  static const CpuLevel level = detect();
  return level;
}

bool is_compiled(CpuLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case CpuLevel::kAvx2:
#if defined(TAPESTRY_WITHOUT_AVX2)
      return false;
#else
      return true;
#endif
    case CpuLevel::kAvx512:
#if defined(TAPESTRY_WITHOUT_AVX512)
      return false;
#else
      return true;
#endif
    case CpuLevel::kAvx512Bf16:
    case CpuLevel::kAmx:
#if defined(TAPESTRY_WITHOUT_AVX512_BF16)
      return false;
#else
      return true;
#endif
#endif
    default:
      return level == CpuLevel::kPortable;
  }
}

CpuLevel detected_cpu_level() {
  static const CpuLevel level = compiled_up_to(processor_cpu_level());
  return level;
}

CpuLevel cpu_level() { return level_in_use().load(std::memory_order_relaxed); }

void set_cpu_level(CpuLevel level) {
  level_in_use() = compiled_up_to(std::min(level, detected_cpu_level()));
}

std::string_view name_of(CpuLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

}  // namespace tapestry
