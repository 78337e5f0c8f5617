// Texts as people see them: how wide, and cut to a width.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::plot {

/// The text with '?' in place of control characters and of bytes that are not UTF-8, so that names
/// of files can neither steer a terminal nor spoil an XML file; with `ascii` in place of all but
/// ASCII.
std::string printable(std::string_view text, bool ascii = false);

/// A printable text with what means something to XML and HTML written as entities.
std::string escape_markup(std::string_view text);

/// Columns that a printable text takes in a terminal: two for each East Asian wide letter, none for
/// combining marks.
int columns_of(std::string_view text);

/// The text cut to at most so many columns. Where `keep_end`, its middle is replaced by "...", as
/// long as that leaves something on both sides.
std::string cut(std::string_view text, int columns, bool keep_end = false);

}  // namespace tapestry::plot
