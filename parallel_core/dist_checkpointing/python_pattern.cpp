#include "parallel_core/dist_checkpointing/python_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr size_t kMaxPatternBytes = 32'768;
constexpr uint32_t kMaxSteps = 1'000'000;
constexpr uint32_t kMaxHeapKib = 64;

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string pcre2_reason(int error) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());  // NOLINT(*-reinterpret-cast): its characters
}

PCRE2_SPTR units_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(
      text.data());  // NOLINT(*-reinterpret-cast): as PCRE2 has them
}

}  // namespace

struct PythonPattern::Code {
  explicit Code(pcre2_code* of) : code(of) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code;
};

PythonPattern::PythonPattern(std::string expression, std::string what)
    : expression_(std::move(expression)), what_(std::move(what)) {
  check<ValueError>(expression_.size() <= kMaxPatternBytes, what_, ": a regular expression of ",
                    expression_.size(), " bytes is longer than the ", kMaxPatternBytes,
                    " that are taken");
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code =
      pcre2_compile(units_of(expression_), expression_.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get());
  check<ValueError>(code != nullptr, what_, ": ", expression_,
                    " is no regular expression: ", code == nullptr ? pcre2_reason(error) : "",
                    " at character ", place);
  code_ = std::make_unique<Code>(code);
}

PythonPattern::PythonPattern(PythonPattern&&) noexcept = default;
PythonPattern& PythonPattern::operator=(PythonPattern&&) noexcept = default;
PythonPattern::~PythonPattern() = default;

std::vector<std::string> PythonPattern::run(std::string_view text, bool to_the_end) const {
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  const uint32_t options = PCRE2_ANCHORED | (to_the_end ? PCRE2_ENDANCHORED : 0);
  const int found =
      pcre2_match(code_->code, units_of(text), text.size(), 0, options, data.get(), context.get());
  if (found == PCRE2_ERROR_NOMATCH) {
    return {};
  }
  check<ValueError>(found > 0, what_, ": ", expression_, " cannot be matched against ", text, ": ",
                    found > 0 ? std::string() : pcre2_reason(found),
                    "; write a simpler expression, or a list of names");
  std::vector<std::string> groups(pcre2_get_ovector_count(data.get()));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  for (size_t group = 0; group < static_cast<size_t>(found); ++group) {
    const size_t begin = ends[2 * group];
    const size_t end = ends[2 * group + 1];
    if (begin != PCRE2_UNSET && begin <= end) {
      groups[group] = text.substr(begin, end - begin);
    }
  }
  return groups;
}

bool PythonPattern::matches_all_of(std::string_view text) const {
  return !run(text, /*to_the_end=*/true).empty();
}

std::vector<std::string> PythonPattern::match(std::string_view text) const {
  return run(text, /*to_the_end=*/false);
}

}  // namespace tapestry
