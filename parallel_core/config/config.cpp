#include "parallel_core/config/config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "parallel_core/config/foreign_names.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/load.h"
#include "parallel_core/config/parse_value.h"
#include "parallel_core/config/raw_json.h"
#include "parallel_core/config/raw_yaml.h"
#include "parallel_core/config/read_hf_config.h"
#include "parallel_core/config/resolve.h"
#include "parallel_core/config/schema.h"
#include "parallel_core/config/unknown_names.h"

namespace tapestry {
namespace {

using config::ForeignName;
using config::Key;
using config::Place;
using config::RawNode;
using config::Section;

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

// One value as it was written, with the name that it was given by.
struct Entry {
  const Key* key = nullptr;
  RawNode node;
  Place key_place;
  std::string written_as;
  bool is_override = false;
  std::optional<ConfigOrigin> origin = {};  // where its place does not say it
};

constexpr const char* kFromHf = "model_config.from_hf";
constexpr const char* kRemedy = "; leave the key out, or set it so";

class Loader {
 public:
  Loader(std::string name,
         const LoadOptions& options,
         const std::vector<config::Override>& overrides = {})
      : name_(std::move(name)), options_(options), overrides_(overrides) {
    for (const std::string& text : options.overrides) {
      overrides_.push_back({text, "--set " + text});
    }
  }

  AllConfig load(const std::string& text) {
    return load(config::parse_yaml(text, {name_}, /*fixed_place=*/false, errors_));
  }

  AllConfig load(const RawNode& root) {
    if (root.kind == RawNode::Kind::kMap) {
      choose_model_section(root);
      read_sections(root);
    } else if (errors_.empty()) {
      error(root.kind == RawNode::Kind::kNull ? Place{name_} : root.place,
            root.kind == RawNode::Kind::kNull
                ? "is empty; expected sections such as training_config, for example "
                  "those of examples/gpt/pretrain_gpt_tiny.yaml"
                : concat("expected a mapping of sections such as training_config, got ",
                         config::found_text(root)));
    }
    if (root.kind != RawNode::Kind::kMap) {
      throw ConfigError(errors_);
    }
    for (const config::Override& override : overrides_) {
      read_override(override.text, Place{override.place});
    }
    return complete();
  }

  // What was set in C++, or read earlier and not changed since.
  AllConfig load(const AllConfig& values) {
    config_.model_section = values.model_section;
    for (const Section& section : config::schema()) {
      section_places_[std::string(section.name)] = Place{name_};
      for (const Key& key : section.keys) {
        take_value(values, section, key);
      }
    }
    return complete();
  }

 private:
  AllConfig complete() {
    const std::optional<HfConfig> hf = take_from_hf();
    assign_all();
    config::Resolution resolution(
        config_, faulty_, [this](const std::string& key) { return place_of(key); }, errors_);
    config::resolve(resolution);
    if (hf && errors_.empty()) {  // what the keys that were given have led to
      for (const std::string& difference :
           differences(config_.model_config, *hf, config_.model_section)) {
        error(Place{place_of(kFromHf)}, difference + kRemedy);
      }
    }
    find_unsupported();
    if (!errors_.empty()) {
      errors_.insert(errors_.end(), config_.unsupported.begin(), config_.unsupported.end());
      throw ConfigError(errors_);
    }
    for (auto& [path, origin] : config_.origins) {
      const size_t dot = path.find('.');
      const Key* key = config::find_key(path.substr(0, dot), path.substr(dot + 1));
      origin.value = config::to_yaml(key->field.get(config_));
    }
    return std::move(config_);
  }

