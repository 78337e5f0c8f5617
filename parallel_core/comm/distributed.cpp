#include "parallel_core/comm/distributed.h"

#include <mpi.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/comm/delayed_transport.h"
#include "parallel_core/comm/mpi_transport.h"

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

}  // namespace

bool started_as_rank() {
  // Open MPI's mpirun; PMIx and PMI-2, by which Slurm and others start ranks.
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
  // Open MPI counts the zero at the end, too.
  return {text.data(), ::strnlen(text.data(), static_cast<size_t>(length))};
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
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  const ProgressChoice progress =
      choose_progress(options.progress, provided >= MPI_THREAD_SERIALIZED, thread_level(provided));
  options.progress = progress.progress;
  state_->progress_text = progress.text;
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &state_->ranks_on_host);
  MPI_Comm_rank(host, &state_->rank_on_host);
  MPI_Comm_free(&host);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check<ValueError>(options.wrap_transport == nullptr || state_->ranks_on_host == ranks,
                    "TAPESTRY_COMM_DELAY_MS is for ranks of one host, this job has ", ranks,
                    " ranks, of which ", state_->ranks_on_host, " are here");
  state_->communicator = std::make_shared<Communicator>(make_mpi_transport(), options);
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
    state_->communicator->close();
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
    communicator->say_last_words();
    communicator->linger(grace, [&] {
      return communicator->all_others_are_done() && !communicator->failed_elsewhere();
    });
    if (is_set("OMPI_COMM_WORLD_RANK")) {
      // Open MPI's mpirun ends the other ranks when one leaves like this, with its code, and spares
      // the user what MPI_Abort says about itself.
      std::fflush(nullptr);
      _exit(exit_code);
    }
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::exit(exit_code);  // NOLINT(concurrency-mt-unsafe): nothing else runs any more
}

}  // namespace tapestry
