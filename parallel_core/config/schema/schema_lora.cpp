// Rows of `lora_config`.
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace lora_section {
namespace {

using L = LoraConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::lora_config, Path...>();

constexpr Key kKeys[] = {
    {.name = "use_lora",
     .field = f<&L::use_lora>,
     .doc = "Train low-rank additions to frozen weights, see [lora.md](lora.md)."},
    {.name = "lora_rank",
     .field = f<&L::lora_rank>,
     .check = above(0),
     .doc = "Rank of the low-rank additions."},
    {.name = "lora_alpha",
     .field = f<&L::lora_alpha>,
     .check = above(0),
     .doc = "Scale of the low-rank additions, divided by their rank."},
    {.name = "lora_dropout",
     .field = f<&L::lora_dropout>,
     .check = {.low = 0, .high = 1, .high_open = true},
     .doc = "Dropout of the input of the low-rank additions."},
    {.name = "target_cells",
     .field = f<&L::target_cells>,
     .default_text = "all matrices of attention and MLP",
     .doc = "Matrices that get low-rank additions: one entry {target_cells: [regular expressions]} "
            "and any number of entries {cell, rank, alpha} for cells with their own values. An "
            "expression matches a whole name: of a module in memory, of a logical tensor, or of a "
            "Hugging Face module (`.*q_proj`)."},
    {.name = "exclude_cells",
     .field = f<&L::exclude_cells>,
     .check = satisfies(check_patterns, "regular expressions"),
     .doc = "Matrices that get no additions although `target_cells` mean them: regular "
            "expressions that match as those do."},
    {.name = "lora_a_std",
     .field = f<&L::lora_a_std>,
     .check = above(0),
     .default_text = "null (uniform, as PEFT)",
     .doc = "Start the matrices A normal with this standard deviation; null: uniform within "
            "1/sqrt(inputs)."},
    {.name = "lora_b_std",
     .field = f<&L::lora_b_std>,
     .check = at_least(0),
     .doc = "Start the matrices B normal with this standard deviation; 0: with zeros, so that the "
            "model starts as its base."},
    {.name = "use_rslora",
     .field = f<&L::use_rslora>,
     .doc = "Divide `lora_alpha` by the square root of the rank instead of by the rank."},
    {.name = "use_dora",
     .field = f<&L::use_dora>,
     .doc = "Train the lengths of the rows of adapted matrices in addition to their directions "
            "(DoRA)."},
    {.name = "bias",
     .field = f<&L::bias>,
     .check = one_of("none|lora_only"),
     .doc =
         "Biases that are trained whole in addition to the low-rank additions: none, or those of "
         "the matrices that have some (`lora_only`)."},
    {.name = "modules_to_save",
     .field = f<&L::modules_to_save>,
     .doc = "Regular expressions for the modules that are trained whole in addition to the "
            "low-rank additions (`lm_head`, `embed_tokens`). They match a name, or the end of a "
            "name after a dot."},
    {.name = "adapter",
     .field = f<&L::adapter>,
     .path = true,
     .doc = "Folder of a low-rank adapter to start from: PEFT's, or of a checkpoint. If it is left "
            "out, A starts random and B zero."},
    {.name = "base_dtype",
     .field = f<&L::base_dtype>,
     .check = one_of("params_dtype|q8_0|q4_0"),
     .doc =
         "Type of the frozen matrices of attention, MLP and experts: `params_dtype`, or blocks of "
         "32 numbers of 8 bits (`q8_0`) or of 4 bits (`q4_0`) with a scale, which take about a "
         "half or 0.28 of bfloat16's memory."},
};

}  // namespace
}  // namespace lora_section

std::span<const Key> lora_keys() { return lora_section::kKeys; }

}  // namespace tapestry::config