  // The keys that model_config.from_hf stands for become entries, unless they are given.
  std::optional<HfConfig> take_from_hf() {
    const auto found = entries_.find(kFromHf);
    if (found == entries_.end() || found->second.node.kind == RawNode::Kind::kNull) {
      return std::nullopt;
    }
    const Entry given = found->second;
    std::string complaint;
    const config::Value folder = config::parse_value(*given.key, given.node, complaint);
    if (!complaint.empty()) {
      unread_sections_.insert("model_config");  // its keys are not missing
      return std::nullopt;
    }
    try {
      HfConfig hf = read_hf_config(folder.as<std::string>());
      check<ValueError>(hf.complete, hf.file,
                        ": does not describe its model; name the configuration of the run that "
                        "saved it, config.yaml beside it");
      for (const HfSetting& setting : hf.settings) {
        take_hf_setting(setting, hf.file);
      }
      for (const std::string& undecided : hf.undecided) {
        if (!is_written(undecided.substr(0, undecided.find(':')))) {
          error(given.node.place, concat(shown("model_config"), ".", undecided));
        }
      }
      return hf;
    } catch (const Error& failure) {
      error(given.node.place, concat(shown("model_config"), ".from_hf: ", failure.what()));
      unread_sections_.insert("model_config");
      return std::nullopt;
    }
  }

  bool is_written(const std::string& key) const {
    return entries_.contains(concat("model_config.", key));
  }

  void take_hf_setting(const HfSetting& setting, const std::string& file) {
    const Key& key = *config::find_key("model_config", setting.key);
    const std::string path = concat("model_config.", setting.key);
    const std::string text = config::to_yaml(setting.value);
    if (is_written(setting.key)) {
      const RawNode& node = entries_.at(path).node;
      std::string complaint;
      const config::Value value = config::parse_value(key, node, complaint);
      if (setting.compared && complaint.empty() && config::to_yaml(value) != text) {
        error(node.place,
              concat(shown("model_config"), ".", setting.key, ": is ", config::to_yaml(value), ", ",
                     but_file_says(setting, file), kRemedy));
        faulty_.insert(path);
      }
      return;
    }
    // Keys that are short for this one are left to say it.
    const bool has_short =
        (setting.key.ends_with("_has_bias") && is_written("add_bias_linear")) ||
        (setting.key == "attention_dropout" && is_written("fa_config.keep_prob"));
    if (has_short) {
      return;
    }
    const std::string origin = concat(file, ", ", setting.hf_name);
    Entry entry{.key = &key, .key_place = Place{origin}, .written_as = std::string(key.name)};
    entry.origin = ConfigOrigin{ConfigOrigin::Kind::kFile,
                                concat(origin, setting.written ? "" : " by default"), origin, ""};
    entry.node = config::parse_yaml(text, entry.key_place, /*fixed_place=*/true, errors_);
    entries_[path] = entry;
  }

  void take_value(const AllConfig& values, const Section& section, const Key& key) {
    if (const size_t dot = key.name.rfind('.'); dot != std::string_view::npos) {
      const Key* mapping = config::find_key(section.name, key.name.substr(0, dot));
      if (mapping->field.get(values).is_null()) {
        return;
      }
    }
    const std::string path = std::string(section.name) + "." + std::string(key.name);
    const std::string text = config::to_yaml(key.field.get(values));
    const auto known = values.origins.find(path);
    const bool is_known = known != values.origins.end();
    Entry entry{.key = &key, .written_as = std::string(key.name)};
    if (is_known && known->second.value == text) {
      if (known->second.place.empty()) {
        return;  // a default, or made anew
      }
      entry.origin = known->second;
    } else if (!is_known && text == config::to_yaml(config::default_value(key))) {
      return;
    } else {
      entry.origin = ConfigOrigin{ConfigOrigin::Kind::kCode, "C++", name_, ""};
    }
    entry.key_place = Place{entry.origin->place};
    entry.node = config::parse_yaml(text, entry.key_place, /*fixed_place=*/true, errors_);
    entries_[path] = entry;
  }

  void error(const Place& place, const std::string& message) {
    errors_.push_back(place.text() + ": " + message);
  }

