// What has been measured of a machine, kept for the next plan.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "parallel_core/planning/costs/messages.h"
#include "parallel_core/planning/costs/part_times.h"

namespace tapestry::planning {

/// Measured times of one machine and one build of the program.
struct MachineCosts {
  std::string machine;  ///< what they hold for: processor, CPU level, BLAS, program
  std::map<std::string, PartTimes> parts;  ///< by ShareModel::key and how it was measured
  /// Between ranks of this machine: by the ranks of the job and of a group.
  std::map<std::pair<int64_t, int64_t>, CollectiveTimes> collectives;
  std::optional<MessageCost> network;  ///< between machines
};

/// What of these counts for a job of so many ranks on this machine.
MessageCosts messages_of(const MachineCosts& costs, int64_t ranks_on_host);

/// This processor, its cores, the CPU level and BLAS in use, and `program`, its version.
std::string machine_name(const std::string& program);

/// $XDG_CACHE_HOME/tapestry/costs.json, or ~/.cache/tapestry/costs.json; empty without a home.
std::string usual_costs_file();

/// JSON.
std::string costs_json(const MachineCosts& costs);
/// The costs of such a file. IoError, naming file and place, for anything else.
MachineCosts read_costs(const std::string& path);

/// The file's costs if it can be read and they are of this machine, else none, with the reason in
/// `remark`: empty where there is no file yet.
MachineCosts load_costs(const std::string& path, const std::string& machine, std::string& remark);

/// Writes them, and makes the folder; says in the result why it could not, since a plan needs no
/// file.
std::string save_costs(const MachineCosts& costs, const std::string& path);

}  // namespace tapestry::planning
