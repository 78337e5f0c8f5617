#include "parallel_core/lora/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr uint32_t kMaxSteps = 1'000'000;
constexpr uint32_t kMaxHeapKib = 16'384;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return {reinterpret_cast<const char*>(text.data())};
}

PCRE2_SPTR units(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::shared_ptr<void> compiled(const std::string& pattern,
                               const std::string& shown,
                               const std::string& what) {
  int code = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* const out = pcre2_compile(
      units(pattern), pattern.size(), PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C,
      &code, &at, nullptr);
  check<ValueError>(out != nullptr, what, ": '", shown,
                    "' is no regular expression: ", pcre2_message(code));
  return {out, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); }};
}

bool match(void* code, const std::string& name, const std::string& shown, const std::string& what) {
  auto* const pattern = static_cast<pcre2_code*>(code);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(pattern, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  check<RuntimeError>(data != nullptr && limits != nullptr, what, ": no memory to match '", shown,
                      "'");
  pcre2_set_match_limit(limits.get(), kMaxSteps);
  pcre2_set_heap_limit(limits.get(), kMaxHeapKib);
  const int found = pcre2_match(pattern, units(name), name.size(), 0, 0, data.get(), limits.get());
  check<ValueError>(found >= 0 || found == PCRE2_ERROR_NOMATCH, what, ": matching '", shown,
                    "' against '", name, "' was given up: ", pcre2_message(found),
                    "; write a simpler expression");
  return found >= 0;
}

}  // namespace

NamePattern::NamePattern(std::string text, const std::string& what)
    : text_(std::move(text)),
      what_(what),
      whole_(compiled(text_, text_, what)),
      end_(compiled("(?:.*\\.)?(?:" + text_ + ")", text_, what)) {}

bool NamePattern::matches(const std::string& name) const {
  return match(whole_.get(), name, text_, what_);
}

bool NamePattern::matches_end(const std::string& name) const {
  return match(end_.get(), name, text_, what_);
}

}  // namespace tapestry
