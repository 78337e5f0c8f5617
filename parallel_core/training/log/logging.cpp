#include "parallel_core/training/log/logging.h"

#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/training/log/json_log.h"

namespace tapestry {

namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e %l %v";
constexpr const char* kJsonPattern = "%v";  // the message is the whole object

// Where the line of progress is drawn: standard output, in the order of the lines that appear above
// it, or standard error if that alone is a terminal. The launcher passes on standard error line by
// line, so it can draw nothing.
std::optional<OutputStream> progress_stream() {
  for (const OutputStream stream : {OutputStream::kOut, OutputStream::kError}) {
    if (is_terminal(stream) && !(stream == OutputStream::kError && started_as_rank())) {
      return stream;
    }
  }
  return std::nullopt;
}

std::FILE* file_of(OutputStream stream) { return stream == OutputStream::kOut ? stdout : stderr; }

void put(OutputStream stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), file_of(stream));
  std::fflush(file_of(stream));
}

// The line of progress that a terminal shows.
struct ShownProgress {
  OutputStream stream = OutputStream::kOut;
  size_t columns = 0;
};

std::optional<ShownProgress>& progress_shown();

bool is_json();

// Removes the line. A terminal that has become narrower has broken it into several.
std::string clearing(const ShownProgress& progress) {
  const auto columns = static_cast<size_t>(terminal_columns());
  const size_t further = (std::max<size_t>(progress.columns, 1) - 1) / columns;
  return further > 0 ? concat("\033[", further, "A\r\033[J") : std::string(kClearLine);
}

// Errors go to standard error, everything else to standard output. On a terminal with the time of
// day, elsewhere as in the files; before a run has its logs without either: nothing has begun whose
// time would matter. Other ranks than the first say who they are.
class TerminalSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  TerminalSink(int rank, bool running)
      : rank_text_(rank == 0 ? "" : concat("rank ", rank, ": ")), running_(running) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const OutputStream stream =
        message.level >= spdlog::level::err ? OutputStream::kError : OutputStream::kOut;
    std::string line;
    if (const std::optional<ShownProgress> progress = std::exchange(progress_shown(), {})) {
      if (progress->stream == stream) {
        line = clearing(*progress);
      } else {
        put(progress->stream, clearing(*progress));
      }
    }
    const std::string text(message.payload.data(), message.payload.size());
    if (is_json()) {
      put(stream, line + text + "\n");
      return;
    }
    put(stream,
        line +
            (is_terminal(stream) ? on_terminal(message, stream, text) : elsewhere(message, text)) +
            "\n");
  }
  void flush_() override {}

  std::string elsewhere(const spdlog::details::log_msg& message, const std::string& text) {
    spdlog::memory_buf_t start;
    if (running_) {
      file_start_.format(message, start);
    }
    return std::string(start.data(), start.size()) + rank_text_ + text;
  }

  std::string on_terminal(const spdlog::details::log_msg& message,
                          OutputStream stream,
                          const std::string& text) const {
    std::string start;
    Margins margins;
    if (running_) {
      std::array<char, 16> time{};
      const std::tm day =
          spdlog::details::os::localtime(std::chrono::system_clock::to_time_t(message.time));
      margins.rest = static_cast<int>(std::strftime(time.data(), time.size(), "%H:%M:%S ", &day));
      const std::string level = level_word(message.level);
      margins.first = margins.rest + static_cast<int>(level.size());
      start = time.data() + (shows_color(stream) ? colored(message.level, level) : level);
    }
    margins.first += static_cast<int>(rank_text_.size());
    return start + rank_text_ + wrap_text(text, terminal_columns(), margins);
  }

  static std::string level_word(spdlog::level::level_enum level) {
    return level >= spdlog::level::err    ? "error: "
           : level >= spdlog::level::warn ? "warning: "
                                          : "";
  }

  static std::string colored(spdlog::level::level_enum level, const std::string& word) {
    return word.empty()
               ? word
               : concat(level >= spdlog::level::err ? "\033[31m" : "\033[33m", word, "\033[0m");
  }

  std::string rank_text_;
  bool running_;
  spdlog::pattern_formatter file_start_{"%Y-%m-%d %H:%M:%S.%e %l ",
                                        spdlog::pattern_time_type::local, ""};
};

struct LogState {
  std::shared_ptr<spdlog::logger> logger;
  bool open = false;
  bool log_failed = false;
  bool json = false;
  std::optional<ShownProgress> progress_shown;
};

LogState& state() { return RankContext::current().slot<LogState>(); }

std::optional<ShownProgress>& progress_shown() { return state().progress_shown; }

bool is_json() { return state().json; }

std::string_view level_name(spdlog::level::level_enum level) {
  return level >= spdlog::level::err ? "error" : level >= spdlog::level::warn ? "warning" : "info";
}

// What the sinks are given for a message.
std::string payload_of(spdlog::level::level_enum level,
                       const std::string& message,
                       const LogFields& fields = {}) {
  return is_json()
             ? json_log_line(level_name(level), RankContext::current().rank(), message, fields)
             : message;
}

spdlog::logger& logger() {
  LogState& current = state();
  if (current.logger == nullptr) {
    auto sink = std::make_shared<TerminalSink>(RankContext::current().rank(), /*running=*/false);
    current.logger = std::make_shared<spdlog::logger>("terminal", std::move(sink));
  }
  return *current.logger;
}

void hide_progress() {
  if (const std::optional<ShownProgress> progress = std::exchange(progress_shown(), {})) {
    put(progress->stream, clearing(*progress));
  }
}

