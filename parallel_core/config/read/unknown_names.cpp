#include "parallel_core/config/read/unknown_names.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/yaml/yaml_diagnosis.h"

namespace tapestry::config {
namespace {

std::string nearest_text(std::string_view name, const std::vector<std::string_view>& names) {
  const std::string_view best = nearest(name, names);
  if (best.empty()) {
    return {};
  }
  const int limit = std::max<int>(2, static_cast<int>(name.size()) / 3);
  return edit_distance(name, best) <= limit ? concat("; did you mean '", best, "'?")
                                            : concat("; the nearest known name is '", best, "'");
}

bool is_section_or_list_of_them(const RawNode& node) {
  return node.kind == RawNode::Kind::kMap ||
         (node.kind == RawNode::Kind::kList && !node.items.empty() &&
          node.items.front().kind == RawNode::Kind::kMap);
}

// What stands here for a key of another program's section; empty: nothing.
std::string counterpart(std::string_view section, const RawNode& key, std::string_view model) {
  if (const ForeignName* row = find_foreign_name(section, key.scalar)) {
    return foreign_text(*row, model);
  }
  for (const Section& ours : schema()) {
    if (row_of(ours, key.scalar) != nullptr) {
      return concat("here it is ", shown_section(ours.name, model), ".", key.scalar);
    }
  }
  return {};
}

void list_counterparts(const std::string& section,
                       const RawNode& body,
                       std::string_view model,
                       std::string& lines,
                       std::string& none) {
  for (const RawNode& item : body.items) {
    list_counterparts(section, item, model, lines, none);
  }
  for (const auto& [key, value] : body.entries) {
    if (is_section_or_list_of_them(value)) {
      list_counterparts(section, value, model, lines, none);
      continue;
    }
    const std::string here = counterpart(section, key, model);
    if (here.empty()) {
      none += (none.empty() ? "" : ", ") + key.scalar;
    } else {
      lines += concat("\n    ", key.place.text(), ": ", section, ".", key.scalar, ": ", here);
    }
  }
}

std::string counterparts(const std::string& section, const RawNode& body, std::string_view model) {
  std::string lines;
  std::string none;
  list_counterparts(section, body, model, lines, none);
  if (lines.empty() && none.empty()) {
    return "; leave it out";
  }
  return concat("; its keys here:", lines,
                none.empty() ? "" : concat("\n    nothing stands for, leave out: ", none));
}

// The mapping of the section that has an entry of this name.
std::string_view mapping_with(const Section& section, std::string_view name) {
  for (const Key& key : section.keys) {
    if (key.name != name && last_name(key) == name) {
      return key.name.substr(0, key.name.rfind('.'));
    }
  }
  return {};
}

// Of "name=value", "--name=value", "name: value", "--name".
std::pair<std::string, std::string> name_and_value(const std::string& text) {
  const size_t start = std::min(text.find_first_not_of('-'), text.size());
  const size_t end = text.find_first_of("= :", start);
  std::string name = text.substr(start, end - start);
  std::replace(name.begin(), name.end(), '-', '_');
  return {name, end == std::string::npos ? "VALUE" : text.substr(end + 1)};
}

}  // namespace

const Section* section_of(std::string_view name, std::string_view model_section) {
  if (name == model_section) {
    return find_section("model_config");
  }
  // With the model elsewhere, `model_config` would be a second model.
  return name == "model_config" ? nullptr : find_section(name);
}

std::string shown_section(std::string_view section, std::string_view model_section) {
  return std::string(section == "model_config" ? model_section : section);
}

const Key* row_of(const Section& section, std::string_view name) {
  for (const Key& key : section.keys) {
    if (key.name == name) {
      return &key;
    }
    for (const std::string_view alias : split_text(key.aliases, '|')) {
      if (alias == name) {
        return &key;
      }
    }
  }
  return nullptr;
}

std::string unknown_section(const RawNode& name,
                            const RawNode& body,
                            std::string_view model_section) {
  if (name.scalar == "model_config" || name.scalar == "gpt_config") {
    return concat("section '", name.scalar, "': the model is in '", model_section,
                  "' already; keep one of them or choose with --model_type");
  }
  const std::string message = concat("unknown section '", name.scalar, "'");
  if (is_static_section(name.scalar) && body.kind != RawNode::Kind::kScalar) {
    return concat(message, " (of MindFormers' static configurations)",
                  counterparts(name.scalar, body, model_section));
  }
  for (const Section& section : schema()) {
    if (row_of(section, name.scalar) != nullptr) {
      const std::string shown = shown_section(section.name, model_section);
      return concat(message, "; this key belongs in ", shown, ": indent it by two spaces below `",
                    shown, ":`");
    }
  }
  if (const ForeignName* row = find_foreign_name("", name.scalar)) {
    return concat(message, "; ", foreign_text(*row, model_section));
  }
  std::vector<std::string_view> names;
  for (const Section& section : schema()) {
    names.push_back(section.name == "model_config" ? model_section : section.name);
  }
  return concat(message, nearest_text(name.scalar, names),
                "; a section that only merge keys (<<) use begins with x-");
}

std::string unknown_key(const Section& section,
                        const std::string& prefix,
                        const RawNode& name,
                        std::string_view model_section) {
  const std::string shown = shown_section(section.name, model_section);
  const std::string message =
      concat("unknown key '", name.scalar, "' in ", shown,
             prefix.empty() ? "" : concat(".", prefix.substr(0, prefix.size() - 1)));
  for (const Section& other : schema()) {
    if (prefix.empty() && other.name != section.name && row_of(other, name.scalar) != nullptr) {
      return concat(message, "; it belongs in ", shown_section(other.name, model_section));
    }
  }
  if (section_of(name.scalar, model_section) != nullptr) {
    return concat(message, ": it is a section of its own; begin its line at the left edge");
  }
  if (const ForeignName* row = find_foreign_name(section.name, name.scalar)) {
    return concat(message, "; ", foreign_text(*row, model_section));
  }
  if (const std::string_view holder = mapping_with(section, name.scalar); !holder.empty()) {
    return concat(message, "; it belongs in ", shown, ".", holder,
                  ": indent it by two spaces "
                  "below `",
                  holder, ":`");
  }
  std::vector<std::string_view> names;
  for (const Key& key : section.keys) {
    if (key.name.substr(0, prefix.size()) == prefix) {
      const std::string_view rest = key.name.substr(prefix.size());
      if (rest.find('.') == std::string_view::npos) {
        names.push_back(rest);
      }
    }
  }
  return concat(message, nearest_text(name.scalar, names), "; pretrain_gpt --help ", section.name,
                " lists the keys");
}

std::string found_text(const RawNode& node) {
  if (node.kind == RawNode::Kind::kList) {
    return "a list; leave out the dashes or brackets and write `key: value`";
  }
  const std::string fault = line_fault(node.scalar);
  return concat("'", node.scalar.substr(0, 60), "'",
                fault.empty() ? "; write `key: value` on an indented line" : concat(": ", fault));
}

std::string entries_text(const Section& section, const Key& mapping) {
  std::string names;
  for (const Key& key : section.keys) {
    if (key.name.starts_with(concat(mapping.name, "."))) {
      names += concat(names.empty() ? "" : ", ", last_name(key));
    }
  }
  return concat("; its entries are ", names, ", each on an indented line of its own");
}

std::string required_keys(const Section& section) {
  std::string names;
  for (const Key& key : section.keys) {
    if (key.required && key.name.find('.') == std::string_view::npos) {
      names += concat(names.empty() ? "" : ", ", key.name);
    }
  }
  return names;
}

std::string override_hint(const std::string& text, std::string_view model_section) {
  const auto [name, value] = name_and_value(text);
  for (const Section& section : schema()) {
    if (row_of(section, name) != nullptr) {
      return concat("; write ", shown_section(section.name, model_section), ".", name, "=", value);
    }
  }
  if (const ForeignName* row = find_foreign_name("", name)) {
    return concat("; ", foreign_text(*row, model_section));
  }
  return name.find('.') == std::string::npos ? "; --help SECTION lists the keys of a section"
                                             : concat("; write ", name, "=", value);
}

std::string word_hint(const std::string& word) {
  if (!word.starts_with('-')) {
    const bool yaml = word.ends_with(".yaml") || word.ends_with(".yml");
    return yaml ? concat("; write --config_path ", word)
           : word.find('=') != std::string::npos && word.find('.') < word.find('=')
               ? concat("; write --set ", word)
               : std::string();
  }
  const auto [name, value] = name_and_value(word);
  const size_t dot = name.find('.');
  if (dot != std::string::npos && find_section(name.substr(0, dot)) != nullptr) {
    return concat("; write --set ", name, "=", value);
  }
  for (const Section& section : schema()) {
    if (row_of(section, name) != nullptr) {
      return concat("; write --set ", section.name, ".", name, "=", value);
    }
  }
  for (const FlatName& flat : flat_names()) {
    if (flat.flag == name) {
      const bool whole = flat.key.find('=') != std::string_view::npos;
      return concat("; write --set ", flat.key, whole ? "" : concat("=", value));
    }
  }
  if (const ForeignName* row = find_foreign_name("", name)) {
    return concat("; ", foreign_text(*row, "model_config"), ", by --set section.key=value");
  }
  std::vector<std::string_view> names;
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      names.push_back(key.name);
    }
  }
  const std::string_view best = nearest(name, names);
  constexpr int kLettersOfAMistake = 8;  // one wrong letter in so many
  return edit_distance(name, best) * kLettersOfAMistake <= static_cast<int>(name.size())
             ? concat("; did you mean --", best, "?")
             : std::string();
}

}  // namespace tapestry::config