  void choose_model_section(const RawNode& root) {
    const auto has = [&root](const std::string& name) {
      return std::any_of(root.entries.begin(), root.entries.end(),
                         [&name](const auto& entry) { return entry.key.scalar == name; });
    };
    config_.model_section = options_.model_type;
    if (options_.model_type == "model_config" && !has("model_config") && has("gpt_config")) {
      config_.model_section = "gpt_config";
    }
    for (const char* usual : {"model_config", "gpt_config"}) {
      if (!has(config_.model_section) && has(usual)) {
        other_model_ = usual;
      }
    }
    if (options_.model_type != "model_config" &&
        config::find_section(options_.model_type) != nullptr) {
      error(Place{"--model_type " + options_.model_type},
            "this section does not hold the model; expected model_config, gpt_config or a name "
            "of your own");
    }
  }

  const Section* known_section(const std::string& name) const {
    return config::section_of(name, config_.model_section);
  }

  std::string shown(std::string_view section) const {
    return config::shown_section(section, config_.model_section);
  }

  void read_sections(const RawNode& root) {
    for (const auto& [name, body] : root.entries) {
      const Section* section = known_section(name.scalar);
      if (section == nullptr) {
        if (!name.scalar.starts_with("x-") && name.scalar != other_model_ &&
            !read_top_level(name, body, false)) {
          read_foreign_section(name, body);
        }
        continue;
      }
      section_places_[std::string(section->name)] = name.place;
      if (body.kind == RawNode::Kind::kNull) {
        continue;
      }
      if (body.kind != RawNode::Kind::kMap) {
        error(body.place,
              concat(name.scalar, ": expected a mapping of keys, got ", config::found_text(body)));
        unread_sections_.insert(std::string(section->name));
        continue;
      }
      for (const auto& [key, value] : body.entries) {
        read_key(*section, "", key, value, false);
      }
    }
  }

  static bool is_top_level(std::string_view name) {
    for (const Section& section : config::schema()) {
      for (const Key& key : section.keys) {
        const auto aliases = config::split_text(key.aliases, '|');
        if (std::find(aliases.begin(), aliases.end(), concat("/", name)) != aliases.end()) {
          return true;
        }
      }
    }
    return false;
  }

  // A section of another program's: what of it is not read is an error.
  void read_foreign_section(const RawNode& name, const RawNode& body) {
    RawNode rest = body;
    if (config::holds_readable_names(name.scalar)) {
      rest = read_foreign(name.scalar, body);
      const bool all_is_read = body.kind == RawNode::Kind::kNull ||
                               (body.kind != RawNode::Kind::kScalar && is_empty(rest));
      if (all_is_read) {
        return;
      }
    }
    error(name.place, config::unknown_section(name, rest, config_.model_section));
  }

  static bool is_empty(const RawNode& node) { return node.items.empty() && node.entries.empty(); }

  static bool holds_mappings(const RawNode& node) {
    return node.kind == RawNode::Kind::kMap ||
           std::any_of(node.items.begin(), node.items.end(), holds_mappings);
  }

  // Reads what stands below a path of another program's; returns what nothing here reads.
  RawNode read_foreign(const std::string& path, const RawNode& body) {
    RawNode rest{.kind = body.kind, .scalar = body.scalar, .place = body.place};
    for (const RawNode& item : body.items) {
      RawNode left = read_foreign(path, item);
      if (!is_empty(left) || item.kind != RawNode::Kind::kMap) {
        rest.items.push_back(std::move(left));
      }
    }
    std::string typed = path;  // with the type of what this describes
    for (const auto& [name, value] : body.entries) {
      if (name.scalar == "type" && value.kind == RawNode::Kind::kScalar) {
        typed = concat(path, ".", value.scalar);
      }
    }
    for (const auto& [name, value] : body.entries) {
      const std::string own = concat(path, ".", name.scalar);
      const ForeignName* row = config::find_readable_name(concat(typed, ".", name.scalar));
      row = row != nullptr ? row : config::find_readable_name(own);
      if (row != nullptr && !holds_mappings(value)) {
        read_foreign_value(*row, name, value, false);
      } else if (holds_mappings(value)) {
        RawNode left = read_foreign(own, value);
        if (!is_empty(left)) {
          rest.entries.push_back({name, std::move(left)});
        }
      } else if (name.scalar != "type" || !config::holds_readable_names(typed)) {
        rest.entries.push_back({name, value});
      }
    }
    return rest;
  }

