// YAML text as a tree of our own that knows the place of every node. Nothing is interpreted yet.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tapestry::config {

/// A place in a file (line and column count from 1), or an override on the command line.
struct Place {
  std::string source;  // file name, or "--set section.key=value"
  int line = 0;        // 0: the source as a whole
  int column = 0;

  std::string text() const;  // "gpt.yaml:12:3"
};

struct RawEntry;

struct RawNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;  // a quoted scalar is a string whatever it looks like
  bool folded = false;  // a plain scalar made of several lines
  Place place;
  std::vector<RawNode> items;
  std::vector<RawEntry> entries;
};

/// A key, which is a scalar, and its value.
struct RawEntry {
  RawNode key;
  RawNode value;
};

/// What a plain (unquoted) scalar is. `1e-6` is a number; yes/no/on/off are booleans.
enum class ScalarKind { kNull, kBool, kInt, kFloat, kString };
ScalarKind scalar_kind(std::string_view text);

/// Whether c is one of 0 to 9, whatever the locale.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Nesting deeper than this is refused.
inline constexpr int kMaxYamlDepth = 16;

/// Parses one YAML document. Appends to `errors` (with places) for: bytes that are no UTF-8,
/// malformed YAML (with the line and the likely cause, see yaml_diagnosis.h), more than one
/// document, a key that is given twice, keys that are not scalars, nesting deeper than
/// kMaxYamlDepth, more than 100,000 nodes, aliases that repeat a mapping endlessly. The result is
/// what could be read. `place` names the source; with `fixed_place` every node carries it
/// unchanged.
///
/// The merge key `<<` takes a mapping, or a list of mappings of which the first that has a key
/// counts; keys beside it go before it. Source: yaml.org/type/merge.html.
RawNode parse_yaml(const std::string& text,
                   const Place& place,
                   bool fixed_place,
                   std::vector<std::string>& errors);

}  // namespace tapestry::config
