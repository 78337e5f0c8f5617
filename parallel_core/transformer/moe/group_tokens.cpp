#include "parallel_core/transformer/moe/group_tokens.h"

#include "autograd/tensor/error.h"

namespace tapestry {

GroupTokens GroupTokens::slice(int64_t begin, int64_t end) const {
  check<ValueError>(begin >= 0 && begin <= end && end <= std::ssize(numbers),
                    "tokens of the routing group: there is no part [", begin, ", ", end, ") of ",
                    numbers.size());
  GroupTokens out = *this;
  out.numbers.assign(numbers.begin() + begin, numbers.begin() + end);
  return out;
}

GroupTokens group_tokens(
    ProcessGroup* group, const SequencePart& part, int64_t rows, int64_t own, bool sequence_first) {
  GroupTokens out = {.group = group,
                     .total = 0,
                     .rows = rows,
                     .seq_length = part.length > 0 ? part.length : own,
                     .numbers = {}};
  out.total = rows * out.seq_length;
  std::vector<int64_t> positions;
  for (const PositionRun& run : part.length > 0 ? part.runs : std::vector<PositionRun>{{0, own}}) {
    for (int64_t i = 0; i < run.count; ++i) {
      positions.push_back(run.first + i);
    }
  }
  check<ValueError>(std::ssize(positions) == own,
                    "tokens of the routing group: hidden states have ", own,
                    " positions of each sequence, but their part has ", positions.size());
  out.numbers.reserve(static_cast<size_t>(rows * own));
  const int64_t outer = sequence_first ? own : rows;
  const int64_t inner = sequence_first ? rows : own;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t row = sequence_first ? j : i;
      const int64_t place = sequence_first ? i : j;
      out.numbers.push_back(row * out.seq_length + positions[static_cast<size_t>(place)]);
    }
  }
  return out;
}

}  // namespace tapestry
