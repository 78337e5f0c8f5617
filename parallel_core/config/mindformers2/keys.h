// The keys of MindFormers 2.0's configurations, and what becomes of each. Reading, messages, the
// page docs/mindformers2.md and the tests come from this table.
//
// Source of names, defaults and meanings: MindFormers r2.0.0, mindformers/pynative/config/config.py
// and the classes that it hands the sections to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::config::mindformers2 {

/// What becomes of a key's value.
enum class Fate : uint8_t {
  kSame,     ///< it is that of the keys `here`
  kRule,     ///< it gives the keys `here` by a rule, which `note` states
  kNothing,  ///< it can only mean what is done anyway, as `note` says
  kRefused,  ///< other values than `accepted`, or any, are errors, for the reason in `note`
};

struct Row {
  std::string_view section;
  /// Below the section: "steps", "dataloader.config.split"; of what has a `type`, with that:
  /// "MaxLogitsMonitor.step_interval". A last "*" stands for any name that begins so.
  std::string_view key;
  /// "bool", "int", "float", "str", "list", "map" or "any", several separated by '|', with a last
  /// '?' where null is a value.
  std::string_view type;
  /// As YAML; empty: none. Of `model` those of deepseek_v3.
  std::string_view initial;
  Fate fate;
  /// "training_config.training_iters", or several, separated by '|'.
  std::string_view here = {};
  std::string_view note = {};
  /// Not empty: the values that are taken, separated by '|'.
  std::string_view accepted = {};
  /// Of `model`: the default of qwen3 where it is another; "-": the class has no such key.
  std::string_view qwen3 = {};
  /// False: a file without the key leaves those `here` at their own default, as numbers are the
  /// same.
  bool takes_initial = true;
};

/// A section and what it is for.
struct SectionRow {
  std::string_view name;
  std::string_view doc;
};

/// In MindFormers' order.
std::span<const SectionRow> sections();
/// All rows, by section.
const std::vector<Row>& rows();

/// The row of a path, "training.steps"; nullptr if there is none.
const Row* find_row(std::string_view path);
/// Whether there are rows below the path.
bool has_rows_below(std::string_view path);

/// "training.steps".
std::string path_of(const Row& row);

/// The families of `model.model_type` whose classes are known.
inline constexpr std::string_view kModelTypes = "deepseek_v3|qwen3";

/// The section that holds keys of ours as they are, which MindFormers passes over.
inline constexpr std::string_view kOwnSection = "tapestry";

// The rows, each in a file of its own.
std::span<const Row> training_rows();
std::span<const Row> parallel_rows();
std::span<const Row> data_rows();
std::span<const Row> model_rows();
std::span<const Row> expert_rows();
std::span<const Row> watch_rows();

}  // namespace tapestry::config::mindformers2
