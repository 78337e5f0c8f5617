#include "interop/architectures/registry.h"

#include <algorithm>
#include <set>

#include "autograd/tensor/error.h"
#include "interop/architectures/gguf_scaling.h"
#include "interop/architectures/rules.h"
#include "parallel_core/config/schema/schema.h"

// A family is a line: its file here defines a function of this name.
// clang-format off
#define TAPESTRY_ARCHITECTURES(family) \
  family(llama)                        \
  family(mistral)                      \
  family(qwen2)                        \
  family(qwen3)                        \
  family(mixtral)                      \
  family(qwen2_moe)                    \
  family(gpt2)                         \
  family(qwen3_moe)                    \
  family(glm4_moe)                     \
  family(starcoder2)                   \
  family(seed_oss)                     \
  family(ernie4_5)                     \
  family(helium)                       \
  family(arcee)                        \
  family(phi3)                         \
  family(glm4)                         \
  family(stablelm)                     \
  family(nemotron)                     \
  family(gemma2)                       \
  family(gemma3)                       \
  family(gemma4)                       \
  family(olmo2)                        \
  family(olmo3)                        \
  family(exaone4)                      \
  family(smollm3)                      \
  family(granite)                      \
  family(qwen3_5)                      \
  family(qwen3_5_moe)                  \
  family(qwen3_next)                   \
  family(olmo_hybrid)                  \
  family(lfm2)                         \
  family(lfm2_moe)                     \
  family(granitemoehybrid)             \
  family(gpt_neox)                     \
  family(falcon)                       \
  family(cohere2)                      \
  family(nanochat)                     \
  family(ministral3)                   \
  family(hunyuan_v1_dense)             \
  family(apertus)                      \
  family(olmoe)                        \
  family(gpt_oss)                      \
  family(deepseek_v2)                  \
  family(deepseek_v3)
// clang-format on

namespace tapestry::architectures {

#define TAPESTRY_DECLARE(name) Architecture name();
TAPESTRY_ARCHITECTURES(TAPESTRY_DECLARE)
#undef TAPESTRY_DECLARE

namespace {

// What no rule of the family says of a model's form has its default.
Architecture completed(Architecture family) {
  std::set<std::string> said;
  for (const auto& rule : family.rules) {
    const std::vector<std::string> keys = rule->keys();
    said.insert(keys.begin(), keys.end());
  }
  const AllConfig plain;
  for (const char* section : {"model_config", "moe_config"}) {
    for (const config::Key& row : config::find_section(section)->keys) {
      const std::string key =
          concat(section == std::string_view("moe_config") ? "moe_config." : "", row.name);
      if (row.form == config::Form::kDecided && !said.contains(key)) {
        family.rules.push_back(fixed(key, value_of(plain, key)));
      }
    }
  }
  return family;
}

}  // namespace

const std::vector<Architecture>& all() {
#define TAPESTRY_LIST(name) completed(name()),
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
  if (config.model_config.score_head && family.score_class.empty()) {
    out.push_back({"model_config.score_head", "True",
                   "transformers has no model of this family for sequence classification"});
  }
  // No family's config.json has a word for it.
  only("out_hidden_size", config::Value(), "leave it out")->object(config, out);
  return out;
}

const Architecture& named(const std::string& type) {
  const Architecture* family = find(type);
  check<ValueError>(family != nullptr, "model_config.hf_model_type: there is no family \"", type,
                    "\"; known are ", known_types());
  return *family;
}

}  // namespace

const Architecture* of(const TransformerConfig& config) {
  const AllConfig asked = whole(config);
  if (config.hf_model_type) {
    const Architecture& family = named(*config.hf_model_type);
    const std::vector<Objection> found = objections_to(family, asked);
    check<ValueError>(found.empty(), "model_config.hf_model_type: models of the type ",
                      family.model_type, " cannot be as configured. Leave this key out, or",
                      nearest({{std::string(family.model_type), found}}));
    return &family;
  }
  const auto found = std::find_if(all().begin(), all().end(), [&](const auto& a) {
    return a.implied && objections_to(a, asked).empty();
  });
  return found == all().end() ? nullptr : &*found;
}

std::vector<const Architecture*> gguf_families(const TransformerConfig& config) {
  std::vector<const Architecture*> out;
  if (config.hf_model_type) {
    out.push_back(&named(*config.hf_model_type));
  }
  for (const Architecture& family : all()) {
    if (family.implied && std::find(out.begin(), out.end(), &family) == out.end()) {
      out.push_back(&family);
    }
  }
  std::erase_if(out, [](const Architecture* family) { return !family->gguf; });
  return out;
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
  std::vector<Objection> more;
  for (const auto& rule : family.gguf->limits) {
    rule->object(asked, more);
  }
  object_to_scaling(*family.gguf, asked, more);
  for (Objection& objection : more) {
    const bool known =
        std::any_of(out.begin(), out.end(), [&](const auto& o) { return o.key == objection.key; });
    if (!known) {
      out.push_back(std::move(objection));
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

namespace {

std::string none_because(const Architecture& family) {
  return family.no_gguf.empty() ? "none" : concat("none (", family.no_gguf, ")");
}

}  // namespace

std::string families_page() {
  std::string text =
      "# What of each family is read\n\n"
      "<!-- Generated by the program config_doc from interop/architectures; do not edit. -->\n\n"
      "[models.md](models.md) has the short list, and says how a model is read and written. A "
      "member of\n`config.json` has the name of its key of `model_config` or `moe_config` in "
      "brackets, where the two differ.\n";
  for (const Architecture& family : all()) {
    std::string always;
    std::string read;
    std::string refused;
    const auto add = [](std::string& list, const std::string& entry, const char* between) {
      if (!entry.empty()) {
        list += concat(list.empty() ? "" : between, entry);
      }
    };
    for (const auto& rule : family.rules) {
      const RuleText own = rule->text();
      add(always, own.always, ", ");
      add(read, own.read, ", ");
      add(refused, own.refused, "; ");
    }
    text += concat("\n## ", family.title, "\n\n`model_type: ", family.model_type, "`, class `",
                   family.classes.front(), "`; as GGUF: ",
                   family.gguf ? concat("`", family.gguf->architecture, "`") : none_because(family),
                   ".\n\n- All models: ", always, ".\n- Read: ", read, ".\n");
    if (!refused.empty()) {
      text += concat("- Refused: ", refused, ".\n");
    }
  }
  return text;
}

}  // namespace tapestry::architectures
