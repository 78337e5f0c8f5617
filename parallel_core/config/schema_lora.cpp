// Rows of `lora_config`.
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace lora_section {
namespace {

using L = LoraConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::lora_config, Path...>();

constexpr std::string_view kLora = "low-rank fine-tuning is not built yet";

constexpr Key kKeys[] = {
    {.name = "use_lora",
     .field = f<&L::use_lora>,
     .accepted = "False",
     .reason = kLora,
     .planned = true,
     .doc = "Train low-rank additions to frozen weights."},
    {.name = "lora_rank",
     .field = f<&L::lora_rank>,
     .check = above(0),
     .accepted = "8",
     .reason = kLora,
     .planned = true,
     .doc = "Rank of the additions."},
    {.name = "lora_alpha",
     .field = f<&L::lora_alpha>,
     .check = above(0),
     .accepted = "32",
     .reason = kLora,
     .planned = true,
     .doc = "Scale of the additions, divided by the rank."},
    {.name = "lora_dropout",
     .field = f<&L::lora_dropout>,
     .check = between(0, 1),
     .accepted = "0.0",
     .reason = kLora,
     .planned = true,
     .doc = "Dropout of their input."},
    {.name = "target_cells",
     .field = f<&L::target_cells>,
     .accepted = "null",
     .reason = kLora,
     .planned = true,
     .doc = "One entry {target_cells: [regular expressions]} and any {cell, rank, alpha} of cells "
            "with values of their own."},
};

}  // namespace
}  // namespace lora_section

std::span<const Key> lora_keys() { return lora_section::kKeys; }

}  // namespace tapestry::config
