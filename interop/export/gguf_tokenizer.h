// A tokenizer as GGUF holds it, from the files beside a model.
//
// Source: the keys tokenizer.ggml.* and what llama.cpp makes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interop/architectures/read_hf_config.h"
#include "interop/gguf/gguf_texts.h"
#include "interop/gguf/gguf_writer.h"

namespace tapestry {

struct GgufTokenizer {
  std::string source;  ///< the file that it was read from, for messages
  std::string model;   ///< "gpt2": byte-level BPE; "llama": pieces like SentencePiece's
  std::string pre;     ///< the way of splitting text
  std::vector<std::string> tokens;
  std::vector<int32_t> types;       ///< GgufTokenType of each
  std::vector<std::string> merges;  ///< of "gpt2"
  std::vector<float> scores;        ///< of "llama"
  std::optional<int64_t> bos, eos, eot, unknown, padding;
  bool add_bos = false;
  bool add_eos = false;
  std::optional<bool> add_space_prefix;  ///< of "llama"
  std::string chat_template;             ///< empty: none
  std::vector<std::string> remarks;      ///< where llama.cpp will depart from it
};

/// Which tokenizer a folder has.
struct GgufTokenizerChoice {
  /// "byte", "character", "sentencepiece" or "huggingface", as dataset_config.tokenizer_type says;
  /// empty: what the files are, and bytes where there are none.
  std::string type;
  TokenIds ids;      ///< of config.json
  int64_t rows = 0;  ///< of the model's table of embeddings
};

/// Reads tokenizer.json, tokenizer.model, or vocab.json and merges.txt of a folder, with
/// added_tokens.json, tokenizer_config.json and chat_template.jinja where they say more. Rows of
/// the table that no token has become unused tokens "[PAD7]".
///
/// IoError for a file that is missing or no JSON. ValueError, naming file and component, for what
/// llama.cpp cannot do: Unigram, WordPiece, normalizers, ways of splitting that are not known
/// (gguf_pre), 256 byte tokens that are not all there, several ids before a text; and for a token
/// beyond the table's rows.
GgufTokenizer read_gguf_tokenizer(const std::string& folder, const GgufTokenizerChoice& choice);

void add_tokenizer_metadata(const GgufTokenizer& tokenizer, GgufMetadata& metadata);

}  // namespace tapestry
