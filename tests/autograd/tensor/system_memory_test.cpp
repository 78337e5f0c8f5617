#include "autograd/tensor/system_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace tapestry {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / "tapestry_available_memory";
    std::filesystem::remove_all(root_);
    write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:    1000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int64_t available() const { return available_memory(root_.string()); }
  std::filesystem::path root_;
};

TEST_F(AvailableMemory, KernelAlone) { EXPECT_EQ(available(), 1000 * 1024); }

TEST_F(AvailableMemory, OfTheProcess) {
  EXPECT_EQ(process_memory(root_.string()).peak_bytes, 0);
  write("proc/self/status", "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\n");
  EXPECT_EQ(process_memory(root_.string()).current_bytes, 200 * 1024);
  EXPECT_EQ(process_memory(root_.string()).peak_bytes, 300 * 1024);
  EXPECT_GE(process_memory().peak_bytes, process_memory().current_bytes);
  EXPECT_GT(process_memory().current_bytes, int64_t{1} << 20U);
}

TEST_F(AvailableMemory, NothingToRead) {
  std::filesystem::remove_all(root_);
  EXPECT_EQ(available(), std::numeric_limits<int64_t>::max());
}

TEST_F(AvailableMemory, Version2TakesTheTightestGroupAndGivesBackCache) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "5\n");
  EXPECT_EQ(available(), 1000 * 1024);
  write("sys/fs/cgroup/a/memory.max", "500000\n");
  write("sys/fs/cgroup/a/memory.current", "300000\n");
  EXPECT_EQ(available(), 200000);
  write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(available(), 300000);
  write("sys/fs/cgroup/memory.max", "100\n");
  write("sys/fs/cgroup/memory.current", "200\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, Version1) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available(), 1000 * 1024);
  write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "70000\n");
  write("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "20000\n");
  EXPECT_EQ(available(), 50000);
}

TEST(AvailableMemoryHere, IsPlausible) { EXPECT_GT(available_memory(), int64_t{1} << 20U); }

}  // namespace
}  // namespace tapestry
