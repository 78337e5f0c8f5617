// Matrices whose rows are those of several matrices by turns.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tapestry {

/// By the name of a logical tensor [rows, columns]: how many rows each of its matrices has in a
/// turn. {128, 64}: rows 0 to 127 of every 192 belong to the first, the others to the second.
using RowTurns = std::map<std::string, std::vector<int64_t>>;

/// A module that has such tensors. Optimizers that look at whole matrices ask for them.
class HasRowTurns {
 public:
  HasRowTurns() = default;
  HasRowTurns(const HasRowTurns&) = delete;
  HasRowTurns& operator=(const HasRowTurns&) = delete;
  virtual ~HasRowTurns() = default;
  virtual RowTurns row_turns() const = 0;
};

}  // namespace tapestry
