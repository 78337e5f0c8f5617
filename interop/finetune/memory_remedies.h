// What would make a run need less memory, in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/finetune/recipe.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// An option that the run does not use, and what it would need with it.
struct MemoryRemedy {
  std::string option;  ///< "--seq_length 512"
  int64_t peak = 0;    ///< bytes of the run with it
  int64_t saved = 0;   ///< of these fewer than without
};

/// Those that help the run of a recipe on one rank, the largest saving first: an adapter in place
/// of all weights, recomputation, rows of half the length, frozen matrices of 8 or 4 bits.
std::vector<MemoryRemedy> memory_remedies(const FinetuneRecipe& recipe, const RecipeFacts& facts);

/// What the recipe's run needs of each kind, how much there is, and the remedies, over lines.
std::string memory_report(const FinetuneRecipe& recipe,
                          const RecipeFacts& facts,
                          const AllConfig& config,
                          int64_t available);

/// ValueError if the recipe's run needs more than `available` bytes: what it needs of each kind,
/// and all remedies with their bytes, first of all those that suffice.
void check_recipe_fits(const FinetuneRecipe& recipe,
                       const RecipeFacts& facts,
                       const AllConfig& config,
                       int64_t available);

}  // namespace tapestry
