// A GGUF file as the folder that it stands for (packed_folder.h): the texts that a Hugging Face
// folder of the model would have beside its weights.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/io/packed_folder.h"
#include "interop/gguf/gguf_file.h"
#include "parallel_core/config/read/model_folder.h"

namespace tapestry {

inline constexpr const char* kGgufEnding = ".gguf";

/// Numbers of tokenizer.ggml.token_type.
enum GgufTokenType : int32_t {
  kGgufNormal = 1,
  kGgufUnknown = 2,
  kGgufControl = 3,
  kGgufUserDefined = 4,
  kGgufUnused = 5,
  kGgufByte = 6
};

/// tokenizer.ggml.{bos,eos,padding}_token_id. ValueError for ids beyond the tokens.
TokenIds gguf_token_ids(const GgufFile& file);

/// The tokenizer of a file: of "gpt2" a tokenizer.json, byte-level BPE with the way of splitting
/// that tokenizer.ggml.pre names; of "llama" a tokenizer.model, SentencePiece's form of pieces and
/// scores; and a tokenizer_config.json with named and special tokens and tokenizer.chat_template.
///
/// ValueError, naming file and key: another tokenizer.ggml.model, a `pre` that is not known, keys
/// that are missing or of a wrong type, lists of unequal lengths, tokens twice, merges that are no
/// two tokens or make none, types that there are not, scores that are not finite, byte tokens that
/// are missing, ids beyond the tokens, normalisation that is not built.
PackedFiles gguf_tokenizer_files(const GgufFile& file);

/// config.json, generation_config.json and the files of the tokenizer. IoError and ValueError as
/// GgufFile, read_gguf_config and gguf_tokenizer_files; ValueError where the tokenizer has another
/// number of tokens than the model.
PackedFiles gguf_folder(const std::string& path);

}  // namespace tapestry
