#include "parallel_core/config/schema/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "parallel_core/config/schema/keys_without_effect.h"
#include "parallel_core/config/yaml/expand_path.h"

namespace tapestry::config {
namespace {

std::string bound_text(double bound) {
  return bound == std::floor(bound) && std::abs(bound) < 1e15
             ? std::to_string(static_cast<int64_t>(bound))
             : number_text(bound);
}

std::string range_text(const Check& check) {
  const bool has_low = std::isfinite(check.low);
  const bool has_high = std::isfinite(check.high);
  if (has_low && has_high) {
    return std::string("in ") + (check.low_open ? "(" : "[") + bound_text(check.low) + ", " +
           bound_text(check.high) + (check.high_open ? ")" : "]");
  }
  if (has_low) {
    return (check.low_open ? "> " : ">= ") + bound_text(check.low);
  }
  if (has_high) {
    return (check.high_open ? "< " : "<= ") + bound_text(check.high);
  }
  return {};
}

std::string joined(std::string_view choices) {
  std::string text;
  for (const std::string_view choice : split_text(choices, '|')) {
    text += (text.empty() ? "" : ", ") + std::string(choice);
  }
  return text;
}

bool in_range(const Check& check, double number) {
  return (check.low_open ? number > check.low : number >= check.low) &&
         (check.high_open ? number < check.high : number <= check.high);
}

bool numbers_in_range(const Check& check, const Value& value) {
  if (value.is<int64_t>()) {
    return in_range(check, static_cast<double>(value.as<int64_t>()));
  }
  if (value.is<double>()) {
    return in_range(check, value.as<double>());
  }
  if (value.is<Value::List>()) {
    const auto& list = value.as<Value::List>();
    return std::all_of(list.begin(), list.end(),
                       [&](const Value& item) { return numbers_in_range(check, item); });
  }
  return true;
}

}  // namespace

std::span<const Section> schema() {
  const auto all_keys = [](std::string_view section, std::span<const Key> read) {
    // Sections are spans; the keys live as long as the program.
    static std::deque<std::vector<Key>> kept;
    return std::span<const Key>(kept.emplace_back(with_keys_without_effect(section, read)));
  };
  static const std::array<Section, 11> sections = {{
      {"training_config", "Training", "Length, logging, precision, checkpoints.",
       all_keys("training_config", training_keys())},
      {"parallel_config", "Parallel layout", "How the model is spread over ranks.",
       all_keys("parallel_config", parallel_keys())},
      {"dataset_config", "Data", "Batches, data sets and tokenizer.",
       all_keys("dataset_config", dataset_keys())},
      {"model_config", "Model",
       "Structure of the transformer. The section may carry another name: `gpt_config`, or what "
       "`--model_type` says.",
       all_keys("model_config", model_keys())},
      {"optimizer_config", "Optimizer", "Optimizer, learning rate and weight decay.",
       all_keys("optimizer_config", optimizer_keys())},
      {"moe_config", "Mixture of experts", "Experts in place of the dense MLP.",
       all_keys("moe_config", moe_keys())},
      {"lora_config", "LoRA", "Low-rank fine-tuning.", all_keys("lora_config", lora_keys())},
      {"post_training_config", "Post-training",
       "Preferences, rewards, distillation and reinforcement, in TRL's names.",
       all_keys("post_training_config", post_training_keys())},
      {"tensorboard", "TensorBoard", "Event files that TensorBoard shows.",
       all_keys("tensorboard", tensorboard_keys())},
      {"telemetry", "Seen from outside",
       "What Prometheus, MLflow and other programs see of a run while it trains.",
       all_keys("telemetry", telemetry_keys())},
      {"monitor_config", "Monitors",
       "Measurements beside the loss, skipped steps, healthy checkpoints.",
       all_keys("monitor_config", monitor_keys())},
  }};
  return sections;
}

const Section* find_section(std::string_view name) {
  for (const Section& section : schema()) {
    if (section.name == name) {
      return &section;
    }
  }
  return nullptr;
}

const Key* find_key(std::string_view section, std::string_view key) {
  if (const Section* rows = find_section(section)) {
    for (const Key& row : rows->keys) {
      if (row.name == key) {
        return &row;
      }
    }
  }
  return nullptr;
}

Value default_value(const Key& key) {
  static const AllConfig defaults;
  return key.field.get(defaults);
}

std::string_view last_name(const Key& key) {
  const size_t dot = key.name.rfind('.');
  return dot == std::string_view::npos ? key.name : key.name.substr(dot + 1);
}

std::string default_text(const Key& key) {
  if (key.required) {
    return "required";
  }
  if (!key.default_text.empty()) {
    return std::string(key.default_text);
  }
  const Value value = default_value(key);
  return key.field.type == Type::kMapping && !value.is_null() ? "its entries' defaults"
                                                              : to_yaml(value);
}

std::string type_text(const Key& key) {
  static constexpr std::string_view kNames[] = {"boolean",
                                                "integer",
                                                "float",
                                                "string",
                                                "dtype",
                                                "list of integers",
                                                "list of floats",
                                                "string or list of strings",
                                                "list of integers or of lists of them",
                                                "list of floats or of lists of them",
                                                "boolean, list or mapping",
                                                "name or number",
                                                "boolean or name",
                                                "list of mappings",
                                                "mapping",
                                                "mapping"};
  const std::string_view name = kNames[static_cast<int>(key.field.type)];
  return std::string(name) + (key.field.nullable || key.null == Null::kDefault ? " or null" : "");
}

std::string check_text(const Key& key) {
  if (!key.check.choices.empty()) {
    std::string text = "one of " + joined(key.check.choices);
    for (const std::string_view alias : split_text(key.value_aliases, '|')) {
      const size_t equals = alias.find('=');
      text += ", " + std::string(alias.substr(0, equals)) +
              " (= " + std::string(alias.substr(equals + 1)) + ")";
    }
    return key.registers ? text + ", or a registered name" : text;
  }
  if (key.check.predicate != nullptr) {
    return std::string(key.check.predicate_text);
  }
  return key.registers ? "a registered name" : range_text(key.check);
}

std::string usual_value(const Key& key) {
  const std::string check = check_text(key);
  std::string text = "; allowed: " + type_text(key);
  if (!check.empty()) {
    text += (key.check.choices.empty() && key.check.predicate == nullptr ? " " : ", ") + check;
  }
  if (!key.required) {
    return text + "; default: " + default_text(key);
  }
  return key.example.empty() ? text
                             : text + "; for example `" + std::string(last_name(key)) + ": " +
                                   std::string(key.example) + "`";
}

bool is_built_in(const Key& key, std::string_view name) {
  const auto choices = split_text(key.check.choices, '|');
  const auto aliases = split_text(key.value_aliases, '|');
  return std::find(choices.begin(), choices.end(), name) != choices.end() ||
         std::any_of(aliases.begin(), aliases.end(), [&](std::string_view alias) {
           return alias.substr(0, alias.find('=')) == name;
         });
}

namespace {

// What is wrong with a name that has to be one of a list, or registered.
std::string name_complaint(const Key& key, const std::string& text) {
  std::vector<std::string_view> names = split_text(key.check.choices, '|');
  const std::vector<std::string> registered =
      key.registers ? registered_names(*key.registers) : std::vector<std::string>();
  names.insert(names.end(), registered.begin(), registered.end());
  if (std::find(names.begin(), names.end(), text) != names.end()) {
    return {};
  }
  std::string message = "unknown value '" + text + "'; expected " + check_text(key);
  if (key.registers) {
    std::string list;
    for (const std::string& name : registered) {
      list += (list.empty() ? "" : ", ") + name;
    }
    message += list.empty() ? " (this program registers none)" : " (registered: " + list + ")";
  }
  return names.empty() ? message
                       : message + "; the nearest is '" + std::string(nearest(text, names)) + "'";
}

}  // namespace

std::string complaint(const Key& key, const Value& value) {
  if (value.is_null()) {
    return {};
  }
  const Check& check = key.check;
  if (!numbers_in_range(check, value)) {
    return "must be " + range_text(check) + ", got " + to_yaml(value);
  }
  if (!check.choices.empty() || key.registers) {
    std::string wrong = name_complaint(key, value.as<std::string>());
    if (!wrong.empty()) {
      return wrong;
    }
  }
  return check.predicate != nullptr ? check.predicate(value) : std::string();
}

std::string yaml_of(const Key& key, const Value& value) {
  if (key.path && value.is<std::string>()) {
    return path_text(value.as<std::string>());
  }
  if (key.path && value.is<Value::List>()) {
    Value::List items;
    for (const Value& item : value.as<Value::List>()) {
      items.push_back(item.is<std::string>() ? Value{literal_path(item.as<std::string>())} : item);
    }
    return to_yaml(Value{items});
  }
  return to_yaml(value);
}

bool is_supported(const Key& key, const Value& value) {
  if (key.accepted.empty()) {
    return true;
  }
  const auto accepted = split_text(key.accepted, '|');
  return std::find(accepted.begin(), accepted.end(), to_yaml(value)) != accepted.end();
}

std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      break;
    }
    text.remove_prefix(end + 1);
  }
  return pieces;
}

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: the swap of neighbours looks two rows back.
  std::vector<int> before(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    last[j] = static_cast<int>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view nearest(std::string_view name, std::span<const std::string_view> names) {
  std::string_view best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string_view candidate : names) {
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tapestry::config
