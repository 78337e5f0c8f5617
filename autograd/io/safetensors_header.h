// The JSON header of a safetensors file: parsing and the rules that need no data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "autograd/io/input_file.h"
#include "autograd/io/safetensors.h"

namespace tapestry::safetensors {

/// The reference implementation's limit.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
/// The header follows its own length, a u64.
inline constexpr uint64_t kHeaderOffset = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct Header {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Parses and checks each entry by itself: members, dtype, shape, and that end - begin is what
/// dtype and shape take. IoError through file.fail().
Header parse_header(const InputFile& file, std::string_view text);

/// Checks that the entries cover [0, data_bytes) without overlaps and holes.
void check_coverage(const InputFile& file, const Header& header, uint64_t data_bytes);

/// The header's text for tensors at their offsets, padded to a multiple of 8. ValueError if a
/// string is not UTF-8.
std::string format_header(const Header& header);

/// The format's name of a dtype: "F32".
std::string_view dtype_name(DType dtype);

/// A string as JSON writes it, quotes included: safe to print. Bytes that are not UTF-8 become
/// U+FFFD.
std::string json_string(std::string_view text);

}  // namespace tapestry::safetensors
