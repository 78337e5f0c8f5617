// Runs a check at every CPU level that this machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "autograd/kernels/cpu.h"

namespace tapestry {

template <class Check>
void at_every_cpu_level(const Check& check) {
  const CpuLevel before = cpu_level();
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    set_cpu_level(static_cast<CpuLevel>(level));
    SCOPED_TRACE("at level " + std::string(name_of(cpu_level())));
    check();
  }
  set_cpu_level(before);
}

}  // namespace tapestry
