// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tapestry {

/// "1:02:03" or "2:03".
std::string format_duration(double seconds);

/// "464 ms a step, 3:52 for 500 steps"; without the second half where `steps` is 0, not known.
std::string format_pace(double seconds_a_step, int64_t steps);

/// 1234567 as "1,234,567".
std::string with_thousands(int64_t number);

}  // namespace tapestry
