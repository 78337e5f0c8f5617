#include "autograd/kernels/attention/attention_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace tapestry::kernels {
namespace {

AttentionShape shape_of(
    int64_t batch, int64_t heads, int64_t groups, int64_t q_len, int64_t kv_len) {
  AttentionShape s;
  s.batch = batch;
  s.heads = heads;
  s.groups = groups;
  s.q_len = q_len;
  s.kv_len = kv_len;
  s.head_dim = 64;
  return s;
}

const std::vector<AttentionShape> kShapes = {
    shape_of(4, 12, 12, 256, 256), shape_of(2, 8, 2, 300, 300), shape_of(1, 1, 1, 1000, 1000),
    shape_of(3, 5, 5, 64, 64),     shape_of(1, 6, 3, 1, 500),   shape_of(2, 3, 1, 130, 70)};

/// When the last thread ends, if each takes the next unit as soon as it is free.
double makespan(const std::vector<double>& work, int64_t team) {
  std::vector<double> ends(team, 0);
  for (const double w : work) {
    *std::min_element(ends.begin(), ends.end()) += w;
  }
  return *std::max_element(ends.begin(), ends.end());
}

TEST(AttentionUnits, ForwardCoversEveryQueryOnce) {
  for (const AttentionShape& s : kShapes) {
    for (const int64_t team : {1, 2, 3, 7, 32}) {
      const AttentionForwardUnits units(s, team);
      std::map<std::tuple<int64_t, int64_t, int64_t>, int> seen;
      for (int64_t unit = 0; unit < units.count(); ++unit) {
        const AttentionRows rows = units[unit];
        EXPECT_EQ(rows.q_begin % kAttentionBlock, 0);
        EXPECT_LE(rows.q_end - rows.q_begin, kAttentionChunk);
        for (int64_t i = rows.q_begin; i < rows.q_end; ++i) {
          ++seen[{rows.sample, rows.head, i}];
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), s.batch * s.heads * s.q_len);
      for (const auto& [place, times] : seen) {
        ASSERT_EQ(times, 1);
      }
    }
  }
}

TEST(AttentionUnits, BackwardWritesEveryGradientOnceFromAllThatItNeeds) {
  for (const AttentionShape& s : kShapes) {
    const int64_t heads = s.heads / s.groups;
    for (const int64_t team : {1, 2, 3, 7, 32}) {
      const AttentionBackwardUnits units(s, team);
      std::map<std::tuple<int64_t, int64_t, int64_t>, int> queries;
      std::map<std::tuple<int64_t, int64_t, int64_t>, int> keys;
      for (int64_t unit = 0; unit < units.count(); ++unit) {
        const AttentionPart part = units[unit];
        EXPECT_EQ(part.q_begin % kAttentionBlock, 0);
        EXPECT_EQ(part.k_begin % kAttentionBlock, 0);
        EXPECT_EQ(part.head_begin / heads, part.group);
        EXPECT_LE(part.head_end, (part.group + 1) * heads);
        if (part.want_dq) {
          EXPECT_TRUE(part.k_begin == 0 && part.k_end == s.kv_len);
          for (int64_t head = part.head_begin; head < part.head_end; ++head) {
            for (int64_t i = part.q_begin; i < part.q_end; ++i) {
              ++queries[{part.sample, head, i}];
            }
          }
        }
        if (part.want_dkv) {
          EXPECT_TRUE(part.q_begin == 0 && part.q_end == s.q_len);
          EXPECT_EQ(part.head_end - part.head_begin, heads);
          EXPECT_LE(part.k_end - part.k_begin, units.most_keys());
          for (int64_t j = part.k_begin; j < part.k_end; ++j) {
            ++keys[{part.sample, part.group, j}];
          }
        }
      }
      EXPECT_EQ(static_cast<int64_t>(queries.size()), s.batch * s.heads * s.q_len);
      EXPECT_EQ(static_cast<int64_t>(keys.size()), s.batch * s.groups * s.kv_len);
      for (const auto* places : {&queries, &keys}) {
        for (const auto& [place, times] : *places) {
          ASSERT_EQ(times, 1);
        }
      }
    }
  }
}

TEST(AttentionUnits, SegmentsOfDocumentsHaveAllThatTheyNeed) {
  constexpr int64_t kTokens = 1500;
  for (const int64_t offset : {0, 400}) {
    for (const auto& lengths : {std::vector<int64_t>{128}, {1000, 3}, {5000}, {1}, {10, 300, 70}}) {
      AttentionShape s = shape_of(2, 6, 3, kTokens - offset, kTokens);
      s.causal = true;
      s.q_offset = offset;
      std::vector<int32_t> starts;
      for (int64_t b = 0; b < s.batch; ++b) {
        int64_t start = 0;
        for (int64_t p = 0, n = b; p < kTokens; ++p) {
          const int64_t length = lengths[n % lengths.size()];
          if (p - start == length) {
            start = p;
            ++n;
          }
          starts.push_back(static_cast<int32_t>(start));
        }
      }
      for (const int64_t team : {1, 2, 7, 32}) {
        const AttentionBackwardUnits units(s, team, {starts.data(), kTokens});
        std::map<std::tuple<int64_t, int64_t, int64_t>, int> queries;
        std::map<std::tuple<int64_t, int64_t, int64_t>, int> keys;
        for (int64_t unit = 0; unit < units.count(); ++unit) {
          const AttentionPart part = units[unit];
          const auto start = [&](int64_t position) {
            return int64_t{starts[part.sample * kTokens + position]};
          };
          for (int64_t i = part.q_begin; part.want_dq && i < part.q_end; ++i) {
            ASSERT_LE(part.k_begin, start(i + offset));
            ASSERT_GT(part.k_end, i + offset);
            for (int64_t head = part.head_begin; head < part.head_end; ++head) {
              ++queries[{part.sample, head, i}];
            }
          }
          for (int64_t j = part.k_begin; part.want_dkv && j < part.k_end; ++j) {
            ++keys[{part.sample, part.group, j}];
          }
          if (part.want_dkv && part.k_begin < part.k_end) {
            EXPECT_EQ(part.head_end - part.head_begin, 2);
            EXPECT_LE(part.k_end - part.k_begin, units.most_keys());
            // The first query to see one of its keys, and the first behind that sees none.
            EXPECT_LE(part.q_begin, std::max<int64_t>(part.k_begin - offset, 0));
            EXPECT_TRUE(part.q_end == s.q_len || start(part.q_end + offset) >= part.k_end);
          }
        }
        ASSERT_EQ(static_cast<int64_t>(queries.size()), s.batch * s.heads * s.q_len);
        ASSERT_EQ(static_cast<int64_t>(keys.size()), s.batch * s.groups * s.kv_len);
        for (const auto* places : {&queries, &keys}) {
          for (const auto& [place, times] : *places) {
            ASSERT_EQ(times, 1);
          }
        }
      }
    }
  }
  // What would be most of one thread's share is split.
  AttentionShape s = shape_of(1, 1, 1, 2048, 2048);
  s.causal = true;
  const std::vector<int32_t> starts(2048, 0);
  EXPECT_EQ(AttentionBackwardUnits(s, 1, {starts.data(), 2048}).count(), 1);
  EXPECT_GE(AttentionBackwardUnits(s, 2, {starts.data(), 2048}).count(), 8);
}

TEST(AttentionUnits, PlanesThatAreNoMultipleOfTheTeamKeepItBusy) {
  constexpr int64_t kTeam = 32;
  for (const int64_t heads : {3, 5, 9, 12, 20}) {  // 12 to 80 planes
    const AttentionShape s = shape_of(4, heads, heads, 1024, 1024);
    const double plane = static_cast<double>(s.q_len * s.kv_len);
    const double all = plane * static_cast<double>(s.batch * s.heads);
    const AttentionForwardUnits forward(s, kTeam);
    std::vector<double> work;
    for (int64_t unit = 0; unit < forward.count(); ++unit) {
      work.push_back(static_cast<double>((forward[unit].q_end - forward[unit].q_begin) * s.kv_len));
    }
    EXPECT_LE(makespan(work, kTeam), 1.2 * all / kTeam) << heads;

    // Five products of every block of a plane, three or four of one that is split.
    const AttentionBackwardUnits backward(s, kTeam);
    work.clear();
    for (int64_t unit = 0; unit < backward.count(); ++unit) {
      const AttentionPart part = backward[unit];
      const int64_t products = 2 + (part.want_dq ? 1 : 0) + (part.want_dkv ? 2 : 0);
      work.push_back(static_cast<double>((part.head_end - part.head_begin) * products *
                                         (part.q_end - part.q_begin) *
                                         (part.k_end - part.k_begin)));
    }
    // The seven in place of five, and what no cut could avoid: one plane a thread in a last round.
    const double ideal = 5 * all / kTeam;
    EXPECT_LE(makespan(work, kTeam), std::min(1.45 * ideal, ideal + 5 * plane)) << heads;
  }
  // 48 planes: two rounds of whole planes would take 10 / 7.5 of the ideal.
  const AttentionShape s = shape_of(4, 12, 12, 1024, 1024);
  const AttentionBackwardUnits backward(s, kTeam);
  EXPECT_GT(backward.count(), 48);
}

}  // namespace
}  // namespace tapestry::kernels
