#include "parallel_core/config/read/loader.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "parallel_core/config/mindformers2/static_file.h"
#include "parallel_core/config/mindformers2/translate.h"
#include "parallel_core/config/read/parse_value.h"
#include "parallel_core/config/read/unknown_names.h"
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {
namespace {

constexpr const char* kFromHf = "model_config.from_hf";
constexpr const char* kRemedy = "; leave the key out, or set it so";

std::string path_of(const Section& section, std::string_view key) {
  return concat(section.name, ".", key);
}

// The row of "section.key".
const Key* key_at(const std::string& path) {
  const size_t dot = path.find('.');
  return find_key(path.substr(0, dot), path.substr(dot + 1));
}

// What an override says of the number of data-parallel ranks.
std::optional<int64_t> data_parallel_size(const std::vector<Override>& overrides) {
  constexpr std::string_view kKey = "parallel_config.data_parallel_size=";
  std::optional<int64_t> size;
  for (const Override& override : overrides) {
    if (override.text.starts_with(kKey)) {
      int64_t number = 0;
      const char* last = override.text.data() + override.text.size();
      const auto [end, error] = std::from_chars(override.text.data() + kKey.size(), last, number);
      size = error == std::errc() && end == last && number > 0 ? std::optional(number) : size;
    }
  }
  return size;
}

ConfigOrigin origin_at(const Place& place, bool is_override) {
  const bool is_set = is_override && place.source.starts_with(kSetPlace);
  return {is_override ? ConfigOrigin::Kind::kOverride : ConfigOrigin::Kind::kFile,
          is_set            ? "--set"
          : place.line == 0 ? place.source
                            : place.source + ":" + std::to_string(place.line),
          place.text(), ""};
}

}  // namespace

Loader::Loader(const std::string& name,
               const LoadOptions& options,
               ReadModelFolder read_folder,
               const std::vector<Override>& overrides)
    : name_(name),
      read_folder_(read_folder),
      model_type_(options.model_type),
      overrides_(overrides),
      entries_(name, findings_) {
  std::vector<std::string> flags;
  for (const std::string& text : options.overrides) {
    if (text.starts_with("--")) {
      flags.push_back(text);
    } else {
      overrides_.push_back({text, std::string(kSetPlace) + text});
    }
  }
  for (Override& flag : read_flags(flags).overrides) {
    overrides_.push_back(std::move(flag));
  }
}

AllConfig Loader::load(const std::string& text) {
  return load(parse_yaml(text, {name_}, /*fixed_place=*/false, findings_.errors));
}

// A file of MindFormers 2.0 as one of ours, with the overrides that are its own already in it.
RawNode Loader::translated(const RawNode& root) {
  RawNode whole = root;
  std::vector<Override> others;
  for (const Override& override : overrides_) {
    const std::string path = override.text.substr(0, override.text.find('='));
    const bool is_own = override.text.find('=') != std::string::npos &&
                        path.find('.') != std::string::npos && mindformers2::is_own_path(path);
    if (!is_own) {
      others.push_back(override);
    } else if (!mindformers2::put_override(whole, override.text, Place{override.place},
                                           findings_.errors)) {
      findings_.error(Place{override.place}, path + ": lies in a list; change it in the file");
    }
  }
  overrides_ = std::move(others);
  mindformers2::Translation translation =
      mindformers2::translate(whole, ranks_, data_parallel_size(overrides_));
  findings_.errors.insert(findings_.errors.end(), translation.errors.begin(),
                          translation.errors.end());
  findings_.notes.insert(findings_.notes.end(), translation.notes.begin(), translation.notes.end());
  return std::move(translation.root);
}

AllConfig Loader::load(const RawNode& root) {
  if (root.kind == RawNode::Kind::kMap && mindformers2::is_dialect(root)) {
    model_type_ = "model_config";
    const RawNode ours = translated(root);
    if (!findings_.errors.empty()) {
      throw ConfigError(findings_.errors);
    }
    entries_.read(ours, model_type_);
  } else if (root.kind == RawNode::Kind::kMap && mindformers2::is_static_file(root)) {
    const mindformers2::Translation translation = mindformers2::translate_static(root);
    findings_.errors.insert(findings_.errors.end(), translation.errors.begin(),
                            translation.errors.end());
    findings_.notes.insert(findings_.notes.end(), translation.notes.begin(),
                           translation.notes.end());
    entries_.read(translation.root, model_type_);
  } else {
    entries_.read(root, model_type_);
  }
  if (root.kind != RawNode::Kind::kMap) {
    throw ConfigError(findings_.errors);
  }
  for (const Override& override : overrides_) {
    entries_.read_override(override.text, Place{override.place});
  }
  return complete();
}

AllConfig Loader::load(const AllConfig& values) {
  entries_.set_model_section(values.model_section);
  for (const Section& section : schema()) {
    entries_.set_place_of_section(section.name, Place{name_});
    for (const Key& key : section.keys) {
      take_value(values, section, key);
    }
  }
  return complete();
}

// The keys that model_config.from_hf stands for become entries, unless they are given.
std::optional<HfConfig> Loader::take_from_hf() {
  const Entry* found = entries_.find(kFromHf);
  if (found == nullptr || found->node.kind == RawNode::Kind::kNull) {
    return std::nullopt;
  }
  const Entry given = *found;
  std::string complaint;
  const Value folder = parse_value(*given.key, given.node, complaint);
  if (!complaint.empty()) {
    findings_.unread_sections.insert("model_config");  // its keys are not missing
    return std::nullopt;
  }
  try {
    HfConfig hf = read_folder_(folder.as<std::string>());
    check<ValueError>(hf.complete, hf.file,
                      ": does not describe its model; name the configuration of the run that "
                      "saved it, config.yaml beside it");
    for (const HfSetting& setting : hf.settings) {
      // A mixture is not of its dense model's family.
      const bool of_weights = setting.section == "model_config" && setting.key != "hf_model_type";
      if (of_weights || !starts_from_dense()) {
        take_hf_setting(setting, hf.file);
      }
    }
    if (!hf.remark.empty()) {
      findings_.notes.push_back(hf.remark);
    }
    for (const std::string& undecided : hf.undecided) {
      if (!is_written("model_config", undecided.substr(0, undecided.find(':')))) {
        findings_.error(given.node.place, concat(entries_.shown("model_config"), ".", undecided));
      }
    }
    return hf;
  } catch (const Error& failure) {
    findings_.error(given.node.place,
                    concat(entries_.shown("model_config"), ".from_hf: ", failure.what()));
    findings_.unread_sections.insert("model_config");
    return std::nullopt;
  }
}

bool Loader::is_written(const std::string& section, const std::string& key) const {
  return entries_.contains(concat(section, ".", key));
}

// Whether the experts are made of a dense model, which then gives the other keys alone.
bool Loader::starts_from_dense() const {
  const Entry* given = entries_.find("moe_config.upcycle_from");
  return given != nullptr && given->node.kind != RawNode::Kind::kNull;
}

// Whether a key is written that is short for the setting's, or says the same in another way.
bool Loader::has_short(const HfSetting& setting) const {
  struct Row {
    const char* section;
    const char* key;  // of the file
    const char* by;
  };
  static constexpr Row kRows[] = {
      {"model_config", "qkv_has_bias", "add_bias_linear"},
      {"model_config", "out_proj_has_bias", "add_bias_linear"},
      {"model_config", "mlp_has_bias", "add_bias_linear"},
      {"model_config", "attention_dropout", "fa_config.keep_prob"},
      {"moe_config", "moe_layer_freq", "first_k_dense_replace"},
      {"moe_config", "moe_shared_expert_intermediate_size", "shared_expert_num"},
      {"moe_config", "moe_router_score_function", "use_gating_sigmoid"}};
  return std::any_of(std::begin(kRows), std::end(kRows), [&](const Row& row) {
    return setting.section == row.section && setting.key == row.key &&
           is_written(row.section, row.by);
  });
}

void Loader::take_hf_setting(const HfSetting& setting, const std::string& file) {
  const Key& key = *find_key(setting.section, setting.key);
  const std::string path = concat(setting.section, ".", setting.key);
  const std::string text = to_yaml(setting.value);
  if (is_written(setting.section, setting.key)) {
    const RawNode& node = entries_.find(path)->node;
    std::string complaint;
    const Value value = parse_value(key, node, complaint);
    // A language model may be given a score head.
    const bool adds_head = setting.key == "score_head" && text == "False";
    if (setting.compared && complaint.empty() && to_yaml(value) != text && !adds_head) {
      findings_.error(node.place,
                      concat(entries_.shown(setting.section), ".", setting.key, ": is ",
                             to_yaml(value), ", ", but_file_says(setting, file), kRemedy,
                             setting.key == "num_experts" && text == "1"
                                 ? "; moe_config.upcycle_from makes experts of a dense model"
                                 : ""));
      findings_.faulty.insert(path);
    }
    return;
  }
  // Keys that are short for this one are left to say it.
  if (has_short(setting)) {
    return;
  }
  const std::string origin = concat(file, ", ", setting.hf_name);
  Entry entry{.key = &key, .key_place = Place{origin}, .written_as = std::string(key.name)};
  entry.origin = ConfigOrigin{ConfigOrigin::Kind::kFile,
                              concat(origin, setting.written ? "" : " by default"), origin, ""};
  entry.node = parse_yaml(text, entry.key_place, /*fixed_place=*/true, findings_.errors);
  entries_.set(path, std::move(entry));
}

void Loader::take_value(const AllConfig& values, const Section& section, const Key& key) {
  if (const size_t dot = key.name.rfind('.'); dot != std::string_view::npos) {
    const Key* mapping = find_key(section.name, key.name.substr(0, dot));
    if (mapping->field.get(values).is_null()) {
      return;
    }
  }
  const std::string path = path_of(section, key.name);
  const std::string text = to_yaml(key.field.get(values));
  const auto known = values.origins.find(path);
  const bool is_known = known != values.origins.end();
  Entry entry{.key = &key, .written_as = std::string(key.name)};
  if (is_known && known->second.value == text) {
    if (known->second.place.empty()) {
      return;  // a default, or made anew
    }
    entry.origin = known->second;
  } else if (!is_known && text == to_yaml(default_value(key))) {
    return;
  } else {
    entry.origin = ConfigOrigin{ConfigOrigin::Kind::kCode, "C++", name_, ""};
  }
  entry.key_place = Place{entry.origin->place};
  entry.node = parse_yaml(yaml_of(key, key.field.get(values)), entry.key_place,
                          /*fixed_place=*/true, findings_.errors);
  entries_.set(path, std::move(entry));
}

void Loader::assign_all() {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      assign(section, key);
    }
  }
}

