// A checksum of files, by Boost.
#pragma once

#include <boost/crc.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::data {

/// 64 bits in 16 hexadecimal digits.
std::string hexadecimal(uint64_t bits);

/// CRC-64 in the form that xz uses (ECMA-182's polynomial, reflected), in 16 hexadecimal digits. It
/// tells files apart that differ by accident, not by intent.
std::string crc64(std::string_view bytes);

/// The same of bytes that come one after the other.
class Crc64 {
 public:
  void add(std::string_view bytes) { sum_.process_bytes(bytes.data(), bytes.size()); }
  std::string text() const;

 private:
  static constexpr uint64_t kPolynomial = 0x42F0E1EBA9EA3693;
  static constexpr uint64_t kAllOnes = ~uint64_t{0};
  boost::crc_optimal<64, kPolynomial, kAllOnes, kAllOnes, true, true> sum_;
};

}  // namespace tapestry::data