  void read_foreign_value(const ForeignName& row,
                          const RawNode& name,
                          const RawNode& value,
                          bool is_override) {
    const auto idle = config::split_text(row.idle, '|');
    const bool is_idle = std::find(idle.begin(), idle.end(), value.scalar) != idle.end();
    if (row.use == ForeignName::Use::kNothing) {
      if (!idle.empty() && !is_idle && value.kind != RawNode::Kind::kNull) {
        error(value.place, concat(row.name, ": ", value.scalar, " has no counterpart: ", row.note,
                                  "; leave it out"));
      } else if (idle.empty()) {
        config_.notes.push_back(
            concat(value.place.text(), ": ", row.name, " has no effect: ", row.note));
      }
      return;
    }
    for (const std::string_view path : config::split_text(row.here, '|')) {
      const size_t dot = path.find('.');
      const size_t last = path.rfind('.');
      RawNode renamed = name;
      renamed.scalar = path.substr(last + 1);
      const std::string prefix(dot == last ? "" : path.substr(dot + 1, last - dot));
      if (!is_idle) {
        read_key(*config::find_section(path.substr(0, dot)), prefix, renamed, value, is_override,
                 row.name);
      }
    }
  }

  // A key that is accepted at top level too ("/name" among its aliases).
  bool read_top_level(const RawNode& name, const RawNode& body, bool is_override) {
    for (const Section& section : config::schema()) {
      for (const Key& key : section.keys) {
        for (const std::string_view alias : config::split_text(key.aliases, '|')) {
          if (alias.front() == '/' && alias.substr(1) == name.scalar) {
            RawNode renamed = name;
            renamed.scalar = key.name;
            read_key(section, "", renamed, body, is_override, name.scalar);
            return true;
          }
        }
      }
    }
    return false;
  }

  void read_key(const Section& section,
                const std::string& prefix,
                const RawNode& name,
                const RawNode& node,
                bool is_override,
                std::string_view written_as = {}) {
    const Key* key = config::row_of(section, prefix + name.scalar);
    if (key == nullptr || name.scalar.find('.') != std::string::npos) {
      const ForeignName* row =
          config::find_readable_name(concat(section.name, ".", prefix, name.scalar));
      if (row != nullptr) {
        read_foreign_value(*row, name, node, is_override);
        return;
      }
      error(name.place, config::unknown_key(section, prefix, name, config_.model_section));
      return;
    }
    const std::string path = std::string(section.name) + "." + std::string(key->name);
    const bool is_mapping = key->field.type == config::Type::kMapping;
    if (is_mapping && node.kind == RawNode::Kind::kScalar && !key->scalar_entry.empty()) {
      RawNode mapping{.kind = RawNode::Kind::kMap, .place = node.place};
      RawNode entry{.kind = RawNode::Kind::kScalar, .scalar = std::string(key->scalar_entry)};
      entry.place = name.place;
      mapping.entries.push_back({std::move(entry), node});
      read_key(section, prefix, name, mapping, is_override);
      return;
    }
    if (is_mapping && node.kind != RawNode::Kind::kMap && node.kind != RawNode::Kind::kNull) {
      error(node.place,
            concat(shown(section.name), ".", key->name, ": expected a mapping, got ",
                   node.kind == RawNode::Kind::kList ? "a list" : concat("'", node.scalar, "'"),
                   config::entries_text(section, *key)));
      faulty_.insert(path);
      return;
    }
    Entry entry{key, node, name.place, written_as.empty() ? name.scalar : std::string(written_as),
                is_override};
    if (is_mapping && is_override) {
      const std::string inner = path + ".";  // a whole mapping replaces the older one
      std::erase_if(entries_, [&](const auto& old) { return old.first.starts_with(inner); });
    }
    const auto old = entries_.find(path);
    if (old != entries_.end() && !is_override && !same_text(old->second.node, node)) {
      error(name.place, shown(section.name) + "." + std::string(key->name) + ": given as '" +
                            old->second.written_as + "' at " + old->second.key_place.text() +
                            " and as '" + entry.written_as + "' here, with different values");
      return;
    }
    entries_[path] = entry;
    if (is_mapping) {
      for (const auto& [inner_name, inner] : node.entries) {
        read_key(section, std::string(key->name) + ".", inner_name, inner, is_override);
      }
    }
  }

