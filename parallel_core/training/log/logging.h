// The logs of a run: log/rank_N/info.log (information and worse), error.log (errors), and the
// terminal (errors on standard error, the rest on standard output). Only where a terminal shows
// them there are colours, a line of progress, and lines that are wrapped (terminal.h); everywhere
// else a message is as it is. Or everything is JSON, one object a line (json_log.h), without any of
// these.
#pragma once

#include <optional>
#include <string>

#include "parallel_core/training/log/log_fields.h"
#include "parallel_core/training/log/terminal.h"

namespace tapestry {

/// What training_config.log_format says, text or json, for the current rank from here on. Logs that
/// are open go on in the new format.
void set_log_format(const std::string& format);

/// Opens the current rank's log files below `output_dir`, for appending; rank 0 also writes to the
/// terminal, the others only their errors, with their rank. IoError if they cannot be opened.
void open_logs(const std::string& output_dir);

/// Flushes and closes them; later messages go to the terminal alone.
void close_logs();

/// Whether open_logs has been called, and close_logs not since.
bool logs_open();

void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);
/// Information that a terminal shows in a shorter form; everywhere else it is as it is.
void log_info(const std::string& message, const std::string& on_terminal);
/// Information with values, which logs as JSON have beside the message.
void log_info(const std::string& message, const std::string& on_terminal, const LogFields& fields);
/// Information for the log files alone.
void log_detail(const std::string& message);
/// Each line of a text by itself.
void log_lines(const std::string& text, void (*log)(const std::string&));
/// To the log files alone: an error whose cause another rank reports.
void log_consequence(const std::string& message);

/// Where there is a terminal for the first rank's progress: standard output, else standard error.
std::optional<OutputStream> progress_terminal();
/// Whether a line of progress is seen: there, and unless the program is in the background.
bool shows_progress();
/// A line of progress that is rewritten in place. Messages that come in between appear above
/// it.
void show_progress(const std::string& line);
/// Removes the line.
void end_progress();

/// "label     text": a row of a table of what a run is.
std::string summary_row(const std::string& label, const std::string& text);

}  // namespace tapestry
