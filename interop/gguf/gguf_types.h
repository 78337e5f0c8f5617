// Element types of tensors in GGUF files, how float32 values become them, and what they are again.
//
// Sources: the format's description (GGUF, version 3) and ggml's reference quantisation, with the
// layouts of its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "autograd/tensor/shape.h"

namespace tapestry {

/// The values are those that stand in files. All are read; the first four are written.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 30,
  kQ8_0 = 8,
  kQ4_0 = 2,
  kQ4_K = 12,
  kQ6_K = 14
};

/// "F32", "F16", "Q8_0", "BF16", "Q4_0", "Q4_K", "Q6_K".
std::string_view name_of(GgufType type);
/// The type of that name among those that are written. ValueError, with the names that there are.
GgufType gguf_type(std::string_view name);
/// The type that a file means by the number; empty for one that is not read.
std::optional<GgufType> gguf_type_of(uint32_t number);
/// For messages: "Q5_K (13)", or "37" for a number without a known name.
std::string shown_gguf_type(uint32_t number);
/// general.file_type of a file whose matrices have this type. RuntimeError for one that is not
/// written.
uint32_t gguf_file_type(GgufType type);

/// Values that lie together in a type, and their bytes.
struct GgufBlock {
  int64_t values = 1;
  size_t bytes = 0;
};
GgufBlock gguf_block(GgufType type);
/// Whether values share scales, so that float32 holds them but no smaller type does.
inline bool is_quantized(GgufType type) { return gguf_block(type).values > 1; }

/// Values of a Q8_0 block, which share a scale.
inline constexpr int64_t kQ8Block = 32;

/// Whether rows of so many values can have the type: it wants whole blocks.
bool gguf_can_hold(GgufType type, int64_t row);
/// Bytes of `count` values, whole rows. RuntimeError where there would be part of a block.
uint64_t gguf_bytes(GgufType type, int64_t count);

/// Writes the values in the type, gguf_bytes(type, values.size()) bytes, and returns the index of
/// the first that it cannot hold: one that is not finite, or that the rounding makes infinite. For
/// Q8_0 the first of its block. Nothing for F32, which takes any. RuntimeError for a type that is
/// not written.
///
/// F16, BF16: to nearest, ties to even. Q8_0: a block of 32 becomes a scale d in float16 and 32
/// integers of 8 bits, with, in float32, d = max|x| / 127 and q = x * (1 / d), rounded half away
/// from zero; all 0 if d is.
std::optional<size_t> encode_gguf(GgufType type, std::span<const float> values, std::byte* out);

/// The values of whole blocks, out.size() of them. `bytes` holds gguf_bytes(type, out.size())
/// (RuntimeError). Scales are float16, products and differences float32 as written:
///
/// Q8_0, 32 values: d, 32 x int8 q. x = d q.
/// Q4_0, 32 values: d, 16 bytes. Value i is in the low 4 bits of byte i, value 16 + i in the high
/// ones. x = d (q - 8).
/// Q4_K, 256 values: d, dmin, 12 bytes with eight scales s and eight minima m of 6 bits, 128 bytes.
/// Each 64 values share 32 bytes, the first 32 the low 4 bits. x = (d s) q - (dmin m), s and m of
/// the value's 32. Those of j < 4 are the low 6 bits of bytes j and 4 + j; of j >= 4 their low 4
/// bits are the halves of byte 4 + j, their high 2 bits those of bytes j - 4 and j.
/// Q6_K, 256 values: 128 bytes with the low 4 bits, 64 with the high 2, sixteen int8 scales s, d.
/// Each 128 values share 64 and 32 bytes. x = (d s) (q - 32), s of the value's 16.
void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace tapestry
