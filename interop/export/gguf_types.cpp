#include "interop/export/gguf_types.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

constexpr std::array<GgufType, 4> kGgufTypes = {GgufType::kF32, GgufType::kF16, GgufType::kBF16,
                                                GgufType::kQ8_0};
constexpr size_t kQ8BlockBytes = sizeof(uint16_t) + kQ8Block;

// Rounds to a type of 16 bits whose infinities and NaNs have all bits of `exponent`.
template <class To>
std::optional<size_t> encode_16_bits(std::span<const float> values,
                                     uint16_t exponent,
                                     std::byte* out) {
  constexpr size_t kPiece = 1024;
  std::array<uint16_t, kPiece> rounded;
  for (size_t begin = 0; begin < values.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, values.size() - begin);
    bool bad = false;
    for (size_t i = 0; i < count; ++i) {
      rounded[i] = To(values[begin + i]).bits;
      bad |= (rounded[i] & exponent) == exponent;
    }
    if (bad) {
      const auto* first = std::find_if(rounded.begin(), rounded.end(), [&](uint16_t bits) {
        return (bits & exponent) == exponent;
      });
      return begin + static_cast<size_t>(first - rounded.begin());
    }
    std::memcpy(out + begin * sizeof(uint16_t), rounded.data(), count * sizeof(uint16_t));
  }
  return std::nullopt;
}

std::optional<size_t> encode_q8_0(std::span<const float> values, std::byte* out) {
  constexpr float kLargest = 127;
  constexpr float kHalf = 0.5F;
  for (size_t begin = 0; begin < values.size(); begin += kQ8Block) {
    const float* x = values.data() + begin;
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < kQ8Block; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
      finite &= std::fabs(x[i]) <= std::numeric_limits<float>::max();
    }
    const float d = largest / kLargest;
    const Float16 scale(d);
    if (!finite || (scale.bits & 0x7c00U) == 0x7c00U) {
      return begin;
    }
    const float inverse = d == 0 ? 0 : 1 / d;
    std::array<int8_t, kQ8Block> q;
    for (int64_t i = 0; i < kQ8Block; ++i) {
      // The cast cuts off; what it cuts off decides.
      const float y = x[i] * inverse;
      const auto whole = static_cast<int32_t>(y);
      const float rest = y - static_cast<float>(whole);
      q[i] = static_cast<int8_t>(whole + (rest >= kHalf ? 1 : 0) - (rest <= -kHalf ? 1 : 0));
    }
    std::memcpy(out, &scale.bits, sizeof(scale.bits));
    std::memcpy(out + sizeof(scale.bits), q.data(), q.size());
    out += kQ8BlockBytes;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return "F32";
    case GgufType::kF16:
      return "F16";
    case GgufType::kQ8_0:
      return "Q8_0";
    case GgufType::kBF16:
      return "BF16";
  }
  throw RuntimeError(concat("GGUF: no type ", static_cast<uint32_t>(type)));
}

GgufType gguf_type(std::string_view name) {
  for (const GgufType type : kGgufTypes) {
    if (name == name_of(type)) {
      return type;
    }
  }
  throw ValueError(concat("type ", name, ": expected F32, F16, BF16 or Q8_0"));
}

uint32_t gguf_file_type(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
  }
  throw RuntimeError(concat("GGUF: no type ", static_cast<uint32_t>(type)));
}

bool gguf_can_hold(GgufType type, int64_t row) {
  return type != GgufType::kQ8_0 || row % kQ8Block == 0;
}

uint64_t gguf_bytes(GgufType type, int64_t count) {
  check<RuntimeError>(gguf_can_hold(type, count), "GGUF: ", count, " values are no whole blocks");
  switch (type) {
    case GgufType::kF32:
      return static_cast<uint64_t>(count) * sizeof(float);
    case GgufType::kQ8_0:
      return static_cast<uint64_t>(count / kQ8Block) * kQ8BlockBytes;
    default:
      return static_cast<uint64_t>(count) * sizeof(uint16_t);
  }
}

std::optional<size_t> encode_gguf(GgufType type, std::span<const float> values, std::byte* out) {
  switch (type) {
    case GgufType::kF32:
      std::memcpy(out, values.data(), values.size_bytes());
      return std::nullopt;
    case GgufType::kF16:
      return encode_16_bits<Float16>(values, 0x7c00, out);
    case GgufType::kBF16:
      return encode_16_bits<BFloat16>(values, 0x7f80, out);
    case GgufType::kQ8_0:
      check<RuntimeError>(values.size() % kQ8Block == 0, "GGUF: ", values.size(),
                          " values are no whole blocks");
      return encode_q8_0(values, out);
  }
  throw RuntimeError(concat("GGUF: no type ", static_cast<uint32_t>(type)));
}

}  // namespace tapestry
