#include "parallel_core/config/mindformers2/reading.h"

#include <algorithm>
#include <charconv>

#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config::mindformers2 {
namespace {

bool is_section(std::string_view name) {
  return std::any_of(sections().begin(), sections().end(),
                     [&](const SectionRow& section) { return section.name == name; });
}

std::string shown(const RawNode& node) {
  return node.kind == RawNode::Kind::kNull   ? "null"
         : node.kind == RawNode::Kind::kList ? "a list"
         : node.kind == RawNode::Kind::kMap  ? "a mapping"
                                             : concat("'", node.scalar, "'");
}

bool fits(std::string_view type, const RawNode& node) {
  if (type == "any") {
    return true;
  }
  if (node.kind != RawNode::Kind::kScalar) {
    return (type == "list" && node.kind == RawNode::Kind::kList) ||
           (type == "map" && node.kind == RawNode::Kind::kMap);
  }
  const ScalarKind kind = node.quoted ? ScalarKind::kString : scalar_kind(node.scalar);
  return (type == "str" && kind == ScalarKind::kString) ||
         (type == "bool" && kind == ScalarKind::kBool) ||
         (type == "int" && kind == ScalarKind::kInt) ||
         (type == "float" && (kind == ScalarKind::kInt || kind == ScalarKind::kFloat));
}

// "a" of the section's keys, for the nearest name.
std::vector<std::string_view> keys_below(std::string_view path) {
  std::vector<std::string_view> names;
  const std::string prefix = concat(path, ".");
  for (const Row& row : rows()) {
    const std::string own = path_of(row);
    if (own.starts_with(prefix) && !own.ends_with('*')) {
      const size_t start = row.key.size() - (own.size() - prefix.size());
      names.push_back(row.key.substr(start, row.key.find('.', start) - start));
    }
  }
  return names;
}

// The keys of the table that stand for one of 1.x.
std::string counterparts(std::string_view key) {
  std::string found;
  for (const Row& row : rows()) {
    for (const std::string_view here : split_text(row.here, '|')) {
      if (here.substr(here.rfind('.') + 1) == key || here == key) {
        found += concat(found.empty() ? "" : ", ", path_of(row));
      }
    }
  }
  return found;
}

// Whether a mapping at this path of the schema is one of keys; others are values themselves.
bool opens(const std::vector<std::string>& path) {
  if (path.size() < 2) {
    return true;
  }
  std::string name;
  for (size_t i = 1; i < path.size(); ++i) {
    name += concat(i > 1 ? "." : "", path[i]);
  }
  const Key* key = find_key(path.front(), name);
  return key != nullptr && key->field.type == Type::kMapping;
}

}  // namespace

std::string type_complaint(std::string_view type, const RawNode& value) {
  const bool nullable = type.ends_with('?');
  type = nullable ? type.substr(0, type.size() - 1) : type;
  if (value.kind == RawNode::Kind::kNull) {
    return nullable || type == "any" ? std::string() : concat("is null, expected ", type);
  }
  std::string names;
  for (const std::string_view one : split_text(type, '|')) {
    if (fits(one, value)) {
      return {};
    }
    names += concat(names.empty() ? "" : " or ", one);
  }
  return concat("expected ", names, nullable ? " or null" : "", ", got ", shown(value));
}

RawNode scalar_node(const std::string& text, const Place& place, bool quoted) {
  RawNode node{.kind = RawNode::Kind::kScalar, .scalar = text, .quoted = quoted};
  node.place = place;
  if (!quoted && text == "null") {
    node.kind = RawNode::Kind::kNull;
  }
  return node;
}

RawNode list_node(const std::vector<std::string>& items, const Place& place, bool quoted) {
  RawNode list{.kind = RawNode::Kind::kList};
  list.place = place;
  for (const std::string& item : items) {
    list.items.push_back(scalar_node(item, place, quoted));
  }
  return list;
}

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  for (const std::string_view part : split_text(path, '.')) {
    parts.emplace_back(part);
  }
  return parts;
}

void put_below(RawNode& root,
               const std::vector<std::string>& path,
               RawNode value,
               const std::optional<Place>& key_place) {
  RawNode* at = &root;
  for (size_t i = 0; i < path.size(); ++i) {
    if (at->kind != RawNode::Kind::kMap) {
      *at = RawNode{.kind = RawNode::Kind::kMap, .place = at->place};
    }
    auto found = std::find_if(at->entries.begin(), at->entries.end(),
                              [&](const RawEntry& entry) { return entry.key.scalar == path[i]; });
    if (found == at->entries.end()) {
      RawEntry entry{scalar_node(path[i], key_place.value_or(value.place)), RawNode{}};
      entry.key.kind = RawNode::Kind::kScalar;
      entry.value.place = value.place;
      at->entries.push_back(std::move(entry));
      found = std::prev(at->entries.end());
    }
    at = &found->value;
  }
  *at = std::move(value);
}

