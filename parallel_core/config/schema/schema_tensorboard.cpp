// Rows of `tensorboard`.
#include <array>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace tensorboard_section {
namespace {

using T = TensorBoardConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::tensorboard, Path...>();

constexpr Key kKeys[] = {
    {.name = "tensorboard_dir",
     .field = f<&T::tensorboard_dir>,
     .check = satisfies(
         [](const Value& v) {
           return std::string(v.as<std::string>().empty() ? "must not be empty" : "");
         },
         "not empty"),
     .path = true,
     .doc = "Folder for TensorBoard's event files, which rank R writes to its sub-folder rank_R; "
            "null: none are written. `docs/report.md` lists what they hold."},
    {.name = "tensorboard_queue_size",
     .field = f<&T::tensorboard_queue_size>,
     .check = above(0),
     .doc = "Number of TensorBoard events that are kept in memory before they are written to the "
            "file. They are also written after some seconds, and before a checkpoint."},
    {.name = "tensorboard_log_interval",
     .field = f<&T::tensorboard_log_interval>,
     .check = above(0),
     .doc = "Steps between TensorBoard's scalars. Losses of an evaluation are written at its step "
            "in any case."},
    {.name = "log_loss_scale_to_tensorboard",
     .field = f<&T::log_loss_scale_to_tensorboard>,
     .doc = "Write the loss scale to TensorBoard as `loss-scale`."},
    {.name = "log_timers_to_tensorboard",
     .field = f<&T::log_timers_to_tensorboard>,
     .doc = "Write the time of a step and the throughput to TensorBoard as `iteration-time` and "
            "`throughput`."},
    {.name = "log_expert_load_to_tensorboard",
     .field = f<&T::log_expert_load_to_tensorboard>,
     .doc = "Write the load of each expert to TensorBoard as `expert_load/LAYER`, with a series "
            "for each expert."},
    {.name = "histogram_interval",
     .field = f<&T::histogram_interval>,
     .check = above(0),
     .doc = "Steps between TensorBoard's histograms of every weight and gradient; null: none."},
};

}  // namespace
}  // namespace tensorboard_section

std::span<const Key> tensorboard_keys() { return tensorboard_section::kKeys; }

}  // namespace tapestry::config
