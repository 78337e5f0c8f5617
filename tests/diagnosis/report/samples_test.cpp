#include "diagnosis/report/samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "tests/temp_dir.h"

namespace tapestry::report {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string file_of(const data::TempDir& dir, const std::string& lines) {
  const std::string path = dir.path() + "/samples.jsonl";
  std::ofstream(path) << lines;
  return path;
}

constexpr const char* kLines =
    R"({"step": 1, "prompt": "2+2=", "completion": "5", "rewards": {"exact": 0}, "advantage": -1}
{"step": 2, "prompt": "1+1=", "completion": "2", "rewards": {"exact": 1, "length": null}, "advantage": 0.5}
no line
{"step": 2, "prompt": "1+1=", "completion": "<3>", "rewards": {"exact": 0, "length": 2}, "advantage": -0.5}
{"step": 2, "prompt": "9+1=", "comple)";

TEST(Samples, AreThoseOfTheLastStep) {
  const data::TempDir dir;
  const LastSamples samples = read_last_samples(file_of(dir, kLines));
  EXPECT_EQ(samples.step, 2);
  EXPECT_EQ(samples.count, 2);
  ASSERT_EQ(samples.shown.size(), 2U);
  EXPECT_EQ(samples.shown[0].completion, "2");
  ASSERT_EQ(samples.shown[0].rewards.size(), 2U);
  EXPECT_EQ(samples.shown[0].rewards[0], (std::pair<std::string, double>("exact", 1)));
  EXPECT_TRUE(std::isnan(samples.shown[0].rewards[1].second));
  EXPECT_EQ(samples.shown[1].advantage, -0.5);
}

TEST(Samples, TableIsGroupedAndEscaped) {
  const data::TempDir dir;
  const std::string html = samples_html(read_last_samples(file_of(dir, kLines)));
  EXPECT_THAT(html, HasSubstr("Completions of step 2: 2."));
  EXPECT_THAT(html, HasSubstr("<th class=\"num\">exact</th>"));
  EXPECT_THAT(html, HasSubstr("&lt;3&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("2+2=")));
  EXPECT_EQ(html.find("1+1="), html.rfind("1+1="));
}

TEST(Samples, NoneWithoutAFile) {
  const data::TempDir dir;
  EXPECT_EQ(read_last_samples(dir.path() + "/samples.jsonl").count, 0);
  EXPECT_EQ(samples_html({}), "");
}

}  // namespace
}  // namespace tapestry::report
