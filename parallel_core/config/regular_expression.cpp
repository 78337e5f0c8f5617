#include "parallel_core/config/regular_expression.h"

#include <regex>

#include "autograd/tensor/error.h"

namespace tapestry {

struct RegularExpression::Compiled {
  std::regex regex;
};

RegularExpression::RegularExpression(const std::string& text) {
  try {
    compiled_ = std::make_shared<const Compiled>(Compiled{std::regex(text)});
  } catch (const std::regex_error& error) {
    throw ValueError(concat("'", text, "' is no regular expression: ", error.what()));
  }
}

std::string RegularExpression::complaint(const std::string& text) {
  try {
    const std::regex regex(text);
  } catch (const std::regex_error& error) {
    return error.what();
  }
  return {};
}

bool RegularExpression::matches(std::string_view name) const {
  return std::regex_match(name.begin(), name.end(), compiled_->regex);
}

bool RegularExpression::is_found_in(std::string_view name) const {
  return std::regex_search(name.begin(), name.end(), compiled_->regex);
}

std::optional<std::string> RegularExpression::replacement(std::string_view name,
                                                          const std::string& text) const {
  std::match_results<std::string_view::const_iterator> match;
  if (!std::regex_match(name.begin(), name.end(), match, compiled_->regex)) {
    return std::nullopt;
  }
  return match.format(text);
}

}  // namespace tapestry
