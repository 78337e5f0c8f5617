// Every op type that is linked into the program, so that tests can enumerate them.
#pragma once

#include <string_view>
#include <vector>

namespace tapestry {

struct OpInfo {
  std::string_view name;
  bool differentiable = true;
};

/// Adds an op; called at static initialization by apply_op<Op>. A name may be registered once only;
/// a second type with the same name ends the program with a message.
bool register_op(const OpInfo& info);

/// All ops, sorted by name.
std::vector<OpInfo> registered_ops();

}  // namespace tapestry
