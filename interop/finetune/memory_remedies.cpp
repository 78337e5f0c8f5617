#include "interop/finetune/memory_remedies.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/estimates/memory_estimate.h"

namespace tapestry {

namespace {

constexpr int64_t kShortestHalf = 64;

int64_t peak_of(const FinetuneRecipe& recipe, const RecipeFacts& facts) {
  const AllConfig config =
      init_configs_from_text(recipe_yaml(recipe, facts), "recipe", {.overrides = recipe.overrides});
  return estimate_memory(config, facts.data_parallel_size).peak();
}

bool recomputes(const AllConfig& config) { return !config.model_config.layer_recompute.empty(); }

std::string line(const MemoryRemedy& remedy) {
  return concat("\n  ", remedy.option, ": needs ", size_text(remedy.peak), ", ",
                size_text(remedy.saved), " less");
}

}  // namespace

std::vector<MemoryRemedy> memory_remedies(const FinetuneRecipe& recipe, const RecipeFacts& facts) {
  const AllConfig config =
      init_configs_from_text(recipe_yaml(recipe, facts), "recipe", {.overrides = recipe.overrides});
  const int64_t now = estimate_memory(config, facts.data_parallel_size).peak();
  std::vector<MemoryRemedy> remedies;
  const auto consider = [&](std::string option, const FinetuneRecipe& other,
                            const RecipeFacts& with) {
    const int64_t peak = peak_of(other, with);
    if (peak < now) {
      remedies.push_back({std::move(option), peak, now - peak});
    }
  };
  if (recipe.full) {
    FinetuneRecipe adapter = recipe;
    adapter.full = false;
    consider(concat("--lora_rank ", recipe.lora_rank, " in place of --full"), adapter, facts);
  } else if (!facts.base_blocks) {
    FinetuneRecipe blocks = recipe;
    for (const BlockFormat format : kernels::kBlockFormats) {
      if (recipe.blocks != format) {
        blocks.blocks = format;
        consider(format == BlockFormat::kQ8_0 ? "--int8" : "--int4", blocks, facts);
      }
    }
  }
  if (!recomputes(config)) {
    FinetuneRecipe again = recipe;
    again.overrides.push_back("parallel_config.recompute_config=True");
    consider("--set parallel_config.recompute_config=True", again, facts);
  }
  if (const int64_t half = facts.seq_length / 2; half >= kShortestHalf) {
    FinetuneRecipe shorter = recipe;
    shorter.seq_length = half;
    RecipeFacts rows = facts;
    rows.seq_length = half;
    consider(concat("--seq_length ", half), shorter, rows);
  }
  std::stable_sort(remedies.begin(), remedies.end(),
                   [](const MemoryRemedy& a, const MemoryRemedy& b) { return a.saved > b.saved; });
  return remedies;
}

std::string memory_report(const FinetuneRecipe& recipe,
                          const RecipeFacts& facts,
                          const AllConfig& config,
                          int64_t available) {
  const MemoryEstimate estimate = estimate_memory(config, facts.data_parallel_size);
  std::string text = concat("memory: about ", size_text(estimate.peak()), " of ",
                            size_text(available), " that are available:\n", memory_text(estimate));
  const std::vector<MemoryRemedy> remedies = memory_remedies(recipe, facts);
  if (!remedies.empty()) {
    text += "\nless with:";
  }
  for (const MemoryRemedy& remedy : remedies) {
    text += line(remedy);
  }
  return text;
}

void check_recipe_fits(const FinetuneRecipe& recipe,
                       const RecipeFacts& facts,
                       const AllConfig& config,
                       int64_t available) {
  const MemoryEstimate estimate = estimate_memory(config, facts.data_parallel_size);
  if (estimate.peak() <= available) {
    return;
  }
  std::string enough;
  std::string some;
  for (const MemoryRemedy& remedy : memory_remedies(recipe, facts)) {
    (remedy.peak <= available ? enough : some) += line(remedy);
  }
  std::string text =
      concat("tuning this model so needs about ", size_text(estimate.peak()), " of memory, but ",
             size_text(available), " are available:\n", memory_text(estimate));
  if (!enough.empty()) {
    text += "\nEach of these suffices:" + enough;
  }
  if (!some.empty()) {
    text += concat("\nThese help", enough.empty() ? ", together or beside a larger machine" : "",
                   ":", some);
  }
  throw ValueError(text);
}

}  // namespace tapestry
