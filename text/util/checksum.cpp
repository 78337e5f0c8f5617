#include "text/util/checksum.h"

#include <array>
#include <charconv>

namespace tapestry::data {

std::string hexadecimal(uint64_t bits) {
  std::array<char, 16> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  const std::string text(digits.data(), end);
  return std::string(digits.size() - text.size(), '0') + text;
}

std::string crc64(std::string_view bytes) {
  Crc64 sum;
  sum.add(bytes);
  return sum.text();
}

std::string Crc64::text() const { return hexadecimal(sum_.checksum()); }

}  // namespace tapestry::data