  static bool same_text(const RawNode& a, const RawNode& b) {
    if (a.kind != b.kind || a.scalar != b.scalar || a.items.size() != b.items.size() ||
        a.entries.size() != b.entries.size()) {
      return false;
    }
    for (size_t i = 0; i < a.items.size(); ++i) {
      if (!same_text(a.items[i], b.items[i])) {
        return false;
      }
    }
    for (size_t i = 0; i < a.entries.size(); ++i) {
      if (a.entries[i].key.scalar != b.entries[i].key.scalar ||
          !same_text(a.entries[i].value, b.entries[i].value)) {
        return false;
      }
    }
    return true;
  }

  // An override of a name at top level, or of another program's path.
  bool read_other_spelling(const std::string& name, const std::string& value, const Place& place) {
    const bool has_section = name.find('.') != std::string::npos;
    const ForeignName* row = config::find_readable_name(name);
    if ((has_section && row == nullptr) || name.empty()) {
      return false;
    }
    const RawNode key{.kind = RawNode::Kind::kScalar, .scalar = name, .place = place};
    if (row != nullptr) {
      read_foreign_value(*row, key, config::parse_yaml(value, place, true, errors_), true);
      return true;
    }
    return is_top_level(name) &&
           read_top_level(key, config::parse_yaml(value, place, true, errors_), true);
  }

  void read_override(const std::string& text, const Place& place) {
    const size_t equals = text.find('=');
    const size_t dot = text.find('.');
    const std::string whole = text.substr(0, equals);
    if (equals != std::string::npos && read_other_spelling(whole, text.substr(equals + 1), place)) {
      return;
    }
    if (equals == std::string::npos || dot == std::string::npos || dot > equals || dot == 0 ||
        dot + 1 == equals) {
      error(place,
            "expected section.key=value" + config::override_hint(text, config_.model_section));
      return;
    }
    RawNode section_name{.kind = RawNode::Kind::kScalar, .scalar = text.substr(0, dot)};
    section_name.place = place;
    if (section_name.scalar == "model_config") {
      section_name.scalar = config_.model_section;
    }
    RawNode key_name{.kind = RawNode::Kind::kScalar,
                     .scalar = text.substr(dot + 1, equals - dot - 1)};
    key_name.place = place;
    const RawNode value = config::parse_yaml(text.substr(equals + 1), place, true, errors_);
    if (section_name.scalar == "recompute_config") {  // the one mapping that may stand on top
      key_name.scalar = "recompute_config." + key_name.scalar;
      section_name.scalar = "parallel_config";
    }
    const Section* section = known_section(section_name.scalar);
    if (section == nullptr) {
      error(place, config::unknown_section(section_name, RawNode{.kind = RawNode::Kind::kScalar},
                                           config_.model_section));
      return;
    }
    const size_t inner = key_name.scalar.rfind('.');
    const std::string prefix =
        inner == std::string::npos ? "" : key_name.scalar.substr(0, inner + 1);
    if (!prefix.empty()) {
      const Key* mapping = config::row_of(*section, key_name.scalar.substr(0, inner));
      if (mapping == nullptr || mapping->field.type != config::Type::kMapping) {
        error(place, config::unknown_key(*section, "", key_name, config_.model_section));
        return;
      }
      key_name.scalar = key_name.scalar.substr(inner + 1);
    }
    read_key(*section, prefix, key_name, value, true);
  }

