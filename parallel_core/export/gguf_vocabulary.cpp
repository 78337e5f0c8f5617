#include "parallel_core/export/gguf_vocabulary.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/hf_fields.h"
#include "parallel_core/data/character_tokenizer.h"
#include "parallel_core/data/file.h"
#include "parallel_core/data/sentencepiece_tokenizer.h"
#include "parallel_core/data/utf8.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using hf::Json;

constexpr const char* kEndOfDocument = "<|endoftext|>";
constexpr int kByteValues = 256;

std::string printed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += printed_byte(static_cast<uint8_t>(c));
  }
  return out;
}

// Content of tokenizer_config.json; null if there is none.
Json tokenizer_config_of(const std::string& folder) {
  const std::string file = (fs::path(folder) / "tokenizer_config.json").string();
  return fs::is_regular_file(file) ? hf::parse_strictly(data::read_file(file), file) : Json();
}

// The way of splitting that a tokenizer without tokenizer.json has by its class.
std::string pre_of_class(const std::string& folder) {
  const Json config = tokenizer_config_of(folder);
  const std::string type = config.is_object() && config.contains("tokenizer_class") &&
                                   config.at("tokenizer_class").is_string()
                               ? config.at("tokenizer_class").get<std::string>()
                               : "GPT2Tokenizer";
  if (type.starts_with("GPT2Tokenizer")) {
    return "gpt-2";
  }
  check<ValueError>(type.starts_with("Qwen2Tokenizer"), folder,
                    "/tokenizer_config.json: tokenizer_class ", type,
                    ": how it splits text is not known without tokenizer.json; what is: "
                    "GPT2Tokenizer, Qwen2Tokenizer");
  return "qwen2";
}

// Special tokens that tokenizer_config.json lists by id.
void read_added_decoder(const std::string& folder, GgufTokenizer& tokenizer) {
  const Json config = tokenizer_config_of(folder);
  if (!config.is_object() || !config.contains("added_tokens_decoder")) {
    return;
  }
  for (const auto& [id, token] : config.at("added_tokens_decoder").items()) {
    const bool number =
        !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
    check<ValueError>(
        number && token.is_object() && token.contains("content") && token.at("content").is_string(),
        folder,
        "/tokenizer_config.json: added_tokens_decoder: expected an id and "
        "its content, got ",
        id);
    const bool special = token.contains("special") && token.at("special") == true;
    set_gguf_token(tokenizer, std::stoll(id), token.at("content").get<std::string>(),
                   special ? kGgufControl : kGgufUserDefined);
  }
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
}

void read_vocab_and_merges(const std::string& folder, GgufTokenizer& tokenizer) {
  const std::string vocab = (fs::path(folder) / "vocab.json").string();
  const std::string merges = (fs::path(folder) / "merges.txt").string();
  tokenizer.source = vocab;
  tokenizer.model = "gpt2";
  tokenizer.pre = pre_of_class(folder);
  const Json tokens = hf::parse_strictly(data::read_file(vocab), vocab);
  for (const auto& [text, id] : tokens.items()) {
    check<ValueError>(id.is_number_integer(), vocab, ": ", text, ": expected an id, got ",
                      id.dump());
    set_gguf_token(tokenizer, id.get<int64_t>(), text,
                   text == kEndOfDocument ? kGgufControl : kGgufNormal);
  }
  read_added_decoder(folder, tokenizer);
  const std::string lines = data::read_file(merges);
  size_t number = 0;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    std::string line = lines.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (line.empty() || (number == 1 && line.starts_with("#version"))) {
      continue;
    }
    check<ValueError>(std::count(line.begin(), line.end(), ' ') == 1, merges, ": line ", number,
                      ": expected two tokens, got \"", line, "\"");
    tokenizer.merges.push_back(std::move(line));
  }
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
