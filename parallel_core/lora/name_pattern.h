// Regular expressions over the names of a model's parts.
#pragma once

#include <memory>
#include <string>

namespace tapestry {

/// A regular expression of PCRE2 that whole names are matched against. What it may take to match
/// one is bounded.
class NamePattern {
 public:
  /// ValueError, with `what` for the place that it comes from, if it is no regular expression.
  NamePattern(std::string text, const std::string& what);

  const std::string& text() const { return text_; }
  /// True if it matches all of `name`. ValueError if that takes too many steps.
  bool matches(const std::string& name) const;
  /// True if it matches all of `name`, or all that is behind one of its dots.
  bool matches_end(const std::string& name) const;

 private:
  std::string text_;
  std::string what_;
  std::shared_ptr<void> whole_;
  std::shared_ptr<void> end_;
};

}  // namespace tapestry
