// A checksum of small files, by Boost.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::data {

/// CRC-64 in the form that xz uses (ECMA-182's polynomial, reflected), in 16 hexadecimal digits. It
/// tells files apart that differ by accident, not by intent.
std::string crc64(std::string_view bytes);

}  // namespace tapestry::data
