// SHA-256, as the command sha256sum prints it. Source: FIPS 180-4.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::data {

/// The digest of the bytes in 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace tapestry::data
