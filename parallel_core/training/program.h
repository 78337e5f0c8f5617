// What the main() of a program that trains has to see to.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "parallel_core/comm/distributed.h"

namespace tapestry {

/// Exit codes of all programs.
inline constexpr int kFinished = 0;
inline constexpr int kFailure = 1;
inline constexpr int kBadInput = 2;

/// kBadInput for wrong values, types, indices and files, else, also for a full disk (StorageError),
/// kFailure.
int exit_code_of(const std::exception& error);
/// What is said of it: its own words, and of std::bad_alloc, which has none, what ran out.
std::string failure_message(const std::exception& error);

/// Makes this process a rank of its job, runs `body` with the words of the command line (without
/// the program's name, and without what MPI takes) and returns its exit code. What it throws is
/// logged once for the job and ends all its processes, with exit_code_of. SIGINT, SIGTERM, SIGHUP
/// and SIGUSR1 end it as ever, but the first rank names them on standard error, from the very
/// start; a rank of Open MPI's mpirun also ends, or stops in good order, if that is killed.
int run_program(
    int argc,
    char** argv,
    const std::function<int(const std::vector<std::string>& words, const Distributed& job)>& body);

/// Has SIGINT, SIGTERM, SIGHUP and SIGUSR1 end the program as ever, but not without its name and
/// theirs on standard error, nor with half-written files left behind. run_program does so itself.
void name_signals(const std::string& program);

/// While there is one, a signal that would ask for an orderly end ends the program at once, as
/// before stop_on_signals: nothing has been trained yet that could be saved, and a preparation of
/// data may take hours. One that came before ends it here.
class EndAtSignals {
 public:
  EndAtSignals();
  ~EndAtSignals();
  EndAtSignals(const EndAtSignals&) = delete;
  EndAtSignals& operator=(const EndAtSignals&) = delete;
};

/// Makes signals ask for an orderly end: SIGINT, SIGTERM and SIGUSR1 (which mpirun passes on to all
/// ranks), SIGHUP (the terminal is gone) and SIGPIPE (nobody reads the output any more). A terminal
/// is told so at once. The second SIGINT, SIGTERM or SIGUSR1 ends the program; of a rank that
/// Slurm's srun has started the second SIGINT alone, as Slurm says the others twice. SIGINT, SIGHUP
/// and SIGPIPE that it was started to ignore, by nohup or in the background of a script, it
/// ignores. The result says whether a signal came: for PretrainOptions::stop_requested.
std::function<bool()> stop_on_signals();

/// Writes what a program was asked for to standard output. StorageError where that cannot take it,
/// a full disk for example.
void print_result(const std::string& text);

}  // namespace tapestry
