// What other programs call the keys of a configuration: for messages, none of these names is read.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tapestry::config {

/// A name that is none of ours, and what stands for it here.
struct ForeignName {
  /// "n_layer"; or "runner_config.epochs", which means something else elsewhere.
  std::string_view name;
  /// "model_config.num_layers", or several, separated by '|'. Empty: nothing stands for it.
  std::string_view here;
  /// More about it: "divided by the ranks"; or, with an empty `here`, why there is nothing.
  std::string_view note = {};
};

std::span<const ForeignName> foreign_names();

/// The row of "section.name", else of "name"; nullptr if there is none.
const ForeignName* find_foreign_name(std::string_view section, std::string_view name);

/// The sections of MindFormers' static configurations that are none of ours.
bool is_static_section(std::string_view name);

/// "here it is num_layers in model_config (...)", for the row.
std::string foreign_text(const ForeignName& row, std::string_view model_section);

}  // namespace tapestry::config
