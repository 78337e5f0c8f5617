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

}  // namespace

bool register_op(const OpInfo& info) {
  if (!table().emplace(info.name, info).second) {
    std::fprintf(stderr, "two ops are called '%.*s'\n", static_cast<int>(info.name.size()),
                 info.name.data());
    std::abort();
  }
  return true;
}

std::vector<OpInfo> registered_ops() {
  std::vector<OpInfo> ops;
  for (const auto& [name, info] : table()) {
    ops.push_back(info);
  }
  return ops;
}

}  // namespace tapestry
