#include "parallel_core/config/show/help_topics.h"

#include <algorithm>
#include <cctype>

#include "autograd/tensor/error.h"
#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/read/load.h"

namespace tapestry::config {
namespace {

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

bool is_alias(const Key& key, std::string_view name) {
  for (std::string_view alias : split_text(key.aliases, '|')) {
    alias.remove_prefix(alias.starts_with('/') ? 1 : 0);
    if (alias == name) {
      return true;
    }
  }
  return false;
}

template <class Predicate>
std::vector<KeyOfTopic> keys_with(const Predicate& holds) {
  std::vector<KeyOfTopic> keys;
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      if (holds(section, key)) {
        keys.push_back({&section, &key});
      }
    }
  }
  return keys;
}

std::vector<KeyOfTopic> keys_named(const std::string& name) {
  return keys_with([&](const Section& section, const Key& key) {
    return name == key.name || name == last_name(key) || is_alias(key, name) ||
           name == concat(section.name, ".", key.name);
  });
}

// "optimizer_config.learning_rate|..."; a value behind '=' does not count.
void add_paths(std::string_view paths, std::vector<KeyOfTopic>& keys) {
  for (std::string_view path : split_text(paths, '|')) {
    path = path.substr(0, path.find('='));
    const size_t dot = path.find('.');
    const Section* section = find_section(path.substr(0, dot));
    const Key* key = find_key(path.substr(0, dot), path.substr(dot + 1));
    const bool known = std::any_of(keys.begin(), keys.end(),
                                   [key](const KeyOfTopic& other) { return other.key == key; });
    if (key != nullptr && !known) {
      keys.push_back({section, key});
    }
  }
}

TopicMatch of_other_programs(const std::string& name) {
  TopicMatch match;
  for (const ForeignName& row : foreign_names()) {
    if (row.name != name && last_part(row.name) != name) {
      continue;
    }
    add_paths(row.here, match.keys);
    if (match.remark.empty()) {
      match.remark = concat(name, ": ", foreign_text(row, "model_config"));
    }
  }
  for (const FlatName& flat : flat_names()) {
    if (flat.flag == name) {
      add_paths(flat.key, match.keys);
      if (match.remark.empty()) {
        match.remark = concat(name, ": here it is ", flat.key);
      }
    }
  }
  return match;
}

}  // namespace

std::string plain_topic(std::string_view topic) {
  topic = topic.substr(0, topic.find('='));
  topic.remove_prefix(std::min(topic.find_first_not_of('-'), topic.size()));
  std::string name(topic);
  std::replace(name.begin(), name.end(), '-', '_');
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return name;
}

bool is_near(std::string_view name, std::string_view other) {
  constexpr size_t kShort = 4;
  return edit_distance(name, other) <= std::max<int>(1, static_cast<int>(name.size() / kShort)) &&
         name.size() >= kShort;
}

bool has_parts(std::string_view name, std::string_view topic) {
  constexpr size_t kLeast = 3;  // "lr" is in "already"
  const auto parts = split_text(topic, '_');
  return topic.size() >= kLeast && std::all_of(parts.begin(), parts.end(), [name](auto part) {
           return name.find(part) != std::string_view::npos;
         });
}

TopicMatch find_topic(const std::string& topic) {
  TopicMatch match{.keys = keys_named(topic)};
  if (!match.keys.empty()) {
    return match;
  }
  match = of_other_programs(topic);
  if (!match.keys.empty() || !match.remark.empty()) {
    return match;
  }
  match.keys = keys_with([&](const Section& /*section*/, const Key& key) {
    const auto values = split_text(key.check.choices, '|');
    const bool is_value = std::any_of(values.begin(), values.end(), [&](std::string_view value) {
      return plain_topic(value) == topic;
    });
    return is_value || has_parts(key.name, topic);
  });
  if (!match.keys.empty()) {
    match.remark = concat(topic, ": keys with this name or value");
    return match;
  }
  if (topic.find('.') != std::string::npos) {  // optimizer_config.lr
    return find_topic(std::string(last_part(topic)));
  }
  std::vector<std::string_view> names;
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      names.push_back(last_name(key));
    }
  }
  for (const ForeignName& row : foreign_names()) {
    names.push_back(last_part(row.name));
  }
  const std::string best(nearest(topic, names));
  if (!is_near(topic, best)) {
    return {};
  }
  match = find_topic(best);
  match.remark = concat("There is no ", topic, "; the nearest is ", best,
                        match.remark.empty() ? "" : concat(". ", match.remark));
  return match;
}

std::vector<std::string> spellings_of(const std::string& name) {
  std::vector<KeyOfTopic> keys = keys_named(name);
  if (keys.empty()) {
    keys = of_other_programs(name).keys;
  }
  std::vector<std::string> spellings = {name};
  const auto add = [&](std::string_view spelling) {
    if (std::find(spellings.begin(), spellings.end(), spelling) == spellings.end()) {
      spellings.emplace_back(spelling);
    }
  };
  for (const KeyOfTopic& found : keys) {
    const std::string path = concat(found.section->name, ".", found.key->name);
    add(last_name(*found.key));
    for (const std::string_view alias : split_text(found.key->aliases, '|')) {
      add(last_part(alias.substr(alias.starts_with('/') ? 1 : 0)));
    }
    for (const ForeignName& row : foreign_names()) {
      if (row.here == path) {
        add(last_part(row.name));
      }
    }
  }
  return spellings;
}

}  // namespace tapestry::config
