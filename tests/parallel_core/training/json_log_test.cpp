#include "parallel_core/training/log/json_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <limits>

#include "autograd/io/json.h"

namespace tapestry {
namespace {

TEST(JsonLog, AMessageIsOneLineWhateverItHolds) {
  const std::string message = "two\nlines, a \"quote\", \\, \x01, \xff and \xc3\xa4";
  const std::string line = json_log_line("warning", 3, message,
                                         {{"step", int64_t{12}},
                                          {"loss", 2.0},
                                          {"finite", true},
                                          {"grad_norm", std::numeric_limits<double>::quiet_NaN()},
                                          {"lr", -std::numeric_limits<double>::infinity()}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::ordered_json::parse(line);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys, ::testing::ElementsAre("time", "level", "rank", "host", "message", "step",
                                           "loss", "finite", "grad_norm", "lr"));
  EXPECT_EQ(json["message"], "two\nlines, a \"quote\", \\, \x01, \xef\xbf\xbd and \xc3\xa4");
  EXPECT_EQ(json["rank"], 3);
  EXPECT_TRUE(json["step"].is_number_integer());
  EXPECT_EQ(json["loss"], 2.0);
  EXPECT_EQ(json["finite"], true);
  EXPECT_EQ(json["grad_norm"], "nan");
  EXPECT_EQ(json["lr"], "-inf");
}

TEST(JsonLog, AHandlerWritesTheSameWithTheTimeInUtc) {
  set_json_of_process(true);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const std::time_t before = std::time(nullptr);
  write_json_from_handler(ends[1], "error", "ended by ", "SIGTERM");
  const std::time_t after = std::time(nullptr);
  set_json_of_process(false);
  close(ends[1]);
  std::array<char, 1024> text{};
  const ssize_t size = read(ends[0], text.data(), text.size());
  close(ends[0]);
  ASSERT_GT(size, 0);
  const std::string line(text.data(), static_cast<size_t>(size));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], "ended by SIGTERM");
  EXPECT_EQ(json["level"], "error");
  EXPECT_EQ(json["host"], nlohmann::json::parse(json_log_line("info", 0, ""))["host"]);
  std::tm parts{};
  const std::string time = json["time"];
  ASSERT_NE(strptime(time.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts), nullptr) << time;
  const std::time_t said = timegm(&parts);
  EXPECT_GE(said, before);
  EXPECT_LE(said, after);
}

}  // namespace
}  // namespace tapestry
