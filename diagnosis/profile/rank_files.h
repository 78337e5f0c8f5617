// What a rank writes of a profile, and what is read again when all ranks have.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "diagnosis/profile/machine_peak.h"
#include "diagnosis/profile/memory_watch.h"
#include "diagnosis/profile/recording.h"

namespace tapestry::profile {

/// Of the moments at which ranks left barriers together, at the start and the end of the recording.
using ClockSamples = std::vector<int64_t>;

struct RankProfile {
  int rank = 0;
  int ranks = 1;
  Recording recording;
  ClockSamples start;
  ClockSamples end;
  MachinePeak peak;
  bool op_time = true;
  bool communication = false;
  bool data = false;
  std::optional<HeldAtPeak> memory;
  nlohmann::ordered_json layout;  ///< of the rank; null: not asked for
};

/// FOLDER/rank_K
std::string rank_folder(const std::string& folder, int rank);

/// Writes rank_K/trace.json (trace events on the rank's own clock) and rank_K/tables.json below
/// `folder`. IoError.
void write_rank_files(const RankProfile& profile, const std::string& folder);

}  // namespace tapestry::profile
