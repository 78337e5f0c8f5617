#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace tapestry::fuzz {

namespace {

constexpr std::array<std::string_view, 22> kTokens = {"{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      ",",
                                                      ":",
                                                      "\"",
                                                      "null",
                                                      "true",
                                                      "{}",
                                                      "[]",
                                                      "\"\"",
                                                      "\\u0000",
                                                      "\xff",
                                                      "[[[[[[[[[[[[[[[[[[[[",
                                                      "{\"a\":{\"a\":{\"a\":",
                                                      "F64",
                                                      "BF16",
                                                      "..",
                                                      "/",
                                                      "\n=== x.bin\n",
                                                      "format_version"};
constexpr std::array<std::string_view, 17> kNumbers = {"0",
                                                       "-0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "0.5",
                                                       "1e3",
                                                       "1e308",
                                                       "1e999",
                                                       "-1e999",
                                                       "2147483648",
                                                       "4294967296",
                                                       "9007199254740993",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "99999999999999999999999"};

// From 0 to n - 1; the slight bias does no harm. Distributions differ between libraries.
size_t below(size_t n, std::mt19937_64& random) { return n == 0 ? 0 : random() % n; }

// A place and a length, mostly short.
struct Part {
  size_t begin;
  size_t size;
};
Part part_of(const std::string& text, std::mt19937_64& random) {
  const size_t begin = below(text.size() + 1, random);
  const size_t longest = random() % 4 == 0 ? text.size() : 16;
  return {begin, std::min(below(longest + 1, random), text.size() - begin)};
}

void replace_number(std::string& input, std::mt19937_64& random) {
  constexpr std::string_view kDigits = "0123456789";
  size_t begin = input.find_first_of(kDigits, below(input.size() + 1, random));
  if (begin == std::string::npos) {
    return;
  }
  while (begin > 0 && kDigits.find(input[begin - 1]) != std::string_view::npos) {
    --begin;
  }
  const size_t end = std::min(input.find_first_not_of(kDigits, begin), input.size());
  input.replace(begin, end - begin, kNumbers[below(kNumbers.size(), random)]);
}

void mutate_once(std::string& input, std::span<const std::string> others, std::mt19937_64& random) {
  constexpr size_t kWays = 9;
  const size_t at = below(input.size(), random);
  const Part part = part_of(input, random);
  switch (below(kWays, random)) {
    case 0:
      if (!input.empty()) {
        input[at] = static_cast<char>(input[at] ^ (1 << below(8, random)));
      }
      break;
    case 1:
      if (!input.empty()) {
        input[at] = static_cast<char>(random() & 0xffU);
      }
      break;
    case 2:
      input.erase(part.begin, part.size);
      break;
    case 3:
      input.resize(at);
      break;
    case 4:
      input.insert(below(input.size() + 1, random), input.substr(part.begin, part.size));
      break;
    case 5:
      input.insert(part.begin, kTokens[below(kTokens.size(), random)]);
      break;
    case 6:
    case 7:
      replace_number(input, random);
      break;
    default:
      if (!others.empty()) {
        const std::string& other = others[below(others.size(), random)];
        const Part piece = part_of(other, random);
        input.replace(part.begin, part.size, other, piece.begin, piece.size);
      }
  }
}

}  // namespace

void mutate(std::string& input, std::span<const std::string> others, std::mt19937_64& random) {
  for (size_t times = 1 + below(4, random); times > 0; --times) {
    mutate_once(input, others, random);
  }
}

}  // namespace tapestry::fuzz
