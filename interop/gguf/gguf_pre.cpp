#include "interop/gguf/gguf_pre.h"

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
// Mistral's of 2024 on: GPT-4o's without contractions, numbers digit by digit.
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// DeepSeek LLM and Coder, before V3: one Split after the other.
constexpr const char* kDeepseekBreaks = R"([\r\n])";
constexpr const char* kDeepseekCoderWords = R"(\s?\p{L}+)";
constexpr const char* kDeepseekCoderMarks = R"(\s?\p{P}+)";
constexpr const char* kDeepseekOldHan = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
constexpr const char* kDeepseekLlmMarks =
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
constexpr const char* kDeepseekLlmEnd = R"(\s+$)";
constexpr const char* kDeepseekLlmWords =  // letters that have a case
    "\\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+";
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
  bool composes = false;      // models of this kind bring text to NFC
  bool joins_digits = false;  // llama.cpp does, where the tokenizer takes one after the other
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
      {.name = "tekken",
       .components = {split_by(kTekkenPattern), "ByteLevel"},
       .takes_whole_pieces = true,
       .remark = "llama.cpp ends words at combining marks (accents of their own, vowel signs, "
                 "U+FE0F) and takes a titlecase letter (U+01C5) for one of both cases"},
      {.name = "deepseek-coder",
       .components = {split_by(kDeepseekBreaks), split_by(kDeepseekCoderWords),
                      split_by(kDeepseekCoderMarks), split_by(kDeepseekOldHan), "Digits individual",
                      "ByteLevel"}},
      {.name = "deepseek-llm",
       .components = {split_by(kDeepseekBreaks), split_by(kDeepseekLlmWords),
                      split_by(kDeepseekLlmMarks), split_by(kDeepseekLlmEnd),
                      split_by(kDeepseekOldHan), "Digits individual", "ByteLevel"},
       .joins_digits = true,
       .remark = "llama.cpp does not take a space along with U+3000"},
      {.name = "smollm", .components = {"Digits individual", "ByteLevel regex"}},
      {.name = "gpt-4o",
       .components = {split_by(kGpt4oPattern), "ByteLevel"},
       .remark = "llama.cpp ends words at combining marks (accents of their own, vowel signs, "
                 "U+FE0F)"},
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

// A token of several digits, or an empty text where the vocabulary has none.
std::string token_of_digits(const Json& tokenizer) {
  const Json vocabulary = member(member(tokenizer, "model"), "vocab");
  if (vocabulary.is_object()) {
    for (const auto& entry : vocabulary.items()) {
      const std::string& token = entry.key();
      if (token.size() > 1 && token.find_first_not_of("0123456789") == std::string::npos) {
        return token;
      }
    }
  }
  return {};
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
                    "LLM, Coder and V3, Mistral's Tekken, SmolLM and GPT-4o; without a prefix "
                    "space");
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
  if (const std::string digits = known->joins_digits ? token_of_digits(tokenizer) : std::string();
      !digits.empty()) {
    pre.remarks.push_back(concat(file,
                                 ": llama.cpp takes the digits of a number together: where the "
                                 "vocabulary has a token for some, as for ",
                                 digits, ", numbers get other ids there"));
  }
  return pre;
}

namespace {

// The component that a signature is of.
Json component_of(const std::string& signature) {
  constexpr std::string_view kSplit = "Split ";
  if (signature.starts_with(kSplit)) {
    return {{"type", "Split"},
            {"pattern", {{"Regex", signature.substr(kSplit.size())}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  }
  if (signature.starts_with("Digits")) {
    return {{"type", "Digits"}, {"individual_digits", signature.ends_with(" individual")}};
  }
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", signature.ends_with(" regex")}};
}

}  // namespace

GgufSplitting gguf_splitting(const std::string& name, const std::string& file) {
  std::string names;
  for (const KnownPre& known : known_pres()) {
    if (known.name != name) {
      names += concat(names.empty() ? "" : ", ", known.name);
      continue;
    }
    Json list = Json::array();
    for (const std::string& signature : known.components) {
      list.push_back(component_of(signature));
    }
    const Json normalizer = known.composes ? Json({{"type", "NFC"}}) : Json();
    const Json splitter =
        list.size() == 1 ? list[0] : Json({{"type", "Sequence"}, {"pretokenizers", list}});
    return {normalizer.dump(), splitter.dump(), known.takes_whole_pieces};
  }
  throw ValueError(concat(file, ": tokenizer.ggml.pre: is \"", name,
                          "\", a way of splitting text that is not known here, and another one "
                          "would give wrong ids; known are ",
                          names));
}

}  // namespace tapestry
