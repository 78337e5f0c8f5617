// Rules of parts that a program has registered: which options they have.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/registered_names.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

struct Part {
  ModuleType type;
  const char* name_key;
  const char* options_key;
  std::optional<std::string> name;
  OwnOptions& options;
};

// The given value as the default's type has it; nothing, with the expected type in words, where it
// is of another.
std::optional<Value> converted(const Value& given, const Value& usual, std::string& expected) {
  if (usual.is<double>() && given.is<int64_t>()) {
    return Value{static_cast<double>(given.as<int64_t>())};
  }
  if (usual.is_null() || given.data.index() == usual.data.index()) {
    return given;
  }
  expected = usual.is<bool>()          ? "a boolean (True or False)"
             : usual.is<int64_t>()     ? "an integer"
             : usual.is<double>()      ? "a number"
             : usual.is<std::string>() ? "a string"
             : usual.is<Value::List>() ? "a list"
                                       : "a mapping";
  return std::nullopt;
}

// Checks what is given, and fills in what is not.
void complete_options(Resolution& r, const Part& part, const OwnOptions& known) {
  std::vector<std::string_view> names;
  for (const auto& [name, usual] : known.values) {
    names.push_back(name);
  }
  OwnOptions all = known;
  for (const auto& [name, given] : part.options.values) {
    const auto usual = known.values.find(name);
    if (usual == known.values.end()) {
      std::string list;
      for (const std::string_view each : names) {
        list += concat(list.empty() ? "" : ", ", each);
      }
      r.error(part.options_key,
              names.empty() ? concat("'", name, "': ", *part.name, " has no options")
                            : concat("'", name, "' is no option of ", *part.name, ", which has ",
                                     list, "; the nearest is '", nearest(name, names), "'"));
      continue;
    }
    std::string expected;
    if (std::optional<Value> value = converted(given, usual->second, expected)) {
      all.values[name] = std::move(*value);
    } else {
      r.error(part.options_key, concat(name, ": expected ", expected, ", got ", to_yaml(given),
                                       "; default: ", to_yaml(usual->second)));
    }
  }
  if (!(all == part.options)) {
    part.options = all;
    if (!r.given(part.options_key)) {
      r.derived(part.options_key, part.name_key);
    }
  }
}

}  // namespace

void resolve_registered(Resolution& r) {
  AllConfig& config = r.config();
  OptimizerConfig& optimizer = config.optimizer_config;
  const Part parts[] = {
      {ModuleType::kOptimizer, "optimizer_config.optimizer_type",
       "optimizer_config.optimizer_kwargs", optimizer.optimizer_type, optimizer.optimizer_kwargs},
      {ModuleType::kLrScheduler, "optimizer_config.lr_decay_style",
       "optimizer_config.lr_schedule_kwargs", optimizer.lr_decay_style,
       optimizer.lr_schedule_kwargs},
      {ModuleType::kDataset, "dataset_config.data_source", "dataset_config.data_source_kwargs",
       config.dataset_config.data_source, config.dataset_config.data_source_kwargs},
  };
  for (const Part& part : parts) {
    if (!r.sound({part.name_key, part.options_key})) {
      continue;
    }
    const RegisteredName* entry = part.name ? find_registered(part.type, *part.name) : nullptr;
    if (entry != nullptr) {
      complete_options(r, part, entry->options);
    } else if (!part.options.values.empty()) {
      r.error(part.options_key, concat("has no effect: ", part.name_key, " ",
                                       part.name ? concat("is ", *part.name) : "is not given",
                                       ", which no program has registered; leave it out"));
    }
  }
}

}  // namespace tapestry::config
