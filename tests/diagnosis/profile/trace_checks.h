// What holds of every trace that a profile writes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"

namespace tapestry::testing {

/// A slice of a trace, in nanoseconds.
struct TracedSlice {
  std::string name;
  std::string category;
  int rank = 0;
  int tid = 0;
  int64_t begin = 0;
  int64_t end = 0;
  nlohmann::json args;
};

inline int64_t traced_ns(const nlohmann::json& microseconds) {
  return std::llround(microseconds.get<double>() * 1e3);
}

inline std::vector<TracedSlice> slices_of(const nlohmann::json& trace) {
  std::vector<TracedSlice> out;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      const int64_t begin = traced_ns(event.at("ts"));
      out.push_back({event.at("name"), event.at("cat"), event.at("pid"), event.at("tid"), begin,
                     begin + traced_ns(event.at("dur")),
                     event.value("args", nlohmann::json::object())});
    }
  }
  return out;
}

/// Of two slices of one row one lies in the other, or they do not overlap.
inline void expect_nested(const nlohmann::json& trace) {
  std::map<std::pair<int, int>, std::vector<TracedSlice>> rows;
  for (const TracedSlice& slice : slices_of(trace)) {
    EXPECT_LE(slice.begin, slice.end) << slice.name;
    rows[{slice.rank, slice.tid}].push_back(slice);
  }
  EXPECT_FALSE(rows.empty());
  for (auto& [row, slices] : rows) {
    std::stable_sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
    });
    std::vector<TracedSlice> open;
    for (const TracedSlice& slice : slices) {
      while (!open.empty() && open.back().end <= slice.begin) {
        open.pop_back();
      }
      if (!open.empty()) {
        EXPECT_LE(slice.end, open.back().end)
            << slice.name << " reaches out of " << open.back().name << " on rank " << row.first
            << ", row " << row.second;
      }
      open.push_back(slice);
    }
  }
}

/// Every arrow begins once and ends once, in slices of communication that enclose its points.
/// Returns how many there are.
inline int expect_whole_arrows(const nlohmann::json& trace) {
  const std::vector<TracedSlice> slices = slices_of(trace);
  std::map<std::string, std::pair<int, int>> ends;
  for (const auto& event : trace.at("traceEvents")) {
    const std::string ph = event.at("ph");
    if (ph != "s" && ph != "t" && ph != "f") {
      continue;
    }
    auto& [starts, stops] = ends[event.at("id")];
    starts += ph == "s" ? 1 : 0;
    stops += ph == "f" ? 1 : 0;
    EXPECT_EQ(event.contains("bp"), ph == "f");
    const int64_t at = traced_ns(event.at("ts"));
    EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [&](const TracedSlice& slice) {
      return slice.category == "communication" && slice.rank == event.at("pid") &&
             slice.tid == event.at("tid") && slice.begin <= at && at <= slice.end;
    })) << event;
  }
  for (const auto& [id, both] : ends) {
    EXPECT_EQ(both, std::pair(1, 1)) << id;
  }
  return static_cast<int>(ends.size());
}

/// What of a rank's step slice no phase covers, as a share of it: of the step that is covered best,
/// since the system may take the processor away between two phases.
inline double uncovered_share(const nlohmann::json& trace, int rank) {
  const std::vector<TracedSlice> slices = slices_of(trace);
  double share = 1;
  for (const TracedSlice& step : slices) {
    if (step.category != "step" || step.rank != rank) {
      continue;
    }
    std::vector<std::pair<int64_t, int64_t>> phases;
    for (const TracedSlice& phase : slices) {
      if (phase.category == "phase" && phase.rank == rank && phase.begin >= step.begin &&
          phase.end <= step.end) {
        phases.emplace_back(phase.begin, phase.end);
      }
    }
    std::sort(phases.begin(), phases.end());
    int64_t covered = 0;
    int64_t until = step.begin;
    for (const auto& [begin, end] : phases) {  // those within others add nothing
      covered += std::max<int64_t>(end - std::max(begin, until), 0);
      until = std::max(until, end);
    }
    share = std::min(
        share, 1.0 - static_cast<double>(covered) / static_cast<double>(step.end - step.begin));
  }
  return share;
}

}  // namespace tapestry::testing
