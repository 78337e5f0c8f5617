// Every op type that is linked into the program, so that tests can enumerate them.
#pragma once

#include <cstdint>
#include <source_location>
#include <string_view>
#include <vector>

namespace tapestry {

/// What an op is called, and where its struct says so:
/// `static constexpr OpName name = "scale";`
struct OpName : std::string_view {
  // NOLINTBEGIN(google-explicit-constructor): reads as a text
  consteval OpName(const char* text, std::source_location where_ = std::source_location::current())
      : std::string_view(text), where(where_) {}
  consteval OpName(std::string_view text,
                   std::source_location where_ = std::source_location::current())
      : std::string_view(text), where(where_) {}
  // NOLINTEND(google-explicit-constructor)

  std::source_location where;
};

struct OpInfo {
  std::string_view name;
  bool differentiable = true;
  std::string_view file;  ///< of the op's struct, from the root of its project
  uint32_t line = 0;
};

/// Adds an op; called at static initialization by apply_op<Op>. A name may be registered once only;
/// a second type with the same name ends the program with a message.
bool register_op(const OpInfo& info);

/// All ops, sorted by name.
std::vector<OpInfo> registered_ops();
/// The op of that name; null if there is none, as for names of nodes that are no ops.
const OpInfo* find_op(std::string_view name);

}  // namespace tapestry
