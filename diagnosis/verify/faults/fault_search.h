// What the stages of find_fault share: both sides, and the report that grows.
#pragma once

#include <cstdint>
#include <string>

#include "diagnosis/report/verdict_report.h"
#include "diagnosis/verify/faults/find_fault.h"
#include "diagnosis/verify/faults/own_training.h"
#include "diagnosis/verify/faults/reference_run.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

struct FaultSearch {
  /// The arguments outlive it. As find_fault.
  FaultSearch(const ConfigLoader& load_,
              const std::string& reference_folder,
              const FindFaultOptions& options_);
  FaultSearch(const FaultSearch&) = delete;
  FaultSearch& operator=(const FaultSearch&) = delete;

  /// Steps that are compared number by number; from weights_stage on.
  int64_t compared_steps() const;

  /// A row of the report.
  void row(const std::string& stage,
           int64_t compared,
           double worst,
           double bound,
           bool agrees,
           const std::string& detail);
  void not_compared(const std::string& stage, const std::string& detail);
  /// The verdict; false, which ends the search.
  bool fail(const std::string& stage, accuracy::FirstDifference first, const std::string& sentence);

  ReferenceRun reference;
  const FindFaultOptions& options;
  const ConfigLoader& load;
  VerifyOptions training;  ///< ours
  VerifyOptions plain;     ///< what repeats the reference
  AllConfig config;
  int64_t ranks = 1;     ///< data-parallel ones of the reference
  AllConfig single;      ///< ours in one process
  AllConfig theirs;      ///< the reference's, likewise
  LogicalState start;    ///< the reference's; from weights_stage on, as is the next
  int64_t elements = 0;  ///< of all weights
  OwnRun own;            ///< from numbers_stages on
  accuracy::VerdictReport report;
};

}  // namespace tapestry
