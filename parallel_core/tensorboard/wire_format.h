// The wire format of protocol buffers, as far as event files need it.
// Source: protobuf.dev/programming-guides/encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::report {

/// A message that grows by a field with each call.
class WireMessage {
 public:
  /// int64 and enum: a varint; negative ones have ten bytes.
  WireMessage& integer(int field, int64_t value);
  /// double: 8 bytes.
  WireMessage& real(int field, double value);
  /// float: 4 bytes.
  WireMessage& real32(int field, float value);
  /// string and bytes.
  WireMessage& text(int field, std::string_view value);
  WireMessage& message(int field, const WireMessage& value) { return text(field, value.bytes_); }
  /// repeated double, packed.
  WireMessage& reals(int field, const std::vector<double>& values);

  const std::string& bytes() const { return bytes_; }

 private:
  void tag(int field, int type);
  void varint(uint64_t value);

  std::string bytes_;
};

/// A field of an encoded message.
struct WireField {
  enum class Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  int64_t number = 0;
  Type type = Type::kVarint;
  uint64_t value = 0;      ///< of a varint, and the bits of what has a fixed size
  std::string_view bytes;  ///< of a string, a message or packed numbers
};

/// The fields of a message, of which they are views, in their order; nothing where the bytes are no
/// message.
std::optional<std::vector<WireField>> read_fields(std::string_view message);

}  // namespace tapestry::report
