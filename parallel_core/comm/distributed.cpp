#include "parallel_core/comm/distributed.h"

#include <mpi.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/comm/mpi_transport.h"

namespace tapestry {

namespace {

constexpr double kSameReasonGrace = 0.3;  // seconds in which ranks that fail alike hear of it
constexpr double kLastWordsGrace = 2.0;   // in which the others log why they stop
constexpr double kOtherAbortGrace = 8.0;  // in which the rank that failed ends the job

bool is_set(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody changes it
  return value != nullptr && *value != '\0';
}

CommunicationOptions options_from_environment() {
  CommunicationOptions options;
  constexpr const char* kName = "TAPESTRY_COMM_TIMEOUT";
  if (is_set(kName)) {
    const char* value = std::getenv(kName);  // NOLINT(concurrency-mt-unsafe): nobody changes it
    const char* end = value + std::strlen(value);
    const auto [stop, error] = std::from_chars(value, end, options.timeout_seconds);
    check<ValueError>(error == std::errc() && stop == end && options.timeout_seconds > 0, kName,
                      " is '", value, "', must be a positive number of seconds");
  }
  return options;
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
  return {text.data(), static_cast<size_t>(length)};
}

struct Distributed::State {
  std::optional<RankContext> context;
  std::optional<RankContextGuard> guard;
  std::shared_ptr<Communicator> communicator;  // null in a world of one
  std::shared_ptr<ProcessGroup> world;
  int ranks_on_host = 1;
  bool finished = false;
};

Distributed::Distributed(int& argc, char**& argv) : state_(std::make_unique<State>()) {
  const CommunicationOptions options = options_from_environment();
  if (!started_as_rank()) {
    state_->world = single_process_group();
    return;
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &state_->ranks_on_host);
  MPI_Comm_free(&host);
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

void Distributed::finish() {
  if (state_->communicator != nullptr) {
    state_->communicator->finish();
    state_->communicator->close();
    MPI_Finalize();
  }
  state_->finished = true;
}

bool Distributed::announce(const std::string& reason) {
  Communicator* communicator = state_->communicator.get();
  if (communicator == nullptr) {
    return true;
  }
  if (communicator->failed_elsewhere()) {
    return false;
  }
  communicator->announce_failure(reason);
  communicator->linger(kSameReasonGrace, [&] {
    return communicator->rank() == 0 || communicator->lower_rank_failed_alike();
  });
  return !communicator->lower_rank_failed_alike();
}

void Distributed::abort(int exit_code) {
  if (Communicator* communicator = state_->communicator.get(); communicator != nullptr) {
    const double grace = communicator->failed_elsewhere() ? kOtherAbortGrace : kLastWordsGrace;
    communicator->say_last_words();
    communicator->linger(grace, [&] {
      return communicator->all_others_are_done() && !communicator->failed_elsewhere();
    });
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::exit(exit_code);  // NOLINT(concurrency-mt-unsafe): nothing else runs any more
}

}  // namespace tapestry
