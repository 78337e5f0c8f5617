// Texts as Python has them: sequences of code points, here in UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::chat::jinja {

// Texts are valid UTF-8.

bool is_ascii(std::string_view text);
/// Where code point `index` begins; the text's size if there are not as many.
size_t place_of_code_point(std::string_view text, size_t index);
/// Where `wanted` is found first, or last, in time that does not depend on what they have in
/// common.
size_t find_first(std::string_view text, std::string_view wanted);
size_t find_last(std::string_view text, std::string_view wanted);
/// Bytes of what ends a line at `at`, for str.splitlines; 0: nothing does.
size_t line_end_at(std::string_view text, size_t at);
/// For HTML, as markupsafe.escape writes it.
std::string escaped(std::string_view text);
std::u32string to_code_points(std::string_view text);
std::string to_utf8(std::u32string_view code_points);
/// Where each code point begins, and the size of the text.
std::vector<size_t> code_point_starts(std::string_view text);

/// str.isspace of one code point.
bool is_space(char32_t code_point);
/// str.isprintable of one code point.
bool is_printable(char32_t code_point);
bool is_name_start(char32_t code_point);
bool is_name_part(char32_t code_point);

enum class Side { kLeft, kRight, kBoth };
/// str.strip, lstrip and rstrip: white space, or any of the code points of `letters`.
std::string_view strip(std::string_view text,
                       Side side,
                       std::optional<std::string_view> letters = std::nullopt);
/// The parts between white space, as str.split() finds them.
std::vector<std::string_view> words_of(std::string_view text);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

/// str.isdigit, isupper, islower: false for an empty text.
bool is_digit(std::string_view text);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

}  // namespace tapestry::chat::jinja
