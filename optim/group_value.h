// A number that a parameter group may leave to its optimizer.
#pragma once

#include <iosfwd>
#include <optional>

namespace tapestry::optim {

/// Unset, or a number, of which 0 is one. Prints as the number, or as "unset".
class GroupValue : public std::optional<double> {
 public:
  using std::optional<double>::optional;
  GroupValue(std::optional<double> value) : std::optional<double>(value) {}
};

std::ostream& operator<<(std::ostream& out, const GroupValue& value);

}  // namespace tapestry::optim
