// Texts as people see them: how wide, and cut to a width.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::plot {

/// The text with '?' in place of control characters and of bytes that are not UTF-8, so that names
/// of files can neither steer a terminal nor spoil an XML file.
std::string printable(std::string_view text);

/// A printable text with what means something to XML and HTML written as entities.
std::string escape_markup(std::string_view text);

/// Columns that a printable text takes in a terminal: two for each East Asian wide letter, none for
/// combining marks.
int columns_of(std::string_view text);

/// The text in at most so many columns: its middle is replaced by "...", as long as that leaves
/// something on both sides; else its end is cut off.
std::string cut(std::string_view text, int columns);

}  // namespace tapestry::plot
