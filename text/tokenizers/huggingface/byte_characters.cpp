#include "text/tokenizers/huggingface/byte_characters.h"

#include <array>

#include "text/tokenizers/huggingface/aligned_text.h"

namespace tapestry::data::huggingface {
namespace {

constexpr uint32_t kFirstOther = 0x100;
constexpr uint32_t kEnd = kFirstOther + 68;

struct ByteTable {
  std::array<std::string, 256> characters;
  std::array<int, kEnd> bytes;

  ByteTable() {
    bytes.fill(-1);
    uint32_t next = kFirstOther;
    for (uint32_t byte = 0; byte < characters.size(); ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const uint32_t point = itself ? byte : next++;
      append_utf8(characters[byte], point);
      bytes[point] = static_cast<int>(byte);
    }
  }
};

const ByteTable& byte_table() {
  static const ByteTable table;
  return table;
}

}  // namespace

const std::string& character_of_byte(uint8_t byte) { return byte_table().characters[byte]; }

int byte_of_character(uint32_t code_point) {
  return code_point < kEnd ? byte_table().bytes[code_point] : -1;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size(); at += character_length(token, at)) {
    const int byte = byte_of_character(code_point_at(token, at));
    if (byte < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace tapestry::data::huggingface
