#include "parallel_core/data/huggingface/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/huggingface/aligned_text.h"
#include "parallel_core/data/huggingface/pattern_syntax.h"

namespace tapestry::data::huggingface {
namespace {

constexpr size_t kLongestPattern = 16384;
constexpr uint32_t kDeepestGroups = 100;
constexpr size_t kJitStackStart = size_t{32} << 10U;
constexpr size_t kJitStackMost = size_t{8} << 20U;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// What a thread needs while it matches, whatever the pattern.
struct MatchSpace {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);

  MatchSpace() {
    check<RuntimeError>(data != nullptr && context != nullptr && stack != nullptr,
                        "PCRE2: no memory to match in");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchSpace() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchSpace(const MatchSpace&) = delete;
  MatchSpace& operator=(const MatchSpace&) = delete;
};

MatchSpace& match_space() {
  thread_local MatchSpace space;
  return space;
}

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string source;
  ~Code() { pcre2_code_free(code); }
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::regex(std::string_view expression) {
  check<ValueError>(expression.size() <= kLongestPattern, "a pattern of ", expression.size(),
                    " bytes, expected at most ", kLongestPattern);
  Pattern pattern;
  pattern.code_ = std::make_unique<Code>();
  pattern.code_->source = expression;
  std::string translated;
  try {
    translated = pcre2_pattern(expression);
  } catch (const ValueError& error) {
    throw ValueError(concat("the pattern '", expression, "' cannot be used: ", error.what()));
  }
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_parens_nest_limit(context.get(), kDeepestGroups);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C;
  pattern.code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                      translated.size(), kOptions, &error, &at, context.get());
  check<ValueError>(pattern.code_->code != nullptr, "the pattern '", expression,
                    "' cannot be used: ", pcre2_message(error), ", at '",
                    translated.substr(std::min<size_t>(at, translated.size()), 20), "'");
  pattern.code_->jit = pcre2_jit_compile(pattern.code_->code, PCRE2_JIT_COMPLETE) == 0;
  return pattern;
}

Pattern Pattern::literal(std::string_view text) {
  if (text.empty()) {
    return regex("");
  }
  Pattern pattern;
  pattern.literal_ = text;
  return pattern;
}

bool Pattern::find(std::string_view text, size_t from, Match& match) const {
  if (code_ == nullptr) {
    const size_t at = text.find(literal_, from);
    match = {at, at + literal_.size()};
    return at != std::string_view::npos;
  }
  const MatchSpace& space = match_space();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int result = code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, 0,
                                                  space.data, space.context)
                                : pcre2_match(code_->code, subject, text.size(), from,
                                              PCRE2_NO_UTF_CHECK, space.data, space.context);
  if (result == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  check<RuntimeError>(result >= 0, "the pattern '", code_->source,
                      "' cannot be matched: ", pcre2_message(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(space.data);
  // \K inside of a look-ahead can put the beginning behind the end.
  match = {std::min(ends[0], ends[1]), ends[1]};
  return true;
}

bool Pattern::Finder::next(Match& match) {
  while (from_ <= text_.size()) {
    if (!pattern_.find(text_, from_, match)) {
      from_ = text_.size() + 1;
      return false;
    }
    if (match.begin == match.end && match.end == last_end_) {
      from_ = match.end + (match.end < text_.size() ? character_length(text_, match.end) : 1);
      continue;
    }
    from_ = match.end;
    last_end_ = match.end;
    return true;
  }
  return false;
}

}  // namespace tapestry::data::huggingface
