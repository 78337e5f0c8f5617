#include "diagnosis/profile/merged_trace.h"

#include <gtest/gtest.h>

#include "tests/diagnosis/profile/trace_checks.h"
#include "tests/temp_dir.h"

namespace tapestry::profile {
namespace {

using nlohmann::json;

constexpr int64_t kMs = 1'000'000;

// A clock that is behind by 5 s and runs a thousandth slower; barriers are left at different times.
TEST(ClockCorrection, ShiftsAndScales) {
  const auto theirs = [](int64_t t) { return (t - 5000 * kMs) * 999 / 1000; };
  const std::vector<int64_t> start = {10'000 * kMs, 10'001 * kMs, 10'002 * kMs};
  const std::vector<int64_t> end = {20'000 * kMs, 20'001 * kMs, 20'002 * kMs};
  std::vector<int64_t> own_start;
  std::vector<int64_t> own_end;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t late = i == 1 ? 40 * kMs : 0;  // the scheduler held it up once
    own_start.push_back(theirs(start[i] + late));
    own_end.push_back(theirs(end[i] + late));
  }
  const ClockCorrection correction(own_start, own_end, start, end);
  for (const int64_t t : {start[0], int64_t{15'000} * kMs, end[2]}) {
    EXPECT_NEAR(static_cast<double>(correction(theirs(t))), static_cast<double>(t), 0.05 * kMs);
  }
  EXPECT_NEAR(correction.scale(), 1.001, 1e-5);
  const ClockCorrection none(start, end, start, end);
  EXPECT_EQ(none(12'345), 12'345);
}

json slice(const char* name, int rank, double ts, double dur, json args) {
  return {{"ph", "X"}, {"name", name}, {"cat", "communication"}, {"pid", rank}, {"tid", 1},
          {"ts", ts},  {"dur", dur},   {"args", std::move(args)}};
}

RankTrace trace_of(int rank, int64_t start, json events) {
  RankTrace out;
  out.path = "rank";
  out.json = {{"traceEvents", std::move(events)},
              {"otherData",
               {{"rank", rank},
                {"ranks", 2},
                {"barriers_at_start_ns", {start}},
                {"barriers_at_end_ns", {start + 100 * kMs}}}}};
  return out;
}

TEST(MergedTrace, DrawsArrowsFromWhatIsSentToWhatIsReceived) {
  const data::TempDir dir;
  const json group = {{"group", "pp-0-1"}, {"group_id", "77"}, {"sequence", 3}, {"bytes", 8}};
  json sent = group;
  sent["peer"] = 1;
  json received = group;
  received["peer"] = 0;
  json lost = sent;  // what is received after the window
  lost["sequence"] = 4;
  write_merged_trace(
      {trace_of(0, 1000 * kMs,
                {slice("send", 0, 10, 5, sent), slice("send", 0, 30, 5, lost),
                 slice("all_reduce", 0, 50, 9, group)}),
       trace_of(1, 7000 * kMs,
                {slice("receive", 1, 12, 7, received), slice("all_reduce", 1, 55, 4, group)})},
      dir.file("trace.json"));
  const json trace = json::parse(dir.read("trace.json"));
  EXPECT_EQ(testing::expect_whole_arrows(trace), 2);
  testing::expect_nested(trace);
  std::map<std::string, std::vector<std::pair<int, double>>> points;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "s" || event.at("ph") == "f") {
      points[event.at("name")].emplace_back(event.at("pid"), event.at("ts"));
    }
  }
  using Points = std::vector<std::pair<int, double>>;
  EXPECT_EQ(points["message"], (Points{{0, 10}, {1, 18.999}}));
  EXPECT_EQ(points["all_reduce"], (Points{{0, 50}, {1, 55}}));
  EXPECT_EQ(trace.at("otherData").at("clocks")[1].at("shift_us"), -6e6);
}

}  // namespace
}  // namespace tapestry::profile
