#include "parallel_core/training/program.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/temporary_names.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/json_log.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/training.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t g_stop_requested = 0;
volatile std::sig_atomic_t g_listens = 0;  // stop_on_signals was called
std::atomic<int> g_preparing = 0;          // how many EndAtSignals there are

// What a signal that ends the program leaves on standard error: its name, from the handler.
std::array<char, 64> g_program{};
bool g_speaks = true;
constexpr std::array<std::pair<int, std::string_view>, 4> kEndings = {
    {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}}};

void write_text(int descriptor, std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(descriptor, text.data(), text.size());
}

// "PROGRAM: ended by SIGTERM", on the first rank, from a handler.
void say_from_handler(std::string_view what, std::string_view more = {}) {
  if (!g_speaks) {
    return;
  }
  if (json_of_process()) {
    write_json_from_handler(STDERR_FILENO, "error", what, more);
    return;
  }
  write_text(STDERR_FILENO, g_program.data());
  write_text(STDERR_FILENO, ": ");
  write_text(STDERR_FILENO, what);
  write_text(STDERR_FILENO, more);
  write_text(STDERR_FILENO, "\n");
}

// Ends the program as the signal would without a handler, but not without a word.
void end_early(int signal) {
  remove_temporaries();
  for (const auto& [number, name] : kEndings) {
    if (number == signal) {
      say_from_handler("ended by ", name);
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // comes when the handler returns
}

// For the terminal, if there is one, from the handler of a signal.
constexpr std::string_view kStopping = "stopping after this step; a second signal ends at once\n";
volatile std::sig_atomic_t g_terminal = -1;
volatile std::sig_atomic_t g_last_signal = 0;

void request_stop(int signal) {
  if (g_preparing > 0 && signal != SIGPIPE) {
    end_early(signal);
    return;
  }
  g_last_signal = signal;
  const auto terminal = static_cast<int>(g_terminal);
  if (g_stop_requested == 0 && terminal >= 0 && !json_of_process()) {
    const int error = errno;
    const pid_t group = ::tcgetpgrp(terminal);
    const bool foreground = group < 0 || group == ::getpgrp();
    write_text(terminal, foreground ? kClearLine : "");
    write_text(terminal, kStopping);
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

// Slurm's srun has started the process. Below mpirun, which srun may have started, it is set too.
bool started_by_srun() {
  const auto is_there = [](const char* name) {
    return std::getenv(name) != nullptr;  // NOLINT(concurrency-mt-unsafe): nobody changes it
  };
  return is_there("SLURM_PROCID") && !is_there("OMPI_COMM_WORLD_RANK");
}

// Before MPI begins, which makes the ranks of srun look as those of mpirun.
bool g_by_srun = false;

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

pid_t g_parent = 0;

// What started this rank, mpirun or its daemon, is gone, and with it whoever would have ended the
// ranks. The kernel also sends this at the end of the thread that has started the rank: then it
// means nothing.
void on_end_of_parent(int /*signal*/) {
  if (::getppid() == g_parent) {
    return;
  }
  if (g_listens != 0 && g_preparing == 0) {
    g_stop_requested = 1;
    return;
  }
  say_from_handler("ended, as what started it is gone");
  remove_temporaries();
  ::_exit(kFailure);
}

// Open MPI ends ranks whose daemon was killed, but not before they have met it, nor without fail.
void end_with_parent() {
  g_parent = ::getppid();
  const int signal = SIGRTMAX - 3;
  std::signal(signal, on_end_of_parent);
  ::prctl(PR_SET_PDEATHSIG, signal);
}

// From here on a signal that ends the program says so, on the first rank. Ranks are known by what
// started them, as the signal may come before they know each other.
void speak_at_the_end(const std::string& program) {
  g_by_srun = started_by_srun();
  const size_t size = std::min(program.size(), g_program.size() - 1);
  std::copy_n(program.begin(), size, g_program.begin());
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing else runs yet
    g_speaks = g_speaks && (rank == nullptr || *rank == '\0' || std::string_view(rank) == "0");
  }
  for (const auto& [signal, name] : kEndings) {
    if (!is_ignored(signal)) {
      std::signal(signal, end_early);
    }
  }
}

// What the user reads: which program speaks, where the log does not say it, and how many faults.
std::string failure_text(const std::exception& error, const std::string& program) {
  const auto* config = dynamic_cast<const ConfigError*>(&error);
  const std::string text =
      config != nullptr && config->findings().size() > 1
          ? concat(config->findings().size(), " faults in the configuration:\n", error.what())
          : failure_message(error);
  return logs_open() || json_of_process() ? text : concat(program, ": ", text);
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

std::string failure_message(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) {
    return error.what();
  }
  ::rlimit limit = {};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return concat("memory ran out: the system gave this process no more",
                limited ? concat(", whose address space is limited to ", limit.rlim_cur >> 20U,
                                 " MiB (ulimit -v); raise that limit")
                        : std::string("; free some"),
                ", or do with less at a time");
}

int run_program(
    int argc,
    char** argv,
    const std::function<int(const std::vector<std::string>& words, const Distributed& job)>& body) {
  open_standard_streams();
  const std::string program = argc > 0 ? fs::path(argv[0]).filename().string() : "program";
  speak_at_the_end(program);
  if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) {  // NOLINT(concurrency-mt-unsafe): as above
    end_with_parent();
  }
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
    if (!job || job->announce(failure_message(error))) {
      log_error(failure_text(error, program));
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

void name_signals(const std::string& program) { speak_at_the_end(program); }

EndAtSignals::EndAtSignals() {
  ++g_preparing;
  const auto signal = static_cast<int>(g_last_signal);
  if (g_stop_requested != 0 && signal != 0 && signal != SIGPIPE) {
    end_early(signal);
  }
}

EndAtSignals::~EndAtSignals() { --g_preparing; }

std::function<bool()> stop_on_signals() {
  if (const std::optional<OutputStream> terminal = progress_terminal()) {
    g_terminal = static_cast<int>(*terminal);
  }
  // Slurm's daemon sends a job that it preempts SIGTERM, and srun passes on its own: the same wish,
  // said twice. Who does not end gets SIGKILL from it anyway, after KillWait.
  for (const int signal : {SIGTERM, SIGUSR1}) {
    stop_on(signal, g_by_srun ? Again::kChangesNothing : Again::kEnds);
  }
  // Shells may send SIGHUP twice; a closed pipe sends SIGPIPE for each line.
  for (const auto& [signal, again] :
       {std::pair{SIGINT, Again::kEnds}, std::pair{SIGHUP, Again::kChangesNothing},
        std::pair{SIGPIPE, Again::kChangesNothing}}) {
    if (!is_ignored(signal)) {
      stop_on(signal, again);
    }
  }
  g_listens = 1;
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
