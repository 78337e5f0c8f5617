#include "interop/architectures/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/own_model.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/architectures/registry.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using config::Value;
using HfJson = nlohmann::json;  // keys in the order of the alphabet, as transformers has them

HfJson id_json(const std::optional<int64_t>& id) { return id ? HfJson(*id) : HfJson(); }

HfJson eos_json(const TokenIds& ids) {
  return ids.eos.empty()       ? HfJson()
         : ids.eos.size() == 1 ? HfJson(ids.eos.front())
                               : HfJson(ids.eos);
}

// What all types have.
HfJson common_json(const TransformerConfig& c,
                   const std::string& type,
                   DType stored,
                   const TokenIds& ids) {
  HfJson json;
  json["model_type"] = type;
  json["torch_dtype"] = std::string(name_of(stored));
  json["tie_word_embeddings"] = !c.untie_embeddings_and_output_weights;
  json["bos_token_id"] = id_json(ids.bos);
  json["eos_token_id"] = eos_json(ids);
  if (ids.pad) {
    json["pad_token_id"] = *ids.pad;
  }
  return json;
}

std::string written(const HfJson& json) { return json.dump(2) + "\n"; }

// Whether both say the same of a model, spellings and keys that say nothing of it aside.
bool says_the_same(const HfConfig& a, const HfConfig& b) {
  const auto values = [](const HfConfig& file) {
    std::map<std::string, std::string> out;
    for (const HfSetting& setting : file.settings) {
      out[concat(setting.section, ".", setting.key)] = config::to_yaml(setting.value);
    }
    return out;
  };
  return a.model_type == b.model_type && a.token_ids == b.token_ids && a.complete && b.complete &&
         a.undecided.empty() && values(a) == values(b);
}

// What transformers needs to know of a model for sequence classification: its labels, and the id
// that fills rows up, which its values are not taken at.
void write_score_head(HfJson& json, const TokenIds& ids) {
  json["id2label"] = {{"0", "LABEL_0"}};
  json["label2id"] = {{"LABEL_0", 0}};
  const std::optional<int64_t> pad = score_pad_id(ids);
  if (pad) {
    json["pad_token_id"] = *pad;
  }
}

// Whether a file is of a language model without its output layer ("LlamaModel"): what is saved here
// has one.
bool names_headless_class(const HfJson& json) {
  const auto classes = json.find("architectures");
  if (classes == json.end() || !classes->is_array() || classes->empty() ||
      !classes->front().is_string()) {
    return false;
  }
  const auto& name = classes->front().get_ref<const std::string&>();
  return name.ends_with("Model") && !name.ends_with("LMHeadModel");
}

// The text of the source; its dtype is replaced if it is another, and its class by that of `ours`
// if it has no output layer.
std::string fitted(const std::string& text, DType stored, const HfJson& ours) {
  const std::string typed = config_json_with_dtype(text, stored);
  HfJson json = HfJson::parse(typed);
  const bool headless = names_headless_class(json);
  if (typed == text && !headless) {
    return text;
  }
  if (headless) {
    json["architectures"] = ours.at("architectures");
  }
  return written(json);
}

std::string content_if_there(const fs::path& path) {
  return path_exists(path.string()) ? read_file(path.string()) : std::string();
}

}  // namespace

std::string config_json_with_dtype(const std::string& text, DType dtype) {
  auto json = nlohmann::ordered_json::parse(text);
  const std::string wanted(name_of(dtype));
  const bool newer = json.contains("dtype");
  const bool older = json.contains("torch_dtype");
  if ((newer || older) && (!newer || json.at("dtype") == wanted) &&
      (!older || json.at("torch_dtype") == wanted)) {
    return text;
  }
  if (newer) {
    json["dtype"] = wanted;
  }
  if (older || !newer) {
    json["torch_dtype"] = wanted;
  }
  return json.dump(2) + "\n";
}

HfSource read_hf_source(const std::string& path) {
  HfSource source;
  if (folder_exists(path)) {
    source.config_json = content_if_there(fs::path(path) / "config.json");
    source.generation_config = content_if_there(fs::path(path) / "generation_config.json");
  }
  return source;
}

std::vector<std::string> tokenizer_files_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja"}) {
    const fs::path path = fs::path(folder) / name;
    if (path_exists(path.string())) {
      found.push_back(path.string());
    }
  }
  return found;
}

std::string model_config_json(const TransformerConfig& config,
                              const std::string& type,
                              DType stored,
                              const HfSource& source) {
  HfJson json = common_json(config, type, stored, source.token_ids);
  AllConfig all;
  all.model_config = config;
  all.moe_config = config.moe;
  if (const architectures::Architecture* family = architectures::find(type)) {
    json["architectures"] = {
        std::string(config.score_head ? family->score_class : family->classes.front())};
    for (const auto& rule : family->rules) {
      rule->write(all, json);
    }
  } else {
    architectures::write_own_model(all, json);
  }
  if (config.score_head) {
    write_score_head(json, source.token_ids);
  }
  std::string text = written(json);
  if (!source.config_json.empty() &&
      says_the_same(parse_hf_config(source.config_json, "config.json"),
                    parse_hf_config(text, "config.json"))) {
    return fitted(source.config_json, stored, json);
  }
  return text;
}

