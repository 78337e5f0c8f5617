// CRC-32C (Castagnoli), the checksum of iSCSI, ext4 and TensorBoard's event files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tapestry {

/// The checksum of `before`'s bytes followed by these: crc32c(b, n, crc32c(a, m)) is that of a and
/// b together. By the processor's own instruction where it has one. "123456789" gives 0xE3069283.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

/// What a part of a file contributes to the file's checksum: that of the part, moved on by the
/// `bytes_behind` that follow it. The file's checksum is the exclusive or of the contributions of
/// parts that cover it once, in any order. Takes some hundred operations for any distance.
uint32_t crc32c_moved(uint32_t crc, uint64_t bytes_behind);

/// Eight hexadecimal digits.
std::string crc32c_text(uint32_t crc);

}  // namespace tapestry
