#include "interop/export/gguf_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_fields.h"
#include "interop/export/gguf_vocabulary.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/turn_end.h"
#include "text/util/file.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using hf::Json;

// What tokenizer_config.json says beside the tokens.
struct NamedTokens {
  std::string bos;
  std::string eos;  // text of the token that ends an answer
  std::string pad;
  std::string chat_template;
};

// What is there and no file is for the reader to refuse.
std::string file_if_any(const std::string& folder, const char* name) {
  const std::string path = (fs::path(folder) / name).string();
  return path_exists(path) ? path : std::string();
}

// A token is a string, or an object that has it as its content.
std::string token_text(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) {
    return {};
  }
  if (found->is_object() && found->contains("content") && found->at("content").is_string()) {
    return found->at("content").get<std::string>();
  }
  return found->is_string() ? found->get<std::string>() : std::string();
}

// One template, or a list of named ones of which "default" counts.
std::string template_text(const Json& json) {
  if (json.is_string()) {
    return json.get<std::string>();
  }
  if (json.is_array()) {
    for (const Json& entry : json) {
      if (entry.is_object() && entry.value("name", Json()) == "default" &&
          entry.value("template", Json()).is_string()) {
        return entry.at("template").get<std::string>();
      }
    }
  }
  return {};
}

NamedTokens read_named_tokens(const std::string& folder) {
  NamedTokens settings;
  const std::string file = file_if_any(folder, "tokenizer_config.json");
  if (!file.empty()) {
    const Json json = hf::parse_strictly(data::read_file(file), file);
    settings.bos = token_text(json, "bos_token");
    settings.eos = token_text(json, "eos_token");
    settings.pad = token_text(json, "pad_token");
    if (const auto text = json.find("chat_template"); text != json.end()) {
      settings.chat_template = template_text(*text);
    }
  }
  if (const std::string jinja = file_if_any(folder, "chat_template.jinja"); !jinja.empty()) {
    settings.chat_template = data::read_file(jinja);
  }
  return settings;
}

std::string type_of_files(const std::string& folder) {
  for (const auto& [name, type] : {std::pair{"tokenizer.json", "huggingface"},
                                   {"tokenizer.model", "sentencepiece"},
                                   {"vocab.json", "huggingface"}}) {
    if (!file_if_any(folder, name).empty()) {
      return type;
    }
  }
  return "byte";
}

void read_vocabulary(const std::string& folder, const std::string& type, GgufTokenizer& tokenizer) {
  const std::string model = (fs::path(folder) / "tokenizer.model").string();
  if (type == "byte") {
    make_byte_vocabulary(tokenizer);
  } else if (type == "character") {
    read_characters(model, tokenizer);
  } else if (type == "sentencepiece") {
    read_sentencepiece_vocabulary(model, tokenizer);
  } else if (type == "huggingface") {
    read_tokenizer_json(folder, tokenizer);
  } else {
    throw ValueError(concat(folder, ": a tokenizer of type ", type, " cannot be written as GGUF"));
  }
}

void set_ids(const TokenIds& ids, const NamedTokens& settings, GgufTokenizer& tokenizer) {
  const auto valid = [&](const std::optional<int64_t>& id,
                         const char* name) -> std::optional<int64_t> {
    if (id && *id >= static_cast<int64_t>(tokenizer.tokens.size())) {
      tokenizer.remarks.push_back(concat(tokenizer.source, ": ", name, " ", *id,
                                         " is beyond the model's vocabulary and left out"));
      return std::nullopt;
    }
    return id && *id >= 0 ? id : std::nullopt;
  };
  const auto named = [&](const std::string& text) -> std::optional<int64_t> {
    const int64_t id = text.empty() ? -1 : gguf_token_id(tokenizer, text);
    return id < 0 ? std::nullopt : std::optional(id);
  };
  // What stands around a text by the tokenizer's own rule counts, then what it names (which is what
  // a chat template is given), then config.json.
  if (!tokenizer.bos) {
    tokenizer.bos = named(settings.bos);
  }
  if (!tokenizer.bos) {
    tokenizer.bos = valid(ids.bos, "bos_token_id");
  }
  if (!tokenizer.eos) {
    tokenizer.eos = named(settings.eos);
  }
  if (!tokenizer.eos && !ids.eos.empty()) {
    tokenizer.eos = valid(ids.eos.front(), "eos_token_id");
  }
  tokenizer.padding = ids.pad ? valid(ids.pad, "pad_token_id") : named(settings.pad);
}

