// main() of the numeric test programs: `test.autograd.ops --cpu_level=avx2` runs everything at that
// level of the kernels. ctest has one entry per level, of which those that cannot run are skipped.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "tests/cpu_levels.h"

namespace tapestry {
namespace {

constexpr int kUsageError = 2;
constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in tests/CMakeLists.txt
constexpr std::string_view kFlag = "--cpu_level=";

std::optional<CpuLevel>& asked_level() {
  static std::optional<CpuLevel> level;
  return level;
}

std::optional<CpuLevel> level_of(std::string_view name) {
  for (int level = 0; level <= static_cast<int>(CpuLevel::kAmx); ++level) {
    if (name == name_of(static_cast<CpuLevel>(level))) {
      return static_cast<CpuLevel>(level);
    }
  }
  return std::nullopt;
}

// No test leaves another level behind than it found.
class LevelStays : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& /*info*/) override {
    EXPECT_EQ(name_of(cpu_level()), name_of(at_start_)) << "the CPU level was not put back";
    set_cpu_level(at_start_);
  }
  CpuLevel at_start_ = cpu_level();
};

// Takes --cpu_level out of the arguments. 0, or the exit code of a program that is not to go on.
int set_level(int& argc, char** argv) {
  // The library ignores a name that it does not know; here nothing would be tested as asked.
  const char* most = std::getenv("TAPESTRY_CPU_LEVEL");  // NOLINT(concurrency-mt-unsafe)
  if (most != nullptr && !level_of(most)) {
    std::cerr << "TAPESTRY_CPU_LEVEL=" << most << " is no CPU level\n";
    return kUsageError;
  }
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFlag)) {
      argv[kept++] = argv[i];
      continue;
    }
    asked_level() = level_of(argument.substr(kFlag.size()));
    if (!asked_level()) {
      std::cerr << argument << " is no CPU level\n";
      return kUsageError;
    }
  }
  argc = kept;
  argv[argc] = nullptr;
  if (!asked_level()) {
    return 0;
  }
  const std::string name(name_of(*asked_level()));
  if (*asked_level() <= processor_cpu_level() && !is_compiled(*asked_level())) {
    std::cout << "skipped: this build has no loops of CPU level " << name << "\n";
    return kSkipped;
  }
  if (*asked_level() > detected_cpu_level()) {
    std::cout << "skipped: this processor has no CPU level " << name << ", only up to "
              << name_of(detected_cpu_level()) << "\n";
    return kSkipped;
  }
  if (*asked_level() > cpu_level()) {
    std::cout << "skipped: TAPESTRY_CPU_LEVEL=" << most << " rules out CPU level " << name << "\n";
    return kSkipped;
  }
  set_cpu_level(*asked_level());
  ::setenv("TAPESTRY_CPU_LEVEL", name.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): of children
  if (cpu_level() != *asked_level()) {
    std::cerr << "CPU level " << name << " was asked for, " << name_of(cpu_level()) << " is used\n";
    return kUsageError;
  }
  return 0;
}

}  // namespace

std::vector<CpuLevel> levels_under_test() {
  if (asked_level()) {
    return {*asked_level()};
  }
  std::vector<CpuLevel> levels;
  for (int level = 0; level <= static_cast<int>(cpu_level()); ++level) {
    if (is_compiled(static_cast<CpuLevel>(level))) {
      levels.push_back(static_cast<CpuLevel>(level));
    }
  }
  return levels;
}

bool only_bfloat16_is_new() { return asked_level() > CpuLevel::kAvx512; }

}  // namespace tapestry

int main(int argc, char** argv) {
  // Before GoogleTest: parameters of tests are computed when it starts.
  if (const int code = tapestry::set_level(argc, argv); code != 0) {
    return code;
  }
  ::testing::InitGoogleTest(&argc, argv);
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GoogleTest owns it
  ::testing::UnitTest::GetInstance()->listeners().Append(new tapestry::LevelStays);
  return RUN_ALL_TESTS();
}
