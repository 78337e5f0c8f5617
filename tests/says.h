// What a message must say, without its sentence: place, key, value and kind of fault.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace tapestry {

/// The parts, which " ... " separates, stand in the text in this order. A test names with it what a
/// message is about; how it puts that may change.
MATCHER_P(Says, parts, "says: " + ::testing::PrintToString(parts)) {
  static const std::string kGap = " ... ";
  const std::string wanted(parts);
  const std::string& text = arg;
  size_t at = 0;
  for (size_t begin = 0; begin <= wanted.size();) {
    const size_t end = std::min(wanted.find(kGap, begin), wanted.size());
    const std::string part = wanted.substr(begin, end - begin);
    const size_t found = text.find(part, at);
    if (found == std::string::npos) {
      *result_listener << "which lacks '" << part << "'";
      return false;
    }
    at = found + part.size();
    begin = end + kGap.size();
  }
  return true;
}

}  // namespace tapestry
