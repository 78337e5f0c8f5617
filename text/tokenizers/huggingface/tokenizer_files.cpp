#include "text/tokenizers/huggingface/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "text/util/checksum.h"
#include "text/util/utf8.h"

namespace tapestry::data::huggingface {
namespace tokenizer_files {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostBytes = uint64_t{256} << 20U;

std::string in_folder(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

// An object; null where there is no such file.
Json read_object(const std::string& path) {
  if (!path_exists(path)) {
    return {};
  }
  Json json = parse_json(read_tokenizer_file(path), path);
  check<IoError>(json.is_object(), path, ": is ", json.type_name(), ", expected a JSON object");
  return json;
}

// "<s>", or {"content": "<s>", ...}.
std::optional<std::string> token_text(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) {
    return std::nullopt;
  }
  const Json& value = json[key];
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

// ["<s>", {"content": "</s>"}]
std::vector<std::string> token_list(const Json& json, const char* key) {
  std::vector<std::string> out;
  if (json.is_object() && json.contains(key) && json[key].is_array()) {
    for (const Json& value : json[key]) {
      if (auto text = token_text({{"token", value}}, "token")) {
        out.push_back(*std::move(text));
      }
    }
  }
  return out;
}

std::optional<bool> flag_of(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_boolean()
             ? std::optional<bool>(json[key].get<bool>())
             : std::nullopt;
}

// 2, or [2, 7]: the first.
std::optional<int64_t> token_id(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) {
    return std::nullopt;
  }
  const Json& value = json[key];
  const Json& first = value.is_array() && !value.empty() ? value[0] : value;
  return first.is_number_integer() ? std::optional<int64_t>(first.get<int64_t>()) : std::nullopt;
}

template <class T>
void take_first(std::optional<T>& into, std::optional<T> value) {
  if (!into && value) {
    into = std::move(value);
  }
}

Json read_merges(const std::string& path) {
  const std::string text = read_tokenizer_file(path);
  check<IoError>(is_valid_utf8(text), path, ": is not UTF-8 text");
  Json merges = Json::array();
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty() || line.starts_with("#version")) {
      continue;
    }
    const size_t space = line.find(' ');
    check<IoError>(
        space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos,
        path, ": line ", number, ": \"", line.substr(0, 60),
        "\" is not two tokens with a space between them");
    merges.push_back(line);
  }
  return merges;
}

Json added_token(const std::string& content, int64_t id, bool special) {
  return {{"id", id},        {"content", content},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", !special}, {"special", special}};
}

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

// Finds the id of a token of the model; null: it has none.
using FindId = std::function<std::optional<int64_t>(const std::string&)>;

// From added_tokens.json, tokenizer_config.json and special_tokens_map.json, in order of their ids.
Json added_tokens(const std::string& folder, const FindId& find, const Json& settings) {
  std::map<int64_t, Json> tokens;
  const Json plain = read_object(in_folder(folder, "added_tokens.json"));
  for (const auto& [content, id] : plain.items()) {
    check<IoError>(id.is_number_integer(), in_folder(folder, "added_tokens.json"), ": \"", content,
                   "\" has no integer as its id");
    tokens[id.get<int64_t>()] = added_token(content, id.get<int64_t>(), false);
    tokens[id.get<int64_t>()]["source"] = in_folder(folder, "added_tokens.json");
  }
  if (settings.contains("added_tokens_decoder") && settings["added_tokens_decoder"].is_object()) {
    for (const auto& [id, token] : settings["added_tokens_decoder"].items()) {
      const bool digits =
          !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
      check<IoError>(digits && token.is_object(), in_folder(folder, "tokenizer_config.json"),
                     ": added_tokens_decoder: \"", id, "\" is not an id with a token");
      Json entry = token;
      entry["id"] = std::stoll(id);
      entry["source"] = in_folder(folder, "tokenizer_config.json");
      tokens[std::stoll(id)] = entry;
    }
  }
  const Json map = read_object(in_folder(folder, "special_tokens_map.json"));
  const auto make_special = [&](const std::optional<std::string>& content) {
    if (!content) {
      return;
    }
    for (auto& [id, token] : tokens) {
      if (token.value("content", Json()) == *content) {
        token["special"] = true;
        return;
      }
    }
    if (const std::optional<int64_t> id = find(*content)) {
      tokens[*id] = added_token(*content, *id, true);
      tokens[*id]["source"] = in_folder(folder, "tokenizer_config.json");
    }
  };
  for (const char* key : kNamedTokens) {
    make_special(token_text(settings, key));
    make_special(token_text(map, key));
  }
  for (const Json* json : {&settings, &map}) {
    for (const std::string& text : token_list(*json, "additional_special_tokens")) {
      make_special(text);
    }
  }
  Json list = Json::array();
  for (auto& [id, token] : tokens) {
    list.push_back(std::move(token));
  }
  return list;
}

}  // namespace
}  // namespace tokenizer_files

