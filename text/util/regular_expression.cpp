#include "text/util/regular_expression.h"

#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

// An expression in a message: not more of it than a line has.
std::string shown_expression(std::string_view text) {
  constexpr size_t kMost = 200;
  return text.size() <= kMost ? std::string(text)
                              : concat(text.substr(0, kMost), "... (", text.size(), " bytes)");
}

Pcre2Code compile_expression(const std::string& text, const std::string& place) {
  try {
    return {text, Pcre2Code::Use::kNames};
  } catch (const ValueError& error) {
    throw ValueError(
        concat(place, "'", shown_expression(text), "' is no regular expression: ", error.what()));
  }
}

}  // namespace

RegularExpression::RegularExpression(std::string text, const std::string& what)
    : text_(std::move(text)),
      place_(what.empty() ? "" : what + ": "),
      code_(compile_expression(text_, place_)) {}

std::string RegularExpression::complaint(const std::string& text) {
  try {
    const Pcre2Code code(text, Pcre2Code::Use::kNames);
  } catch (const ValueError& error) {
    return error.what();
  }
  return {};
}

std::vector<std::optional<Pcre2Code::Range>> RegularExpression::match(
    std::string_view name, Pcre2Code::Where where) const {
  try {
    return code_.match(name, where);
  } catch (const ValueError& error) {
    throw ValueError(concat(place_, "'", shown_expression(text_), "' cannot be matched against '",
                            shown_expression(name), "': ", error.what()));
  }
}

bool RegularExpression::matches(std::string_view name) const {
  return !match(name, Pcre2Code::Where::kWhole).empty();
}

bool RegularExpression::is_found_in(std::string_view name) const {
  return !match(name, Pcre2Code::Where::kAnywhere).empty();
}

std::vector<std::string> RegularExpression::groups_at_start(std::string_view name) const {
  std::vector<std::string> groups;
  for (const auto& range : match(name, Pcre2Code::Where::kStart)) {
    groups.emplace_back(range ? name.substr(range->begin, range->end - range->begin) : "");
  }
  return groups;
}

std::optional<std::string> RegularExpression::replacement(std::string_view name,
                                                          const std::string& text) const {
  try {
    return code_.substitute(name, text);
  } catch (const ValueError& error) {
    throw ValueError(concat(place_, "'", shown_expression(text_), "' cannot be replaced in '",
                            shown_expression(name), "': ", error.what()));
  }
}

}  // namespace tapestry
