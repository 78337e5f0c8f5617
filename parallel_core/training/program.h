// What the main() of a program that trains has to see to.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel_core/comm/distributed.h"

namespace tapestry {

/// Exit codes of all programs.
inline constexpr int kFinished = 0;
inline constexpr int kFailure = 1;
inline constexpr int kBadInput = 2;

/// Makes this process a rank of its job, runs `body` with the words of the command line (without
/// the program's name, and without what MPI takes) and returns its exit code. What it throws is
/// logged once for the job and ends all its processes: with kBadInput for wrong values, types,
/// indices and files, else, also for a full disk (StorageError), with kFailure.
int run_program(
    int argc,
    char** argv,
    const std::function<int(const std::vector<std::string>& words, const Distributed& job)>& body);

/// Makes SIGINT, SIGTERM and SIGUSR1 (which mpirun passes on to all ranks) ask for an orderly end;
/// the second one ends the program at once. The result says whether one came: for
/// PretrainOptions::stop_requested.
std::function<bool()> stop_on_signals();

}  // namespace tapestry
