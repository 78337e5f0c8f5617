#include "parallel_core/training/logging.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v";

// Of the terminal, which ranks share. Before a run has its logs nothing has begun whose time would
// matter.
std::string terminal_pattern(bool running) {
  const int rank = RankContext::current().rank();
  return std::string(running ? "%Y-%m-%d %H:%M:%S.%e %^%l%$ " : "") +
         (rank == 0 ? "" : "rank " + std::to_string(rank) + ": ") + "%v";
}

// Errors go to standard error, everything else to standard output.
class TerminalSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    if (message.level >= spdlog::level::err) {
      output_.flush();  // in the order of events where both are one file
      errors_.log(message);
    } else {
      output_.log(message);
    }
  }
  void flush() override {
    output_.flush();
    errors_.flush();
  }
  void set_pattern(const std::string& pattern) override {
    output_.set_pattern(pattern);
    errors_.set_pattern(pattern);
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    errors_.set_formatter(formatter->clone());
    output_.set_formatter(std::move(formatter));
  }

 private:
  spdlog::sinks::stdout_color_sink_mt output_;
  spdlog::sinks::stderr_color_sink_mt errors_;
};

struct LogState {
  std::shared_ptr<spdlog::logger> logger;
  bool open = false;
  bool progress_shown = false;
};

LogState& state() { return RankContext::current().slot<LogState>(); }

spdlog::logger& logger() {
  LogState& current = state();
  if (current.logger == nullptr) {
    auto sink = std::make_shared<TerminalSink>();
    current.logger = std::make_shared<spdlog::logger>("terminal", std::move(sink));
    current.logger->set_pattern(terminal_pattern(/*running=*/false));
  }
  return *current.logger;
}

void hide_progress() {
  if (state().progress_shown) {
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    state().progress_shown = false;
  }
}

void write(spdlog::level::level_enum level, const std::string& message) {
  hide_progress();
  logger().log(level, "{}", message);
}

}  // namespace

void open_logs(const std::string& output_dir) {
  const int rank = RankContext::current().rank();
  const std::filesystem::path folder =
      std::filesystem::path(output_dir) / "log" / ("rank_" + std::to_string(rank));
  try {
    std::filesystem::create_directories(folder);
    std::vector<spdlog::sink_ptr> sinks;
    auto info = std::make_shared<spdlog::sinks::basic_file_sink_mt>(folder / "info.log");
    info->set_level(spdlog::level::info);
    auto error = std::make_shared<spdlog::sinks::basic_file_sink_mt>(folder / "error.log");
    error->set_level(spdlog::level::err);
    sinks = {info, error};
    sinks.push_back(std::make_shared<TerminalSink>());
    if (rank != 0) {
      sinks.back()->set_level(spdlog::level::err);
    }
    auto opened = std::make_shared<spdlog::logger>("rank", sinks.begin(), sinks.end());
    opened->set_pattern(kPattern);
    sinks.back()->set_pattern(terminal_pattern(/*running=*/true));
    opened->flush_on(spdlog::level::info);
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
void log_warning(const std::string& message) { write(spdlog::level::warn, message); }
void log_error(const std::string& message) { write(spdlog::level::err, message); }

void log_consequence(const std::string& message) {
  if (state().logger == nullptr) {
    return;
  }
  for (const spdlog::sink_ptr& sink : logger().sinks()) {
    if (dynamic_cast<TerminalSink*>(sink.get()) == nullptr &&
        sink->should_log(spdlog::level::err)) {
      sink->log(spdlog::details::log_msg(logger().name(), spdlog::level::err, message));
    }
  }
}

void show_progress(const std::string& line) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  if (!terminal || RankContext::current().rank() != 0) {
    return;
  }
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  state().progress_shown = true;
}

void end_progress() { hide_progress(); }

}  // namespace tapestry
