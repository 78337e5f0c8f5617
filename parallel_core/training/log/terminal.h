// The terminal in front of a run, if there is one.
#pragma once

#include <string>
#include <string_view>

namespace tapestry {

/// The two streams that a program writes to, by their descriptors.
enum class OutputStream { kOut = 1, kError = 2 };

/// True if what goes to the stream is seen on a terminal that can write over a line (TERM is set
/// and not "dumb"). mpirun gives every rank a terminal of its own, whatever it does with the
/// output: in a rank only TAPESTRY_TERMINAL counts, which the launcher sets: "/dev/pts/3:12", the
/// device and the streams that end there.
bool is_terminal(OutputStream stream);

/// The same, and the user has not set NO_COLOR (no-color.org) to anything.
bool shows_color(OutputStream stream);

/// True unless the stream ends on a terminal whose line somebody else is typing in: the process was
/// started, or put, into the background.
bool in_foreground(OutputStream stream);

/// Goes to the beginning of a terminal's line and empties it.
inline constexpr std::string_view kClearLine = "\r\033[K";

/// Columns of the terminal, as wide as it is now; those of COLUMNS, else 80, where it does not say.
int terminal_columns();

/// Where the first line of a wrapped text begins and the others do.
struct Margins {
  int first = 0;  ///< columns that are taken before the text
  int rest = 0;   ///< blanks in front of each further line
};

/// The text with lines of `columns` at most: longer ones go on, between words, in lines of their
/// own, indented below the text behind their label ("data       42 tokens"), else by two more than
/// they are. A longer word stands alone; under 20 columns nothing is changed.
std::string wrap_text(std::string_view text, int columns, const Margins& margins = {});

/// The text wrapped for the terminal at the end of the stream; unchanged where there is none.
std::string fit_to_terminal(OutputStream stream, const std::string& text);

/// The text without what would move a terminal's cursor or change its state: control characters but
/// for line feeds and tabs, and what is no UTF-8, are U+FFFD.
std::string harmless_text(std::string_view text);

}  // namespace tapestry