void Reading::read(const RawNode& root) {
  for (const auto& [name, body] : root.entries) {
    if (name.scalar == kOwnSection) {
      own_section_ = body;
      if (body.kind != RawNode::Kind::kMap && body.kind != RawNode::Kind::kNull) {
        errors.push_back(concat(body.place.text(), ": ", kOwnSection,
                                ": expected a mapping of sections such as training_config, got ",
                                shown(body)));
        own_section_.reset();
      }
    } else if (is_section(name.scalar)) {
      section_places_[name.scalar] = name.place;
      read_section(name, body);
    } else if (!name.scalar.starts_with("x-")) {
      unknown_section(name);
    }
  }
}

void Reading::read_section(const RawNode& name, const RawNode& body) {
  const std::string& section = name.scalar;
  if (body.kind == RawNode::Kind::kNull) {
    if (section == "lora_config") {
      section_places_.erase(section);
    }
    return;
  }
  if (section == "callbacks" && body.kind == RawNode::Kind::kList) {
    take_list(section, body);
  } else if (find_row(section) != nullptr) {
    take(section, name, body);
  } else if (body.kind == RawNode::Kind::kMap) {
    walk(section, body);
  } else {
    errors.push_back(concat(body.place.text(), ": ", section, ": expected a ",
                            section == "callbacks" ? "list" : "mapping of keys", ", got ",
                            shown(body)));
  }
}

// Mappings with a `type`, which is a part of the path.
void Reading::take_list(const std::string& path, const RawNode& list) {
  for (const RawNode& item : list.items) {
    const auto type =
        std::find_if(item.entries.begin(), item.entries.end(),
                     [](const RawEntry& entry) { return entry.key.scalar == "type"; });
    if (type == item.entries.end()) {
      errors.push_back(concat(item.place.text(), ": ", path, ": expected a mapping with a `type`"));
      continue;
    }
    const std::string typed = concat(path, ".", type->value.scalar);
    if (!has_rows_below(typed)) {
      const auto known = keys_below(path);
      errors.push_back(concat(type->value.place.text(), ": ", path, ": type ", type->value.scalar,
                              " is not known; the nearest is ",
                              nearest(type->value.scalar, known)));
      continue;
    }
    values_[typed + ".type"] = type->value;
    for (const auto& [name, value] : item.entries) {
      if (name.scalar != "type") {
        take(concat(typed, ".", name.scalar), name, value);
      }
    }
  }
}

void Reading::walk(const std::string& path, const RawNode& body) {
  for (const auto& [name, value] : body.entries) {
    take(concat(path, ".", name.scalar), name, value);
  }
}

void Reading::take(const std::string& path, const RawNode& name, const RawNode& value) {
  const Row* row = find_row(path);
  const bool below = has_rows_below(path);
  if (row == nullptr && !below) {
    unknown_key(path.substr(0, path.rfind('.')), name, path);
    return;
  }
  if (below && value.kind == RawNode::Kind::kList && row == nullptr) {
    take_list(path, value);
    return;
  }
  if (below && value.kind == RawNode::Kind::kMap) {
    walk(path, value);
  }
  const std::string wrong =
      type_complaint(row != nullptr ? row->type : std::string_view("map?"), value);
  if (!wrong.empty()) {
    errors.push_back(concat(value.place.text(), ": ", path, ": ", wrong));
    return;
  }
  if (row == nullptr) {
    return;
  }
  values_[path] = value;
  const auto accepted = split_text(row->accepted, '|');
  const std::string written = value.kind == RawNode::Kind::kNull ? "null" : value.scalar;
  const bool is_accepted = std::any_of(accepted.begin(), accepted.end(), [&](std::string_view one) {
    return one == written || (row->type == "bool" && !value.quoted &&
                              (one == "True") == (written == "true" || written == "True" ||
                                                  written == "yes" || written == "on"));
  });
  if (row->fate == Fate::kRefused ? !is_accepted : !accepted.empty() && !is_accepted) {
    refuse(path, row->note);
  }
}

void Reading::refuse(std::string_view path, std::string_view reason) {
  const Row* row = find_row(path);
  std::string accepted;
  for (const std::string_view one :
       split_text(row != nullptr ? row->accepted : std::string_view(), '|')) {
    accepted += concat(accepted.empty() ? "; accepted: " : ", ", one);
  }
  const RawNode* node = find(path);
  error(path, concat(node == nullptr                        ? "its default"
                     : node->kind == RawNode::Kind::kScalar ? node->scalar
                                                            : shown(*node),
                     " is refused", reason.empty() ? "" : ": ", reason, accepted));
  values_.erase(std::string(path));
}

void Reading::unknown_key(const std::string& section,
                          const RawNode& name,
                          const std::string& path) {
  const auto known = keys_below(section);
  const std::string other = counterparts(name.scalar);
  const std::string_view near = nearest(name.scalar, known);
  errors.push_back(concat(name.place.text(), ": unknown key '", path, "' of MindFormers 2.0; ",
                          !other.empty() ? concat("of 1.x; here it is ", other)
                                         : concat("the nearest is ", section, ".", near)));
}

