#include "autograd/tape/registry.h"

#include <cstdio>
#include <cstdlib>
#include <map>

namespace tapestry {

namespace {

std::map<std::string_view, OpInfo>& table() {
  static std::map<std::string_view, OpInfo> ops;
  return ops;
}

// A file of this project by its path from the root, wherever that was compiled; others as they are.
std::string_view from_root(std::string_view file) {
  constexpr std::string_view kThis = "autograd/tape/registry.cpp";
  std::string_view root = std::source_location::current().file_name();
  root.remove_suffix(root.ends_with(kThis) ? kThis.size() : 0);
  return file.starts_with(root) ? file.substr(root.size()) : file;
}

}  // namespace

bool register_op(const OpInfo& info) {
  OpInfo entry = info;
  entry.file = from_root(info.file);
  if (!table().emplace(info.name, entry).second) {
    std::fprintf(stderr, "two ops are called '%.*s'\n", static_cast<int>(info.name.size()),
                 info.name.data());
    std::abort();
  }
  return true;
}

const OpInfo* find_op(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

std::vector<OpInfo> registered_ops() {
  std::vector<OpInfo> ops;
  for (const auto& [name, info] : table()) {
    ops.push_back(info);
  }
  return ops;
}

}  // namespace tapestry
