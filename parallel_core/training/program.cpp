#include "parallel_core/training/program.h"

#include <csignal>
#include <exception>
#include <filesystem>
#include <optional>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/logging.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t g_stop_requested = 0;

// The first signal asks for an orderly end, the second one ends the program at once.
void request_stop(int signal) {
  g_stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

bool is_bad_input(const std::exception& error) {
  if (dynamic_cast<const StorageError*>(&error) != nullptr) {
    return false;  // a full disk
  }
  return dynamic_cast<const ValueError*>(&error) != nullptr ||
         dynamic_cast<const TypeError*>(&error) != nullptr ||
         dynamic_cast<const IndexError*>(&error) != nullptr ||
         dynamic_cast<const IoError*>(&error) != nullptr;
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

}  // namespace

int run_program(
    int argc,
    char** argv,
    const std::function<int(const std::vector<std::string>& words, const Distributed& job)>& body) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit of sizes is an error that is reported
  std::optional<Distributed> job;
  try {
    job.emplace(argc, argv);
    const int code = body({argv + (argc > 0 ? 1 : 0), argv + argc}, *job);
    destroy_model_parallel();
    job->finish();
    return code;
  } catch (const std::exception& error) {
    const int code = is_bad_input(error) ? kBadInput : kFailure;
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
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    std::signal(signal, request_stop);
  }
  return [] { return g_stop_requested != 0; };
}

}  // namespace tapestry
