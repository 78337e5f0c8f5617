// CPU levels in tests. The programs that use this have cpu_level_main.cpp's main.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/kernels/machine/cpu.h"

namespace tapestry {

/// The level that --cpu_level names; without it all up to the one in use, lowest first.
std::vector<CpuLevel> levels_under_test();

/// Whether this is the run at a level above avx512 (--cpu_level), which differs from that one in
/// products of bfloat16 alone: whatever computes in float32 has run the same loops there.
bool only_bfloat16_is_new();

/// All levels with fused multiply-adds that the processor and the build have; elsewhere than on
/// x86-64 the only level.
inline std::vector<CpuLevel> fused_cpu_levels() {
#if defined(__x86_64__)
  std::vector<CpuLevel> out;
  for (const CpuLevel level :
       {CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16, CpuLevel::kAmx}) {
    if (level <= detected_cpu_level() && is_compiled(level)) {
      out.push_back(level);
    }
  }
  return out;
#else
  return {cpu_level()};
#endif
}

/// Another level for a while.
class CpuLevelGuard {
 public:
  explicit CpuLevelGuard(CpuLevel level) : before_(cpu_level()) { set_cpu_level(level); }
  CpuLevelGuard(const CpuLevelGuard&) = delete;
  CpuLevelGuard& operator=(const CpuLevelGuard&) = delete;
  ~CpuLevelGuard() { set_cpu_level(before_); }

 private:
  CpuLevel before_;
};

/// Runs a check at each of levels_under_test().
template <class Check>
void at_every_cpu_level(const Check& check) {
  for (const CpuLevel level : levels_under_test()) {
    const CpuLevelGuard guard(level);
    SCOPED_TRACE("at level " + std::string(name_of(level)));
    check();
  }
}

}  // namespace tapestry
