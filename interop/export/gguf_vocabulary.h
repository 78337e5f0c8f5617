// How the tokens of each kind of tokenizer come into a GgufTokenizer: what gguf_tokenizer.cpp
// chooses among.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "interop/export/gguf_tokenizer.h"

namespace tapestry {

/// Tables of `rows` unused tokens, to be filled.
void clear_gguf_vocabulary(GgufTokenizer& tokenizer, int64_t rows);
/// ValueError, naming the source, for an id outside the table.
void set_gguf_token(GgufTokenizer& tokenizer,
                    int64_t id,
                    const std::string& text,
                    GgufTokenType type);
/// The id of a token; -1: there is none.
int64_t gguf_token_id(const GgufTokenizer& tokenizer, std::string_view text);

/// The character by which byte-level BPE writes a byte.
std::string printed_byte(uint8_t byte);

/// Each fills a cleared table, from a file; see read_gguf_tokenizer for errors. Of a folder:
/// tokenizer.json, or vocab.json with merges.txt, and what stands beside them.
void read_tokenizer_json(const std::string& folder, GgufTokenizer& tokenizer);
void read_sentencepiece_vocabulary(const std::string& file, GgufTokenizer& tokenizer);
void read_characters(const std::string& file, GgufTokenizer& tokenizer);
void make_byte_vocabulary(GgufTokenizer& tokenizer);

}  // namespace tapestry
