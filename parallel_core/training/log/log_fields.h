// Values that go with a message of the log.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tapestry {

/// A value with its name. Logs as JSON have it as a member beside the message.
struct LogField {
  std::string name;
  std::variant<int64_t, double, bool> value;
};
using LogFields = std::vector<LogField>;

}  // namespace tapestry
