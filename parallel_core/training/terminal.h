// The terminal in front of a run, if there is one.
#pragma once

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

/// Columns of the terminal, as wide as it is now; those of COLUMNS, else 80, where it does not say.
int terminal_columns();

}  // namespace tapestry