// What the chat template writes behind an answer, where that is not the end of a text.
void find_end_of_turn(const std::string& folder,
                      const std::string& type,
                      GgufTokenizer& tokenizer) {
  if (type != "huggingface" && type != "sentencepiece") {
    return;
  }
  std::optional<chat::ChatFormat> format;
  try {
    format = chat::read_chat_format(folder);
  } catch (const ValueError&) {  // a template that is refused here may do there
  }
  if (!format) {
    return;
  }
  const auto pieces = data::make_tokenizer(
      type, type == "huggingface" ? folder : (fs::path(folder) / "tokenizer.model").string());
  const data::TurnEnd turn = data::find_turn_end(*format, *pieces);
  if (turn.id >= 0 && turn.id != tokenizer.eos &&
      turn.id < static_cast<int64_t>(tokenizer.tokens.size())) {
    tokenizer.eot = turn.id;
  }
}

}  // namespace

void clear_gguf_vocabulary(GgufTokenizer& tokenizer, int64_t rows) {
  tokenizer.tokens.clear();
  for (int64_t id = 0; id < rows; ++id) {
    tokenizer.tokens.push_back(concat("[PAD", id, "]"));
  }
  tokenizer.types.assign(static_cast<size_t>(rows), kGgufUnused);
}

void set_gguf_token(GgufTokenizer& tokenizer,
                    int64_t id,
                    const std::string& text,
                    GgufTokenType type) {
  check<ValueError>(id >= 0 && id < static_cast<int64_t>(tokenizer.tokens.size()), tokenizer.source,
                    ": the token \"", text, "\" has the id ", id,
                    ", but the model's vocabulary (model_config.vocab_size) has ",
                    tokenizer.tokens.size(),
                    " rows; if tokens were added to the tokenizer, --resize_embeddings makes a row "
                    "for each, else "
                    "it is not the tokenizer of this model");
  tokenizer.tokens[static_cast<size_t>(id)] = text;
  tokenizer.types[static_cast<size_t>(id)] = type;
}

int64_t gguf_token_id(const GgufTokenizer& tokenizer, std::string_view text) {
  const auto found = std::find(tokenizer.tokens.begin(), tokenizer.tokens.end(), text);
  return found == tokenizer.tokens.end() ? -1 : found - tokenizer.tokens.begin();
}

GgufTokenizer read_gguf_tokenizer(const std::string& folder, const GgufTokenizerChoice& choice) {
  GgufTokenizer tokenizer;
  tokenizer.source = folder;
  clear_gguf_vocabulary(tokenizer, choice.rows);
  const std::string type = choice.type.empty() ? type_of_files(folder) : choice.type;
  if (choice.type.empty() && type == "byte") {
    check<ValueError>(choice.rows > data::ByteTokenizer::kEod, folder,
                      ": has no tokenizer (tokenizer.json, tokenizer.model, vocab.json), and the "
                      "vocabulary of ",
                      choice.rows, " has no room for the ", data::ByteTokenizer::kEod + 1,
                      " ids of a model of bytes");
    tokenizer.remarks.push_back(folder + ": has no tokenizer; its ids are taken for bytes");
  }
  NamedTokens settings = read_named_tokens(folder);
  read_vocabulary(folder, type, tokenizer);
  set_ids(choice.ids, settings, tokenizer);
  find_end_of_turn(folder, type, tokenizer);
  tokenizer.chat_template = std::move(settings.chat_template);
  return tokenizer;
}

void add_tokenizer_metadata(const GgufTokenizer& tokenizer, GgufMetadata& metadata) {
  const std::string prefix = "tokenizer.ggml.";
  metadata.add(prefix + "model", tokenizer.model);
  metadata.add(prefix + "pre", tokenizer.pre);
  metadata.add(prefix + "tokens", tokenizer.tokens);
  if (tokenizer.model == "llama") {
    metadata.add(prefix + "scores", tokenizer.scores);
  }
  metadata.add(prefix + "token_type", tokenizer.types);
  if (tokenizer.model == "gpt2") {
    metadata.add(prefix + "merges", tokenizer.merges);
  }
  const auto id = [&](const char* name, const std::optional<int64_t>& value) {
    if (value) {
      metadata.add(prefix + name, static_cast<uint32_t>(*value));
    }
  };
  id("bos_token_id", tokenizer.bos);
  id("eos_token_id", tokenizer.eos);
  id("eot_token_id", tokenizer.eot);
  id("unknown_token_id", tokenizer.unknown);
  id("padding_token_id", tokenizer.padding);
  metadata.add(prefix + "add_bos_token", tokenizer.add_bos);
  metadata.add(prefix + "add_eos_token", tokenizer.add_eos);
  if (tokenizer.add_space_prefix) {
    metadata.add(prefix + "add_space_prefix", *tokenizer.add_space_prefix);
  }
  if (!tokenizer.chat_template.empty()) {
    metadata.add("tokenizer.chat_template", tokenizer.chat_template);
  }
}

}  // namespace tapestry
