// The estimated memory of configurations, part by part: what bench/memory_survey.py compares with
// runs.
//
//   memory_parts < FILE_OF_LINES
//
// Each line of the input is "DATA_PARALLEL_RANKS CONFIG.yaml". Prints one JSON object for each:
// bytes by part, and the microseconds that the estimate took.
#include <chrono>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "parallel_core/config/init_configs.h"
#include "parallel_core/estimates/memory_estimate.h"

namespace {

using Json = nlohmann::ordered_json;

Json parts_of(const tapestry::AllConfig& config, int64_t ranks) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const tapestry::MemoryEstimate e = tapestry::estimate_memory(config, ranks);
  const std::chrono::duration<double, std::micro> time = Clock::now() - start;
  return {{"stage", e.stage},
          {"parameters", e.parameters + e.weight_copies},
          {"gradients", e.gradients},
          {"optimizer", e.optimizer},
          {"activations", e.activations},
          {"logits", e.logits},
          {"workspace", e.workspace},
          {"head", e.head},
          {"not_at_once", e.not_at_once},
          {"unused", e.unused},
          {"process", e.process},
          {"snapshot", e.snapshot},
          {"unbalanced", e.unbalanced},
          {"start", e.start},
          {"total", e.total()},
          {"peak", e.peak()},
          {"microseconds", time.count()}};
}

}  // namespace

int main() {
  int64_t ranks = 0;
  std::string file;
  while (std::cin >> ranks >> file) {
    Json line;
    try {
      line = parts_of(tapestry::init_configs_from_yaml(file, {}), ranks);
    } catch (const std::exception& error) {
      line = {{"error", error.what()}};
    }
    line["file"] = file;
    std::cout << line.dump() << "\n";
  }
  return 0;
}
