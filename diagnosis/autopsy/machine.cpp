#include "diagnosis/autopsy/machine.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/team.h"

namespace tapestry::autopsy {

namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return {};
}

}  // namespace

Machine this_machine() {
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) != 0) {
    host[0] = '\0';
  }
  return {.host = host.data(),
          .cpu = ::sched_getcpu(),
          .processor = processor_name(),
          .threads = num_threads(),
          .cpu_level = std::string(name_of(cpu_level())),
          .blas = std::string(kernels::blas_flavour())};
}

}  // namespace tapestry::autopsy
