#include "parallel_core/config/read/entries.h"

#include <algorithm>
#include <utility>

#include "parallel_core/config/read/parse_value.h"
#include "parallel_core/config/read/read_foreign.h"
#include "parallel_core/config/read/unknown_names.h"

namespace tapestry::config {
namespace {

bool is_top_level(std::string_view name) {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      const auto aliases = split_text(key.aliases, '|');
      if (std::find(aliases.begin(), aliases.end(), concat("/", name)) != aliases.end()) {
        return true;
      }
    }
  }
  return false;
}

bool same_text(const RawNode& a, const RawNode& b) {
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

}  // namespace

void Entries::read(const RawNode& root, const std::string& model_type) {
  if (root.kind == RawNode::Kind::kMap) {
    choose_model_section(root, model_type);
    read_sections(root);
  } else if (findings_.errors.empty()) {
    findings_.error(root.kind == RawNode::Kind::kNull ? Place{name_} : root.place,
                    root.kind == RawNode::Kind::kNull
                        ? "is empty; expected sections such as training_config, for example "
                          "those of examples/gpt/pretrain_gpt_tiny.yaml"
                        : concat("expected a mapping of sections such as training_config, got ",
                                 found_text(root)));
  }
}

const Entry* Entries::find(const std::string& path) const {
  const auto found = entries_.find(path);
  return found != entries_.end() ? &found->second : nullptr;
}

bool Entries::has_any_below(const std::string& prefix) const {
  const auto first = entries_.lower_bound(prefix);
  return first != entries_.end() && first->first.starts_with(prefix);
}

const Place* Entries::place_of_section(std::string_view section) const {
  const auto found = section_places_.find(std::string(section));
  return found != section_places_.end() ? &found->second : nullptr;
}

std::string Entries::shown(std::string_view section) const {
  return shown_section(section, model_section_);
}

void Entries::choose_model_section(const RawNode& root, const std::string& model_type) {
  const auto has = [&root](const std::string& name) {
    return std::any_of(root.entries.begin(), root.entries.end(),
                       [&name](const auto& entry) { return entry.key.scalar == name; });
  };
  model_section_ = model_type;
  if (model_type == "model_config" && !has("model_config") && has("gpt_config")) {
    model_section_ = "gpt_config";
  }
  for (const char* usual : {"model_config", "gpt_config"}) {
    if (!has(model_section_) && has(usual)) {
      other_model_ = usual;
    }
  }
  if (model_type != "model_config" && find_section(model_type) != nullptr) {
    findings_.error(
        Place{"--model_type " + model_type},
        "this section does not hold the model; expected model_config, gpt_config or a name "
        "of your own");
  }
}

void Entries::read_sections(const RawNode& root) {
  for (const auto& [name, body] : root.entries) {
    const Section* section = section_of(name.scalar, model_section_);
    if (section == nullptr) {
      if (!name.scalar.starts_with("x-") && name.scalar != other_model_ &&
          !read_top_level(name, body, false)) {
        read_foreign(name, body);
      }
      continue;
    }
    section_places_[std::string(section->name)] = name.place;
    if (body.kind == RawNode::Kind::kNull) {
      continue;
    }
    if (body.kind != RawNode::Kind::kMap) {
      findings_.error(body.place,
                      concat(name.scalar, ": expected a mapping of keys, got ", found_text(body)));
      findings_.unread_sections.insert(std::string(section->name));
      continue;
    }
    for (const auto& [key, value] : body.entries) {
      read_key(*section, "", key, value, false);
    }
  }
}

// A section of another program's: what of it is not read is an error.
void Entries::read_foreign(const RawNode& name, const RawNode& body) {
  const ForeignSection section = read_foreign_section(name.scalar, body);
  for (const ForeignValue& found : section.values) {
    read_foreign_value(*found.row, found.name, found.value, false);
  }
  if (!section.is_read) {
    findings_.error(name.place, unknown_section(name, section.rest, model_section_));
  }
}

void Entries::read_foreign_value(const ForeignName& row,
                                 const RawNode& name,
                                 const RawNode& value,
                                 bool is_override) {
  const auto idle = split_text(row.idle, '|');
  const bool is_idle = std::find(idle.begin(), idle.end(), value.scalar) != idle.end();
  const bool takes_idle_alone =
      row.use == ForeignName::Use::kNothing || row.use == ForeignName::Use::kMeans;
  if (takes_idle_alone && !idle.empty() && !is_idle && value.kind != RawNode::Kind::kNull) {
    findings_.error(value.place, concat(row.name, ": ", value.scalar,
                                        " has no counterpart: ", row.note, "; leave it out"));
    return;
  }
  if (row.use == ForeignName::Use::kNothing) {
    if (idle.empty()) {
      findings_.notes.push_back(
          concat(value.place.text(), ": ", row.name, " has no effect: ", row.note));
    }
    return;
  }
  if (row.use == ForeignName::Use::kSame || row.use == ForeignName::Use::kSwitch ||
      row.use == ForeignName::Use::kMeans) {
    repetitions_.push_back({&row, value});
    return;
  }
  for (const std::string_view path : split_text(row.here, '|')) {
    const size_t dot = path.find('.');
    const size_t last = path.rfind('.');
    RawNode renamed = name;
    renamed.scalar = path.substr(last + 1);
    const std::string prefix(dot == last ? "" : path.substr(dot + 1, last - dot));
    if (!is_idle) {
      read_key(*find_section(path.substr(0, dot)), prefix, renamed, value, is_override, row.name);
    }
  }
}

