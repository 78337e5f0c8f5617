#include "interop/architectures/read_hf_config.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/hf_fields.h"
#include "interop/architectures/own_model.h"
#include "interop/architectures/registry.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using architectures::Architecture;
using hf::Fields;
using hf::Found;
using hf::Json;

constexpr const char* kHfFile = "config.json";
constexpr uintmax_t kMaxHfBytes = 16U << 20U;  // those in use have a few kilobytes

std::vector<std::string> classes_in(Fields& file) {
  const Json* list = file.find("architectures");
  if (list == nullptr) {
    return {};
  }
  if (!list->is_array() ||
      !std::all_of(list->begin(), list->end(), [](const Json& item) { return item.is_string(); })) {
    file.finding("architectures", concat("expected a list of strings, got ", list->dump()));
    return {};
  }
  return list->get<std::vector<std::string>>();
}

bool is_score_class(const Architecture& family, const std::string& name) {
  return !family.score_class.empty() && family.score_class == name;
}

bool has_class(const Architecture& family, const std::string& name) {
  return std::find(family.classes.begin(), family.classes.end(), name) != family.classes.end();
}

// The family that the file names; nullptr for a model of our own.
const Architecture* family_of(Fields& file) {
  const std::string type = file.text("model_type", "").value;
  if (type == architectures::kOwnType) {
    return nullptr;
  }
  const std::vector<std::string> classes = classes_in(file);
  const Architecture* family = architectures::find(type);
  if (type.empty() && !classes.empty()) {  // as in old files
    for (const Architecture& known : architectures::all()) {
      family = family == nullptr && has_class(known, classes.front()) ? &known : family;
    }
  }
  if (family == nullptr) {
    const std::string shown = !type.empty()      ? concat("model_type \"", type, "\"")
                              : !classes.empty() ? concat("architecture ", classes.front())
                                                 : "no model_type";
    throw ValueError(concat(file.out.file, ": ", shown,
                            " cannot be read; what can: ", architectures::known_types()));
  }
  if (!classes.empty() && !has_class(*family, classes.front()) &&
      !is_score_class(*family, classes.front())) {
    file.finding("architectures",
                 concat(classes.front(), " is not the language model of ", family->model_type, ", ",
                        family->classes.front(),
                        family->score_class.empty() ? "" : concat(", nor ", family->score_class),
                        ", and cannot be read"));
  }
  return family;
}

// How many labels a model for sequence classification has. Source: PretrainedConfig.
void read_labels(Fields& file) {
  const Json* labels = file.find("id2label");
  const Json* number = file.find("num_labels");
  const bool lists = labels != nullptr && labels->is_object();
  const std::string name = lists || number == nullptr ? "id2label" : "num_labels";
  const Json count = lists ? Json(labels->size()) : number == nullptr ? Json(2) : *number;
  if (count != 1) {
    file.finding(name, concat(lists || number != nullptr ? "gives " : "is left out, which means ",
                              count.dump(), " labels; a reward model has one"));
  }
}

// Whether the file is of a reward model.
void read_score_head(Fields& file, const Architecture& family) {
  const std::vector<std::string> classes = classes_in(file);
  const bool score_head = !classes.empty() && is_score_class(family, classes.front());
  if (score_head) {
    read_labels(file);
  }
  file.set_value("score_head", config::Value(score_head), "architectures",
                 classes.empty() ? "null" : Json(classes).dump(), !classes.empty());
}

void read_dtype(Fields& file) {
  for (const char* name : {"torch_dtype", "dtype"}) {
    const Found<std::string> found = file.text(name, "");
    if (file.find(name) == nullptr || found.value == "auto") {
      continue;
    }
    std::optional<DType> dtype;
    for (const DType known : {kFloat32, kFloat16, kBFloat16, kFloat64}) {
      if (found.value == name_of(known)) {
        dtype = known;
      }
    }
    if (!dtype) {
      file.finding(name, concat("unknown dtype ", found.text,
                                "; what can be read: float32, bfloat16, float16, float64"));
    } else if (file.out.dtype && *file.out.dtype != *dtype) {
      file.finding(name,
                   concat("is ", found.text, ", but torch_dtype is \"", name_of(*file.out.dtype),
                          "\"; both name the dtype of the weights"));
    } else {
      file.out.dtype = dtype;
    }
  }
}

std::string shown_method(const Json& asked) {
  const auto method = asked.find("quant_method");
  return method == asked.end() ? "no quant_method is named" : concat("by ", method->dump());
}

