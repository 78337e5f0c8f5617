#include "parallel_core/config/mindformers2/translate.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/keys.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config::mindformers2 {
namespace {

// Sections that static files of 1.x have too, or that are of ours.
constexpr std::string_view kShared[] = {"optimizer",   "train_dataset", "model",
                                        "context",     "callbacks",     "eval_dataset",
                                        "lora_config", "tensorboard",   "telemetry"};
constexpr std::string_view kStaticOnly[] = {
    "runner_config",    "runner_wrapper", "lr_schedule", "train_dataset_task",
    "parallel",         "trainer",        "processor",   "eval_dataset_task",
    "recompute_config", "gpt_config",     "swap_config"};

const RawNode* entry_of(const RawNode& map, std::string_view name) {
  const auto found = std::find_if(map.entries.begin(), map.entries.end(),
                                  [&](const RawEntry& entry) { return entry.key.scalar == name; });
  return found != map.entries.end() ? &found->value : nullptr;
}

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_new_section(std::string_view name, const RawNode& body) {
  if (name == "model") {
    return entry_of(body, "model_type") != nullptr;
  }
  return !is_among(kShared, name) &&
         std::any_of(sections().begin(), sections().end(),
                     [&](const SectionRow& section) { return section.name == name; });
}

// Whether two texts are the same value: 1e-8 and 1e-08 are.
bool same(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view text) -> std::optional<double> {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                    : std::nullopt;
  };
  const std::optional<double> one = number(a);
  return a == b || (one && one == number(b));
}

// The value of a row as it stands, or its initial one where ours is another.
void put_same(Reading& r, const Row& row) {
  const std::string path = path_of(row);
  const RawNode* node = r.find(path);
  for (const std::string_view here : split_text(row.here, '|')) {
    if (r.has(here)) {
      continue;
    }
    if (node != nullptr) {
      r.put(here, *node);
      continue;
    }
    const std::string_view initial = r.is_qwen3() && !row.qwen3.empty() ? row.qwen3 : row.initial;
    const Key* key = find_key(here.substr(0, here.find('.')), here.substr(here.find('.') + 1));
    if (row.takes_initial && !initial.empty() && initial != "-" && initial != "\"\"" &&
        key != nullptr && (key->required || !same(to_yaml(default_value(*key)), initial))) {
      r.put(here, std::string(initial), path);
    }
  }
}

void note_idle(Reading& r, const Row& row) {
  const std::string path = path_of(row);
  const RawNode* node = r.find(path);
  if (node == nullptr || node->kind == RawNode::Kind::kNull || node->scalar == row.initial ||
      (node->kind == RawNode::Kind::kScalar && node->scalar.empty())) {
    return;
  }
  // True and true are one value.
  if (row.type == "bool" && (row.initial == "True") == r.flag(path)) {
    return;
  }
  r.note(path, concat("has no effect: ", row.note));
}

// Rows of the model say nothing where it is described below `tapestry`, or by no class.
bool applies(const Reading& r, const Row& row) {
  if (row.section == "model") {
    return r.has_section("model") && !(r.is_qwen3() && row.qwen3 == "-");
  }
  return true;
}

void apply_rows(Reading& r) {
  for (const Row& row : rows()) {
    if (row.key.ends_with('*') || row.key.empty() || !applies(r, row)) {
      continue;
    }
    if (row.fate == Fate::kSame) {
      put_same(r, row);
    } else if (row.fate == Fate::kNothing) {
      note_idle(r, row);
    }
  }
}

std::optional<int64_t> known_size(const RawNode& root, std::optional<int64_t> ranks) {
  const auto number = [&](std::initializer_list<std::string_view> path) -> std::optional<int64_t> {
    const RawNode* at = &root;
    for (const std::string_view part : path) {
      at = at != nullptr ? entry_of(*at, part) : nullptr;
    }
    if (at == nullptr || scalar_kind(at->scalar) != ScalarKind::kInt || at->scalar.size() > 9) {
      return std::nullopt;
    }
    return std::stoll(at->scalar);
  };
  if (const auto said = number({kOwnSection, "parallel_config", "data_parallel_size"})) {
    return said;
  }
  if (!ranks) {
    return std::nullopt;
  }
  int64_t model = 1;
  for (const char* key : {"tensor_parallel", "pipeline_parallel", "context_parallel"}) {
    model *= std::max<int64_t>(1, number({"parallelism", key}).value_or(1));
  }
  return std::max<int64_t>(1, *ranks / std::max<int64_t>(1, model));
}

}  // namespace

bool is_dialect(const RawNode& root) {
  int now = 0;
  int before = 0;
  for (const auto& [name, body] : root.entries) {
    now += is_new_section(name.scalar, body) ? 1 : 0;
    const bool ours = find_section(name.scalar) != nullptr && !is_among(kShared, name.scalar);
    before += ours || is_among(kStaticOnly, name.scalar) ? 1 : 0;
  }
  return now > before;
}

bool is_own_path(const std::string& path) {
  const std::string section = path.substr(0, path.find('.'));
  if (section == "lora_config" || section == "tensorboard") {
    return find_row(path) != nullptr;
  }
  return std::any_of(sections().begin(), sections().end(),
                     [&](const SectionRow& row) { return row.name == section; });
}

bool put_override(RawNode& root,
                  const std::string& text,
                  const Place& place,
                  std::vector<std::string>& errors) {
  const size_t equals = text.find('=');
  const std::vector<std::string> path = parts_of(text.substr(0, equals));
  const RawNode* at = &root;
  for (const std::string& part : path) {
    at = at != nullptr ? entry_of(*at, part) : nullptr;
    if (at != nullptr && &part != &path.back() && at->kind == RawNode::Kind::kList) {
      return false;
    }
  }
  put_below(root, path, parse_yaml(text.substr(equals + 1), place, true, errors));
  return true;
}

Translation translate(const RawNode& root,
                      std::optional<int64_t> ranks,
                      std::optional<int64_t> data_parallel_size) {
  Reading r(data_parallel_size ? data_parallel_size : known_size(root, ranks));
  r.read(root);
  translate_layout(r);
  translate_training(r);
  translate_optimizer(r);
  translate_schedule(r);
  translate_recompute(r);
  translate_data(r);
  const bool own_model = r.own_section() != nullptr &&
                         entry_of(*r.own_section(), "model_config") != nullptr &&
                         !r.has_section("model");
  if (!own_model) {
    translate_model(r);
    if (r.has_section("model") && !r.is_qwen3()) {
      translate_experts(r);
    }
  }
  translate_watch(r);
  translate_lora(r);
  apply_rows(r);
  r.merge_own_section();
  return {.root = r.result(), .errors = std::move(r.errors), .notes = std::move(r.notes)};
}

}  // namespace tapestry::config::mindformers2
