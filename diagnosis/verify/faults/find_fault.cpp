#include "diagnosis/verify/faults/find_fault.h"

#include <utility>

#include "diagnosis/verify/faults/fault_stages.h"

namespace tapestry {

accuracy::VerdictReport find_fault(const ConfigLoader& load,
                                   const std::string& reference_folder,
                                   const FindFaultOptions& options) {
  FaultSearch search(load, reference_folder, options);
  if (config_stage(search) && weights_stage(search) && data_stage(search) &&
      numbers_stages(search) && determinism_stage(search) && expand_stage(search) &&
      long_run_stage(search)) {
    search.report.stage = "none";
    search.report.lines.emplace_back(
        "No stage fails: what differs, if anything does, is rounding.");
  }
  return std::move(search.report);
}

}  // namespace tapestry
