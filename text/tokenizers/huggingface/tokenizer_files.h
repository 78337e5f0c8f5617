// The files that a tokenizer of Hugging Face is kept in.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/huggingface/component.h"

namespace tapestry::data::huggingface {

/// Files that stand beside weights and say how text becomes ids and ids become text; those that are
/// copied when a model is saved: tokenizer.json, tokenizer_config.json, special_tokens_map.json,
/// added_tokens.json, vocab.json, merges.txt, chat_template.jinja, generation_config.json.
const std::vector<std::string>& tokenizer_file_names();

/// What a tokenizer is read from.
struct TokenizerFiles {
  std::string folder;
  std::string tokenizer_json;  ///< path; empty: vocab.json and merges.txt
  std::string vocab_json;
  std::string merges_txt;
};

/// The files of `path`: a tokenizer.json under any name, a folder that has one, or a folder with
/// vocab.json and merges.txt. IoError if there is none.
TokenizerFiles find_tokenizer_files(const std::string& path);

/// Whether a folder has such files.
bool has_tokenizer_files(const std::string& folder);

/// The checksum by which a tokenizer is known: of tokenizer.json, or of vocab.json and merges.txt.
std::string tokenizer_checksum(const TokenizerFiles& files);

/// What is to be copied where the tokenizer of `path` (as find_tokenizer_files takes it) goes with
/// a model: names of files there, and where they are now. A file under a name of its own stands
/// alone and becomes tokenizer.json; else the others of tokenizer_file_names() go with it, but
/// generation_config.json, which is the model's.
std::map<std::string, std::string> tokenizer_files_to_copy(const std::string& path);

/// The whole file. IoError if it has more than 256 MiB.
std::string read_tokenizer_file(const std::string& path);

/// vocab.json and merges.txt, with the settings and special tokens that stand beside them, as the
/// tokenizer.json that they are: byte-level, with the pattern of GPT-2 or, where
/// tokenizer_config.json names its class, Qwen2. IoError for files that are not of this form,
/// ValueError for other classes.
Json tokenizer_json_of(const TokenizerFiles& files);

/// What the files of a folder say of special tokens.
struct SpecialTokens {
  std::optional<std::string> bos, eos, pad;  ///< by their text
  std::optional<int64_t> bos_id, eos_id, pad_id;
};

/// From tokenizer_config.json and special_tokens_map.json the texts, from generation_config.json
/// and config.json the ids; the first that says something is taken. IoError for files that are no
/// JSON objects.
SpecialTokens read_special_tokens(const std::string& folder);

/// What tokenizer_config.json says beside the tokens.
struct TokenizerSettings {
  bool is_there = false;
  std::string name;  ///< tokenizer_class without "Fast"; empty: none is named
  /// A class that puts bos and eos around texts as add_bos_token (true where it is missing) and
  /// add_eos_token (false) say, whatever tokenizer.json does: Llama's, CodeLlama's, Gemma's,
  /// Cohere's.
  bool frames_texts = false;
  std::string bos, eos;  ///< of such a class, named or its own
  std::optional<bool> add_bos, add_eos;
  bool legacy = true;  ///< a space of the model's own also behind tokens within a text
};
/// IoError for a file that is no JSON object.
TokenizerSettings read_tokenizer_settings(const std::string& folder);

/// Tokens that added_tokens.json, tokenizer_config.json (added_tokens_decoder, bos_token and its
/// kin) and special_tokens_map.json name, as a list in the form of tokenizer.json, by ascending id;
/// "source" is the file. Named ones without an id are those that `find` knows. IoError for files
/// that are not of this form.
Json added_tokens_beside(const std::string& folder,
                         const std::function<std::optional<int64_t>(const std::string&)>& find);

/// Puts into a tokenizer.json what the folder says beside it and transformers heeds: tokens that it
/// lacks, and what a class puts around texts (TokenizerSettings::frames_texts). A file under a name
/// of its own is left as it is. Named tokens that there are not are remarked.
void apply_folder(Json& json, const TokenizerFiles& files, std::vector<std::string>& remarks);

}  // namespace tapestry::data::huggingface
