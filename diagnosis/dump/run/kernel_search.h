// Whether the list `kernels` of a dump names anything that there is.
#pragma once

#include <string_view>
#include <vector>

#include "diagnosis/dump/dump_config.h"

namespace tapestry {

/// Sees the names of all that a dump could write in its first step, and warns of each entry of the
/// list that none of them matches on any rank.
class KernelSearch {
 public:
  /// The configuration outlives it.
  explicit KernelSearch(const dump::DumpConfig& config)
      : config_(config), found_(config.kernels.size(), false), looks_(!found_.empty()) {}

  void see(std::string_view op_type, std::string_view op_name);
  /// Every rank makes the call behind each step that is dumped.
  void end_step();

 private:
  const dump::DumpConfig& config_;
  std::vector<bool> found_;
  bool looks_;
};

}  // namespace tapestry
