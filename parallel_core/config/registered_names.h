// The names of a program's own parts that a configuration may say: what the checks of the schema
// have to know of them. What the names stand for, parallel_core/register.h keeps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Parts that are chosen by name, and the key that says the name.
enum class ModuleType : uint8_t {
  kActivationFunc,   ///< model_config.hidden_act
  kOptimizer,        ///< optimizer_config.optimizer_type, with optimizer_kwargs
  kLrScheduler,      ///< optimizer_config.lr_decay_style, with lr_schedule_kwargs
  kGradProcessFunc,  ///< training_config.grad_clip_kwargs.grad_clip_type
  kLossFunc,         ///< training_config.loss_func_kwargs.loss_func_type
  kDataset,          ///< dataset_config.data_source, with data_source_kwargs
};

namespace config {

struct RegisteredName {
  /// What the part is made with: every entry that its mapping of options may have, and its default,
  /// which also says the entry's type: true or false, an integer, a number, a text, a list. Null
  /// takes anything.
  OwnOptions options = {};
  bool is_gated = false;  ///< of an activation: its input is gate and up
};

/// For this program, from now on. ValueError for a name that is none (a letter, then letters,
/// digits, '_', '-' and '.'), that is built in, or that has been registered for the same type.
void register_name(ModuleType type, const std::string& name, RegisteredName entry);

/// Null if the program has registered no such name. The entry stays where it is.
const RegisteredName* find_registered(ModuleType type, const std::string& name);

/// Those of one type, in alphabetical order.
std::vector<std::string> registered_names(ModuleType type);

}  // namespace config
}  // namespace tapestry
