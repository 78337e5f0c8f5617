// A line of JSONL, as Python and others write them.
#pragma once

#include <limits>
#include <string>

#include "autograd/io/json.h"

namespace tapestry::data {

struct JsonLine {
  nlohmann::ordered_json value;  ///< an object
  /// Half of a pair of surrogates stood somewhere alone, as where a text was cut inside an emoji;
  /// it is U+FFFD in `value`.
  bool has_lone_surrogate = false;
};

/// Reads a line of JSONL. NaN, Infinity and numbers beyond double, which Python writes, are null.
/// ValueError that begins with `place` (FILE:LINE), with what helps, for what is no JSON object, no
/// UTF-8, or nests deeper than `max_nesting`.
JsonLine parse_json_line(const std::string& line,
                         const std::string& place,
                         int max_nesting = std::numeric_limits<int>::max());

/// ValueError if the line has a lone surrogate and `text`, which is wanted of it, a U+FFFD.
void check_no_lone_surrogate(const JsonLine& line,
                             const std::string& text,
                             const std::string& place);

}  // namespace tapestry::data
