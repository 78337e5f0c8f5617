// Which tokens of a sequence a tensor has, where ranks divide it.
#pragma once

#include <cstdint>
#include <vector>

namespace tapestry {

/// Positions first .. first + count - 1 of a sequence.
struct PositionRun {
  int64_t first = 0;
  int64_t count = 0;
};

/// The positions that a tensor has of each sequence, in the order in which it has them.
struct SequencePart {
  std::vector<PositionRun> runs;
  int64_t length = 0;  ///< of the whole sequence; 0: the tensor has all of it

  /// What tokens [begin, end) of the tensor have, of which there are at least `end`.
  SequencePart slice(int64_t begin, int64_t end) const {
    SequencePart out{.runs = {}, .length = length};
    for (const PositionRun& run : runs) {
      const int64_t from = begin > 0 ? begin : 0;
      const int64_t to = end < run.count ? end : run.count;
      if (from < to) {
        out.runs.push_back({run.first + from, to - from});
      }
      begin -= run.count;
      end -= run.count;
    }
    return out;
  }
};

}  // namespace tapestry
