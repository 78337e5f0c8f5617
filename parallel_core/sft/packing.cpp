#include "parallel_core/sft/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::sft {

RowLists pack_rows(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length_of = [&](int32_t i) { return lengths[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return length_of(a) > length_of(b); });
  std::vector<std::vector<int32_t>> rows;
  std::set<std::pair<int64_t, size_t>> room;  // left in a row, and its number
  for (const int32_t example : order) {
    const int64_t length = length_of(example);
    check<ValueError>(length >= 1 && length <= capacity, "packing: example ", example, " has ",
                      length, " tokens, expected 1 .. ", capacity);
    int64_t left = capacity;
    size_t row = rows.size();
    const auto fullest = room.lower_bound({length, 0});
    if (fullest != room.end()) {
      std::tie(left, row) = *fullest;
      room.erase(fullest);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(example);
    room.emplace(left - length, row);
  }
  for (std::vector<int32_t>& row : rows) {
    std::sort(row.begin(), row.end());
  }
  std::sort(rows.begin(), rows.end());
  RowLists lists;
  for (const std::vector<int32_t>& row : rows) {
    lists.add_row(row);
  }
  return lists;
}

}  // namespace tapestry::sft
