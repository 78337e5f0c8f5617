// A library to be loaded before pretrain_gpt (LD_PRELOAD): when a line of metrics.jsonl is written,
// the program AT_STEP is run with the line's step, and the rank goes on when that has ended. So
// what a test does at a step is done between two steps, however fast they are.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::string path_of(int descriptor) {
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

// Empty for what is no line of a step.
std::string step_in(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\":";
  if (!line.starts_with(kBegin)) {
    return {};
  }
  line.remove_prefix(kBegin.size());
  return std::string(line.substr(0, line.find_first_not_of("0123456789")));
}

void run(const char* program, const std::string& step) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::unsetenv("LD_PRELOAD");
    ::execl(program, program, step.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
}

}  // namespace

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the C library's are reserved
extern "C" ssize_t write(int descriptor, const void* bytes, size_t size) {
  static const auto real =
      reinterpret_cast<ssize_t (*)(int, const void*, size_t)>(::dlsym(RTLD_NEXT, "write"));
  const ssize_t written = real(descriptor, bytes, size);
  const char* program = std::getenv("AT_STEP");
  if (program != nullptr && written > 0) {
    const std::string step = step_in({static_cast<const char*>(bytes), size});
    if (!step.empty() && path_of(descriptor).ends_with("/metrics.jsonl")) {
      run(program, step);
    }
  }
  return written;
}