  void assign_all() {
    for (const Section& section : config::schema()) {
      for (const Key& key : section.keys) {
        assign(section, key);
      }
    }
  }

  // Rows of mappings come before their entries, so an absent mapping is known by then.
  void assign(const Section& section, const Key& key) {
    const std::string path = std::string(section.name) + "." + std::string(key.name);
    const size_t inner = key.name.find('.');
    const std::string parent =
        inner == std::string_view::npos
            ? std::string()
            : std::string(section.name) + "." + std::string(key.name.substr(0, inner));
    const auto found = entries_.find(path);
    if (found == entries_.end()) {
      const Key* mapping = config::find_key(section.name, key.name.substr(0, inner));
      if (!parent.empty() && (faulty_.contains(parent) || !is_present(*mapping, parent))) {
        return;
      }
      if (key.required) {
        missing(section, key, parent, path);
      }
      config_.origins[path] = {ConfigOrigin::Kind::kDefault, "default", "", ""};
      return;
    }
    const Entry& entry = found->second;
    std::string complaint;
    config::Value value = config::parse_value(key, entry.node, complaint);
    if (complaint.empty()) {
      complaint = config::complaint(key, value);
      if (!complaint.empty() && key.check.choices.empty()) {
        complaint += config::usual_value(key);
      }
    }
    const Place& place = entry.node.place;
    if (!complaint.empty()) {
      error(place, shown(section.name) + "." + std::string(key.name) + ": " + complaint);
      faulty_.insert(path);
      return;
    }
    if (entry.node.kind == RawNode::Kind::kScalar && value.is<std::string>() && !key.path &&
        value.as<std::string>() != entry.node.scalar) {
      config_.notes.push_back(place.text() + ": " + shown(section.name) + "." +
                              std::string(key.name) + ": '" + entry.node.scalar + "' means " +
                              value.as<std::string>());
    }
    key.field.set(config_, value);
    config_.origins[path] = entry.origin ? *entry.origin : origin_at(place, entry.is_override);
    if (!parent.empty() && config_.origins[parent].kind == ConfigOrigin::Kind::kDefault) {
      config_.origins[parent] = config_.origins[path];  // an entry brings its mapping with it
    }
  }

  static ConfigOrigin origin_at(const Place& place, bool is_override) {
    const bool is_set = is_override && place.source.starts_with("--set ");
    return {is_override ? ConfigOrigin::Kind::kOverride : ConfigOrigin::Kind::kFile,
            is_set            ? "--set"
            : place.line == 0 ? place.source
                              : place.source + ":" + std::to_string(place.line),
            place.text(), ""};
  }

  // A mapping is there if it was written, if one of its entries was, or if it always is.
  bool is_present(const Key& mapping, const std::string& path) const {
    const auto written = entries_.find(path);
    if (!mapping.field.nullable ||
        (written != entries_.end() && written->second.node.kind != RawNode::Kind::kNull)) {
      return true;
    }
    const auto inner = entries_.lower_bound(path + ".");
    return inner != entries_.end() && inner->first.starts_with(path + ".");
  }

