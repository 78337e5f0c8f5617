// Where a rank runs, for faults that come from there.
#pragma once

#include <string>

namespace tapestry::autopsy {

struct Machine {
  std::string host;
  int cpu = -1;           ///< number of the core that the calling thread is on now
  std::string processor;  ///< as the system names it
  int threads = 1;
  std::string cpu_level;
  std::string blas;
};

Machine this_machine();

}  // namespace tapestry::autopsy