// Rows of mappings come before their entries, so an absent mapping is known by then.
void Loader::assign(const Section& section, const Key& key) {
  const std::string path = path_of(section, key.name);
  const size_t inner = key.name.find('.');
  const std::string parent =
      inner == std::string_view::npos ? std::string() : path_of(section, key.name.substr(0, inner));
  const Entry* entry = entries_.find(path);
  if (entry == nullptr) {
    const Key* mapping = find_key(section.name, key.name.substr(0, inner));
    if (!parent.empty() && (findings_.faulty.contains(parent) || !is_present(*mapping, parent))) {
      return;
    }
    if (key.required) {
      missing(section, key, parent, path);
    }
    config_.origins[path] = {ConfigOrigin::Kind::kDefault, "default", "", ""};
    return;
  }
  std::string complaint;
  const Value value = parse_value(key, entry->node, complaint);
  if (complaint.empty()) {
    complaint = config::complaint(key, value);
    if (!complaint.empty() && key.check.choices.empty()) {
      complaint += usual_value(key);
    }
  }
  const Place& place = entry->node.place;
  if (!complaint.empty()) {
    findings_.error(place,
                    entries_.shown(section.name) + "." + std::string(key.name) + ": " + complaint);
    findings_.faulty.insert(path);
    return;
  }
  if (entry->node.kind == RawNode::Kind::kScalar && value.is<std::string>() && !key.path &&
      value.as<std::string>() != entry->node.scalar) {
    config_.notes.push_back(place.text() + ": " + entries_.shown(section.name) + "." +
                            std::string(key.name) + ": '" + entry->node.scalar + "' means " +
                            value.as<std::string>());
  }
  key.field.set(config_, value);
  config_.origins[path] = entry->origin ? *entry->origin : origin_at(place, entry->is_override);
  config_.origins[path].idle.clear();  // of an earlier resolution
  if (!parent.empty() && config_.origins[parent].kind == ConfigOrigin::Kind::kDefault) {
    config_.origins[parent] = config_.origins[path];  // an entry brings its mapping with it
  }
}