  void missing(const Section& section,
               const Key& key,
               const std::string& parent,
               const std::string& path) {
    faulty_.insert(path);
    Place place{name_};
    if (const auto mapping = entries_.find(parent); mapping != entries_.end()) {
      place = mapping->second.key_place;
    } else if (const auto known = section_places_.find(std::string(section.name));
               known != section_places_.end()) {
      place = known->second;
    }
    const auto written = entries_.lower_bound(std::string(section.name) + ".");
    const bool any = written != entries_.end() && written->first.starts_with(section.name);
    if (unread_sections_.contains(std::string(section.name))) {
      return;
    }
    if (!section_places_.contains(std::string(section.name)) && !any) {
      if (missing_sections_.insert(std::string(section.name)).second) {
        error(place, concat("the section ", shown(section.name), " is missing; it needs ",
                            config::required_keys(section), model_hint(section)));
      }
      return;
    }
    error(place, concat(shown(section.name), ".", key.name, " is required (",
                        config::type_text(key), "): ", key.doc, " Add it, for example `",
                        config::last_name(key), ": ", key.example, "`"));
  }

  std::string model_hint(const Section& section) const {
    return section.name != "model_config"
               ? std::string()
               : concat("; --model_type names the section that holds the model",
                        other_model_.empty() ? "" : concat(", the file has ", other_model_));
  }

  std::string place_of(const std::string& key) const {
    if (const auto origin = config_.origins.find(key);
        origin != config_.origins.end() && !origin->second.place.empty()) {
      return origin->second.place;
    }
    if (const auto entry = entries_.find(key); entry != entries_.end()) {
      return entry->second.node.place.text();
    }
    const auto section = section_places_.find(key.substr(0, key.find('.')));
    return section != section_places_.end() ? section->second.text() : name_;
  }

  void find_unsupported() {
    for (const Section& section : config::schema()) {
      for (const Key& key : section.keys) {
        const std::string path = std::string(section.name) + "." + std::string(key.name);
        if (faulty_.contains(path) || !config_.origins.contains(path)) {
          continue;
        }
        const config::Value value = key.field.get(config_);
        if (!config::is_supported(key, value)) {
          std::string accepted;
          for (const std::string_view item : config::split_text(key.accepted, '|')) {
            accepted += (accepted.empty() ? "" : ", ") + std::string(item);
          }
          const bool mapping = key.field.type == config::Type::kMapping;
          config_.unsupported.push_back(
              place_of(path) + ": " + shown(section.name) + "." + std::string(key.name) + ": " +
              (mapping ? "a mapping here" : config::to_yaml(value)) +
              (key.planned ? " is not supported yet: " : " is refused: ") +
              std::string(key.reason) + " (accepted: " + accepted + ")");
        }
      }
    }
  }

