// Element types of tensors in GGUF files, and how float32 values become them.
//
// Source: the format's description (GGUF, version 3) and ggml's reference quantisation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "autograd/tensor/shape.h"

namespace tapestry {

/// The values are those that stand in files.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

/// "F32", "F16", "Q8_0", "BF16".
std::string_view name_of(GgufType type);
/// The type of that name. ValueError, with the names that there are.
GgufType gguf_type(std::string_view name);
/// general.file_type of a file whose matrices have this type.
uint32_t gguf_file_type(GgufType type);

/// Values of a Q8_0 block, which share a scale.
inline constexpr int64_t kQ8Block = 32;

/// Whether rows of so many values can have the type: Q8_0 wants whole blocks.
bool gguf_can_hold(GgufType type, int64_t row);
/// Bytes of `count` values, whole rows. RuntimeError where Q8_0 would have part of a block.
uint64_t gguf_bytes(GgufType type, int64_t count);

/// Writes the values in the type, gguf_bytes(type, values.size()) bytes, and returns the index of
/// the first that it cannot hold: one that is not finite, or that the rounding makes infinite. For
/// Q8_0 the first of its block. Nothing for F32, which takes any.
///
/// F16, BF16: to nearest, ties to even. Q8_0: a block of 32 becomes a scale d in float16 and 32
/// integers of 8 bits, with, in float32, d = max|x| / 127 and q = x * (1 / d), rounded half away
/// from zero; all 0 if d is.
std::optional<size_t> encode_gguf(GgufType type, std::span<const float> values, std::byte* out);

}  // namespace tapestry
