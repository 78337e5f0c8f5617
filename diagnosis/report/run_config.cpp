#include "diagnosis/report/run_config.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::report {
namespace {

using config::RawNode;

std::string value_text(const RawNode& node) {
  std::string text;
  switch (node.kind) {
    case RawNode::Kind::kNull:
      return "null";
    case RawNode::Kind::kScalar:
      return node.quoted && node.scalar.empty() ? "\"\"" : node.scalar;
    case RawNode::Kind::kList:
      for (const RawNode& item : node.items) {
        text += (text.empty() ? "" : ", ") + value_text(item);
      }
      return "[" + text + "]";
    case RawNode::Kind::kMap:
      for (const config::RawEntry& entry : node.entries) {
        text += concat(text.empty() ? "" : ", ", entry.key.scalar, ": ", value_text(entry.value));
      }
      return "{" + text + "}";
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The comment behind a value, which says where it came from.
std::string origin_at(const std::vector<std::string>& lines, const config::Place& place) {
  constexpr std::string_view kComment = "  # ";
  if (place.line < 1 || static_cast<size_t>(place.line) > lines.size()) {
    return {};
  }
  const std::string& line = lines[static_cast<size_t>(place.line) - 1];
  const size_t at = line.rfind(kComment);
  return at == std::string::npos ? std::string() : line.substr(at + kComment.size());
}

void add_entries(const std::string& section,
                 const std::string& prefix,
                 const RawNode& node,
                 const std::vector<std::string>& lines,
                 std::vector<ConfigEntry>& entries) {
  for (const config::RawEntry& entry : node.entries) {
    const std::string key = prefix + entry.key.scalar;
    const bool opens = entry.value.kind == RawNode::Kind::kMap && !entry.value.entries.empty();
    // A mapping that is a value of its own stands in one line.
    if (opens && entry.value.entries.front().key.place.line != entry.key.place.line) {
      add_entries(section, key + ".", entry.value, lines, entries);
    } else {
      entries.push_back({section, key, value_text(entry.value), origin_at(lines, entry.key.place)});
    }
  }
}

bool is_model_section(const std::vector<ConfigEntry>& config, const std::string& section) {
  return std::any_of(config.begin(), config.end(), [&](const ConfigEntry& entry) {
    return entry.section == section && entry.key == "num_attention_heads";
  });
}

}  // namespace

std::vector<ConfigEntry> parse_config(const std::string& yaml, const std::string& source) {
  std::vector<std::string> errors;
  const RawNode root = config::parse_yaml(yaml, {.source = source}, false, errors);
  check<IoError>(errors.empty(), errors.empty() ? std::string() : errors.front());
  check<IoError>(root.kind == RawNode::Kind::kMap, source,
                 ": holds no sections; expected the config.yaml of a run");
  const std::vector<std::string> lines = lines_of(yaml);
  std::vector<ConfigEntry> entries;
  for (const config::RawEntry& section : root.entries) {
    add_entries(section.key.scalar, "", section.value, lines, entries);
  }
  return entries;
}

std::vector<ConfigRow> compare_configs(const std::vector<std::vector<ConfigEntry>>& configs) {
  std::vector<ConfigRow> rows;
  std::map<std::pair<std::string, std::string>, size_t> places;
  std::string model_section;
  for (size_t run = 0; run < configs.size(); ++run) {
    std::string own_model_section;
    for (const ConfigEntry& entry : configs[run]) {
      std::string section = entry.section;
      if (own_model_section.empty() && is_model_section(configs[run], section)) {
        own_model_section = section;
        model_section = model_section.empty() ? section : model_section;
      }
      section = section == own_model_section ? model_section : section;
      auto found = places.find({section, entry.key});
      if (found == places.end()) {
        found = places.emplace(std::pair{section, entry.key}, rows.size()).first;
        rows.push_back({.section = section,
                        .key = entry.key,
                        .values = std::vector<std::optional<std::string>>(configs.size()),
                        .origins = std::vector<std::string>(configs.size())});
      }
      ConfigRow& row = rows[found->second];
      row.values[run] = entry.value;
      row.origins[run] = entry.origin;
      row.given = row.given || !entry.is_default();
    }
  }
  // A run whose configuration is not known differs in nothing.
  for (ConfigRow& row : rows) {
    std::set<std::optional<std::string>> values;
    for (size_t run = 0; run < configs.size(); ++run) {
      if (!configs[run].empty()) {
        values.insert(row.values[run]);
      }
    }
    row.differs = values.size() > 1;
  }
  // Sections stay together where a later run has keys of its own.
  std::map<std::string, size_t> order;
  for (const ConfigRow& row : rows) {
    order.emplace(row.section, order.size());
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const ConfigRow& a, const ConfigRow& b) {
    return order.at(a.section) < order.at(b.section);
  });
  return rows;
}

}  // namespace tapestry::report
