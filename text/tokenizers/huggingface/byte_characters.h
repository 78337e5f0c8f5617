// The characters that stand for bytes in the vocabularies of byte-level tokenizers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tapestry::data::huggingface {

/// The character (UTF-8) that stands for a byte. Bytes 33-126, 161-172 and 174-255 are the code
/// points of their number; the others, in increasing order, are U+0100, U+0101, ... Source: GPT-2's
/// encoder.
const std::string& character_of_byte(uint8_t byte);

/// The byte that a code point stands for; -1: none.
int byte_of_character(uint32_t code_point);

/// The bytes that a token of such characters stands for; none if another character is in it.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace tapestry::data::huggingface
