#include "diagnosis/dump/iteration_set.h"

#include <charconv>
#include <limits>
#include <optional>

#include "autograd/tensor/error.h"

namespace tapestry::dump {
namespace {

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t";
  const size_t first = text.find_first_not_of(kSpaces);
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::optional<int64_t> iteration_number(std::string_view text) {
  text = without_spaces(text);
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

IterationSet::IterationSet(std::string_view text) : all_(without_spaces(text) == "all") {
  if (all_) {
    return;
  }
  std::string_view rest = text;
  while (true) {
    const size_t bar = rest.find('|');
    const std::string_view item = without_spaces(rest.substr(0, bar));
    const size_t dash = item.find('-', item.empty() ? 0 : 1);
    const auto first = iteration_number(item.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : iteration_number(item.substr(dash + 1));
    check<ValueError>(first.has_value() && last.has_value(), "'", item, "' in \"", text,
                      "\" is no iteration; expected \"all\", or numbers from 0 on and ranges with "
                      "both ends, joined by |: \"0|5-8|100-120\"");
    check<ValueError>(*first <= *last, "the range '", item, "' in \"", text,
                      "\" ends before it begins");
    ranges_.push_back({*first, *last});
    if (bar == std::string_view::npos) {
      return;
    }
    rest = rest.substr(bar + 1);
  }
}

bool IterationSet::contains(int64_t iteration) const {
  if (all_) {
    return true;
  }
  for (const Range& range : ranges_) {
    if (range.first <= iteration && iteration <= range.last) {
      return true;
    }
  }
  return false;
}

int64_t IterationSet::last() const {
  if (all_) {
    return std::numeric_limits<int64_t>::max();
  }
  int64_t last = 0;
  for (const Range& range : ranges_) {
    last = range.last > last ? range.last : last;
  }
  return last;
}

}  // namespace tapestry::dump
