// The iterations that a dump covers, as its configuration writes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::dump {

/// Iterations count from 0: iteration n is training step n + 1.
class IterationSet {
 public:
  /// All of them.
  IterationSet() = default;
  /// "all", or items joined by "|": n, or a-b with both ends; spaces are allowed. "0|5-8|100-120".
  /// ValueError, with the item, for anything else, a negative or too large number, or a > b.
  explicit IterationSet(std::string_view text);

  bool contains(int64_t iteration) const;
  /// The last one; INT64_MAX for "all".
  int64_t last() const;

 private:
  struct Range {
    int64_t first = 0;
    int64_t last = 0;
  };
  std::vector<Range> ranges_;
  bool all_ = true;
};

}  // namespace tapestry::dump
