// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapestry {

/// "1:02:03" or "2:03".
std::string format_duration(double seconds);

/// "464 ms a step, 3:52 for 500 steps"; without the second half where `steps` is 0, not known.
std::string format_pace(double seconds_a_step, int64_t steps);

/// 1234567 as "1,234,567".
std::string with_thousands(int64_t number);

/// So many significant digits, without zeros at the end: "3.1416", "0.00025", "1.2e-07".
std::string number_text(double value, int digits = 5);
/// With k, M, B or T from 10,000 on: "9,999", "12.3 k", "1.25 M".
std::string amount_text(double value);
/// "512 B", "1.5 GiB".
std::string bytes_text(double bytes);
/// "4.2 s", "3:05 min", "1:02:03 h", "2 d 3 h".
std::string duration_text(double seconds);
/// Whole numbers in ascending order, neighbours put together: "3, 7-9, 12"; after `most` pieces
/// "and 5 more".
std::string ranges_text(const std::vector<int64_t>& numbers, size_t most);

/// A NaN without the sign that it may have, which printf would show; any other value as it is.
double without_nan_sign(double value);

}  // namespace tapestry
