// MD5 checksums, by which dumps are compared without their values.
#pragma once

#include <cstddef>
#include <string>

namespace tapestry::dump {

/// MD5 of the bytes as 32 lower-case hexadecimal digits. Source: RFC 1321. Not for secrets.
std::string md5_hex(const void* data, size_t bytes);

}  // namespace tapestry::dump