const std::vector<std::string>& tokenizer_file_names() {
  static const std::vector<std::string> names = {"tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "chat_template.jinja",
                                                 "generation_config.json"};
  return names;
}

bool has_tokenizer_files(const std::string& folder) {
  return path_exists(folder + "/tokenizer.json") ||
         (path_exists(folder + "/vocab.json") && path_exists(folder + "/merges.txt"));
}

TokenizerFiles find_tokenizer_files(const std::string& path) {
  namespace fs = std::filesystem;
  if (!folder_exists(path)) {
    check<IoError>(path_exists(path), path,
                   ": is missing, expected a tokenizer.json, or a folder with one");
    const fs::path parent = fs::path(path).parent_path();
    return {parent.empty() ? "." : parent.string(), path, "", ""};
  }
  TokenizerFiles files{path, "", "", ""};
  if (const auto json = fs::path(path) / "tokenizer.json"; path_exists(json.string())) {
    files.tokenizer_json = json.string();
    return files;
  }
  files.vocab_json = tokenizer_files::in_folder(path, "vocab.json");
  files.merges_txt = tokenizer_files::in_folder(path, "merges.txt");
  check<IoError>(path_exists(files.vocab_json) && path_exists(files.merges_txt), path,
                 ": has neither tokenizer.json nor vocab.json with merges.txt");
  return files;
}

std::string read_tokenizer_file(const std::string& path) {
  return read_file(path, tokenizer_files::kMostBytes);
}

std::string tokenizer_checksum(const TokenizerFiles& files) {
  return files.tokenizer_json.empty()
             ? crc64(read_tokenizer_file(files.vocab_json) + read_tokenizer_file(files.merges_txt))
             : crc64(read_tokenizer_file(files.tokenizer_json));
}

std::map<std::string, std::string> tokenizer_files_to_copy(const std::string& path) {
  namespace fs = std::filesystem;
  const TokenizerFiles files = find_tokenizer_files(path);
  if (!files.tokenizer_json.empty() &&
      fs::path(files.tokenizer_json).filename() != "tokenizer.json") {
    return {{"tokenizer.json", files.tokenizer_json}};
  }
  std::map<std::string, std::string> found;
  for (const std::string& name : tokenizer_file_names()) {
    const fs::path file = fs::path(files.folder) / name;
    if (name != "generation_config.json" && path_exists(file.string())) {
      found[name] = file.string();
    }
  }
  return found;
}

