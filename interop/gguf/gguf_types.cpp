#include "interop/gguf/gguf_types.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

struct TypeRow {
  GgufType type;
  std::string_view name;
  GgufBlock block;
  std::optional<uint32_t> file_type = {};  // of those that are written
};

constexpr int64_t kSuperBlock = 256;
constexpr size_t kQ8BlockBytes = sizeof(uint16_t) + kQ8Block;
constexpr size_t kQ4BlockBytes = sizeof(uint16_t) + kQ8Block / 2;
constexpr size_t kQ4KBytes = 2 * sizeof(uint16_t) + 12 + kSuperBlock / 2;
constexpr size_t kQ6KBytes =
    kSuperBlock / 2 + kSuperBlock / 4 + kSuperBlock / 16 + sizeof(uint16_t);

// A type that is read is a row here and a case of decode_gguf; one that is written also a file_type
// and a case of encode_gguf.
constexpr std::array<TypeRow, 7> kGgufTypes = {{
    {GgufType::kF32, "F32", {1, sizeof(float)}, 0},
    {GgufType::kF16, "F16", {1, sizeof(uint16_t)}, 1},
    {GgufType::kBF16, "BF16", {1, sizeof(uint16_t)}, 32},
    {GgufType::kQ8_0, "Q8_0", {kQ8Block, kQ8BlockBytes}, 7},
    {GgufType::kQ4_0, "Q4_0", {kQ8Block, kQ4BlockBytes}},
    {GgufType::kQ4_K, "Q4_K", {kSuperBlock, kQ4KBytes}},
    {GgufType::kQ6_K, "Q6_K", {kSuperBlock, kQ6KBytes}},
}};

// Names of ggml's other types, for messages.
constexpr std::array<std::pair<uint32_t, std::string_view>, 25> kUnreadTypes = {{
    {3, "Q4_1"},     {6, "Q5_0"},   {7, "Q5_1"},    {9, "Q8_1"},     {10, "Q2_K"},
    {11, "Q3_K"},    {13, "Q5_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},
    {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
}};

const TypeRow& row_of(GgufType type) {
  for (const TypeRow& row : kGgufTypes) {
    if (row.type == type) {
      return row;
    }
  }
  throw RuntimeError(concat("GGUF: no type ", static_cast<uint32_t>(type)));
}

float half_at(const std::byte* bytes) {
  Float16 half;
  std::memcpy(&half.bits, bytes, sizeof(half.bits));
  return static_cast<float>(half);
}

void decode_q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  const auto* q = reinterpret_cast<const int8_t*>(block + sizeof(uint16_t));
  for (int64_t i = 0; i < kQ8Block; ++i) {
    out[i] = d * static_cast<float>(q[i]);
  }
}

void decode_q4_0(const std::byte* block, float* out) {
  constexpr int64_t kHalf = kQ8Block / 2;
  const float d = half_at(block);
  const auto* q = reinterpret_cast<const uint8_t*>(block + sizeof(uint16_t));
  for (int64_t i = 0; i < kHalf; ++i) {
    out[i] = d * static_cast<float>((q[i] & 15) - 8);
    out[i + kHalf] = d * static_cast<float>((q[i] >> 4) - 8);
  }
}

void decode_q4_k(const std::byte* block, float* out) {
  constexpr int64_t kPart = 32;
  const float d = half_at(block);
  const float dmin = half_at(block + sizeof(uint16_t));
  const auto* packed = reinterpret_cast<const uint8_t*>(block + 2 * sizeof(uint16_t));
  const uint8_t* q = packed + 12;
  std::array<float, 8> scale;
  std::array<float, 8> minimum;
  for (size_t j = 0; j < scale.size(); ++j) {
    const int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    const int m = j < 4 ? packed[j + 4] & 63 : (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    scale[j] = d * static_cast<float>(s);
    minimum[j] = dmin * static_cast<float>(m);
  }
  for (size_t j = 0; j < scale.size(); j += 2) {
    for (int64_t i = 0; i < kPart; ++i) {
      out[i] = scale[j] * static_cast<float>(q[i] & 15) - minimum[j];
      out[i + kPart] = scale[j + 1] * static_cast<float>(q[i] >> 4) - minimum[j + 1];
    }
    q += kPart;
    out += 2 * kPart;
  }
}

void decode_q6_k(const std::byte* block, float* out) {
  constexpr int64_t kPart = 32;
  constexpr int64_t kScaled = 16;  // values of a scale
  const auto* low = reinterpret_cast<const uint8_t*>(block);
  const uint8_t* high = low + kSuperBlock / 2;
  const auto* scales = reinterpret_cast<const int8_t*>(high + kSuperBlock / 4);
  const float d = half_at(block + kQ6KBytes - sizeof(uint16_t));
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t part = 0; part < 4; ++part) {
      // Parts 0 and 1 have the low bits of the 64 bytes, 2 and 3 the high ones.
      const uint8_t* from = low + part % 2 * kPart;
      for (int64_t i = 0; i < kPart; ++i) {
        const int four = part < 2 ? from[i] & 15 : from[i] >> 4;
        const int q = (four | (high[i] >> (2 * part) & 3) << 4) - 32;
        const float scale = d * static_cast<float>(scales[(part * kPart + i) / kScaled]);
        out[part * kPart + i] = scale * static_cast<float>(q);
      }
    }
    low += 2 * kPart;
    high += kPart;
    scales += 4 * kPart / kScaled;
    out += 4 * kPart;
  }
}