  std::string name_;
  const LoadOptions& options_;
  std::vector<config::Override> overrides_;
  AllConfig config_;
  std::map<std::string, Entry> entries_;  // by "section.key", canonical names
  std::map<std::string, Place> section_places_;
  std::set<std::string> missing_sections_;
  std::string other_model_;                // a model where its section is missing
  std::set<std::string> unread_sections_;  // that are no mappings
  std::set<std::string> faulty_;
  std::vector<std::string> errors_;
};

}  // namespace

ConfigError::ConfigError(std::vector<std::string> findings)
    : ValueError(joined_lines(findings)), findings_(std::move(findings)) {}

bool AllConfig::same_values(const AllConfig& other) const {
  return training_config == other.training_config && parallel_config == other.parallel_config &&
         dataset_config == other.dataset_config && model_config == other.model_config &&
         optimizer_config == other.optimizer_config && moe_config == other.moe_config &&
         lora_config == other.lora_config && tensorboard == other.tensorboard &&
         monitor_config == other.monitor_config;
}

AllConfig init_configs_from_text(const std::string& text,
                                 const std::string& name,
                                 const LoadOptions& options) {
  return Loader(name, options).load(text);
}

void resolve(AllConfig& config) {
  const LoadOptions options{.model_type = config.model_section};
  config = Loader("C++", options).load(config);
}

AllConfig init_configs_from_dict(const nlohmann::json& dict, const LoadOptions& options) {
  std::vector<std::string> errors;
  const RawNode root = config::raw_node(dict, Place{"dict"}, errors);
  if (!errors.empty()) {
    throw ConfigError(errors);
  }
  return Loader("dict", options).load(root);
}

namespace {

std::string read_config_file(const std::string& path) {
  if (!path.ends_with(".yaml") && !path.ends_with(".yml")) {
    throw ConfigError({path + ": the name of a configuration file must end in .yaml or .yml; "
                              "presets are examples/gpt/pretrain_gpt_*.yaml"});
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) {
    text << file.rdbuf();
  }
  if (!file || file.bad() || std::filesystem::is_directory(path)) {
    throw IoError(path + ": cannot be read; give the path of a YAML file, for example " +
                  "examples/gpt/pretrain_gpt_tiny.yaml");
  }
  return text.str();
}

}  // namespace

AllConfig init_configs_from_yaml(const std::string& path, const LoadOptions& options) {
  return Loader(path, options).load(read_config_file(path));
}

AllConfig config::load_with(const std::string& path,
                            const std::vector<Override>& overrides,
                            const LoadOptions& options) {
  if (path.empty()) {
    return Loader("command line", options, overrides).load(RawNode{.kind = RawNode::Kind::kMap});
  }
  return Loader(path, options, overrides).load(read_config_file(path));
}

void require_complete(const AllConfig& config) {
  check<ValueError>(!config.origins.empty(),
                    "the configuration was made in C++ and is not complete; call resolve(config)");
}

void require_supported(const AllConfig& config) {
  require_complete(config);
  if (!config.unsupported.empty()) {
    throw ConfigError(config.unsupported);
  }
}

std::optional<GradClipConfig> gradient_clipping(const AllConfig& config) {
  if (config.training_config.grad_clip_kwargs) {
    return config.training_config.grad_clip_kwargs;
  }
  if (config.optimizer_config.clip_grad > 0) {
    return GradClipConfig{"ClipGlobalNorm", config.optimizer_config.clip_grad};
  }
  return std::nullopt;
}

std::string start_weights(const AllConfig& config) {
  const auto origin = config.origins.find("training_config.load_checkpoint");
  const bool given = origin != config.origins.end() && !origin->second.place.empty();
  const std::string& path = config.training_config.load_checkpoint;
  return given || !path.empty() ? path : config.model_config.from_hf.value_or("");
}

int zero_level(const AllConfig& config) {
  if (const auto& level = config.parallel_config.zero_level) {
    return *level == "z3" ? 3 : *level == "z2" ? 2 : 1;
  }
  return config.training_config.use_distributed_optimizer ? 1 : 0;
}

bool keeps_gathered_weights(const AllConfig& config) {
  const std::optional<RecomputeConfig>& recompute = config.parallel_config.recompute_config;
  return zero_level(config) == 3 && recompute &&
         !recompute->parallel_optimizer_comm_recompute.value_or(true);
}

int64_t bucket_size(const AllConfig& config, int64_t data_parallel_size) {
  return config.training_config.bucket_size.value_or(
      std::max<int64_t>(40'000'000, 1'000'000 * data_parallel_size));
}

bool fuses_head_and_loss(const TransformerConfig& config) {
  return config.fused_linear_cross_entropy.value_or(config.use_fused_kernels &&
                                                    config.compute_dtype != kFloat16);
}

int64_t global_batch_size(const AllConfig& config, int64_t data_parallel_size) {
  return config.dataset_config.batch_size * config.dataset_config.micro_batch_num *
         data_parallel_size;
}

int64_t total_training_iters(const AllConfig& config, int64_t data_parallel_size) {
  return config.training_config.training_iters > 0
             ? config.training_config.training_iters
             : config.dataset_config.train_samples / global_batch_size(config, data_parallel_size);
}

}  // namespace tapestry
