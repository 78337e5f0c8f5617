// The processes of one job, as mpirun or Slurm's srun starts them.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/comm/options.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// True in a process that mpirun or srun has started as one of a job's ranks, whatever their
/// number.
bool started_as_rank();

/// "Open MPI v4.1.4, ..." or "MPICH Version: 4.0.2"; needs no job.
std::string mpi_library_version();

/// What moves collectives on. Calls of MPI are made by one thread at a time, so a second thread
/// takes a library that provides MPI_THREAD_SERIALIZED; `provided` is the name of what it does
/// provide.
struct ProgressChoice {
  CommProgress progress = CommProgress::kWait;
  std::string text;  ///< see Distributed::progress_text
};
ProgressChoice choose_progress(CommProgress wanted, bool serialized, const std::string& provided);

/// The job that this process belongs to. One object for the whole of main: it makes the process a
/// rank, and its rank the current RankContext.
///
/// A process that nobody started as a rank is a world of one, and MPI is not even initialised, so
/// it needs no daemon. The environment says how ranks communicate; ValueError for other values:
///
/// - TAPESTRY_COMM_TIMEOUT: seconds that a rank waits for others that do not come to a collective
///   (600);
/// - TAPESTRY_MPI_TIMEOUT: seconds that a rank waits for the others inside MPI_Init and
///   MPI_Finalize; then it says so and ends the job with exit code 1 (600);
/// - TAPESTRY_COMM_PROGRESS: `thread` (the default), `wait` or `none`, see CommProgress in
/// options.h;
/// - TAPESTRY_COMM_STRAGGLERS: seconds between two looks for a rank or a link that holds up the
/// others
///   (30); 0: none;
/// - TAPESTRY_COMM_DELAY_MS: milliseconds that each message takes longer, between ranks of one host
///   (0), see delayed_transport.h.
class Distributed {
 public:
  Distributed(int& argc, char**& argv);
  Distributed(const Distributed&) = delete;
  Distributed& operator=(const Distributed&) = delete;
  /// Ends the process's part without waiting for the others if finish() was not called.
  ~Distributed();

  const std::shared_ptr<ProcessGroup>& world() const;
  /// Ranks that share this one's memory, itself included.
  int ranks_on_host() const;
  /// This one's number among them, from 0.
  int rank_on_host() const;
  /// How collectives move on, for the log: "collectives move on while ranks compute"; or that they
  /// do not, and why. Empty in a world of one.
  const std::string& progress_text() const;

  /// The orderly end: waits until every rank has come here. CommError if one fails meanwhile. A
  /// group must not be used afterwards.
  void finish();

  /// Tells all ranks that this one fails, and why. True if it is the one to say so to the user;
  /// false if it fails only because another did, or if one before it, or one that has said so
  /// already, fails for the same reason, as all do that read the same wrong file.
  bool announce(const std::string& reason);
  /// Ends the whole job, all its processes, with that exit code. The other ranks get a moment to
  /// log why they stop.
  [[noreturn]] void abort(int exit_code);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tapestry
