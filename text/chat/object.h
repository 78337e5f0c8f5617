// Values that do something: macros, methods, loops.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/value.h"

namespace tapestry::chat::jinja {

class Run;

/// The arguments of a call.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  virtual std::string_view type_name() const = 0;
  virtual int depth() const { return 1; }
  virtual bool callable() const { return false; }
  /// Only of what is callable.
  virtual Value call(Run& run, const Arguments& arguments);
  /// Nothing if there is no such attribute.
  virtual std::optional<Value> attribute(Run& run, std::string_view name);
};

/// The values of `names`, in their order, that a call gives; the first `required` must be given.
/// Fails as Python does for too many, unknown, doubled and missing ones.
std::vector<std::optional<Value>> bind_arguments(Run& run,
                                                 std::string_view function,
                                                 const Arguments& arguments,
                                                 const std::vector<std::string_view>& names,
                                                 size_t required = 0);

}  // namespace tapestry::chat::jinja
