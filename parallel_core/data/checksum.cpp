#include "parallel_core/data/checksum.h"

#include <array>
#include <boost/crc.hpp>
#include <charconv>
#include <cstdint>

namespace tapestry::data {

std::string crc64(std::string_view bytes) {
  constexpr uint64_t kPolynomial = 0x42F0E1EBA9EA3693;
  constexpr uint64_t kAllOnes = ~uint64_t{0};
  boost::crc_optimal<64, kPolynomial, kAllOnes, kAllOnes, true, true> sum;
  sum.process_bytes(bytes.data(), bytes.size());
  std::array<char, 16> digits{};
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), sum.checksum(), 16);
  const std::string text(digits.data(), end);
  return std::string(digits.size() - text.size(), '0') + text;
}

}  // namespace tapestry::data
