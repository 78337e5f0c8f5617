#include "parallel_core/config/convert/tree.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {
namespace {

std::string lines_of(const RawNode& node, size_t depth) {
  std::string text;
  for (const auto& [key, value] : node.entries) {
    text += std::string(2 * depth, ' ') + string_text(key.scalar) + ":";
    if (value.kind == RawNode::Kind::kMap) {
      text += "\n" + lines_of(value, depth + 1);
    } else {
      text += concat(" ", value.scalar, value.place.source.empty() ? "" : "  # ",
                     value.place.source, "\n");
    }
  }
  return text;
}

// Whether the mapping that the key stands in is null.
bool lies_in_absent(const AllConfig& config, const Section& section, const Key& key) {
  const size_t dot = key.name.rfind('.');
  return dot != std::string_view::npos &&
         find_key(section.name, key.name.substr(0, dot))->field.get(config).is_null();
}

}  // namespace

void Tree::put(const std::vector<std::string>& path,
               const std::string& yaml,
               const std::string& comment) {
  RawNode node{.kind = RawNode::Kind::kScalar, .scalar = yaml};
  node.place.source = comment;
  std::replace_if(
      node.place.source.begin(), node.place.source.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  mindformers2::put_below(root_, path, std::move(node));
}

void Tree::put(std::string_view path, const std::string& yaml, const std::string& comment) {
  put(mindformers2::parts_of(path), yaml, comment);
}

bool Tree::has(std::string_view section) const {
  return std::any_of(root_.entries.begin(), root_.entries.end(),
                     [&](const RawEntry& entry) { return entry.key.scalar == section; });
}

std::string Tree::section(std::string_view name) const {
  for (const RawEntry& entry : root_.entries) {
    if (entry.key.scalar == name) {
      RawNode alone{.kind = RawNode::Kind::kMap};
      alone.entries.push_back(entry);
      return lines_of(alone, 0);
    }
  }
  return {};
}

std::string origin_text(const AllConfig& config, const std::string& path) {
  const auto origin = config.origins.find(path);
  return origin == config.origins.end() || origin->second.text.empty() ? "default"
                                                                       : origin->second.text;
}

void put_key(Tree& tree,
             const AllConfig& config,
             const std::vector<std::string>& prefix,
             std::string_view section,
             std::string_view key) {
  const Key& row = *find_key(section, key);
  const Value value = row.field.get(config);
  if (row.until_resolved && key != "from_hf") {
    return;  // the keys that it stands for have their values
  }
  std::vector<std::string> path = prefix;
  path.emplace_back(section);
  for (const std::string& part : mindformers2::parts_of(key)) {
    path.push_back(part);
  }
  const bool opens = row.field.type == Type::kMapping && !value.is_null();
  tree.put(path, opens ? "{}" : yaml_of(row, value),
           origin_text(config, concat(section, ".", key)));
}

void put_changed(Tree& tree,
                 const AllConfig& config,
                 const std::vector<std::string>& prefix,
                 std::string_view section) {
  for (const Section& one : schema()) {
    if (!section.empty() && one.name != section) {
      continue;
    }
    for (const Key& key : one.keys) {
      const bool mapping = key.field.type == Type::kMapping;
      if (lies_in_absent(config, one, key) ||
          (mapping && (!key.field.nullable || key.field.get(config).is_null()))) {
        continue;
      }
      if (key.required || mapping ||
          yaml_of(key, key.field.get(config)) != yaml_of(key, default_value(key))) {
        put_key(tree, config, prefix, one.name, key.name);
      }
    }
  }
}

std::vector<std::string> differing_keys(const AllConfig& a, const AllConfig& b) {
  std::vector<std::string> keys;
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      const Value one = key.field.get(a);
      const Value other = key.field.get(b);
      const bool mapping = key.field.type == Type::kMapping;
      if (mapping ? one.is_null() != other.is_null() : to_yaml(one) != to_yaml(other)) {
        keys.push_back(concat(section.name, ".", key.name));
      }
    }
  }
  return keys;
}

}  // namespace tapestry::config