// A key that is accepted at top level too ("/name" among its aliases).
bool Entries::read_top_level(const RawNode& name, const RawNode& body, bool is_override) {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      for (const std::string_view alias : split_text(key.aliases, '|')) {
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

void Entries::read_key(const Section& section,
                       const std::string& prefix,
                       const RawNode& name,
                       const RawNode& node,
                       bool is_override,
                       std::string_view written_as) {
  const Key* key = row_of(section, prefix + name.scalar);
  if (key == nullptr || name.scalar.find('.') != std::string::npos) {
    const ForeignName* row = find_readable_name(concat(section.name, ".", prefix, name.scalar));
    if (row != nullptr) {
      read_foreign_value(*row, name, node, is_override);
      return;
    }
    findings_.error(name.place, unknown_key(section, prefix, name, model_section_));
    return;
  }
  const std::string path = std::string(section.name) + "." + std::string(key->name);
  const bool is_mapping = key->field.type == Type::kMapping;
  if (is_mapping && node.kind == RawNode::Kind::kScalar && !key->scalar_entry.empty()) {
    RawNode mapping{.kind = RawNode::Kind::kMap, .place = node.place};
    RawNode entry{.kind = RawNode::Kind::kScalar, .scalar = std::string(key->scalar_entry)};
    entry.place = name.place;
    mapping.entries.push_back({std::move(entry), node});
    read_key(section, prefix, name, mapping, is_override);
    return;
  }
  if (is_mapping && node.kind != RawNode::Kind::kMap && node.kind != RawNode::Kind::kNull) {
    findings_.error(
        node.place,
        concat(shown(section.name), ".", key->name, ": expected a mapping, got ",
               node.kind == RawNode::Kind::kList ? "a list" : concat("'", node.scalar, "'"),
               entries_text(section, *key)));
    findings_.faulty.insert(path);
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
    findings_.error(name.place, shown(section.name) + "." + std::string(key->name) +
                                    ": given as '" + old->second.written_as + "' at " +
                                    old->second.key_place.text() + " and as '" + entry.written_as +
                                    "' here, with different values");
    return;
  }
  entries_[path] = entry;
  if (is_mapping) {
    for (const auto& [inner_name, inner] : node.entries) {
      read_key(section, std::string(key->name) + ".", inner_name, inner, is_override);
    }
  }
}

// An override of a name at top level, or of another program's path.
bool Entries::read_other_spelling(const std::string& name,
                                  const std::string& value,
                                  const Place& place) {
  const bool has_section = name.find('.') != std::string::npos;
  const ForeignName* row = find_readable_name(name);
  if ((has_section && row == nullptr) || name.empty()) {
    return false;
  }
  const RawNode key{.kind = RawNode::Kind::kScalar, .scalar = name, .place = place};
  if (row != nullptr) {
    read_foreign_value(*row, key, parse_yaml(value, place, true, findings_.errors), true);
    return true;
  }
  return is_top_level(name) &&
         read_top_level(key, parse_yaml(value, place, true, findings_.errors), true);
}

// One entry of a mapping that is kept as a whole; the others stay.
void Entries::override_option(const Section& section,
                              const Key& mapping,
                              const RawNode& name,
                              const RawNode& value) {
  RawNode whole{.kind = RawNode::Kind::kMap, .place = name.place};
  const Entry* old = find(concat(section.name, ".", mapping.name));
  if (old != nullptr && old->node.kind == RawNode::Kind::kMap) {
    whole = old->node;
  }
  std::erase_if(whole.entries,
                [&name](const auto& entry) { return entry.key.scalar == name.scalar; });
  whole.entries.push_back({name, value});
  RawNode key_name = name;
  key_name.scalar = mapping.name;
  read_key(section, "", key_name, whole, true);
}

void Entries::read_override(const std::string& text, const Place& place) {
  const size_t equals = text.find('=');
  const size_t dot = text.find('.');
  const std::string whole = text.substr(0, equals);
  if (equals != std::string::npos && read_other_spelling(whole, text.substr(equals + 1), place)) {
    return;
  }
  if (equals == std::string::npos || dot == std::string::npos || dot > equals || dot == 0 ||
      dot + 1 == equals) {
    findings_.error(place, "expected section.key=value" + override_hint(text, model_section_));
    return;
  }
  RawNode section_name{.kind = RawNode::Kind::kScalar, .scalar = text.substr(0, dot)};
  section_name.place = place;
  if (section_name.scalar == "model_config") {
    section_name.scalar = model_section_;
  }
  RawNode key_name{.kind = RawNode::Kind::kScalar,
                   .scalar = text.substr(dot + 1, equals - dot - 1)};
  key_name.place = place;
  const RawNode value = parse_yaml(text.substr(equals + 1), place, true, findings_.errors);
  if (section_name.scalar == "recompute_config") {  // the one mapping that may stand on top
    key_name.scalar = "recompute_config." + key_name.scalar;
    section_name.scalar = "parallel_config";
  }
  const Section* section = section_of(section_name.scalar, model_section_);
  if (section == nullptr) {
    findings_.error(place, unknown_section(section_name, RawNode{.kind = RawNode::Kind::kScalar},
                                           model_section_));
    return;
  }
  const size_t inner = key_name.scalar.rfind('.');
  const std::string prefix = inner == std::string::npos ? "" : key_name.scalar.substr(0, inner + 1);
  if (!prefix.empty()) {
    const Key* mapping = row_of(*section, key_name.scalar.substr(0, inner));
    if (mapping != nullptr && mapping->field.type == Type::kOptions) {
      key_name.scalar = key_name.scalar.substr(inner + 1);
      override_option(*section, *mapping, key_name, value);
      return;
    }
    if (mapping == nullptr || mapping->field.type != Type::kMapping) {
      findings_.error(place, unknown_key(*section, "", key_name, model_section_));
      return;
    }
    key_name.scalar = key_name.scalar.substr(inner + 1);
  }
  read_key(*section, prefix, key_name, value, true);
}

}  // namespace tapestry::config
