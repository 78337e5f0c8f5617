#include "parallel_core/telemetry/periodic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "autograd/tensor/error.h"
#include "tests/temp_dir.h"

namespace tapestry::telemetry {
namespace {

class PeriodicFileTest : public ::testing::Test {
 protected:
  std::string content() const { return dir_.read("metrics.prom"); }

  data::TempDir dir_;
  std::string path_ = dir_.file("metrics.prom");
};

TEST_F(PeriodicFileTest, ReadersSeeWholeVersionsAndTheLastOneAtTheEnd) {
  std::atomic<int> version = 0;
  PeriodicFile file(path_, 1e-3,
                    [&] { return std::string(5000, static_cast<char>('a' + version % 26)); });
  EXPECT_EQ(content(), std::string(5000, 'a'));
  std::atomic<bool> ends = false;
  std::atomic<int> torn = 0;
  std::thread reader([&] {
    while (!ends) {
      const std::string seen = content();
      torn += seen.size() != 5000 || seen.find_first_not_of(seen.front()) != std::string::npos;
    }
  });
  for (int i = 0; i < 2000; ++i) {
    version += 1;
    file.changed();
  }
  file.finish();
  ends = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(content(), std::string(5000, static_cast<char>('a' + version % 26)));
  file.finish();  // twice is once
  EXPECT_EQ(file.take_failure(), "");
}

// The folder is gone: said once, and the thread goes on.
TEST_F(PeriodicFileTest, AFailureIsSaidOnce) {
  const std::string folder = dir_.file("folder");
  std::filesystem::create_directory(folder);
  PeriodicFile file(folder + "/metrics.prom", 1e-4, [] { return std::string("1\n"); });
  std::filesystem::remove_all(folder);
  std::string said;
  for (int i = 0; i < 100'000 && said.empty(); ++i) {
    file.changed();
    said = file.take_failure();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_THAT(said, ::testing::HasSubstr(folder));
  file.finish();
  EXPECT_EQ(file.take_failure(), "");
}

TEST_F(PeriodicFileTest, AFirstVersionThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(PeriodicFile(dir_.file("nowhere/metrics.prom"), 1, [] { return std::string(); }),
               IoError);
}

}  // namespace
}  // namespace tapestry::telemetry
