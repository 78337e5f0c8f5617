#include "diagnosis/dump/kernel_pattern.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::dump {
namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return lower;
}

}  // namespace

KernelPattern::KernelPattern(std::string text) : text_(std::move(text)) {
  constexpr std::string_view kRegex = "name-regex(";
  check<ValueError>(!text_.empty(), "an empty text names no op");
  if (text_.starts_with(kRegex)) {
    check<ValueError>(text_.ends_with(')'), "'", text_, "' lacks its closing parenthesis");
    expression_.emplace(text_.substr(kRegex.size(), text_.size() - kRegex.size() - 1), "kernels");
    return;
  }
  whole_name_ = text_.find('/') != std::string::npos || text_.find("-op") != std::string::npos;
  lower_ = lower_case(text_);
}

bool KernelPattern::matches(std::string_view op_type, std::string_view op_name) const {
  if (expression_.has_value()) {
    return expression_->matches(op_name);
  }
  if (whole_name_) {
    return op_name == text_;
  }
  return lower_case(op_type).find(lower_) != std::string::npos ||
         lower_case(op_name).find(lower_) != std::string::npos;
}

}  // namespace tapestry::dump
