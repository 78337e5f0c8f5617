// Regular expressions as Python's `re` reads them, from files that nobody vouches for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry {

/// A compiled expression. Matching is bounded in steps and memory; one object may be used by
/// several threads. Syntax: that of PCRE2 with Unicode, of which Python's is all but a subset.
class PythonPattern {
 public:
  /// `what` names the expression in messages: "DIR/adapter_config.json: target_modules". ValueError
  /// with place and reason for what is no regular expression, or a larger one than 32 KiB.
  PythonPattern(std::string expression, std::string what);
  PythonPattern(PythonPattern&&) noexcept;
  PythonPattern& operator=(PythonPattern&&) noexcept;
  PythonPattern(const PythonPattern&) = delete;
  PythonPattern& operator=(const PythonPattern&) = delete;
  ~PythonPattern();

  const std::string& expression() const { return expression_; }

  /// re.fullmatch(expression, text). ValueError where an answer takes more steps than are allowed.
  bool matches_all_of(std::string_view text) const;
  /// The groups of re.match(expression, text), which is anchored at the beginning alone; empty if
  /// it does not match, and a group that took no part is an empty text. Errors as above.
  std::vector<std::string> match(std::string_view text) const;

 private:
  struct Code;
  std::vector<std::string> run(std::string_view text, bool to_the_end) const;

  std::string expression_;
  std::string what_;
  std::unique_ptr<Code> code_;
};

}  // namespace tapestry
