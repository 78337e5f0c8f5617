#include "diagnosis/dump/md5.h"

#include <algorithm>
#include <boost/uuid/detail/md5.hpp>
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
  // Words, whose digits are in the order of the checksum's, or, from Boost 1.86 on, octets.
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const auto element : digest) {
    for (int shift = static_cast<int>(sizeof(element)) * 8 - 4; shift >= 0; shift -= 4) {
      text += kDigits[element >> static_cast<unsigned>(shift) & 15U];
    }
  }
  return text;
}

}  // namespace tapestry::dump