// Some writers leave an object behind that asks for nothing: empty, or with every switch off.
void read_quantization(Fields& file) {
  const char* const name = "quantization_config";
  const Json* asked = file.find(name);
  if (asked == nullptr) {
    return;
  }
  if (!asked->is_object()) {
    file.finding(name, concat("expected an object, got ", asked->dump()));
    return;
  }
  const auto is_off = [&](const char* key) {
    const auto found = asked->find(key);
    return found == asked->end() || found->is_null() || *found == false ||
           ((found->is_object() || found->is_array()) && found->empty());
  };
  const auto holds = [&](const char* key) { return asked->contains(key); };
  const bool has_switches = holds("load_in_4bit") || holds("load_in_8bit");
  const bool switched_off = has_switches && is_off("load_in_4bit") && is_off("load_in_8bit") &&
                            is_off("_load_in_4bit") && is_off("_load_in_8bit");
  const bool has_groups = holds("config_groups") || holds("kv_cache_scheme");
  const bool no_groups = has_groups && is_off("config_groups") && is_off("kv_cache_scheme");
  if (!asked->empty() && !switched_off && !no_groups) {
    file.finding(name,
                 concat("the weights are quantised (", shown_method(*asked),
                        "), which is not supported; take the folder of the model before that, "
                        "or load this one in the transformers library, call dequantize(), and "
                        "save it with save_pretrained()"));
  }
}
}  // namespace

namespace {

// Of a model that has more kinds of input, what the file says of the part that reads text.
void take_text_part(Fields& file) {
  const Json* part = file.find("text_config");
  const std::string type = file.text("model_type", "").value;
  if (part == nullptr || !part->is_object() || architectures::find(type) != nullptr ||
      architectures::find(part->value("model_type", "")) == nullptr) {
    return;
  }
  Json inner = *part;
  for (const char* name : {"torch_dtype", "dtype", "tie_word_embeddings", "bos_token_id",
                           "eos_token_id", "pad_token_id", "quantization_config"}) {
    if (!inner.contains(name) && file.json.contains(name)) {
      inner[name] = file.json.at(name);
    }
  }
  inner.erase("architectures");
  file.out.remark = concat(file.out.file, ": a model of type ", type,
                           " has more kinds of input than text; its text_config and the weights "
                           "of that part are read, of type ",
                           inner.at("model_type").get<std::string>());
  file.json = std::move(inner);
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& path) {
  Fields file(text, path);
  take_text_part(file);
  const Architecture* family = family_of(file);
  file.out.model_type = family == nullptr ? architectures::kOwnType : family->model_type;
  read_dtype(file);
  read_quantization(file);
  if (family == nullptr) {
    architectures::read_own_model(file);
  } else {
    file.set_by_type("hf_model_type", config::Value(file.out.model_type));
    file.read_token_ids(family->token_ids);
    for (const auto& rule : family->rules) {
      rule->read(file);
    }
    file.read_tie(family->tied);
    read_score_head(file, *family);
  }
  if (!file.findings.empty()) {
    std::string all;
    for (const std::string& finding : file.findings) {
      all += (all.empty() ? "" : "\n") + finding;
    }
    throw ValueError(all);
  }
  return std::move(file.out);
}

namespace {

// How many of so many layers ahead the weights in the folder have.
int64_t layers_ahead_in(const std::string& folder, const HfConfig& file, int64_t most) {
  const Architecture* family = architectures::find(file.model_type);
  FileNames names(family == nullptr ? NameScheme::kLogical : NameScheme(family->names));
  for (const HfSetting& setting : file.settings) {
    if (setting.key == "num_layers") {
      names.layers = setting.value.as<int64_t>();
    }
  }
  try {
    const SafetensorsDirectory weights(folder);
    int64_t found = 0;
    while (found < most && weights.contains(joining_matrix_name(names, found))) {
      ++found;
    }
    return found;
  } catch (const Error&) {
    return 0;  // what is wrong with the weights is told where they are read
  }
}

// Transformers passes such layers over when it reads, and keeps their number when it writes.
void count_layers_ahead(const std::string& folder, HfConfig& file) {
  for (HfSetting& setting : file.settings) {
    if (setting.key != "mtp_num_layers" || setting.value.as<int64_t>() == 0) {
      continue;
    }
    const auto said = setting.value.as<int64_t>();
    const int64_t found = layers_ahead_in(folder, file, said);
    if (found < said) {
      setting.value = config::Value(found);
      file.remark += concat(file.remark.empty() ? "" : "; ", file.file, ": ", setting.hf_name,
                            " is ", said, ", of which the weights have ", found);
    }
  }
}

}  // namespace

HfConfig read_hf_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / kHfFile).string();
  check<IoError>(folder_exists(folder), folder,
                 ": there is no such folder; a Hugging Face model is a folder with ", kHfFile,
                 " and model.safetensors, or a GGUF file");
  HfConfig file = parse_hf_config(
      read_file(path, kMaxHfBytes, "a Hugging Face model is a folder with this file"), path);
  count_layers_ahead(folder, file);
  return file;
}

}  // namespace tapestry
