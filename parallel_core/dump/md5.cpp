#include "parallel_core/dump/md5.h"

#include <algorithm>
#include <array>
#include <boost/uuid/detail/md5.hpp>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tapestry::dump {

std::string md5_hex(const void* data, size_t bytes) {
  // The library's context counts a call's bytes in what may be 32 bits.
  constexpr size_t kPiece = size_t{1} << 30U;
  boost::uuids::detail::md5 sum;
  for (size_t done = 0; done < bytes; done += kPiece) {
    sum.process_bytes(static_cast<const std::byte*>(data) + done, std::min(kPiece, bytes - done));
  }
  boost::uuids::detail::md5::digest_type digest;
  sum.get_digest(digest);
  std::array<uint8_t, 16> octets{};
  static_assert(sizeof(digest) == octets.size());
  std::memcpy(octets.data(), &digest, octets.size());
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t octet : octets) {
    text += kDigits[octet >> 4U];
    text += kDigits[octet & 15U];
  }
  return text;
}

}  // namespace tapestry::dump
