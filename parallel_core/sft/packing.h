// Examples of different lengths in rows of one length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tapestry::sft {

/// Lists of examples, one after the other.
struct RowLists {
  std::vector<int64_t> ends;  ///< of each row in `examples`
  std::vector<int32_t> examples;

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  std::span<const int32_t> row(int64_t k) const {
    const int64_t begin = k > 0 ? ends[static_cast<size_t>(k - 1)] : 0;
    return std::span(examples).subspan(static_cast<size_t>(begin),
                                       static_cast<size_t>(ends[static_cast<size_t>(k)] - begin));
  }
  void add_row(std::span<const int32_t> row) {
    examples.insert(examples.end(), row.begin(), row.end());
    ends.push_back(static_cast<int64_t>(examples.size()));
  }
};

/// Best fit, longest first: each example goes into the row that it fills up most, of equals into
/// the first, or into a new one. Numbers are those of `lengths`; a row's examples ascend, and rows
/// are in the order of their first ones. None is split. ValueError for a length that is not
/// positive or exceeds `capacity`. Time n log n. Source: Johnson 1973, "Near-optimal bin packing
/// algorithms"; never more than 11/9 of the fewest rows, and one.
RowLists pack_rows(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace tapestry::sft