// A mapping is there if it was written, if one of its entries was, or if it always is.
bool Loader::is_present(const Key& mapping, const std::string& path) const {
  const Entry* written = entries_.find(path);
  return !mapping.field.nullable ||
         (written != nullptr && written->node.kind != RawNode::Kind::kNull) ||
         entries_.has_any_below(path + ".");
}

void Loader::missing(const Section& section,
                     const Key& key,
                     const std::string& parent,
                     const std::string& path) {
  findings_.faulty.insert(path);
  Place place{name_};
  const Place* section_place = entries_.place_of_section(section.name);
  if (const Entry* mapping = entries_.find(parent)) {
    place = mapping->key_place;
  } else if (section_place != nullptr) {
    place = *section_place;
  }
  if (findings_.unread_sections.contains(std::string(section.name))) {
    return;
  }
  if (section_place == nullptr && !entries_.has_any_below(path_of(section, ""))) {
    if (missing_sections_.insert(std::string(section.name)).second) {
      findings_.error(place,
                      concat("the section ", entries_.shown(section.name), " is missing; it needs ",
                             required_keys(section), model_hint(section)));
    }
    return;
  }
  findings_.error(place, concat(entries_.shown(section.name), ".", key.name, " is required (",
                                type_text(key), "): ", key.doc, " Add it, for example `",
                                last_name(key), ": ", key.example, "`"));
}

