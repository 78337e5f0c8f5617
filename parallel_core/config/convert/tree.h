// Lines of YAML by the paths of their keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

class Tree {
 public:
  /// `yaml` is the value's text. Replaces an older one.
  void put(const std::vector<std::string>& path,
           const std::string& yaml,
           const std::string& comment = "");
  void put(std::string_view path, const std::string& yaml, const std::string& comment = "");
  bool has(std::string_view section) const;
  /// A section's lines; empty if it has none.
  std::string section(std::string_view name) const;
  const RawNode& root() const { return root_; }

 private:
  RawNode root_{.kind = RawNode::Kind::kMap};
};

/// "f.yaml:12", "default": where the key's value comes from.
std::string origin_text(const AllConfig& config, const std::string& path);

/// Puts the keys of the schema whose value differs from their default, below `prefix`; of the
/// section alone where one is named.
void put_changed(Tree& tree,
                 const AllConfig& config,
                 const std::vector<std::string>& prefix,
                 std::string_view section = {});
/// The same of one key, whatever its value is.
void put_key(Tree& tree,
             const AllConfig& config,
             const std::vector<std::string>& prefix,
             std::string_view section,
             std::string_view key);

/// "section.key" of values that differ.
std::vector<std::string> differing_keys(const AllConfig& a, const AllConfig& b);

}  // namespace tapestry::config
