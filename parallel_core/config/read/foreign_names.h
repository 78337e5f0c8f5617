// What other programs call the keys of a configuration. Most of these names are for messages; those
// of the training guides are read.
#pragma once

#include <cstdint>
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
  enum class Use : uint8_t {
    kMessage,  ///< not read: a message says what stands for it
    kValue,    ///< read: its value is that of the keys `here`
    kNothing,  ///< read: it can only mean what is done anyway, as `note` says
    kSame,     ///< read: it repeats the key `here`, whose value it must have
    kSwitch,   ///< read: that it is there sets the key `here` to True, or to `idle`
    kMeans,    ///< read: the value `idle`, and no other, sets the key `here` to True
  };
  Use use = Use::kMessage;
  /// Of a row that is read: values (as they are written, separated by '|') that leave the keys
  /// alone with kValue, and that alone are taken with kNothing and kMeans; empty: none, or with
  /// kNothing any. With kSwitch the value that a key gets which is not written.
  std::string_view idle = {};
};

std::span<const ForeignName> foreign_names();

/// The row of "section.name", else of "name"; nullptr if there is none.
const ForeignName* find_foreign_name(std::string_view section, std::string_view name);

/// The row of a whole path that is read, "runner_wrapper.scale_sense"; nullptr if there is none.
/// What has a `type` has that in its path: "callbacks.CheckpointMonitor.keep_checkpoint_max".
const ForeignName* find_readable_name(std::string_view path);
/// Whether a row that is read lies below: "runner_wrapper", "callbacks.CheckpointMonitor".
bool holds_readable_names(std::string_view path);

/// The sections of MindFormers' static configurations that are none of ours.
bool is_static_section(std::string_view name);

/// "here it is num_layers in model_config (...)", for the row.
std::string foreign_text(const ForeignName& row, std::string_view model_section);

}  // namespace tapestry::config
