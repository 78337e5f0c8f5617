#include "parallel_core/export/gguf_pre.h"

#include <algorithm>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;

// Source of the patterns: the tokenizer.json files of these models.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseekNumbers = R"(\p{N}{1,3})";
constexpr const char* kDeepseekHan = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr const char* kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A line break is written as itself or as an escape.
std::string with_escapes(const std::string& pattern) {
  std::string out;
  for (const char c : pattern) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out;
}

Json member(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object.at(name) : Json();
}

std::string type_of(const Json& component) {
  const Json type = member(component, "type");
  return type.is_string() ? type.get<std::string>() : std::string();
}

bool flag_of(const Json& component, const char* name, bool by_default) {
  const Json value = member(component, name);
  return value.is_boolean() ? value.get<bool>() : by_default;
}

// The components in their order, sequences taken apart; none for null.
std::vector<Json> components(const Json& component, const char* list) {
  if (component.is_null()) {
    return {};
  }
  const Json inner = member(component, list);
  if (type_of(component) != "Sequence" || !inner.is_array()) {
    return {component};
  }
  std::vector<Json> out;
  for (const Json& part : inner) {
    for (Json& each : components(part, list)) {
      out.push_back(std::move(each));
    }
  }
  return out;
}

// One line that says all of a component that changes what it does.
std::string signature(const Json& component) {
  const std::string type = type_of(component);
  if (type == "ByteLevel") {
    return concat("ByteLevel", flag_of(component, "add_prefix_space", true) ? " prefix" : "",
                  flag_of(component, "use_regex", true) ? " regex" : "");
  }
  if (type == "Digits") {
    return concat("Digits", flag_of(component, "individual_digits", false) ? " individual" : "");
  }
  if (type == "Split") {
    const Json regex = member(member(component, "pattern"), "Regex");
    if (regex.is_string() && member(component, "behavior") == "Isolated" &&
        !flag_of(component, "invert", false)) {
      return concat("Split ", with_escapes(regex.get<std::string>()));
    }
  }
  return component.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::vector<std::string> signatures(const std::vector<Json>& list) {
  std::vector<std::string> out;
  for (const Json& component : list) {
    out.push_back(signature(component));
  }
  return out;
}

std::string split_by(const char* pattern) { return concat("Split ", pattern); }

struct KnownPre {
  const char* name;
  std::vector<std::string> components;
  bool takes_whole_pieces = false;
  bool composes = false;  // models of this kind bring text to NFC
  const char* remark = "";
};

const std::vector<KnownPre>& known_pres() {
  static const std::vector<KnownPre> known = {
      {.name = "gpt-2", .components = {"ByteLevel regex"}},
      {.name = "gpt-2", .components = {split_by(kGpt2Pattern), "ByteLevel"}},
      {.name = "llama-bpe",
       .components = {split_by(kLlama3Pattern), "ByteLevel"},
       .takes_whole_pieces = true},
      {.name = "qwen2", .components = {split_by(kQwen2Pattern), "ByteLevel"}, .composes = true},
      {.name = "deepseek-v3",
       .components = {split_by(kDeepseekNumbers), split_by(kDeepseekHan), split_by(kDeepseekWords),
                      "ByteLevel"}},
      {.name = "smollm", .components = {"Digits individual", "ByteLevel regex"}},
      {.name = "gpt-4o",
       .components = {split_by(kGpt4oPattern), "ByteLevel"},
       .remark = "llama.cpp splits words with Indic or Tibetan vowel signs in other places"},
  };
  return known;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "none" : text;
}

}  // namespace

GgufPre gguf_pre(const Json& tokenizer, const std::string& file) {
  const std::vector<std::string> found =
      signatures(components(member(tokenizer, "pre_tokenizer"), "pretokenizers"));
  const auto known = std::find_if(known_pres().begin(), known_pres().end(),
                                  [&](const KnownPre& pre) { return pre.components == found; });
  check<ValueError>(known != known_pres().end(), file, ": pre_tokenizer: ", listed(found),
                    ": llama.cpp has no such way of splitting text that is known here, and another "
                    "one would give wrong ids. Known are those of GPT-2, Llama 3, Qwen2, DeepSeek "
                    "V3, SmolLM and GPT-4o; without a prefix space");
  GgufPre pre{.name = known->name, .takes_whole_pieces = known->takes_whole_pieces, .remarks = {}};
  const std::vector<std::string> normalizers =
      signatures(components(member(tokenizer, "normalizer"), "normalizers"));
  const bool nfc = normalizers == std::vector<std::string>{R"({"type":"NFC"})"};
  check<ValueError>(normalizers.empty() || (nfc && known->composes), file,
                    ": normalizer: ", listed(normalizers),
                    ": llama.cpp changes no text before it splits it as ", known->name);
  if (nfc) {
    pre.remarks.push_back(
        concat(file,
               ": llama.cpp does not bring text to NFC: what is not in that form, letters "
               "with combining marks of their own, gets other ids there"));
  }
  if (known->remark[0] != '\0') {
    pre.remarks.push_back(concat(file, ": ", known->remark));
  }
  return pre;
}

}  // namespace tapestry