Json tokenizer_json_of(const TokenizerFiles& files) {
  const Json vocab = tokenizer_files::read_object(files.vocab_json);
  const std::string settings_path =
      tokenizer_files::in_folder(files.folder, "tokenizer_config.json");
  const Json settings = tokenizer_files::read_object(settings_path);
  std::string name = settings.is_object() && settings.contains("tokenizer_class") &&
                             settings["tokenizer_class"].is_string()
                         ? settings["tokenizer_class"].get<std::string>()
                         : "GPT2Tokenizer";
  if (name.ends_with("Fast")) {
    name.resize(name.size() - 4);
  }
  const bool qwen = name == "Qwen2Tokenizer";
  check<ValueError>(qwen || name == "GPT2Tokenizer" || name == "CodeGenTokenizer", settings_path,
                    ": vocab.json and merges.txt of the class ", name,
                    " are not read, only those of GPT2Tokenizer, CodeGenTokenizer and "
                    "Qwen2Tokenizer; save it as tokenizer.json");
  const bool prefix = settings.is_object() && settings.contains("add_prefix_space") &&
                      settings["add_prefix_space"] == true;
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", prefix},
                           {"trim_offsets", false},
                           {"use_regex", !qwen}};
  Json json = {{"version", "1.0"},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level},
               {"post_processor", byte_level},
               {"decoder", byte_level},
               {"added_tokens", Json::array()},
               {"model",
                {{"type", "BPE"},
                 {"vocab", vocab},
                 {"merges", tokenizer_files::read_merges(files.merges_txt)}}}};
  if (qwen) {
    constexpr const char* kPattern =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
        R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
    json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"Regex", kPattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}},
                               byte_level}}};
  }
  constexpr const char* kEnd = "<|endoftext|>";  // of GPT-2, when nothing says so
  if (vocab.contains(kEnd) && vocab[kEnd].is_number_integer()) {
    json["added_tokens"].push_back(
        tokenizer_files::added_token(kEnd, vocab[kEnd].get<int64_t>(), true));
  }
  return json;
}

