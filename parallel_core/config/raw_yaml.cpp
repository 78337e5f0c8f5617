#include "parallel_core/config/raw_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>

namespace tapestry::config {
namespace {

constexpr int kMaxNodes = 100'000;

class Converter {
 public:
  Converter(const Place& place, bool fixed_place, std::vector<std::string>& errors)
      : place_(place), fixed_place_(fixed_place), errors_(errors) {}

  RawNode convert(const YAML::Node& node, int depth) {
    RawNode raw;
    raw.place = place_of(node.Mark());
    if (stopped_) {
      return raw;
    }
    if (++nodes_ > kMaxNodes) {
      stop(raw.place,
           "more than " + std::to_string(kMaxNodes) + " values: this is no configuration");
      return raw;
    }
    if (depth > kMaxYamlDepth) {
      stop(raw.place, "nested deeper than " + std::to_string(kMaxYamlDepth) + " levels");
      return raw;
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        raw.scalar = node.Scalar();
        raw.quoted = node.Tag() == "!";
        raw.kind = !raw.quoted && scalar_kind(raw.scalar) == ScalarKind::kNull
                       ? RawNode::Kind::kNull
                       : RawNode::Kind::kScalar;
        break;
      case YAML::NodeType::Sequence:
        raw.kind = RawNode::Kind::kList;
        for (const auto& item : node) {
          raw.items.push_back(convert(item, depth + 1));
        }
        break;
      case YAML::NodeType::Map:
        raw.kind = RawNode::Kind::kMap;
        convert_map(node, depth, raw);
        break;
    }
    return raw;
  }

 private:
  void convert_map(const YAML::Node& node, int depth, RawNode& raw) {
    for (const auto& entry : node) {
      RawNode key = convert(entry.first, depth + 1);
      if (key.kind != RawNode::Kind::kScalar) {
        if (!stopped_) {
          errors_.push_back(key.place.text() + ": a key must be a name");
        }
        continue;
      }
      const auto same = [&key](const auto& other) { return other.key.scalar == key.scalar; };
      const auto first = std::find_if(raw.entries.begin(), raw.entries.end(), same);
      if (first != raw.entries.end()) {
        errors_.push_back(key.place.text() + ": the key '" + key.scalar + "' is given twice" +
                          (fixed_place_ ? "" : ", first at " + first->key.place.text()));
        continue;
      }
      RawNode value = convert(entry.second, depth + 1);
      if (value.kind == RawNode::Kind::kNull) {
        value.place = key.place;  // the parser gives an empty value no place of its own
      }
      raw.entries.push_back({std::move(key), std::move(value)});
    }
  }

  Place place_of(const YAML::Mark& mark) const {
    if (fixed_place_ || mark.is_null()) {
      return place_;
    }
    return {place_.source, mark.line + 1, mark.column + 1};
  }

  void stop(const Place& place, const std::string& message) {
    errors_.push_back(place.text() + ": " + message);
    stopped_ = true;
  }

  const Place& place_;
  bool fixed_place_;
  std::vector<std::string>& errors_;
  int nodes_ = 0;
  bool stopped_ = false;
};

bool any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string Place::text() const {
  return line == 0 ? source : source + ":" + std::to_string(line) + ":" + std::to_string(column);
}

ScalarKind scalar_kind(std::string_view text) {
  if (any_of(text, {"", "~", "null", "Null", "NULL"})) {
    return ScalarKind::kNull;
  }
  if (any_of(text, {"true", "True", "TRUE", "false", "False", "FALSE", "yes", "Yes", "YES", "no",
                    "No", "NO", "on", "On", "ON", "off", "Off", "OFF"})) {
    return ScalarKind::kBool;
  }
  size_t i = text[0] == '+' || text[0] == '-' ? 1 : 0;
  size_t digits = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) {
    ++digits;
  }
  if (i == text.size()) {
    return digits > 0 ? ScalarKind::kInt : ScalarKind::kString;
  }
  if (text[i] == '.') {
    for (++i; i < text.size() && is_digit(text[i]); ++i) {
      ++digits;
    }
  }
  if (digits == 0) {
    return any_of(text, {".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "-.inf", "-.Inf", "-.INF",
                         "+.inf", "+.Inf", "+.INF"})
               ? ScalarKind::kFloat
               : ScalarKind::kString;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) {
      ++i;
    }
    const size_t exponent = i;
    for (; i < text.size() && is_digit(text[i]); ++i) {
    }
    if (i == exponent) {
      return ScalarKind::kString;
    }
  }
  return i == text.size() ? ScalarKind::kFloat : ScalarKind::kString;
}

RawNode parse_yaml(const std::string& text,
                   const Place& place,
                   bool fixed_place,
                   std::vector<std::string>& errors) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      errors.push_back(place.text() + ": holds " + std::to_string(documents.size()) +
                       " YAML documents; expected one");
      return {.place = place};
    }
    if (documents.empty()) {
      return {.place = place};
    }
    return Converter(place, fixed_place, errors).convert(documents.front(), 0);
  } catch (const YAML::Exception& error) {
    Place at = place;
    if (!fixed_place && !error.mark.is_null()) {
      at.line = error.mark.line + 1;
      at.column = error.mark.column + 1;
    }
    errors.push_back(at.text() + ": not valid YAML: " + error.msg);
    return {.place = place};
  }
}

}  // namespace tapestry::config
