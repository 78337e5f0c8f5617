#include "text/util/regular_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry {
namespace pcre2_seam {
namespace {

constexpr size_t kMostBytes = 32'768;
constexpr uint32_t kDeepestGroups = 100;
constexpr uint32_t kMostSteps = 1'000'000;
constexpr uint32_t kMostStepsOfTexts = 10'000'000;
constexpr uint32_t kMostHeapKib = 16'384;
constexpr size_t kJitStackStart = size_t{32} << 10U;
constexpr size_t kJitStackMost = size_t{8} << 20U;
// PCRE2 counts its steps anew at each place where a match may begin; so the clock is read after as
// many places, and at one in so many searches that end before.
constexpr size_t kFirstWindow = 4096;
constexpr size_t kCallsPerReading = 16;
constexpr double kMostSeconds = 2;
constexpr double kMostSecondsPerByte = 1e-6;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());  // NOLINT(*-reinterpret-cast): as PCRE2 has it
}

std::string reason(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  std::string out(text.begin(), std::find(text.begin(), text.end(), PCRE2_UCHAR{0}));
  if (code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ||
      code == PCRE2_ERROR_JIT_STACKLIMIT || code == PCRE2_ERROR_DEPTHLIMIT) {
    out = concat("it takes too many steps (", out, "); write a simpler expression");
  }
  return out;
}

// What a thread needs while it matches, whatever the expression.
struct MatchSpace {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* names = pcre2_match_context_create(nullptr);
  pcre2_match_context* texts = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);

  MatchSpace() {
    check<RuntimeError>(data != nullptr && names != nullptr && texts != nullptr && stack != nullptr,
                        "PCRE2: no memory to match in");
    pcre2_jit_stack_assign(texts, nullptr, stack);
    pcre2_set_match_limit(names, kMostSteps);
    pcre2_set_match_limit(texts, kMostStepsOfTexts);
    pcre2_set_heap_limit(names, kMostHeapKib);
    pcre2_set_heap_limit(texts, kMostHeapKib);
  }
  ~MatchSpace() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(names);
    pcre2_match_context_free(texts);
    pcre2_jit_stack_free(stack);
  }
  MatchSpace(const MatchSpace&) = delete;
  MatchSpace& operator=(const MatchSpace&) = delete;
};

MatchSpace& match_space() {
  thread_local MatchSpace space;
  return space;
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct FreeContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// An expression in a message: not more of it than a line has.
std::string shown_expression(std::string_view text) {
  constexpr size_t kMost = 200;
  return text.size() <= kMost ? std::string(text)
                              : concat(text.substr(0, kMost), "... (", text.size(), " bytes)");
}

}  // namespace
}  // namespace pcre2_seam

struct RegularExpression::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(code); }
};

namespace pcre2_seam {
namespace {

enum class Use { kNames, kTexts };

// The code; ValueError with the reason, and the place where there is one.
pcre2_code* compile(std::string_view expression, Use use) {
  check<ValueError>(expression.size() <= kMostBytes, "it has ", expression.size(),
                    " bytes, expected at most ", kMostBytes);
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(
      pcre2_compile_context_create(nullptr));
  check<RuntimeError>(context != nullptr, "PCRE2: no memory to compile in");
  pcre2_set_parens_nest_limit(context.get(), kDeepestGroups);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const uint32_t options =
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
      (use == Use::kTexts ? PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_USE_OFFSET_LIMIT
                          : PCRE2_DOLLAR_ENDONLY | PCRE2_MATCH_INVALID_UTF);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(units(expression), expression.size(), options, &error, &at, context.get());
  if (code == nullptr) {
    const std::string_view rest = expression.substr(std::min<size_t>(at, expression.size()), 20);
    throw ValueError(concat(reason(error), rest.empty() ? ", at its end" : ", at '", rest,
                            rest.empty() ? "" : "'"));
  }
  return code;
}

[[noreturn]] void refuse(const std::string& place, const std::string& text, const ValueError& why) {
  throw ValueError(
      concat(place, "'", shown_expression(text), "' is no regular expression: ", why.what()));
}

}  // namespace
}  // namespace pcre2_seam

RegularExpression::RegularExpression(std::string text, const std::string& what)
    : text_(std::move(text)), place_(what.empty() ? "" : what + ": ") {
  auto compiled = std::make_shared<Compiled>();
  try {
    compiled->code = pcre2_seam::compile(text_, pcre2_seam::Use::kNames);
  } catch (const ValueError& error) {
    pcre2_seam::refuse(place_, text_, error);
  }
  compiled_ = std::move(compiled);
}

RegularExpression RegularExpression::for_texts(std::string text,
                                               std::string (*to_pcre2)(std::string_view)) {
  RegularExpression expression;
  expression.text_ = std::move(text);
  auto compiled = std::make_shared<Compiled>();
  try {
    compiled->code = pcre2_seam::compile(to_pcre2(expression.text_), pcre2_seam::Use::kTexts);
  } catch (const ValueError& error) {
    pcre2_seam::refuse("", expression.text_, error);
  }
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  expression.compiled_ = std::move(compiled);
  return expression;
}

std::string RegularExpression::complaint(const std::string& text) {
  try {
    pcre2_code_free(pcre2_seam::compile(text, pcre2_seam::Use::kNames));
  } catch (const ValueError& error) {
    return error.what();
  }
  return {};
}

