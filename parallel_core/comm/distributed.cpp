#include "parallel_core/comm/distributed.h"

#include <fcntl.h>
#include <mpi.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/comm/delayed_transport.h"
#include "parallel_core/comm/mpi_transport.h"
#include "parallel_core/comm/rank_hosts.h"

namespace tapestry {

namespace {

constexpr double kLastWordsGrace = 2.0;   // seconds in which the others log why they stop
constexpr double kOtherAbortGrace = 8.0;  // in which the rank that failed ends the job

bool is_set(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody changes it
  return value != nullptr && *value != '\0';
}

// A number that an environment variable sets, or that which it has been.
double number_from(const char* name, double unset, const char* expected, bool (*fits)(double)) {
  if (!is_set(name)) {
    return unset;
  }
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody changes it
  const char* end = value + std::strlen(value);
  double number = 0;
  const auto [stop, error] = std::from_chars(value, end, number);
  check<ValueError>(error == std::errc() && stop == end && fits(number), name, " is '", value,
                    "', must be ", expected);
  return number;
}

CommunicationOptions options_from_environment() {
  CommunicationOptions options;
  options.timeout_seconds =
      number_from("TAPESTRY_COMM_TIMEOUT", options.timeout_seconds, "a positive number of seconds",
                  [](double x) { return x > 0; });
  options.mpi_timeout_seconds =
      number_from("TAPESTRY_MPI_TIMEOUT", options.mpi_timeout_seconds,
                  "a positive number of seconds", [](double x) { return x > 0; });
  options.straggler_seconds = number_from("TAPESTRY_COMM_STRAGGLERS", options.straggler_seconds,
                                          "0 or more seconds", [](double x) { return x >= 0; });
  constexpr const char* kProgress = "TAPESTRY_COMM_PROGRESS";
  if (is_set(kProgress)) {
    const std::string value = std::getenv(kProgress);  // NOLINT(concurrency-mt-unsafe): as above
    check<ValueError>(value == "thread" || value == "wait" || value == "none", kProgress, " is '",
                      value, "', must be 'thread', 'wait' or 'none'");
    options.progress = value == "thread" ? CommProgress::kThread
                       : value == "wait" ? CommProgress::kWait
                                         : CommProgress::kNone;
  }
  const double delay = number_from("TAPESTRY_COMM_DELAY_MS", 0, "0 or more milliseconds",
                                   [](double x) { return x >= 0; });
  if (delay > 0) {
    options.wrap_transport = [delay](std::unique_ptr<Transport> inner) {
      return make_delayed_transport(std::move(inner), delay / 1e3);
    };
  }
  return options;
}

const char* thread_level(int provided) {
  return provided == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
         : provided == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
         : provided == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                             : "MPI_THREAD_MULTIPLE";
}

// Number of processes that what started this one speaks of, and its name; 1 if it does not say.
struct Started {
  int processes = 1;
  const char* by = "";
};

Started started_processes() {
  // The first that is set is the nearest: mpirun runs inside a job of Slurm, whose variables its
  // ranks see.
  for (const auto& [name, by] : {std::pair("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
                                 std::pair("PMI_SIZE", "MPICH's mpiexec, or srun --mpi=pmi2,"),
                                 std::pair("SLURM_STEP_NUM_TASKS", "srun")}) {
    if (is_set(name)) {
      return {std::atoi(std::getenv(name)), by};  // NOLINT(concurrency-mt-unsafe,cert-err34-c)
    }
  }
  return {};
}

std::string mpi_name() {
#ifdef OPEN_MPI
  return "Open MPI";
#else
  return "MPICH";
#endif
}

// Each MPI takes ranks that the launcher of the other one starts for jobs of one rank each.
void check_launcher(int ranks) {
  const Started started = started_processes();
  check<RuntimeError>(
      ranks > 1 || started.processes <= 1, started.by, " has started ", started.processes,
      " processes, but ", mpi_name(),
      ", with which this program is built, finds each of them alone; start it with ", mpi_name(),
      "'s own mpirun", " (on Debian ", mpi_name() == "MPICH" ? "mpirun.mpich" : "mpirun.openmpi",
      "), under Slurm with ", mpi_name() == "MPICH" ? "srun --mpi=pmi2" : "srun --mpi=pmix");
}

// Host names of all ranks. Each has room for the beginning of a name, so that 4,096 ranks exchange
// 256 KiB once.
std::shared_ptr<const RankHosts> exchange_host_names(int ranks) {
  constexpr size_t kRoom = 64;
  std::array<char, MPI_MAX_PROCESSOR_NAME> own{};
  int length = 0;
  MPI_Get_processor_name(own.data(), &length);
  own[kRoom - 1] = '\0';
  std::vector<char> all(kRoom * static_cast<size_t>(ranks));
  MPI_Allgather(own.data(), kRoom, MPI_CHAR, all.data(), kRoom, MPI_CHAR, MPI_COMM_WORLD);
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    names.emplace_back(all.data() + kRoom * static_cast<size_t>(rank));
  }
  return std::make_shared<RankHosts>(std::move(names));
}

// Name of a process as the system keeps it, at most 15 characters, and its parent; of one that has
// ended "" and 0.
struct ProcessName {
  std::string name;
  pid_t parent = 0;
};
ProcessName process_name(pid_t process) {
  std::ifstream file(concat("/proc/", process, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) {
    return {};
  }
  std::istringstream rest(line.substr(close + 1));
  std::string state;
  ProcessName result{line.substr(open + 1, close - open - 1)};
  rest >> state >> result.parent;
  return result;
}

bool begins_with_one_of(const std::string& name, std::initializer_list<const char*> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const char* beginning) { return name.rfind(beginning, 0) == 0; });
}

// What has started ranks on several hosts waits for its daemons there, also across a link that is
// cut: Open MPI for as long as TCP tries, a quarter of an hour, MPICH's mpiexec for ever. So a rank
// that has found another host lost ends it. Nobody else is asked, whatever has started this
// process.
void end_launcher() {
  const pid_t parent = getppid();
  const ProcessName own = process_name(parent);
  if (begins_with_one_of(own.name, {"mpirun", "mpiexec", "orterun", "orted"})) {
    // Open MPI: two requests in quick succession end it at once, and with it its ranks.
    kill(parent, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(parent, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  } else if (begins_with_one_of(own.name, {"hydra_pmi_proxy"}) &&
             begins_with_one_of(process_name(own.parent).name, {"mpirun", "mpiexec"})) {
    // MPICH on the host of its mpiexec, which heeds a request once the daemon here has ended: after
    // this rank. The child holds nothing open for whose end that daemon waits.
    const pid_t mpiexec = own.parent;
    if (fork() == 0) {
      setsid();
      close_range(0, ~0U, 0);
      sleep(1);
      kill(mpiexec, SIGINT);
      _exit(0);
    }
  }
}

// The number that a rank's launcher has given it, and nothing where that is not known.
std::string rank_of_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (is_set(name)) {
      return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody changes it
    }
  }
  return "";
}

// Waits until the launcher has read what this process has written, if it does so within a second:
// MPICH's hands on nothing any more when it has heard of an abort.
void wait_for_readers() {
  std::fflush(nullptr);
  for (const int file : {STDOUT_FILENO, STDERR_FILENO}) {
    int unread = 0;
    for (int tries = 0; tries < 1000 && ioctl(file, FIONREAD, &unread) == 0 && unread > 0;
         ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// In MPI_Finalize, MPICH before 4.2 asks each peer over TCP for a last answer and then waits for
// all ranks outside of the network, where it answers nobody: a rank that begins after another one
// has got there waits for ever (pmodels/mpich pull request 6596; 8 of 20 ends of small jobs on two
// busy hosts). A peer that has begun before it answers does no harm, so all begin after all have
// stopped to answer, which no message can tell them.
void begin_end_together([[maybe_unused]] bool several_hosts) {
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40200000
  if (several_hosts) {
    MPI_Barrier(MPI_COMM_WORLD);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
#endif
}

// False where the launcher says that all of the job's ranks are on this host.
bool may_have_other_hosts() {
  for (const auto& [here, all] : {std::pair("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
                                  std::pair("MPI_LOCALNRANKS", "PMI_SIZE")}) {
    if (is_set(here) && is_set(all)) {
      // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes them
      return std::strcmp(std::getenv(here), std::getenv(all)) != 0;
    }
  }
  return true;
}

// Ends the job where ranks do not meet in calls of MPI that all of them make together, at its start
// and at its end: inside these nothing else looks at a clock, and a job that hangs there would keep
// its hosts for as long as it may. In effect as long as it lives.
class MeetingWatch {
 public:
  // `calls` are what may take that long.
  MeetingWatch(std::string calls, double seconds)
      : thread_([calls = std::move(calls), seconds](const std::stop_token& stop) {
          // The first to give up ends the others, which need not say it again.
          const double turn = rank_of_launcher() == "0" ? 0.0 : kLaterRanks;
          if (!sleeps(stop, seconds + turn)) {
            give_up(calls, seconds);
          }
        }) {}

 private:
  static constexpr double kLaterRanks = 2.0;  // seconds

  // False when it has slept that long, true when it was stopped before.
  static bool sleeps(const std::stop_token& stop, double seconds) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any stopped;
    constexpr double kYear = 365.0 * 86400;  // clocks count further, but not without end
    stopped.wait_for(lock, stop, std::chrono::duration<double>(std::min(seconds, kYear)),
                     [] { return false; });
    return stop.stop_requested();
  }

  [[noreturn]] static void give_up(const std::string& calls, double seconds) {
    std::array<char, 65> host{};
    gethostname(host.data(), host.size() - 1);
    std::cerr << concat("rank ", rank_of_launcher(), " on ", host.data(),
                        " has waited for the other ranks in ", calls, " for ", seconds,
                        " seconds (TAPESTRY_MPI_TIMEOUT): one of them has not come, or the "
                        "network between the hosts does not let them meet\n")
              << std::flush;
    wait_for_readers();
    if (may_have_other_hosts()) {
      end_launcher();
    }
    _exit(EXIT_FAILURE);
  }

  std::jthread thread_;
};

}  // namespace

bool started_as_rank() {
  // Open MPI's mpirun; PMIx and PMI, by which MPICH's mpiexec, Slurm and others start ranks.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (is_set(name)) {
      return true;
    }
  }
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");  // NOLINT(concurrency-mt-unsafe)
  check<RuntimeError>(tasks == nullptr || std::strcmp(tasks, "1") == 0 || !is_set("SLURM_PROCID"),
                      "srun has started ", tasks == nullptr ? "" : tasks,
                      " processes without telling them of each other; use srun --mpi=pmix or "
                      "--mpi=pmi2 (srun --mpi=list shows what there is)");
  return false;
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  // Open MPI counts the zero at the end, too; MPICH tells on further lines how it was configured.
  std::string line(text.data(), ::strnlen(text.data(), static_cast<size_t>(length)));
  line = line.substr(0, line.find('\n'));
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

ProgressChoice choose_progress(CommProgress wanted, bool serialized, const std::string& provided) {
  if (wanted == CommProgress::kNone) {
    return {wanted, "each collective is waited for where it starts (TAPESTRY_COMM_PROGRESS)"};
  }
  if (wanted == CommProgress::kWait) {
    return {wanted, "collectives move on only while ranks wait (TAPESTRY_COMM_PROGRESS)"};
  }
  if (!serialized) {
    return {CommProgress::kWait,
            concat("collectives move on only while ranks wait, so that nothing overlaps with "
                   "computing: the MPI library provides ",
                   provided, ", a second thread needs MPI_THREAD_SERIALIZED")};
  }
  return {wanted, "collectives move on while ranks compute"};
}

struct Distributed::State {
  std::optional<RankContext> context;
  std::optional<RankContextGuard> guard;
  std::shared_ptr<Communicator> communicator;  // null in a world of one
  std::shared_ptr<ProcessGroup> world;
  int ranks_on_host = 1;
  int rank_on_host = 0;
  std::string progress_text;
  bool finished = false;
};

Distributed::Distributed(int& argc, char**& argv) : state_(std::make_unique<State>()) {
  CommunicationOptions options = options_from_environment();
  if (!started_as_rank()) {
    state_->world = single_process_group();
    return;
  }
  std::optional<MeetingWatch> start(std::in_place, "MPI_Init", options.mpi_timeout_seconds);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  const ProgressChoice progress =
      choose_progress(options.progress, provided >= MPI_THREAD_SERIALIZED, thread_level(provided));
  options.progress = progress.progress;
  state_->progress_text = progress.text;
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check_launcher(ranks);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &state_->ranks_on_host);
  MPI_Comm_rank(host, &state_->rank_on_host);
  MPI_Comm_free(&host);
  options.hosts = exchange_host_names(ranks);
  check<ValueError>(options.wrap_transport == nullptr || state_->ranks_on_host == ranks,
                    "TAPESTRY_COMM_DELAY_MS is for ranks of one host, this job has ", ranks,
                    " ranks, of which ", state_->ranks_on_host, " are here");
  state_->communicator = std::make_shared<Communicator>(make_mpi_transport(), options);
  start.reset();
  state_->context.emplace(state_->communicator->rank(), state_->communicator->size());
  state_->guard.emplace(*state_->context);
  state_->world = make_world_group(state_->communicator);
}

Distributed::~Distributed() {
  if (state_->communicator != nullptr && !state_->finished) {
    state_->communicator->announce_failure("left without an end");
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
}

const std::shared_ptr<ProcessGroup>& Distributed::world() const { return state_->world; }

int Distributed::ranks_on_host() const { return state_->ranks_on_host; }

int Distributed::rank_on_host() const { return state_->rank_on_host; }

const std::string& Distributed::progress_text() const { return state_->progress_text; }

void Distributed::finish() {
  if (state_->communicator != nullptr) {
    state_->communicator->finish();
    const MeetingWatch end("MPI_Finalize", state_->communicator->options().mpi_timeout_seconds);
    const bool several_hosts = state_->ranks_on_host < state_->communicator->size();
    state_->communicator->close();
    begin_end_together(several_hosts);
    MPI_Finalize();
  }
  state_->finished = true;
}

bool Distributed::announce(const std::string& reason) {
  return state_->communicator == nullptr || state_->communicator->announce(reason);
}

void Distributed::abort(int exit_code) {
  if (Communicator* communicator = state_->communicator.get(); communicator != nullptr) {
    const double grace = communicator->failed_elsewhere() ? kOtherAbortGrace : kLastWordsGrace;
    wait_for_readers();
    communicator->say_last_words();
    communicator->linger(grace, [&] {
      return communicator->all_others_are_done() && !communicator->failed_elsewhere();
    });
    std::fflush(nullptr);
    const bool lost = communicator->lost_a_host();
    if (lost) {
      end_launcher();
    }
    if (is_set("OMPI_COMM_WORLD_RANK") || lost) {
      // Open MPI's mpirun ends the other ranks when one leaves like this, with its code, and spares
      // the user what MPI_Abort says about itself. Across a cut link MPICH's MPI_Abort would wait.
      _exit(exit_code);
    }
    // Where several ranks leave at once MPICH's mpiexec keeps the code of MPI_Abort alone; what
    // that says about itself the user is spared, too.
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDERR_FILENO);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::exit(exit_code);  // NOLINT(concurrency-mt-unsafe): nothing else runs any more
}

}  // namespace tapestry
