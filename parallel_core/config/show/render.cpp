#include "parallel_core/config/show/render.h"

#include <algorithm>
#include <vector>

#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/help_topics.h"

namespace tapestry {
namespace {

using config::default_text;
using config::Key;
using config::last_name;
using config::Section;

size_t depth_of(const Key& key) {
  return static_cast<size_t>(std::count(key.name.begin(), key.name.end(), '.'));
}

// True if the key is an entry of a mapping that is null.
bool is_absent(const AllConfig& config, const Section& section, const Key& key) {
  const size_t dot = key.name.rfind('.');
  return dot != std::string_view::npos &&
         config::find_key(section.name, key.name.substr(0, dot))->field.get(config).is_null();
}

std::string section_name(const AllConfig& config, const Section& section) {
  return section.name == "model_config" ? config.model_section : std::string(section.name);
}

// Why the value has no effect; empty if it has one.
std::string idle_text(const AllConfig& config, const Section& section, const Key& key) {
  const auto origin = config.origins.find(concat(section.name, ".", key.name));
  return origin == config.origins.end() || key.required ? std::string() : origin->second.idle;
}

// The value that says the same to the next reader.
config::Value resolved_value(const AllConfig& config, const Section& section, const Key& key) {
  return key.until_resolved                        ? config::Value()
         : idle_text(config, section, key).empty() ? key.field.get(config)
                                                   : config::default_value(key);
}

// "key:" of a mapping that is there, "key: value" of everything else.
std::string yaml_line(const Key& key, const config::Value& value) {
  const bool opens = key.field.type == config::Type::kMapping && !value.is_null();
  return std::string(last_name(key)) + (opens ? ":" : ": " + config::yaml_of(key, value));
}

std::string aliases_text(const Key& key) {
  std::string text;
  for (const std::string_view alias : config::split_text(key.aliases, '|')) {
    text += text.empty() ? "Also written " : ", ";
    text += alias.front() == '/' ? concat("`", alias.substr(1), "` at top level")
                                 : concat("`", alias, "`");
  }
  return text.empty() ? text : concat(" ", text, ".");
}

std::string support_text(const Key& key) {
  if (key.accepted.empty()) {
    return {};
  }
  std::string accepted;
  for (const std::string_view value : config::split_text(key.accepted, '|')) {
    accepted += (accepted.empty() ? "`" : ", `") + std::string(value) + "`";
  }
  return concat(key.planned ? " **Not supported yet** except " : " **Refused** except ", accepted,
                ": ", key.reason, ".");
}

// Markdown and help share one sentence; the help shows it without marks.
std::string without_marks(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (c != '`' && c != '*') {
      plain += c;
    }
  }
  return plain;
}

std::string help_of(const Key& key) {
  const std::string check = config::check_text(key);
  return concat("  ", key.name, " (", config::type_text(key), check.empty() ? "" : ", ", check,
                key.required ? ", " : ", default ", default_text(key), ")\n      ",
                without_marks(concat(key.doc, aliases_text(key), support_text(key))), "\n");
}

std::string section_help(const Section& section) {
  std::string text = concat(section.name, ": ", without_marks(std::string(section.doc)), "\n");
  for (const Key& key : section.keys) {
    text += help_of(key);
  }
  return text;
}

std::string comment_of(const AllConfig& config, const std::string& path) {
  const auto origin = config.origins.find(path);
  std::string text = origin == config.origins.end() || origin->second.text.empty()
                         ? "default"
                         : origin->second.text;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

// What was given in place of the keys below it, or without effect.
std::string spent_text(const AllConfig& config, const Section& section, const Key& key) {
  const config::Value value = key.field.get(config);
  const std::string idle = idle_text(config, section, key);
  return !idle.empty() ? concat("was ", config::to_yaml(value), " (no effect",
                                idle.starts_with(':') ? "" : " ", idle, "), ")
         : key.until_resolved && !value.is_null() ? concat("was ", config::to_yaml(value), ", ")
                                                  : std::string();
}

}  // namespace

std::string resolved_yaml(const AllConfig& config) {
  std::string text;
  for (const Section& section : config::schema()) {
    text += section_name(config, section) + ":\n";
    for (const Key& key : section.keys) {
      if (!is_absent(config, section, key)) {
        const std::string path = std::string(section.name) + "." + std::string(key.name);
        text += std::string(2 + 2 * depth_of(key), ' ') +
                yaml_line(key, resolved_value(config, section, key)) + "  # " +
                spent_text(config, section, key) + comment_of(config, path) + "\n";
      }
    }
  }
  return text;
}

std::vector<ResolvedKey> resolved_keys(const AllConfig& config) {
  std::vector<ResolvedKey> keys;
  for (const Section& section : config::schema()) {
    for (const Key& key : section.keys) {
      if (is_absent(config, section, key)) {
        continue;
      }
      const std::string line = yaml_line(key, resolved_value(config, section, key));
      const size_t colon = line.find(": ");
      keys.push_back({.section = section_name(config, section),
                      .key = std::string(key.name),
                      .value = colon == std::string::npos ? std::string() : line.substr(colon + 2),
                      .origin = spent_text(config, section, key) +
                                comment_of(config, concat(section.name, ".", key.name))});
    }
  }
  return keys;
}

std::string config_log_text(const AllConfig& config) {
  std::string text;
  for (const Section& section : config::schema()) {
    text += section_name(config, section) + "\n";
    for (const Key& key : section.keys) {
      if (!is_absent(config, section, key)) {
        text +=
            std::string(4 + 4 * depth_of(key), ' ') + yaml_line(key, key.field.get(config)) + "\n";
      }
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> changed_keys(const AllConfig& config) {
  std::vector<std::pair<std::string, std::string>> sections;
  for (const Section& section : config::schema()) {
    std::string text;
    for (const Key& key : section.keys) {
      const auto origin = config.origins.find(concat(section.name, ".", key.name));
      const bool given = origin != config.origins.end() && !origin->second.place.empty();
      const bool part = key.name.find('.') != std::string_view::npos;
      if (!given || key.field.type == config::Type::kMapping || (key.required && !part)) {
        continue;
      }
      const std::string value = config::yaml_of(key, key.field.get(config));
      if (key.required || value != config::yaml_of(key, config::default_value(key))) {
        text += concat(text.empty() ? "" : ", ", key.name, "=", value);
      }
    }
    if (!text.empty()) {
      sections.emplace_back(section_name(config, section), text);
    }
  }
  return sections;
}

std::string render_sections_help() {
  std::string text;
  for (const Section& section : config::schema()) {
    std::string line = concat("  ", section.name);
    line.resize(std::max<size_t>(line.size() + 1, 24), ' ');
    const std::string doc = without_marks(std::string(section.doc));
    text +=
        concat(line, doc.substr(0, doc.find(". ")), doc.find(". ") == doc.npos ? "" : ".", "\n");
  }
  return text;
}

std::string render_configuration_help(const std::string& topic) {
  const std::string name = config::plain_topic(topic);
  std::vector<std::string_view> names;
  for (const Section& section : config::schema()) {
    names.push_back(section.name);
  }
  const std::string nearest_section(config::nearest(name, names));
  if (const Section* section = config::find_section(name == "gpt_config" ? "model_config" : name)) {
    return section_help(*section);
  }
  const config::TopicMatch match = config::find_topic(name);
  if (match.keys.empty() && config::is_near(name, nearest_section)) {
    return concat("There is no ", name, "; the nearest is ", nearest_section, ".\n",
                  section_help(*config::find_section(nearest_section)));
  }
  for (const Section& section : config::schema()) {
    for (const Key& key : section.keys) {
      names.push_back(key.name);
    }
  }
  check<ValueError>(!match.keys.empty() || !match.remark.empty(), "--help ", topic,
                    ": there is no such section or key; the nearest is '",
                    config::nearest(name, names), "'; --help lists the sections");
  std::string text = match.remark.empty() ? std::string() : concat(match.remark, ".\n");
  constexpr size_t kMost = 8;
  const Section* last = nullptr;
  for (const config::KeyOfTopic& found : match.keys) {
    if (match.keys.size() > kMost) {  // --help loss: names alone
      text += concat("  ", found.section->name, ".", found.key->name, "\n");
      continue;
    }
    text += (found.section == last ? "" : concat(found.section->name, ":\n")) + help_of(*found.key);
    last = found.section;
  }
  return text;
}

std::string render_configuration_markdown() {
  std::string text =
      "# Configuration\n\n"
      "<!-- Generated by the program config_doc from the table in parallel_core/config/schema*.cpp;"
      " a test compares. -->\n\n"
      "A YAML file describes a run; `pretrain_gpt --config_path FILE` reads it. `--set "
      "section.key=value` replaces single values, also inside mappings (`--set "
      "model_config.rotary_config.rotary_base=500000`). Unknown sections and keys, wrong types, "
      "bad values and impossible combinations are errors. All errors are reported at once with "
      "file, line and column. There are three kinds of keys:\n\n- keys that have an effect;\n- "
      "keys that are *known for compatibility*, because they can only mean what the program does "
      "anyway;\n- keys of which some values are *refused*, with the reason and the value to set "
      "instead, or *not supported yet*, because the feature is not built. A run with such a value "
      "does not start; `--dry_run` lists them.\n\n"
      "Numbers are decimal. An integer is an optional sign and digits without a leading zero; any "
      "other number may have a point and an exponent (`1e-6`). So `1e3`, `1_000`, `0x10`, `010` "
      "and `2.0` are no integers. Other YAML readers disagree about them, and the error message "
      "says what to write. Booleans are `True`, `true`, `yes` or `on` (and their opposites). A "
      "missing value is `null`, `~` or nothing, not Python's `None`. Files are UTF-8.\n\n"
      "A merge key, `<<: *name` or `<<: [*one, *two]`, adds the keys of the mapping that `&name` "
      "marks further up. Keys that the mapping itself has are kept. A section that exists only for "
      "this begins with `x-`. Paths are relative to the current directory. In them `~/` stands for "
      "the home folder, `${NAME}` for the value of an environment variable, which must be set, and "
      "`$$` for a dollar sign in a name. The run saves its complete configuration, with the origin "
      "of each value, as `config.yaml` in its output folder. The next run can use that file.\n";
  for (const Section& section : config::schema()) {
    text += "\n## " + std::string(section.title) + ": `" + std::string(section.name) + "`\n\n" +
            std::string(section.doc) +
            "\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
    for (const Key& key : section.keys) {
      text += "| `" + std::string(key.name) + "` | " + config::type_text(key) + " | " +
              default_text(key) + " | " + config::check_text(key) + " | " + std::string(key.doc) +
              aliases_text(key) + support_text(key) + " |\n";
    }
  }
  text +=
      "\n## Names on a command line\n\n"
      "`pretrain_gpt`, and a program of your own that calls `init_configs_from_args`, take "
      "`--section.key=value` and `--key value`. They also take these names, which are Megatron's "
      "or belong to keys of several sections (dashes or underscores). `--global-batch-size N` with "
      "`--micro-batch-size M` and `--data-parallel-size D` (1) gives `micro_batch_num`, and holds "
      "the run to D data-parallel ranks.\n\n| name | stands for |\n|---|---|\n";
  for (const config::FlatName& name : config::flat_names()) {
    text += concat("| `--", name.flag, "` | `", name.key, "` |\n");
  }
  text +=
      "\n## Names of static configurations\n\n"
      "A file may also use these names of MindFormers' static configurations, in the sections that "
      "they have there. For an entry of a list, or a mapping with a `type`, the path contains the "
      "type. `--set` takes the paths too.\n\n| name | stands for |\n|---|---|\n";
  for (const config::ForeignName& row : config::foreign_names()) {
    if (row.use == config::ForeignName::Use::kMessage) {
      continue;
    }
    using Use = config::ForeignName::Use;
    const bool reads = row.use == Use::kValue;
    text += concat("| `", row.name, "` | ",
                   reads ? concat("`", row.here, "`")
                   : row.use == Use::kSwitch
                       ? concat("`", row.here, ": ", row.idle.empty() ? "True" : row.idle, "`",
                                row.idle.empty() ? "" : ", unless that is given")
                   : row.use == Use::kMeans ? concat("`", row.here, ": True`")
                   : row.use == Use::kSame  ? concat("nothing; has the value of `", row.here, "`")
                                            : "nothing",
                   row.note.empty() ? "" : concat(": ", row.note));
    std::string idle;
    for (const std::string_view value :
         config::split_text(row.use == Use::kSwitch ? std::string_view() : row.idle, '|')) {
      idle += concat(idle.empty() ? "`" : ", `", value, "`");
    }
    text +=
        concat(idle.empty() ? "" : concat("; ", reads ? "left alone by " : "only ", idle), " |\n");
  }
  return text;
}

}  // namespace tapestry