void Reading::unknown_section(const RawNode& name) {
  std::vector<std::string_view> known;
  for (const SectionRow& section : sections()) {
    known.push_back(section.name);
  }
  std::string hint = concat("the nearest is ", nearest(name.scalar, known));
  if (find_section(name.scalar) != nullptr) {
    hint = concat("of 1.x, whose keys a file of MindFormers 2.0 may have below `", kOwnSection,
                  "`: ", kOwnSection, ": {", name.scalar, ": {...}}");
  }
  errors.push_back(concat(name.place.text(), ": unknown section '", name.scalar,
                          "' in a file with the sections of MindFormers 2.0; ", hint));
}

const RawNode* Reading::find(std::string_view path) const {
  const auto found = values_.find(path);
  return found != values_.end() ? &found->second : nullptr;
}

bool Reading::is_qwen3() const {
  const RawNode* type = find("model.model_type");
  return type != nullptr && type->scalar == "qwen3";
}

std::string Reading::scalar(std::string_view path) const {
  if (const RawNode* node = find(path)) {
    return node->kind == RawNode::Kind::kNull ? "null" : node->scalar;
  }
  const Row* row = find_row(path);
  check<ValueError>(row != nullptr, "mindformers2: no row ", path);
  const std::string_view own = is_qwen3() && !row->qwen3.empty() ? row->qwen3 : row->initial;
  return own == "\"\"" ? std::string() : std::string(own);
}

bool Reading::is_null(std::string_view path) const {
  const std::string value = scalar(path);
  const RawNode* node = find(path);
  return node != nullptr ? node->kind == RawNode::Kind::kNull
                         : value == "null" || value == "-" || value.empty();
}

bool Reading::flag(std::string_view path) const {
  const std::string value = scalar(path);
  return value == "True" || value == "true" || value == "TRUE" || value == "yes" || value == "on";
}

int64_t Reading::integer(std::string_view path) const {
  const std::string value = scalar(path);
  const char* first = value.c_str() + (value.starts_with('+') ? 1 : 0);
  int64_t number = 0;
  std::from_chars(first, value.c_str() + value.size(), number);
  return number;
}

double Reading::number(std::string_view path) const {
  const std::string value = scalar(path);
  const char* first = value.c_str() + (value.starts_with('+') ? 1 : 0);
  double number = 0;
  std::from_chars(first, value.c_str() + value.size(), number);
  return number;
}

std::string Reading::text(std::string_view path) const { return scalar(path); }

std::vector<std::string> Reading::texts(std::string_view path) const {
  std::vector<std::string> out;
  const RawNode* node = find(path);
  if (node == nullptr || node->kind == RawNode::Kind::kNull) {
    return out;
  }
  if (node->kind == RawNode::Kind::kScalar) {
    return {node->scalar};
  }
  for (const RawNode& item : node->items) {
    out.push_back(item.scalar);
  }
  return out;
}

Place Reading::place(std::string_view path) const {
  const RawNode* node = find(path);
  return node != nullptr ? node->place : Place{kDefaultPlace};
}

std::vector<std::string> Reading::given_below(std::string_view prefix) const {
  std::vector<std::string> out;
  const std::string start = concat(prefix, ".");
  for (const auto& [path, node] : values_) {
    if (path.starts_with(start)) {
      out.push_back(path);
    }
  }
  return out;
}

void Reading::put(std::string_view here, const std::string& yaml, std::string_view path) {
  const Key* key = find_key(here.substr(0, here.find('.')), here.substr(here.find('.') + 1));
  if (key == nullptr && !given(path)) {
    return;  // of a key that is not there only a written value matters
  }
  put(here, scalar_node(yaml, place(path)));
}

void Reading::put(std::string_view here, RawNode value) {
  put_below(result_, parts_of(here), std::move(value));
}

bool Reading::has(std::string_view here) const {
  const RawNode* at = &result_;
  for (const std::string& part : parts_of(here)) {
    const auto found = std::find_if(at->entries.begin(), at->entries.end(),
                                    [&](const RawEntry& e) { return e.key.scalar == part; });
    if (found == at->entries.end()) {
      return false;
    }
    at = &found->value;
  }
  return true;
}

void Reading::error(std::string_view path, const std::string& message) {
  errors.push_back(concat(place(path).text(), ": ", path, ": ", message));
}

void Reading::note(std::string_view path, const std::string& message) {
  notes.push_back(concat(place(path).text(), ": ", path, ": ", message));
}

void Reading::merge_own_section() {
  if (!own_section_) {
    return;
  }
  const auto merge = [&](const auto& self, const std::vector<std::string>& path,
                         const RawNode& node, const Place& key_place) -> void {
    if (node.kind == RawNode::Kind::kMap && opens(path)) {
      for (const auto& [name, value] : node.entries) {
        std::vector<std::string> below = path;
        below.push_back(name.scalar);
        self(self, below, value, name.place);
      }
    } else {
      put_below(result_, path, node, key_place);
    }
  };
  merge(merge, {}, *own_section_, own_section_->place);
}

}  // namespace tapestry::config::mindformers2