void write(spdlog::level::level_enum level,
           const std::string& message,
           const LogFields& fields = {}) {
  logger().log(level, "{}", payload_of(level, message, fields));
}

// A full disk, for example: a log that cannot be written must neither end the run nor hide why
// something else fails. Said once.
void report_log_failure(const std::string& message) {
  if (!state().log_failed) {
    state().log_failed = true;
    const std::string text = concat("log: ", message, "; lines will be missing from it");
    std::fputs((payload_of(spdlog::level::err, text) + "\n").c_str(), stderr);
  }
}

enum class LogPart : uint8_t { kFiles, kTerminal };

void write_to(LogPart part, spdlog::level::level_enum level, const std::string& message) {
  const std::string payload = payload_of(level, message);
  for (const spdlog::sink_ptr& sink : logger().sinks()) {
    const bool is_file = dynamic_cast<TerminalSink*>(sink.get()) == nullptr;
    if (is_file == (part == LogPart::kFiles) && sink->should_log(level)) {
      try {
        sink->log(spdlog::details::log_msg(logger().name(), level, payload));
        sink->flush();
      } catch (const spdlog::spdlog_ex& error) {
        report_log_failure(error.what());
      }
    }
  }
}

// Of all sinks of the logger but the terminal, which asks by itself.
void set_patterns(const std::vector<spdlog::sink_ptr>& sinks) {
  for (const spdlog::sink_ptr& sink : sinks) {
    if (dynamic_cast<TerminalSink*>(sink.get()) == nullptr) {
      sink->set_pattern(is_json() ? kJsonPattern : kPattern);
    }
  }
}

}  // namespace

void set_log_format(const std::string& format) {
  state().json = format == "json";
  set_json_of_process(is_json());
  if (is_json()) {
    hide_progress();
  }
  set_patterns(logger().sinks());
}

void open_logs(const std::string& output_dir) {
  const int rank = RankContext::current().rank();
  const std::filesystem::path folder =
      std::filesystem::path(output_dir) / "log" / ("rank_" + std::to_string(rank));
  try {
    std::filesystem::create_directories(folder);
    std::vector<spdlog::sink_ptr> sinks;
    for (const char* name : {"info.log", "error.log"}) {
      // The open of a pipe that nobody reads would never return.
      const std::filesystem::path file = folder / name;
      check<IoError>(!std::filesystem::exists(file) || std::filesystem::is_regular_file(file),
                     file.string(),
                     ": is no regular file, but the log goes there; remove it or choose another "
                     "training_config.output_dir");
    }
    auto info = std::make_shared<spdlog::sinks::basic_file_sink_mt>(folder / "info.log");
    info->set_level(spdlog::level::info);
    auto error = std::make_shared<spdlog::sinks::basic_file_sink_mt>(folder / "error.log");
    error->set_level(spdlog::level::err);
    sinks = {info, error};
    set_patterns(sinks);
    sinks.push_back(std::make_shared<TerminalSink>(rank, /*running=*/true));
    if (rank != 0) {
      sinks.back()->set_level(spdlog::level::err);
    }
    auto opened = std::make_shared<spdlog::logger>("rank", sinks.begin(), sinks.end());
    opened->flush_on(spdlog::level::info);
    opened->set_error_handler(report_log_failure);
    state().logger = std::move(opened);
    state().open = true;
  } catch (const std::exception& error) {
    throw IoError(concat("training_config.output_dir '", output_dir,
                         "': the logs cannot be opened: ", error.what()));
  }
}

void close_logs() {
  if (state().logger != nullptr) {
    state().logger->flush();
    state().logger.reset();
  }
  state().open = false;
}

bool logs_open() { return state().open; }

void log_info(const std::string& message) { write(spdlog::level::info, message); }
void log_info(const std::string& message, const std::string& on_terminal) {
  log_info(message, on_terminal, {});
}
void log_info(const std::string& message, const std::string& on_terminal, const LogFields& fields) {
  if (is_json() || !is_terminal(OutputStream::kOut)) {
    write(spdlog::level::info, message, fields);
    return;
  }
  write_to(LogPart::kFiles, spdlog::level::info, message);
  write_to(LogPart::kTerminal, spdlog::level::info, on_terminal);
}
void log_warning(const std::string& message) { write(spdlog::level::warn, message); }
void log_error(const std::string& message) { write(spdlog::level::err, message); }

void log_detail(const std::string& message) {
  write_to(LogPart::kFiles, spdlog::level::info, message);
}

void log_lines(const std::string& text, void (*log)(const std::string&)) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    log(line);
  }
}

void log_consequence(const std::string& message) {
  write_to(LogPart::kFiles, spdlog::level::err, message);
}

std::optional<OutputStream> progress_terminal() {
  return RankContext::current().rank() == 0 && !is_json() ? progress_stream() : std::nullopt;
}

bool shows_progress() {
  const std::optional<OutputStream> stream = progress_terminal();
  return stream && in_foreground(*stream);
}

void show_progress(const std::string& line) {
  if (!shows_progress()) {
    return;
  }
  const ShownProgress now{.stream = *progress_stream(), .columns = line.size()};
  const std::optional<ShownProgress> before = std::exchange(progress_shown(), now);
  put(now.stream, (before ? clearing(*before) : std::string(kClearLine)) + line);
}

void end_progress() { hide_progress(); }

std::string summary_row(const std::string& label, const std::string& text) {
  constexpr size_t kLabelWidth = 11;
  std::string row = label;
  row.resize(std::max(kLabelWidth, label.size() + 1), ' ');
  return row + text;
}

}  // namespace tapestry