std::string Loader::model_hint(const Section& section) const {
  return section.name != "model_config"
             ? std::string()
             : concat("; --model_type names the section that holds the model",
                      entries_.other_model().empty()
                          ? ""
                          : concat(", the file has ", entries_.other_model()));
}

std::string Loader::place_of(const std::string& key) const {
  if (const auto origin = config_.origins.find(key);
      origin != config_.origins.end() && !origin->second.place.empty()) {
    return origin->second.place;
  }
  if (const Entry* entry = entries_.find(key)) {
    return entry->node.place.text();
  }
  const Place* section = entries_.place_of_section(key.substr(0, key.find('.')));
  return section != nullptr ? section->text() : name_;
}

// Names that stand for a key's True, or for another value of a key that is off with null.
void Loader::switch_on() {
  for (const Repetition& repetition : entries_.repetitions()) {
    const ForeignName& row = *repetition.row;
    const bool has_value = row.use == ForeignName::Use::kSwitch && !row.idle.empty();
    if (row.use != ForeignName::Use::kSwitch && row.use != ForeignName::Use::kMeans) {
      continue;
    }
    const std::string path(row.here);
    const Key& key = *key_at(path);
    const std::string wanted(has_value ? row.idle : "True");
    if (const Entry* entry = entries_.find(path)) {
      std::string complaint;
      const Value value = parse_value(key, entry->node, complaint);
      if (complaint.empty() && (has_value ? value.is_null() : to_yaml(value) != wanted)) {
        findings_.error(
            entry->node.place,
            concat(path, ": is ", to_yaml(value), ", but ", repetition.node.scalar, " at ",
                   repetition.node.place.text(), " asks for it; leave one of them out"));
      }
      continue;
    }
    Entry entry{
        .key = &key, .key_place = repetition.node.place, .written_as = repetition.node.scalar};
    entry.node = RawNode{.kind = RawNode::Kind::kScalar, .scalar = wanted};
    entry.node.place = repetition.node.place;
    entries_.set(path, std::move(entry));
  }
}

