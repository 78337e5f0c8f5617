// JSON files from anywhere: small enough, valid, without what the JSON library would let pass.
#pragma once

#include <cstdint>
#include <string_view>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"

namespace tapestry {

/// The content of a file as JSON. IoError, naming file, offset and `field`, for more than
/// `max_bytes`, text that is not JSON, a key that appears twice in an object, a number that no
/// double holds, a zero byte, or nesting of more than 16.
nlohmann::json read_strict_json(const InputFile& file, std::string_view field, uint64_t max_bytes);
/// The same with members in the order of the file; IoError also for an object of more than 20,000.
nlohmann::ordered_json read_strict_ordered_json(const InputFile& file,
                                                std::string_view field,
                                                uint64_t max_bytes);

/// True for the name of a file in the folder where it is mentioned: no path, no "..".
bool is_plain_file_name(std::string_view name);

}  // namespace tapestry