std::optional<int64_t> score_pad_id(const TokenIds& ids) {
  return ids.pad || ids.eos.empty() ? ids.pad : std::optional(ids.eos.front());
}

std::string score_config_json(const std::string& text,
                              const std::string& path,
                              std::optional<int64_t> pad) {
  const HfConfig file = parse_hf_config(text, path);
  const architectures::Architecture* family = architectures::find(file.model_type);
  check<ValueError>(family == nullptr || !family->score_class.empty(), path, ": model_type ",
                    file.model_type,
                    ": transformers has no model of this family for sequence classification");
  HfJson json = HfJson::parse(text);
  if (family == nullptr) {
    json["model_config"]["score_head"] = true;
  } else {
    json["architectures"] = {std::string(family->score_class)};
  }
  TokenIds ids = file.token_ids;
  ids.pad = pad ? pad : ids.pad;
  write_score_head(json, ids);
  return written(json);
}

std::string own_model_config_json(const TransformerConfig& config,
                                  DType stored,
                                  const TokenIds& token_ids) {
  HfJson json = common_json(config, architectures::kOwnType, stored, token_ids);
  architectures::write_own_sizes(config, json);
  return written(json);
}

std::string generation_config_json(const HfSource& source) {
  const TokenIds& ids = source.token_ids;
  if (source.keeps_generation_config && !source.generation_config.empty()) {
    return source.generation_config;
  }
  if (!source.generation_config.empty()) {
    const HfJson json = HfJson::parse(source.generation_config, nullptr, false);
    const auto has = [&](const char* name, const HfJson& id) {
      return (json.contains(name) ? json.at(name) : HfJson()) == id;
    };
    if (json.is_object() && has("bos_token_id", id_json(ids.bos)) &&
        has("eos_token_id", eos_json(ids)) && has("pad_token_id", id_json(ids.pad))) {
      return source.generation_config;
    }
  }
  return written({{"_from_model_config", true},
                  {"bos_token_id", id_json(ids.bos)},
                  {"eos_token_id", eos_json(ids)},
                  {"pad_token_id", id_json(ids.pad)}});
}

namespace {

std::vector<int64_t> ends_in(const HfJson& json) {
  std::vector<int64_t> ends;
  const HfJson found = json.value("eos_token_id", HfJson());
  for (const HfJson& id : found.is_array() ? found : HfJson::array({found})) {
    if (id.is_number_integer()) {
      ends.push_back(id.get<int64_t>());
    }
  }
  return ends;
}

HfJson generation_json(const std::string& text, const std::string& path) {
  HfJson json = HfJson::parse(text, nullptr, false);
  check<IoError>(json.is_object(), path, ": is no JSON object");
  return json;
}

}  // namespace

std::string generation_config_with_ends(const std::string& text,
                                        const std::vector<int64_t>& ends,
                                        const std::string& path) {
  HfJson json = generation_json(text, path);
  const std::vector<int64_t> known = ends_in(json);
  const auto has = [](const std::vector<int64_t>& ids, int64_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if (std::all_of(ends.begin(), ends.end(), [&](int64_t id) { return has(known, id); })) {
    return text;
  }
  std::vector<int64_t> all = ends;
  for (const int64_t id : known) {
    if (!has(all, id)) {
      all.push_back(id);
    }
  }
  json["eos_token_id"] = all.size() == 1 ? HfJson(all.front()) : HfJson(all);
  return written(json);
}

std::vector<int64_t> generation_config_ends(const std::string& folder) {
  const std::string path = (fs::path(folder) / "generation_config.json").string();
  const std::string text = content_if_there(path);
  return text.empty() ? std::vector<int64_t>() : ends_in(generation_json(text, path));
}

std::map<std::string, std::string> hf_files(const TransformerConfig& config,
                                            bool named,
                                            DType stored,
                                            const HfSource& source) {
  std::map<std::string, std::string> files;
  files["config.json"] = named ? model_config_json(config, file_model_type(config), stored, source)
                               : own_model_config_json(config, stored, source.token_ids);
  files["generation_config.json"] = generation_config_with_ends(
      generation_config_json(source), source.trained_ends, "generation_config.json");
  for (const auto& [name, content] : source.files) {
    files[name] = content;
  }
  return files;
}

void check_hf_config(const TransformerConfig& config, const std::string& path) {
  if (!folder_exists(path) || !path_exists(path + "/config.json")) {
    return;
  }
  const std::vector<std::string> found = differences(config, read_hf_config(path));
  if (found.empty()) {
    return;
  }
  std::string text = concat(path, ": the weights are of another model than the configuration's");
  for (const std::string& difference : found) {
    text += concat("\n  ", difference);
  }
  throw ValueError(
      concat(text,
             "\nSet the keys so, or leave them out and name the folder with model_config.from_hf. "
             "Where the change is meant, name the file of the weights in place of its folder: then "
             "config.json is not looked at"));
}

}  // namespace tapestry
