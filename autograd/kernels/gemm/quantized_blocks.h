// Rows in blocks of 32 numbers with a scale: GGUF's Q8_0 and Q4_0.
//
// A row of n numbers, n a multiple of 32, is n / 32 blocks that follow one another. A block is its
// scale d as float16 (little-endian), then its numbers:
//
//   Q8_0  34 bytes: 32 int8; number i is d q[i]
//   Q4_0  18 bytes: 16 bytes; number i is d (q[i] - 8), where q[i] is the lower half of byte i for
//         i < 16 and the upper half of byte i - 16 for the others
//
// Encoding, in float32: Q8_0 takes d = amax / 127 with amax = max |x| of the block, and q = x (1 /
// d) rounded half away from zero. Q4_0 takes d = m / -8 with m the first x of the largest
// magnitude, and q = min(15, x (1 / d) + 8.5 cut off), so that m has q = 0. For d = 0 the inverse
// is 0. The scale is d rounded to float16. Those are the bits that llama.cpp's reference encoder
// gives.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

enum class BlockFormat : uint8_t { kQ8_0, kQ4_0 };
inline constexpr std::array kBlockFormats = {BlockFormat::kQ8_0, BlockFormat::kQ4_0};

inline constexpr int64_t kBlockNumbers = 32;  ///< of any format

/// Bytes of a block.
constexpr int64_t block_bytes(BlockFormat format) { return format == BlockFormat::kQ8_0 ? 34 : 18; }

/// Bytes of a row of n numbers; n is a multiple of kBlockNumbers.
constexpr int64_t block_row_bytes(BlockFormat format, int64_t n) {
  return n / kBlockNumbers * block_bytes(format);
}

/// "q8_0" or "q4_0".
constexpr std::string_view name_of(BlockFormat format) {
  return format == BlockFormat::kQ8_0 ? "q8_0" : "q4_0";
}

/// The format of that name; nothing for another name.
constexpr std::optional<BlockFormat> block_format(std::string_view name) {
  for (const BlockFormat format : kBlockFormats) {
    if (name == name_of(format)) {
      return format;
    }
  }
  return std::nullopt;
}

/// Encodes [rows, n] of float32, bfloat16 or float16, `ld` elements from one row to the next, to
/// contiguous rows of blocks, on the team. False if a number is not finite, or so large that the
/// scale is no finite float16; what is written then is of no use. The bits are the same at every
/// CPU level.
bool encode_blocks(BlockFormat format,
                   DType dtype,
                   int64_t rows,
                   int64_t n,
                   const void* x,
                   int64_t ld,
                   void* blocks);

/// The numbers of [rows, n], rounded once to float32 (exact: 11 bits times at most 8), bfloat16 or
/// float16, `ld` elements from one row of y to the next; `stride` bytes from one row of blocks to
/// the next, so that columns from a multiple of 32 on can be taken. On the team.
void decode_blocks(BlockFormat format,
                   DType dtype,
                   int64_t rows,
                   int64_t n,
                   const void* blocks,
                   int64_t stride,
                   void* y,
                   int64_t ld);

}  // namespace tapestry::kernels
