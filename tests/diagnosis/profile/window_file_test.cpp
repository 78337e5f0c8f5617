#include "diagnosis/profile/window_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "autograd/tensor/error.h"
#include "tests/temp_dir.h"

namespace tapestry::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(WindowFile, SaysWhichStepsAndWhatOfThem) {
  const WindowRequest request = read_window_request(
      R"({"start_step": 4, "stop_step": 6, "profiler_level": 2, "profile_memory": true,
          "with_stack": false, "profile_communication": true, "parallel_strategy": true,
          "data_process": true, "data_simplification": false})",
      "f.json");
  EXPECT_EQ(request, (WindowRequest{.first = 4,
                                    .last = 6,
                                    .level = "level2",
                                    .memory = true,
                                    .with_stack = false,
                                    .communication = true,
                                    .parallel_strategy = true,
                                    .data_process = true,
                                    .data_simplification = false}));
  EXPECT_EQ(
      read_window_request(R"({"start_step": 1, "stop_step": 1, "profiler_level": -1})", "f").level,
      "level0");
}

TEST(WindowFile, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> kCases[] = {
      {"[1]", "f.json: is no JSON object"},
      {"{\"start_step\": 1", "f.json: is no JSON object"},
      {"{}", "start_step and stop_step are needed"},
      {R"({"start_step": 1})", "start_step and stop_step are needed"},
      {R"({"start_step": 0, "stop_step": 2})", "start_step must be a step, counted from 1; got 0"},
      {R"({"start_step": "2", "stop_step": 2})", "got \"2\""},
      {R"({"start_step": 3, "stop_step": 2})", "stop_step 2 lies before start_step 3"},
      {R"({"start_step": 1, "stop_step": 2, "profiler_level": 3})", "profiler_level must be"},
      {R"({"start_step": 1, "stop_step": 2, "with_stack": 1})", "with_stack must be true or false"},
      {R"({"start_step": 1, "stop_step": 2, "levl": 1})", "unknown key levl; known are start_step"},
  };
  for (const auto& [text, complaint] : kCases) {
    EXPECT_THAT([&] { read_window_request(text, "f.json"); },
                ThrowsMessage<ValueError>(HasSubstr(complaint)))
        << text;
  }
}

TEST(WindowFile, IsReadWhenItChanges) {
  const data::TempDir dir;
  EXPECT_EQ(window_file(dir.path()), dir.file("profiler_config.json"));
  EXPECT_EQ(window_file(dir.file("f.json")), dir.file("f.json"));
  WatchedText text(dir.file("f.json"));
  EXPECT_EQ(text.read_if_changed(), "");
  dir.write("f.json", "one");
  EXPECT_EQ(text.read_if_changed(), "one");
  EXPECT_EQ(text.read_if_changed(), "");
  dir.write("f.json", "two");
  EXPECT_EQ(text.read_if_changed(), "two");
  // What is there but is no request is said once.
  std::filesystem::remove(dir.file("f.json"));
  ASSERT_EQ(::mkfifo(dir.file("f.json").c_str(), 0600), 0);
  EXPECT_THAT([&] { text.read_if_changed(); },
              ThrowsMessage<IoError>(HasSubstr("f.json: cannot be read: not a regular file")));
  EXPECT_EQ(text.read_if_changed(), "");
  std::filesystem::remove(dir.file("f.json"));
  EXPECT_EQ(text.read_if_changed(), "");
  dir.write("f.json", "two");
  EXPECT_EQ(text.read_if_changed(), "two");
}

}  // namespace
}  // namespace tapestry::profile
