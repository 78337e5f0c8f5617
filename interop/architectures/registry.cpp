#include "interop/architectures/registry.h"

#include <algorithm>

#include "autograd/tensor/error.h"
#include "interop/architectures/rules.h"

// A family is a line: its file here defines a function of this name.
// clang-format off
#define TAPESTRY_ARCHITECTURES(family) \
  family(llama)                        \
  family(mistral)                      \
  family(qwen2)                        \
  family(qwen3)                        \
  family(mixtral)                      \
  family(qwen2_moe)                    \
  family(gpt2)
// clang-format on

namespace tapestry::architectures {

#define TAPESTRY_DECLARE(name) Architecture name();
TAPESTRY_ARCHITECTURES(TAPESTRY_DECLARE)
#undef TAPESTRY_DECLARE

const std::vector<Architecture>& all() {
#define TAPESTRY_LIST(name) name(),
  static const std::vector<Architecture> families = {TAPESTRY_ARCHITECTURES(TAPESTRY_LIST)};
#undef TAPESTRY_LIST
  return families;
}

const Architecture* find(std::string_view model_type) {
  const auto found = std::find_if(all().begin(), all().end(),
                                  [&](const auto& a) { return a.model_type == model_type; });
  return found == all().end() ? nullptr : &*found;
}

namespace {

AllConfig whole(const TransformerConfig& config) {
  AllConfig all;
  all.model_config = config;
  all.moe_config = config.moe;
  return all;
}

std::vector<Objection> objections_to(const Architecture& family, const AllConfig& config) {
  std::vector<Objection> out;
  for (const auto& rule : family.rules) {
    rule->object(config, out);
  }
  // No family's config.json has a word for it.
  only("out_hidden_size", config::Value(), "leave it out")->object(config, out);
  return out;
}

}  // namespace

const Architecture* of(const TransformerConfig& config) {
  const AllConfig asked = whole(config);
  const auto found = std::find_if(all().begin(), all().end(),
                                  [&](const auto& a) { return objections_to(a, asked).empty(); });
  return found == all().end() ? nullptr : &*found;
}

std::vector<Objection> objections(const Architecture& family, const TransformerConfig& config) {
  return objections_to(family, whole(config));
}

std::vector<Objection> gguf_objections(const Architecture& family,
                                       const TransformerConfig& config) {
  const AllConfig asked = whole(config);
  std::vector<Objection> out = objections_to(family, asked);
  const auto& also = family.gguf->also;
  std::erase_if(out, [&](const Objection& objection) {
    return std::find(also.begin(), also.end(), objection.key) != also.end();
  });
  for (const auto& rule : family.gguf->limits) {
    std::vector<Objection> more;
    rule->object(asked, more);
    for (Objection& objection : more) {
      const bool known = std::any_of(out.begin(), out.end(),
                                     [&](const auto& o) { return o.key == objection.key; });
      if (!known) {
        out.push_back(std::move(objection));
      }
    }
  }
  return out;
}

std::string nearest(const std::vector<std::pair<std::string, std::vector<Objection>>>& families) {
  size_t fewest = families.empty() ? 0 : families.front().second.size();
  for (const auto& [name, found] : families) {
    fewest = std::min(fewest, found.size());
  }
  std::vector<std::pair<Objection, std::vector<std::string>>> lines;  // with the families' names
  for (const auto& [name, found] : families) {
    for (const Objection& objection : found.size() == fewest ? found : std::vector<Objection>()) {
      const auto same = std::find_if(lines.begin(), lines.end(),
                                     [&](const auto& line) { return line.first == objection; });
      auto& names = same != lines.end()
                        ? same->second
                        : lines.emplace_back(objection, std::vector<std::string>()).second;
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  std::string text;
  for (const auto& [objection, names] : lines) {
    text += concat("\n  ", objection.key, ": is ", objection.value, "; ", objection.advice, " (");
    for (const std::string& name : names) {
      text += (&name == &names.front() ? "" : ", ") + name;
    }
    text += ")";
  }
  return text;
}

std::string known_types() {
  std::string text;
  for (const Architecture& family : all()) {
    text += text.empty() ? "" : &family == &all().back() ? " and " : ", ";
    text += family.model_type;
  }
  return text;
}

std::string families_markdown() {
  std::string text = "| family | `model_type` | class | GGUF architecture |\n|---|---|---|---|\n";
  for (const Architecture& family : all()) {
    text += concat(
        "| ", family.title, " | `", family.model_type, "` | `", family.classes.front(), "` | ",
        family.gguf ? concat("`", family.gguf->architecture, "`") : std::string("none"), " |\n");
  }
  return text;
}

}  // namespace tapestry::architectures
