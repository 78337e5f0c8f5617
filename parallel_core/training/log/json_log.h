// Messages as JSON, one object a line: training_config.log_format: json.
#pragma once

#include <string>
#include <string_view>

#include "parallel_core/training/log/log_fields.h"

namespace tapestry {

/// {"time":"2026-11-28T19:15:39.123+01:00","level":"info","rank":0,"host":"node7","message":"..."}
/// with the fields behind the message; the local time, with its zone, as in RFC 3339. Line breaks
/// and quotes are escaped, what is no UTF-8 is U+FFFD. Numbers that are not finite are the strings
/// "nan", "inf" and "-inf", as in metrics.jsonl.
std::string json_log_line(std::string_view level,
                          int rank,
                          const std::string& message,
                          const LogFields& fields = {});

/// What a handler of signals does in place of writing plain text: the process logs as JSON since
/// the first call with true, until one with false.
void set_json_of_process(bool json);
bool json_of_process() noexcept;

/// Writes such a line, with the time in UTC, by means that handlers may use. The pieces of the
/// message are ASCII without quotes, backslashes and control characters.
void write_json_from_handler(int descriptor,
                             std::string_view level,
                             std::string_view first,
                             std::string_view second) noexcept;

}  // namespace tapestry