std::vector<std::optional<RegularExpression::Range>> RegularExpression::match(
    std::string_view name, unsigned options) const {
  using namespace pcre2_seam;  // NOLINT(google-build-using-namespace): what is above
  const std::unique_ptr<pcre2_match_data, FreeData> data(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr));
  check<RuntimeError>(data != nullptr, "PCRE2: no memory to match in");
  const int found = pcre2_match(compiled_->code, units(name), name.size(), 0, options, data.get(),
                                match_space().names);
  if (found == PCRE2_ERROR_NOMATCH) {
    return {};
  }
  if (found <= 0) {
    throw ValueError(concat(place_, "'", shown_expression(text_), "' cannot be matched against '",
                            shown_expression(name), "': ", reason(found)));
  }
  std::vector<std::optional<Range>> groups(pcre2_get_ovector_count(data.get()));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  for (size_t group = 0; group < static_cast<size_t>(found); ++group) {
    const size_t begin = ends[2 * group];
    const size_t end = ends[2 * group + 1];
    if (begin != PCRE2_UNSET) {
      groups[group] = {std::min(begin, end), end};  // \K can put the beginning behind the end
    }
  }
  return groups;
}

bool RegularExpression::matches(std::string_view name) const {
  return !match(name, PCRE2_ANCHORED | PCRE2_ENDANCHORED).empty();
}

bool RegularExpression::is_found_in(std::string_view name) const { return !match(name, 0).empty(); }

std::vector<std::string> RegularExpression::groups_at_start(std::string_view name) const {
  std::vector<std::string> groups;
  for (const auto& range : match(name, PCRE2_ANCHORED)) {
    groups.emplace_back(range ? name.substr(range->begin, range->end - range->begin) : "");
  }
  return groups;
}

std::optional<std::string> RegularExpression::replacement(std::string_view name,
                                                          const std::string& text) const {
  using namespace pcre2_seam;  // NOLINT(google-build-using-namespace): what is above
  constexpr size_t kMostOut = 65'536;
  if (!matches(name)) {
    return std::nullopt;
  }
  std::string out(kMostOut, '\0');
  PCRE2_SIZE size = out.size();
  const int found = pcre2_substitute(
      compiled_->code, units(name), name.size(), 0,
      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_SUBSTITUTE_UNSET_EMPTY, nullptr,
      match_space().names, units(text), text.size(),
      reinterpret_cast<PCRE2_UCHAR*>(out.data()),  // NOLINT(*-reinterpret-cast): as PCRE2 has it
      &size);
  if (found < 0) {
    throw ValueError(concat(place_, "'", shown_expression(text_), "' cannot be replaced in '",
                            shown_expression(name), "': '", text, "': ", reason(found)));
  }
  out.resize(size);
  return out;
}

void RegularExpression::Search::fail(const std::string& reason) const {
  throw ValueError(concat("'", pcre2_seam::shown_expression(expression_.text_),
                          "' cannot be matched: ", reason));
}

void RegularExpression::Search::spend(double seconds) {
  using namespace pcre2_seam;  // NOLINT(google-build-using-namespace): what is above
  spent_ += seconds;
  const double most = kMostSeconds + kMostSecondsPerByte * static_cast<double>(text_.size());
  if (spent_ > most) {
    fail(concat("it takes more than ", static_cast<int64_t>(most),
                " s of processor time for a text of ", text_.size(),
                " bytes; write a simpler expression"));
  }
}

bool RegularExpression::Search::find(size_t from, Range& range) {
  using namespace pcre2_seam;  // NOLINT(google-build-using-namespace): what is above
  const MatchSpace& space = match_space();
  const auto run = [&](size_t last) {
    pcre2_set_offset_limit(space.texts, last);
    return expression_.compiled_->jit
               ? pcre2_jit_match(expression_.compiled_->code, units(text_), text_.size(), from, 0,
                                 space.data, space.texts)
               : pcre2_match(expression_.compiled_->code, units(text_), text_.size(), from,
                             PCRE2_NO_UTF_CHECK, space.data, space.texts);
  };
  size_t window = kFirstWindow;  // how far behind `from` the last run looked
  // Whether places are left where a match may begin.
  const auto step = [&] {
    const size_t rest = text_.size() - from;
    if (rest <= window) {
      return false;
    }
    from += window + 1;
    while (from < text_.size() && data::continues_character(text_[from])) {
      ++from;
    }
    return true;
  };
  const bool sampled = ++calls_ % kCallsPerReading == 0;
  double before = sampled ? processor_seconds() : 0;
  int found = run(std::min(text_.size(), from + window));
  if (sampled) {
    const double now = processor_seconds();
    spend(static_cast<double>(kCallsPerReading) * (now - before));
    before = now;
  } else if (found == PCRE2_ERROR_NOMATCH) {
    before = processor_seconds();
  }
  size_t next_window = window;
  while (found == PCRE2_ERROR_NOMATCH && step()) {
    window = next_window;
    found = run(std::min(text_.size(), from + window));
    const double now = processor_seconds();
    spend(now - before);
    constexpr double kShort = 0.01;
    next_window = now - before < kShort ? 2 * window : std::max(window / 2, size_t{1});
    before = now;
  }
  if (found == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  if (found < 0) {
    fail(reason(found));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(space.data);
  // \K inside of a look-ahead can put the beginning behind the end.
  range = {std::min(ends[0], ends[1]), ends[1]};
  return true;
}

}  // namespace tapestry