template <class T>
void widen(std::span<const std::byte> bytes, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value.bits, bytes.data() + i * sizeof(value.bits), sizeof(value.bits));
    out[i] = static_cast<float>(value);
  }
}

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

std::string_view name_of(GgufType type) { return row_of(type).name; }

GgufType gguf_type(std::string_view name) {
  std::string known;
  for (const TypeRow& row : kGgufTypes) {
    if (!row.file_type) {
      continue;
    }
    if (name == row.name) {
      return row.type;
    }
    known += concat(known.empty() ? "" : row.type == GgufType::kQ8_0 ? " or " : ", ", row.name);
  }
  throw ValueError(concat("type ", name, ": expected ", known));
}

std::optional<GgufType> gguf_type_of(uint32_t number) {
  for (const TypeRow& row : kGgufTypes) {
    if (static_cast<uint32_t>(row.type) == number) {
      return row.type;
    }
  }
  return std::nullopt;
}

std::string shown_gguf_type(uint32_t number) {
  if (const auto type = gguf_type_of(number)) {
    return concat(name_of(*type), " (", number, ")");
  }
  for (const auto& [known, name] : kUnreadTypes) {
    if (known == number) {
      return concat(name, " (", number, ")");
    }
  }
  return concat(number);
}

uint32_t gguf_file_type(GgufType type) {
  const std::optional<uint32_t>& number = row_of(type).file_type;
  check<RuntimeError>(number.has_value(), "GGUF: ", name_of(type), " is not written");
  return *number;
}

GgufBlock gguf_block(GgufType type) { return row_of(type).block; }

bool gguf_can_hold(GgufType type, int64_t row) { return row % gguf_block(type).values == 0; }

uint64_t gguf_bytes(GgufType type, int64_t count) {
  check<RuntimeError>(gguf_can_hold(type, count), "GGUF: ", count, " values are no whole blocks");
  const GgufBlock block = gguf_block(type);
  return static_cast<uint64_t>(count / block.values) * block.bytes;
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
    default:
      throw RuntimeError(concat("GGUF: ", name_of(type), " is not written"));
  }
}

void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> out) {
  check<RuntimeError>(bytes.size() == gguf_bytes(type, static_cast<int64_t>(out.size())),
                      "GGUF: ", bytes.size(), " bytes are not ", out.size(), " values of ",
                      name_of(type));
  const auto decode_blocks = [&](void (*decode)(const std::byte*, float*)) {
    const GgufBlock block = gguf_block(type);
    const size_t blocks = bytes.size() / block.bytes;
    for (size_t i = 0; i < blocks; ++i) {
      decode(bytes.data() + i * block.bytes, out.data() + i * static_cast<size_t>(block.values));
    }
  };
  switch (type) {
    case GgufType::kF32:
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case GgufType::kF16:
      return widen<Float16>(bytes, out);
    case GgufType::kBF16:
      return widen<BFloat16>(bytes, out);
    case GgufType::kQ8_0:
      return decode_blocks(decode_q8_0);
    case GgufType::kQ4_0:
      return decode_blocks(decode_q4_0);
    case GgufType::kQ4_K:
      return decode_blocks(decode_q4_k);
    case GgufType::kQ6_K:
      return decode_blocks(decode_q6_k);
  }
}

}  // namespace tapestry
