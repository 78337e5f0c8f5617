// What a run would do, and what stands in its way, without doing it.
#pragma once

#include <iosfwd>
#include <memory>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/run_task.h"
#include "parallel_core/training/step/run_part.h"

namespace tapestry {

struct DryRunOptions {
  std::shared_ptr<ProcessGroup> world = single_process_group();
  int ranks_on_host = 1;
  bool verbose = false;                    ///< also all keys, and where the memory goes
  std::vector<RunPartFactory> parts = {};  ///< those of the run: see PretrainOptions
  RunTaskFactory task = {};                ///< that of the run, too
};

/// Prints layout, with `verbose` the configuration, memory needed and there, data, those of
/// a task as the task opens them, weights to start from and those of a task's reference, what is in
/// the output folder, disk needed and free, and the expected time of a step and of the run (rank 0
/// alone; every rank makes the call). Opens data and weights as the run would, those of a run that
/// goes on as its checkpoint has left them, and writes nothing: a text that is still to be turned
/// into tokens is left as it is. In one process the data of a layout of several ranks are opened as
/// those of one data-parallel rank. Small models are built, to see whether the weights fit; of
/// larger ones the number of parameters is compared.
///
/// ValueError, after everything has been printed, with all that would stop the run: settings that
/// are refused, data, weights, memory, a disk without room for one checkpoint.
void dry_run(const AllConfig& config, const DryRunOptions& options, std::ostream& out);

}  // namespace tapestry
