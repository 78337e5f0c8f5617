// Rules of monitor_config.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"
#include "text/util/regular_expression.h"

namespace tapestry::config {
namespace {

constexpr const char* kSkipData = "monitor_config.use_skip_data_by_global_norm";
constexpr const char* kCheckNorm = "monitor_config.check_for_global_norm";
constexpr const char* kHealthMonitor = "monitor_config.use_checkpoint_health_monitor";
constexpr const char* kSpikeThreshold = "monitor_config.global_norm_spike_threshold";
constexpr const char* kSpikeFactor = "monitor_config.global_norm_spike_factor";

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
  refuse(m.use_skip_data_by_global_norm, kSkipData,
         "weights are updated before the global norm is known");
  refuse(m.use_checkpoint_health_monitor, kHealthMonitor, kNoLocal);
  refuse(m.local_norm, "monitor_config.local_norm", kNoLocal);
  refuse(m.monitor_on && m.local_norm_format.has_value(), "monitor_config.local_norm_format",
         kNoLocal);
  refuse(m.monitor_on && m.device_local_norm_format.has_value(),
         "monitor_config.device_local_norm_format", kNoLocal);
}

// Values for event files that nobody writes go to the log.
void log_without_event_files(Resolution& r) {
  const Key* folder = find_key("tensorboard", "tensorboard_dir");
  MonitorConfig& m = r.config().monitor_config;
  if (folder != nullptr && !folder->field.get(r.config()).is_null()) {
    return;
  }
  for (const auto& [name, formats] :
       {std::pair{"local_loss_format", &m.local_loss_format},
        std::pair{"device_local_loss_format", &m.device_local_loss_format},
        std::pair{"local_norm_format", &m.local_norm_format},
        std::pair{"device_local_norm_format", &m.device_local_norm_format},
        std::pair{"optimizer_state_format", &m.optimizer_state_format},
        std::pair{"weight_state_format", &m.weight_state_format}}) {
    const std::string key = concat("monitor_config.", name);
    if (r.sound({key.c_str()}) && *formats && std::erase(**formats, "tensorboard") > 0) {
      **formats = {"log"};
      r.note(key, "tensorboard needs tensorboard.tensorboard_dir; the values go to the log");
    }
  }
}

void check_expert_counts(Resolution& r) {
  constexpr const char* kInterval = "monitor_config.save_tokens_per_expert_interval";
  constexpr const char* kLayers = "monitor_config.tokens_per_expert_layers";
  const MonitorConfig& m = r.config().monitor_config;
  const TransformerConfig& model = r.config().model_config;
  if (m.tokens_per_expert_layers && !m.save_tokens_per_expert_interval) {
    r.idle(kLayers, "without save_tokens_per_expert_interval");
  }
  if (!m.save_tokens_per_expert_interval || !r.sound({kInterval, "moe_config.num_experts"})) {
    return;
  }
  if (r.config().moe_config.num_experts == 1) {
    r.idle(kInterval, "on a model of num_experts 1");
    return;
  }
  const auto& layers = m.tokens_per_expert_layers;
  if (!layers || !r.sound({kLayers, "model_config.num_layers", "moe_config.moe_layer_freq",
                           "moe_config.first_k_dense_replace"})) {
    return;
  }
  if (layers->empty() || *layers == std::vector<int64_t>{0}) {
    r.error(kLayers,
            "names no layer; give [N] for the first N layers, several layers from 0, or "
            "leave it out for all");
  }
  for (const int64_t layer : *layers) {
    if (layers->size() > 1 && (layer >= all_layers(model) || !is_moe_layer(model, layer))) {
      r.error(kLayers,
              concat("names layer ", layer, ", which has no experts; layers count from 0, ",
                     "and there are ", all_layers(model)));
    }
  }
}

}  // namespace

std::string check_patterns(const Value& value) {
  for (const Value& item : value.as<Value::List>()) {
    if (const std::string reason = RegularExpression::complaint(item.as<std::string>());
        !reason.empty()) {
      return concat("'", item.as<std::string>().substr(0, 200),
                    "' is no regular expression: ", reason);
    }
  }
  return {};
}

void resolve_monitor(Resolution& r) {
  MonitorConfig& m = r.config().monitor_config;
  // With a factor its default is no threshold at all, which a resolved configuration has to say: it
  // has every key, so that one that was not given could not be told from 3.0.
  if (m.global_norm_spike_factor && !r.given(kSpikeThreshold)) {
    m.global_norm_spike_threshold = std::numeric_limits<double>::max();
    r.derived(kSpikeThreshold, kSpikeFactor);
  }
  if (m.use_skip_data_by_global_norm && m.check_for_global_norm) {
    r.error(kSkipData,
            "The check_for_global_norm and use_skip_data_by_global_norm cannot be turned on at the "
            "same time, please choose one.");
  }
  for (const auto& [key, on] : {std::pair{kSkipData, m.use_skip_data_by_global_norm},
                                std::pair{kCheckNorm, m.check_for_global_norm},
                                std::pair{kHealthMonitor, m.use_checkpoint_health_monitor}}) {
    if (on && !m.monitor_on) {
      r.error(key, "needs monitor_config.monitor_on: True");
    }
  }
  if (m.global_norm_spike_factor && !m.use_skip_data_by_global_norm && !m.check_for_global_norm) {
    r.error(kSpikeFactor,
            "has no effect without use_skip_data_by_global_norm or check_for_global_norm");
  }
  check_update_in_backward(r);
  check_expert_counts(r);
  log_without_event_files(r);
}

}  // namespace tapestry::config
