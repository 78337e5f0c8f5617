#include <algorithm>

#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

namespace {

// What was to go to event files that there are not goes to the log.
void show_in_log(Resolution& r) {
  MonitorConfig& monitor = r.config().monitor_config;
  struct Row {
    const char* key;
    MonitorConfig::Formats& formats;
  };
  for (const Row& row :
       {Row{"monitor_config.local_loss_format", monitor.local_loss_format},
        Row{"monitor_config.device_local_loss_format", monitor.device_local_loss_format},
        Row{"monitor_config.local_norm_format", monitor.local_norm_format},
        Row{"monitor_config.device_local_norm_format", monitor.device_local_norm_format},
        Row{"monitor_config.optimizer_state_format", monitor.optimizer_state_format},
        Row{"monitor_config.weight_state_format", monitor.weight_state_format}}) {
    if (!row.formats || !r.sound({row.key}) ||
        std::find(row.formats->begin(), row.formats->end(), "tensorboard") == row.formats->end()) {
      continue;
    }
    r.note(row.key, "there is no tensorboard.tensorboard_dir, so the values go to the log");
    row.formats = {"log"};
    r.derived(row.key, "absent tensorboard.tensorboard_dir");
  }
}

}  // namespace

void resolve_tensorboard(Resolution& r) {
  const TensorBoardConfig& board = r.config().tensorboard;
  constexpr const char* kDir = "tensorboard.tensorboard_dir";
  constexpr const char* kHistograms = "tensorboard.histogram_interval";
  if (!board.tensorboard_dir && r.sound({kDir})) {
    for (const char* key :
         {"tensorboard_queue_size", "tensorboard_log_interval", "log_loss_scale_to_tensorboard",
          "log_timers_to_tensorboard", "log_expert_load_to_tensorboard", "histogram_interval"}) {
      r.idle(concat("tensorboard.", key), "without tensorboard_dir");
    }
    show_in_log(r);
  } else if (board.histogram_interval && r.config().optimizer_config.optimizer_in_backward &&
             r.sound({kHistograms})) {
    r.note(
        kHistograms,
        "there are histograms of weights alone: with optimizer_in_backward gradients are used up "
        "one by one");
  }
}

}  // namespace tapestry::config
