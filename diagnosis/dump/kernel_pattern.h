// An entry of the list `kernels` of a dump configuration.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/util/regular_expression.h"

namespace tapestry::dump {

/// Names ops in one of three ways:
/// - "name-regex(RE)": ops whose whole name matches the expression (docs/expressions.md);
/// - a text with a slash or "-op": the op of exactly that name ("Default/Conv-op12",
///   "Gradients/layers.0.attention.q");
/// - any other: ops in whose type or name it occurs, in upper or lower case ("conv" finds Conv2D
/// and
///   Conv3D, "layers.0." all of the first layer).
class KernelPattern {
 public:
  /// ValueError for an empty text or an expression that is none.
  explicit KernelPattern(std::string text);

  bool matches(std::string_view op_type, std::string_view op_name) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::optional<RegularExpression> expression_;
  bool whole_name_ = false;
  std::string lower_;
};

}  // namespace tapestry::dump
