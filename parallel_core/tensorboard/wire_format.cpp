#include "parallel_core/tensorboard/wire_format.h"

#include <bit>
#include <limits>

namespace tapestry::report {
namespace {

using Type = WireField::Type;

void append_fixed(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) {
    bytes += static_cast<char>(value >> (8 * i) & 0xFFU);
  }
}

bool take_varint(std::string_view& rest, uint64_t& value) {
  constexpr int kMostBytes = 10;
  value = 0;
  for (int i = 0; i < kMostBytes && !rest.empty(); ++i) {
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7FU) << (7 * i);
    if (byte < 0x80) {
      return true;
    }
  }
  return false;
}

bool take_fixed(std::string_view& rest, size_t size, uint64_t& value) {
  if (rest.size() < size) {
    return false;
  }
  value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  }
  rest.remove_prefix(size);
  return true;
}

bool take_bytes(std::string_view& rest, std::string_view& bytes) {
  uint64_t size = 0;
  if (!take_varint(rest, size) || size > rest.size()) {
    return false;
  }
  bytes = rest.substr(0, size);
  rest.remove_prefix(size);
  return true;
}

}  // namespace

void WireMessage::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7U) {
    bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
  }
  bytes_ += static_cast<char>(value);
}

void WireMessage::tag(int field, int type) {
  varint(static_cast<uint64_t>(field) << 3U | static_cast<uint64_t>(type));
}

WireMessage& WireMessage::integer(int field, int64_t value) {
  tag(field, static_cast<int>(Type::kVarint));
  varint(static_cast<uint64_t>(value));
  return *this;
}

WireMessage& WireMessage::real(int field, double value) {
  tag(field, static_cast<int>(Type::kFixed64));
  append_fixed(bytes_, std::bit_cast<uint64_t>(value), sizeof(value));
  return *this;
}

WireMessage& WireMessage::real32(int field, float value) {
  tag(field, static_cast<int>(Type::kFixed32));
  append_fixed(bytes_, std::bit_cast<uint32_t>(value), sizeof(value));
  return *this;
}

WireMessage& WireMessage::text(int field, std::string_view value) {
  tag(field, static_cast<int>(Type::kBytes));
  varint(value.size());
  bytes_ += value;
  return *this;
}

WireMessage& WireMessage::reals(int field, const std::vector<double>& values) {
  std::string packed;
  packed.reserve(values.size() * sizeof(double));
  for (const double value : values) {
    append_fixed(packed, std::bit_cast<uint64_t>(value), sizeof(value));
  }
  return text(field, packed);
}

std::optional<std::vector<WireField>> read_fields(std::string_view message) {
  std::vector<WireField> fields;
  while (!message.empty()) {
    uint64_t tag = 0;
    if (!take_varint(message, tag) || tag >> 3U == 0 ||
        tag > std::numeric_limits<uint32_t>::max()) {
      return std::nullopt;
    }
    WireField field{.number = static_cast<int64_t>(tag >> 3U),
                    .type = static_cast<Type>(tag & 7U),
                    .value = 0,
                    .bytes = {}};
    bool taken = false;
    switch (field.type) {
      case Type::kVarint:
        taken = take_varint(message, field.value);
        break;
      case Type::kFixed64:
        taken = take_fixed(message, sizeof(uint64_t), field.value);
        break;
      case Type::kBytes:
        taken = take_bytes(message, field.bytes);
        break;
      case Type::kFixed32:
        taken = take_fixed(message, sizeof(uint32_t), field.value);
        break;
    }
    if (!taken) {
      return std::nullopt;
    }
    fields.push_back(field);
  }
  return fields;
}

}  // namespace tapestry::report
