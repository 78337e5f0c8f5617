#include "parallel_core/training/program.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/training.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t g_stop_requested = 0;

// For the terminal, if there is one, from the handler of a signal.
constexpr std::string_view kStopping = "stopping after this step; a second signal ends at once\n";
volatile std::sig_atomic_t g_terminal = -1;

void request_stop(int /*signal*/) {
  const auto terminal = static_cast<int>(g_terminal);
  if (g_stop_requested == 0 && terminal >= 0) {
    const int error = errno;
    const pid_t group = ::tcgetpgrp(terminal);
    const bool foreground = group < 0 || group == ::getpgrp();
    for (const std::string_view text : {foreground ? kClearLine : "", kStopping}) {
      [[maybe_unused]] const ssize_t written = ::write(terminal, text.data(), text.size());
    }
    errno = error;
  }
  g_stop_requested = 1;
}

enum class Again : uint8_t { kEnds, kChangesNothing };

void stop_on(int signal, Again again) {
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART | (again == Again::kEnds ? static_cast<int>(SA_RESETHAND) : 0);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// What the user reads: which program speaks, where the log does not say it, and how many faults.
std::string failure_text(const std::exception& error, const std::string& program) {
  const auto* config = dynamic_cast<const ConfigError*>(&error);
  const std::string text =
      config != nullptr && config->findings().size() > 1
          ? concat(config->findings().size(), " faults in the configuration:\n", error.what())
          : std::string(error.what());
  return logs_open() ? text : concat(program, ": ", text);
}

// Files that are opened must not take the place of a stream that was closed (">&-").
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) {
      std::exit(kFailure);  // NOLINT(concurrency-mt-unsafe): nothing else runs yet
    }
  }
}

}  // namespace

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const StorageError*>(&error) != nullptr) {
    return kFailure;  // a full disk
  }
  if (dynamic_cast<const TrainingStopped*>(&error) != nullptr) {
    return kFailure;  // of the run, found while it ran
  }
  const bool bad_input = dynamic_cast<const ValueError*>(&error) != nullptr ||
                         dynamic_cast<const TypeError*>(&error) != nullptr ||
                         dynamic_cast<const IndexError*>(&error) != nullptr ||
                         dynamic_cast<const IoError*>(&error) != nullptr;
  return bad_input ? kBadInput : kFailure;
}

int run_program(
    int argc,
    char** argv,
    const std::function<int(const std::vector<std::string>& words, const Distributed& job)>& body) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit of sizes is an error that is reported
  std::optional<Distributed> job;
  try {
    job.emplace(argc, argv);
    const int code = body({argv + (argc > 0 ? 1 : 0), argv + argc}, *job);
    destroy_model_parallel();
    job->finish();
    return code;
  } catch (const std::exception& error) {
    const int code = exit_code_of(error);
    if (!job || job->announce(error.what())) {
      log_error(failure_text(error, argc > 0 ? fs::path(argv[0]).filename().string() : "program"));
    } else {
      log_consequence(error.what());
    }
    close_logs();
    if (job) {
      job->abort(code);
    }
    return code;
  }
}

std::function<bool()> stop_on_signals() {
  if (const std::optional<OutputStream> terminal = progress_terminal()) {
    g_terminal = static_cast<int>(*terminal);
  }
  for (const int signal : {SIGTERM, SIGUSR1}) {
    stop_on(signal, Again::kEnds);
  }
  // Shells may send SIGHUP twice; a closed pipe sends SIGPIPE for each line.
  for (const auto& [signal, again] :
       {std::pair{SIGINT, Again::kEnds}, std::pair{SIGHUP, Again::kChangesNothing},
        std::pair{SIGPIPE, Again::kChangesNothing}}) {
    if (!is_ignored(signal)) {
      stop_on(signal, again);
    }
  }
  return [] { return g_stop_requested != 0; };
}

void print_result(const std::string& text) {
  errno = 0;
  std::cout << text << std::flush;
  if (!std::cout) {
    throw_io_error("standard output", "write", errno);
  }
}

}  // namespace tapestry
