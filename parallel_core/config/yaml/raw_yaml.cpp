#include "parallel_core/config/yaml/raw_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>

#include "parallel_core/config/yaml/yaml_diagnosis.h"

namespace tapestry::config {
namespace {

constexpr int kMaxNodes = 100'000;

class Converter {
 public:
  Converter(std::string_view text,
            const Place& place,
            bool fixed_place,
            std::vector<std::string>& errors)
      : text_(text), place_(place), fixed_place_(fixed_place), errors_(errors) {}

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
        raw.folded = !raw.quoted && is_folded(node);
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
    std::vector<RawEntry> merged;
    for (const auto& entry : node) {
      RawNode key = convert(entry.first, depth + 1);
      if (key.kind != RawNode::Kind::kScalar) {
        if (!stopped_) {
          errors_.push_back(key.place.text() + ": a key must be a name, got " +
                            (key.kind == RawNode::Kind::kList  ? "a list"
                             : key.kind == RawNode::Kind::kMap ? "a mapping ({ } of a template?)"
                                                               : "nothing") +
                            "; put it into double quotes if it is a text");
        }
        continue;
      }
      if (key.scalar == "<<" && !key.quoted) {
        merge(entry.second, depth, key.place, merged);
        continue;
      }
      const auto same = [&key](const auto& other) { return other.key.scalar == key.scalar; };
      const auto first = std::find_if(raw.entries.begin(), raw.entries.end(), same);
      if (first != raw.entries.end()) {
        errors_.push_back(key.place.text() + ": the key '" + key.scalar + "' is given twice" +
                          (fixed_place_ ? "" : ", first at " + first->key.place.text()) +
                          written_as(first->value) + "; keep one");
        continue;
      }
      RawNode value = convert(entry.second, depth + 1);
      if (value.kind == RawNode::Kind::kNull) {
        value.place = key.place;  // the parser gives an empty value no place of its own
      }
      raw.entries.push_back({std::move(key), std::move(value)});
    }
    for (RawEntry& entry : merged) {
      add_absent(std::move(entry), raw.entries);
    }
  }

  static std::string written_as(const RawNode& value) {
    return value.kind == RawNode::Kind::kScalar ? " as '" + value.scalar + "'" : std::string();
  }

  static void add_absent(RawEntry entry, std::vector<RawEntry>& entries) {
    if (std::none_of(entries.begin(), entries.end(),
                     [&](const RawEntry& other) { return other.key.scalar == entry.key.scalar; })) {
      entries.push_back(std::move(entry));
    }
  }

  // The value of `<<`.
  void merge(const YAML::Node& node, int depth, const Place& place, std::vector<RawEntry>& merged) {
    if (node.IsSequence()) {
      for (const auto& item : node) {
        merge(item, depth + 1, place, merged);
      }
      return;
    }
    if (!node.IsMap()) {
      errors_.push_back(place.text() + ": << takes a mapping or a list of mappings" +
                        (node.IsScalar() ? ", got '" + node.Scalar() + "'" : std::string()) +
                        "; write a merge such as `<<: *defaults` where "
                        "`defaults: &defaults` stands further up");
      return;
    }
    for (RawEntry& entry : convert(node, depth + 1).entries) {
      add_absent(std::move(entry), merged);
    }
  }

  // A plain scalar stands in the text as it is, unless its lines were joined by blanks.
  bool is_folded(const YAML::Node& node) const {
    const std::string& scalar = node.Scalar();
    const YAML::Mark mark = node.Mark();
    return !fixed_place_ && scalar.find(' ') != std::string::npos && mark.pos >= 0 &&
           static_cast<size_t>(mark.pos) < text_.size() &&
           text_.substr(static_cast<size_t>(mark.pos), scalar.size()) != scalar;
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

  std::string_view text_;
  const Place& place_;
  bool fixed_place_;
  std::vector<std::string>& errors_;
  int nodes_ = 0;
  bool stopped_ = false;
};

bool any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

std::string fault_text(const std::string& text,
                       const Place& place,
                       bool fixed_place,
                       const YamlFault& fault) {
  if (fixed_place) {
    return place.text() + ": not valid YAML: " + fault.message;
  }
  const std::string path = key_path_of_line(text, fault.line);
  return Place{place.source, fault.line, fault.column}.text() + ": " +
         (path.empty() ? "" : path + ": ") + "not valid YAML: " + fault.message +
         source_excerpt(text, fault.line, fault.column);
}

std::string parser_message(const std::string& text,
                           const Place& place,
                           bool fixed_place,
                           const YAML::Exception& error) {
  if (error.mark.is_null()) {
    return place.text() + ": not valid YAML: " + error.msg;
  }
  return fault_text(text, place, fixed_place,
                    yaml_fault(text, {error.mark.line + 1, error.mark.column + 1, error.msg}));
}

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
  if (text.starts_with("\xef\xbb\xbf")) {  // a byte order mark: places count from behind it
    return parse_yaml(text.substr(3), place, fixed_place, errors);
  }
  if (const auto fault = encoding_fault(text, place.source); fault && !fixed_place) {
    errors.push_back(Place{place.source, fault->line, fault->column}.text() + ": " +
                     fault->message);
    return {.place = place};
  }
  if (const auto fault = misread_fault(text)) {
    errors.push_back(fault_text(text, place, fixed_place, *fault));
    return {.place = place};
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      errors.push_back(place.text() + ": holds " + std::to_string(documents.size()) +
                       " YAML documents; expected one: remove the lines `---` between them, or "
                       "put each into a file of its own");
      return {.place = place};
    }
    if (documents.empty()) {
      return {.place = place};
    }
    return Converter(text, place, fixed_place, errors).convert(documents.front(), 0);
  } catch (const YAML::Exception& error) {
    errors.push_back(parser_message(text, place, fixed_place, error));
    return {.place = place};
  }
}

}  // namespace tapestry::config
