#include "interop/export/gguf_vocabulary.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"
#include "text/util/file.h"
#include "text/util/utf8.h"

namespace tapestry {
namespace {

constexpr const char* kEndOfDocument = "<|endoftext|>";
constexpr int kByteValues = 256;

std::string printed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += printed_byte(static_cast<uint8_t>(c));
  }
  return out;
}

}  // namespace

std::string printed_byte(uint8_t byte) {
  static const std::vector<std::string> table = [] {
    constexpr uint32_t kFirstOther = 256;
    std::vector<std::string> out(kByteValues);
    uint32_t others = 0;
    for (uint32_t b = 0; b < kByteValues; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = data::utf8(itself ? b : kFirstOther + others++);
    }
    return out;
  }();
  return table[byte];
}

void read_sentencepiece_vocabulary(const std::string& file, GgufTokenizer& tokenizer) {
  constexpr int64_t kBpe = 2;
  tokenizer.source = file;
  const std::string bytes = data::read_file(file);
  data::SentencePieceModelInfo info;
  std::vector<data::SentencePiece> pieces;
  try {
    info = data::inspect_sentencepiece_model(bytes);
    pieces = data::sentencepiece_pieces(bytes);
  } catch (const ValueError& error) {
    throw IoError(concat(file, ": ", error.what()));
  }
  check<ValueError>(info.model_type == kBpe, file, ": trainer_spec.model_type: is ",
                    info.model_type == 1 ? "unigram" : "words or characters",
                    "; what llama.cpp does with pieces is BPE");
  check<ValueError>(!info.has_normalization_rules, file,
                    ": normalizer_spec: has rules that change text, which llama.cpp does not "
                    "apply; train with normalization_rule_name identity");
  check<ValueError>(!info.remove_extra_whitespaces, file,
                    ": normalizer_spec.remove_extra_whitespaces: is true, which llama.cpp does "
                    "not do");
  tokenizer.model = "llama";
  tokenizer.pre = "default";
  tokenizer.add_space_prefix = info.add_dummy_prefix;
  tokenizer.scores.assign(tokenizer.tokens.size(), 0.0F);
  int64_t byte_tokens = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const data::SentencePiece& piece = pieces[id];
    check<ValueError>(piece.type >= kGgufNormal && piece.type <= kGgufByte, file, ": piece ", id,
                      ": type ", piece.type, ", expected 1 .. 6");
    // The numbers of SentencePiece's types are GGUF's.
    set_gguf_token(tokenizer, static_cast<int64_t>(id), piece.text,
                   static_cast<GgufTokenType>(piece.type));
    tokenizer.scores[id] = piece.score;
    byte_tokens += piece.type == kGgufByte ? 1 : 0;
    if (piece.type == kGgufUnknown) {
      tokenizer.unknown = static_cast<int64_t>(id);
    }
  }
  check<ValueError>(byte_tokens == kByteValues, file, ": trainer_spec.byte_fallback: ", byte_tokens,
                    " byte pieces, expected ", kByteValues,
                    ", without which llama.cpp does not load a vocabulary");
  const data::SentencePieceTokenizer whole(file);
  for (auto id = static_cast<int32_t>(pieces.size()); id < whole.vocab_size(); ++id) {
    const bool special = whole.decode(std::vector<int32_t>{id}).empty();
    set_gguf_token(tokenizer, id, whole.piece(id), special ? kGgufControl : kGgufUserDefined);
  }
  const std::vector<int32_t> before = whole.ids_before();
  tokenizer.add_bos = !before.empty();
  tokenizer.add_eos = !whole.ids_after().empty();
  if (!before.empty()) {
    tokenizer.bos = before.front();
  }
  if (!whole.ids_after().empty()) {
    tokenizer.eos = whole.ids_after().front();
  }
  tokenizer.remarks = whole.remarks();
}

void read_characters(const std::string& file, GgufTokenizer& tokenizer) {
  tokenizer.source = file;
  tokenizer.model = "gpt2";
  tokenizer.pre = "gpt-2";  // no merge goes over a character, so that no split matters
  const data::CharacterTokenizer characters(file);
  std::set<std::string> known;
  for (int32_t id = 0; id < characters.eod_id(); ++id) {
    const std::string text = characters.decode(std::vector<int32_t>{id});
    set_gguf_token(tokenizer, id, printed(text), kGgufNormal);
    // The bytes of a character join one after the other; first bytes are never inside another.
    for (size_t bytes = 1; bytes < text.size(); ++bytes) {
      const std::string merge =
          concat(printed(text.substr(0, bytes)), " ", printed(text.substr(bytes, 1)));
      if (known.insert(merge).second) {
        tokenizer.merges.push_back(merge);
      }
    }
  }
  set_gguf_token(tokenizer, characters.eod_id(), kEndOfDocument, kGgufControl);
  tokenizer.remarks.push_back(
      concat(file, ": llama.cpp passes over characters that the tokenizer does not have"));
}

void make_byte_vocabulary(GgufTokenizer& tokenizer) {
  tokenizer.source = "the tokenizer of bytes";
  tokenizer.model = "gpt2";
  tokenizer.pre = "gpt-2";  // without merges no split matters
  for (int byte = 0; byte < kByteValues; ++byte) {
    set_gguf_token(tokenizer, byte, printed_byte(static_cast<uint8_t>(byte)), kGgufNormal);
  }
  set_gguf_token(tokenizer, data::ByteTokenizer::kEod, kEndOfDocument, kGgufControl);
}

}  // namespace tapestry
