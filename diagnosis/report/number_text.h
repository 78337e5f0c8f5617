// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::report {

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

}  // namespace tapestry::report
