// Rules of monitor_config.
#include <regex>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve.h"
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace {

constexpr const char* kSkip = "monitor_config.use_skip_data_by_global_norm";
constexpr const char* kCheck = "monitor_config.check_for_global_norm";
constexpr const char* kHealth = "monitor_config.use_checkpoint_health_monitor";
constexpr const char* kFactor = "monitor_config.global_norm_spike_factor";

// What an update in the middle of the backward pass makes impossible.
void check_update_in_backward(Resolution& r) {
  const AllConfig& config = r.config();
  const MonitorConfig& m = config.monitor_config;
  if (!config.optimizer_config.optimizer_in_backward) {
    return;
  }
  const auto refuse = [&](bool on, const char* key, const char* why) {
    if (on) {
      r.error(key, concat("cannot stand beside optimizer_config.optimizer_in_backward: ", why));
    }
  };
  constexpr const char* kNoLocal =
      "each gradient is gone before the next one comes; local values need all of them";
  refuse(m.use_skip_data_by_global_norm, kSkip,
         "weights are updated before the global norm is known");
  refuse(m.use_checkpoint_health_monitor, kHealth, kNoLocal);
  refuse(m.local_norm, "monitor_config.local_norm", kNoLocal);
  refuse(m.monitor_on && m.local_norm_format.has_value(), "monitor_config.local_norm_format",
         kNoLocal);
  refuse(m.monitor_on && m.device_local_norm_format.has_value(),
         "monitor_config.device_local_norm_format", kNoLocal);
}

}  // namespace

std::string check_patterns(const Value& value) {
  for (const Value& item : value.as<Value::List>()) {
    try {
      std::regex compiled(item.as<std::string>(), std::regex::ECMAScript);
    } catch (const std::regex_error&) {
      return "'" + item.as<std::string>() + "' is no regular expression";
    }
  }
  return {};
}

void resolve_monitor(Resolution& r) {
  const MonitorConfig& m = r.config().monitor_config;
  if (m.use_skip_data_by_global_norm && m.check_for_global_norm) {
    r.error(kSkip,
            "The check_for_global_norm and use_skip_data_by_global_norm cannot be turned on at the "
            "same time, please choose one.");
  }
  for (const auto& [key, on] : {std::pair{kSkip, m.use_skip_data_by_global_norm},
                                std::pair{kCheck, m.check_for_global_norm},
                                std::pair{kHealth, m.use_checkpoint_health_monitor}}) {
    if (on && !m.monitor_on) {
      r.error(key, "needs monitor_config.monitor_on: True");
    }
  }
  if (m.global_norm_spike_factor && !m.use_skip_data_by_global_norm && !m.check_for_global_norm) {
    r.error(kFactor, "has no effect without use_skip_data_by_global_norm or check_for_global_norm");
  }
  check_update_in_backward(r);
}

}  // namespace tapestry::config
