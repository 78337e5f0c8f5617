// Rows in blocks of 32 numbers of 8 bits with a scale: GGUF's Q8_0.
//
// A row of n numbers, n a multiple of 32, is n / 32 blocks of 34 bytes that follow one another: the
// scale as float16 (little-endian), then 32 int8. A number is scale q. Encoding takes amax = max
// |x| of a block, in float32 d = amax / 127 and i = 1 / d (0 for d = 0), q = x i rounded half away
// from zero, and as scale d rounded to float16: the bits that llama.cpp's reference encoder gives.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

inline constexpr int64_t kQ8Block = 32;       ///< numbers of a block
inline constexpr int64_t kQ8BlockBytes = 34;  ///< and its bytes

/// Bytes of a row of n numbers; n is a multiple of kQ8Block.
constexpr int64_t q8_0_row_bytes(int64_t n) { return n / kQ8Block * kQ8BlockBytes; }

/// Encodes [rows, n] of float32, bfloat16 or float16, `ld` elements from one row to the next, to
/// contiguous rows of blocks, on the team. False if a number is not finite, or so large that the
/// scale is no finite float16; what is written then is of no use. The bits are the same at every
/// CPU level.
bool encode_q8_0(DType dtype, int64_t rows, int64_t n, const void* x, int64_t ld, void* blocks);

/// The numbers of [rows, n], rounded once to float32 (exact: 11 bits times 8), bfloat16 or float16,
/// `ld` elements from one row of y to the next; `stride` bytes from one row of blocks to the next,
/// so that columns from a multiple of 32 on can be taken. On the team.
void decode_q8_0(
    DType dtype, int64_t rows, int64_t n, const void* blocks, int64_t stride, void* y, int64_t ld);

}  // namespace tapestry::kernels
