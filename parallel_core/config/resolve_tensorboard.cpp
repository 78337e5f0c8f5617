#include "parallel_core/config/resolve.h"

namespace tapestry::config {

void resolve_tensorboard(Resolution& r) {
  const TensorBoardConfig& board = r.config().tensorboard;
  constexpr const char* kDir = "tensorboard.tensorboard_dir";
  constexpr const char* kHistograms = "tensorboard.histogram_interval";
  if (!board.tensorboard_dir && r.sound({kDir})) {
    for (const char* key : {"tensorboard_queue_size", "log_loss_scale_to_tensorboard",
                            "log_timers_to_tensorboard", "histogram_interval"}) {
      if (r.given(concat("tensorboard.", key))) {
        r.note(concat("tensorboard.", key), "has no effect without tensorboard_dir");
      }
    }
  } else if (board.histogram_interval && r.config().optimizer_config.optimizer_in_backward &&
             r.sound({kHistograms})) {
    r.note(
        kHistograms,
        "there are histograms of weights alone: with optimizer_in_backward gradients are used up "
        "one by one");
  }
}

}  // namespace tapestry::config