// Values that repeat a key's must be those that hold, or that were written.
void Loader::check_repetitions() {
  for (const Repetition& repetition : entries_.repetitions()) {
    const ForeignName& row = *repetition.row;
    const std::string path(row.here);
    if (row.use != ForeignName::Use::kSame || findings_.faulty.contains(path)) {
      continue;
    }
    const Key& key = *key_at(path);
    std::string error;
    const Value value = parse_value(key, repetition.node, error);
    const Value ours = key.field.get(config_);
    const Entry* entry = entries_.find(path);
    std::string ignored;
    const bool same =
        to_yaml(value) == to_yaml(ours) ||
        (entry != nullptr && to_yaml(value) == to_yaml(parse_value(key, entry->node, ignored)));
    if (error.empty() && !same) {
      const size_t dot = path.find('.');
      error = concat("is ", to_yaml(value), ", but ", entries_.shown(path.substr(0, dot)),
                     path.substr(dot), " is ", to_yaml(ours), "; set it so, or leave it out");
    }
    if (!error.empty()) {
      findings_.error(repetition.node.place, concat(row.name, ": ", error));
    }
  }
}

void Loader::find_unsupported() {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      const std::string path = path_of(section, key.name);
      if (findings_.faulty.contains(path) || !config_.origins.contains(path)) {
        continue;
      }
      const Value value = key.field.get(config_);
      if (!is_supported(key, value)) {
        std::string accepted;
        for (const std::string_view item : split_text(key.accepted, '|')) {
          accepted += (accepted.empty() ? "" : ", ") + std::string(item);
        }
        const bool mapping = key.field.type == Type::kMapping;
        config_.unsupported.push_back(place_of(path) + ": " + entries_.shown(section.name) + "." +
                                      std::string(key.name) + ": " +
                                      (mapping ? "a mapping here" : to_yaml(value)) +
                                      (key.planned ? " is not supported yet: " : " is refused: ") +
                                      std::string(key.reason) + " (accepted: " + accepted + ")");
      }
    }
  }
}

AllConfig Loader::complete() {
  config_.model_section = entries_.model_section();
  config_.notes = findings_.notes;
  const std::optional<HfConfig> hf = take_from_hf();
  switch_on();
  assign_all();
  Resolution resolution(
      config_, findings_.faulty, [this](const std::string& key) { return place_of(key); },
      findings_.errors);
  resolve(resolution);
  check_repetitions();
  if (hf && findings_.errors.empty()) {  // what the keys that were given have led to
    TransformerConfig model = config_.model_config;
    if (starts_from_dense()) {
      model.moe = {};
    }
    for (const std::string& difference : differences(model, *hf, config_.model_section)) {
      findings_.error(Place{place_of(kFromHf)}, difference + kRemedy);
    }
  }
  find_unsupported();
  if (!findings_.errors.empty()) {
    findings_.errors.insert(findings_.errors.end(), config_.unsupported.begin(),
                            config_.unsupported.end());
    throw ConfigError(findings_.errors);
  }
  for (auto& [path, origin] : config_.origins) {
    origin.value = to_yaml(key_at(path)->field.get(config_));
  }
  return std::move(config_);
}

}  // namespace tapestry::config
