// A library to be loaded before a program (LD_PRELOAD), for which a disk is slow: fsync of files of
// certain names, on certain ranks of mpirun or srun, takes a few seconds longer.
//
// SLOW_DISK="1:model.safetensors;0:manifest.json" is rank and part of a path; SLOW_DISK_MS how
// long. Each call that waits says so on standard error.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string path_of(int descriptor) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof(path));
  return {path, size > 0 ? static_cast<size_t>(size) : 0};
}

// As Open MPI, MPICH or Slurm says it.
std::string own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (std::string rank = variable(name); !rank.empty()) {
      return rank;
    }
  }
  return variable("SLURM_PROCID");
}

bool is_slow(const std::string& path) {
  const std::string rank = own_rank() + ":";
  std::string rest = variable("SLOW_DISK");
  while (!rest.empty()) {
    const std::string entry = rest.substr(0, rest.find(';'));
    rest.erase(0, entry.size() + 1);
    if (entry.starts_with(rank) && path.find(entry.substr(rank.size())) != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the C library's are reserved
extern "C" int fsync(int descriptor) {
  static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  const std::string path = path_of(descriptor);
  if (is_slow(path)) {
    std::fprintf(stderr, "slow_disk: %s\n", path.c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(variable("SLOW_DISK_MS"))));
  }
  return real(descriptor);
}