TokenizerSettings read_tokenizer_settings(const std::string& folder) {
  using tokenizer_files::flag_of;
  TokenizerSettings out;
  const std::string path = tokenizer_files::in_folder(folder, "tokenizer_config.json");
  const Json json = tokenizer_files::read_object(path);
  out.is_there = json.is_object();
  if (out.is_there && json.contains("tokenizer_class") && json["tokenizer_class"].is_string()) {
    out.name = json["tokenizer_class"].get<std::string>();
    if (out.name.ends_with("Fast")) {
      out.name.resize(out.name.size() - 4);
    }
  }
  struct Frame {
    const char* name;
    const char* bos;
    const char* eos;
  };
  constexpr Frame kFrames[] = {{"LlamaTokenizer", "<s>", "</s>"},
                               {"CodeLlamaTokenizer", "<s>", "</s>"},
                               {"GemmaTokenizer", "<bos>", "<eos>"},
                               {"CohereTokenizer", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"}};
  const SpecialTokens named = read_special_tokens(folder);
  for (const Frame& frame : kFrames) {
    if (out.name == frame.name) {
      out.frames_texts = true;
      out.bos = named.bos.value_or(frame.bos);
      out.eos = named.eos.value_or(frame.eos);
    }
  }
  out.add_bos = flag_of(json, "add_bos_token");
  out.add_eos = flag_of(json, "add_eos_token");
  out.legacy = flag_of(json, "legacy").value_or(true);
  return out;
}

Json added_tokens_beside(const std::string& folder,
                         const std::function<std::optional<int64_t>(const std::string&)>& find) {
  return tokenizer_files::added_tokens(
      folder, find,
      tokenizer_files::read_object(tokenizer_files::in_folder(folder, "tokenizer_config.json")));
}

void apply_folder(Json& json, const TokenizerFiles& files, std::vector<std::string>& remarks) {
  namespace fs = std::filesystem;
  if (!json.is_object() || (!files.tokenizer_json.empty() &&
                            fs::path(files.tokenizer_json).filename() != "tokenizer.json")) {
    return;  // it stands alone
  }
  std::unordered_map<std::string, int64_t> ids;
  const Json model = json.value("model", Json());
  const Json vocab = model.is_object() ? model.value("vocab", Json()) : Json();
  if (vocab.is_object()) {
    for (const auto& [text, id] : vocab.items()) {
      if (id.is_number_integer()) {
        ids.emplace(text, id.get<int64_t>());
      }
    }
  } else if (vocab.is_array()) {  // of Unigram: [piece, score]
    for (size_t i = 0; i < vocab.size(); ++i) {
      if (vocab[i].is_array() && !vocab[i].empty() && vocab[i][0].is_string()) {
        ids.emplace(vocab[i][0].get<std::string>(), static_cast<int64_t>(i));
      }
    }
  }
  if (!json.contains("added_tokens") || json["added_tokens"].is_null()) {
    json["added_tokens"] = Json::array();
  }
  Json& added = json["added_tokens"];
  if (!added.is_array()) {
    return;  // which whoever reads it says
  }
  std::unordered_set<std::string> known;
  for (const Json& token : added) {
    if (const auto text = tokenizer_files::token_text({{"token", token}}, "token");
        text && token.contains("id") && token["id"].is_number_integer()) {
      known.insert(*text);
      ids.insert_or_assign(*text, token["id"].get<int64_t>());
    }
  }
  const auto find = [&](const std::string& text) -> std::optional<int64_t> {
    const auto found = ids.find(text);
    return found == ids.end() ? std::nullopt : std::optional<int64_t>(found->second);
  };
  for (const Json& token : added_tokens_beside(files.folder, find)) {
    const auto text = tokenizer_files::token_text({{"token", token}}, "token");
    if (text && !known.contains(*text)) {
      added.push_back(token);
      known.insert(*text);
      ids.emplace(*text, token["id"].get<int64_t>());
    }
  }
  const SpecialTokens named = read_special_tokens(files.folder);
  for (const auto& [key, text] :
       {std::pair{"bos_token", &named.bos}, std::pair{"eos_token", &named.eos}}) {
    if (*text && !find(**text)) {
      remarks.push_back(concat(tokenizer_files::in_folder(files.folder, "tokenizer_config.json"),
                               ": ", key, " is \"", **text,
                               "\", which the tokenizer does not have; it is passed over"));
    }
  }
  const TokenizerSettings settings = read_tokenizer_settings(files.folder);
  if (!settings.frames_texts) {
    return;
  }
  // As transformers' classes do, whatever the file says.
  Json frame = {{"type", "TemplateProcessing"},
                {"single", Json::array()},
                {"pair", Json::array()},
                {"special_tokens", Json::object()}};
  const auto put = [&](bool on, const std::string& text) {
    const auto id = find(text);
    if (on && id) {
      frame["single"].push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      frame["special_tokens"][text] = {
          {"id", text}, {"ids", {static_cast<uint64_t>(*id)}}, {"tokens", {text}}};
    } else if (on && settings.is_there) {
      remarks.push_back(concat(tokenizer_files::in_folder(files.folder, "tokenizer_config.json"),
                               ": a ", settings.name, " puts \"", text,
                               "\" around texts, which the tokenizer does not have"));
    }
  };
  put(settings.add_bos.value_or(true), settings.bos);
  frame["single"].push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  put(settings.add_eos.value_or(false), settings.eos);
  json["post_processor"] = std::move(frame);
}

SpecialTokens read_special_tokens(const std::string& folder) {
  using tokenizer_files::take_first;
  SpecialTokens tokens;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const Json json = tokenizer_files::read_object(tokenizer_files::in_folder(folder, name));
    take_first(tokens.bos, tokenizer_files::token_text(json, "bos_token"));
    take_first(tokens.eos, tokenizer_files::token_text(json, "eos_token"));
    take_first(tokens.pad, tokenizer_files::token_text(json, "pad_token"));
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    const Json json = tokenizer_files::read_object(tokenizer_files::in_folder(folder, name));
    take_first(tokens.bos_id, tokenizer_files::token_id(json, "bos_token_id"));
    take_first(tokens.eos_id, tokenizer_files::token_id(json, "eos_token_id"));
    take_first(tokens.pad_id, tokenizer_files::token_id(json, "pad_token_id"));
  }
  return tokens;
}

}  // namespace tapestry::data::huggingface
