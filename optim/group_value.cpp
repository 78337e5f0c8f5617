#include "optim/group_value.h"

#include <ostream>

namespace tapestry::optim {

std::ostream& operator<<(std::ostream& out, const GroupValue& value) {
  return value ? out << *value : out << "unset";
}

}  // namespace tapestry::optim
