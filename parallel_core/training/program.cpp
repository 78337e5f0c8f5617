#include "parallel_core/training/program.h"

#include <csignal>
#include <exception>
#include <optional>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/logging.h"

namespace tapestry {

namespace {

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
      log_error(error.what());
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
