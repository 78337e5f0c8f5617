#include "parallel_core/config/read/read_foreign.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::config {
namespace {

bool is_empty(const RawNode& node) { return node.items.empty() && node.entries.empty(); }

bool holds_sections(const RawNode& node) {
  return node.kind == RawNode::Kind::kMap ||
         std::any_of(node.items.begin(), node.items.end(), holds_sections);
}

// The path, with the type of what it describes: "callbacks.CheckpointMonitor".
std::string with_type(const std::string& path, const RawNode& body) {
  for (const auto& [name, value] : body.entries) {
    if (name.scalar == "type" && value.kind == RawNode::Kind::kScalar) {
      return concat(path, ".", value.scalar);
    }
  }
  return path;
}

// Adds what stands below the path and is read to `values`; returns the rest.
RawNode walk(const std::string& path, const RawNode& body, std::vector<ForeignValue>& values) {
  RawNode rest{.kind = body.kind, .scalar = body.scalar, .place = body.place};
  for (const RawNode& item : body.items) {
    RawNode left = walk(path, item, values);
    if (!is_empty(left) || item.kind != RawNode::Kind::kMap) {
      rest.items.push_back(std::move(left));
    }
  }
  const std::string typed = with_type(path, body);
  for (const auto& [name, value] : body.entries) {
    const std::string own = concat(path, ".", name.scalar);
    const ForeignName* row = find_readable_name(concat(typed, ".", name.scalar));
    row = row != nullptr ? row : find_readable_name(own);
    if (row != nullptr && !holds_sections(value)) {
      values.push_back({row, name, value});
    } else if (holds_sections(value)) {
      RawNode left = walk(own, value, values);
      if (!is_empty(left)) {
        rest.entries.push_back({name, std::move(left)});
      }
    } else if (name.scalar != "type" || !holds_readable_names(typed)) {
      rest.entries.push_back({name, value});
    }
  }
  return rest;
}

}  // namespace

ForeignSection read_foreign_section(const std::string& written, const RawNode& body) {
  // The guides have both spellings.
  const std::string name = written == "callback" ? "callbacks" : written;
  ForeignSection section;
  if (!holds_readable_names(name)) {
    section.rest = body;
    return section;
  }
  section.rest = walk(name, body, section.values);
  section.is_read = body.kind == RawNode::Kind::kNull ||
                    (body.kind != RawNode::Kind::kScalar && is_empty(section.rest));
  return section;
}

}  // namespace tapestry::config
