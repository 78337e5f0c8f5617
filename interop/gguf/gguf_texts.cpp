#include "interop/gguf/gguf_texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/gguf/gguf_config.h"
#include "interop/gguf/gguf_pre.h"

namespace tapestry {

namespace gguf_texts {
namespace {

using Json = nlohmann::json;

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr int kByteValues = 256;

std::string ggml(std::string_view key) { return concat("tokenizer.ggml.", key); }

// An id that a key names; none where it is left out.
std::optional<int64_t> id_at(const GgufFile& file, std::string_view name) {
  const std::string key = ggml(name);
  if (!file.has(key)) {
    return std::nullopt;
  }
  const int64_t id = file.count(key);
  const auto tokens = static_cast<int64_t>(file.texts(kTokens).size());
  check<ValueError>(id < tokens, file.path(), ": ", key, ": is ", id, ", but there are ", tokens,
                    " tokens");
  return id;
}

bool flag_at(const GgufFile& file, std::string_view name, bool left_out) {
  const std::string key = ggml(name);
  return file.has(key) ? file.flag(key) : left_out;
}

// Protocol buffers: what SentencePiece's models are written in.
class WireWriter {
 public:
  void varint(uint32_t field, uint64_t value) {
    raw_varint(uint64_t{field} << 3U);
    raw_varint(value);
  }
  void number(uint32_t field, float value) {
    raw_varint(uint64_t{field} << 3U | 5U);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(uint32_t field, std::string_view value) {
    raw_varint(uint64_t{field} << 3U | 2U);
    raw_varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) {
      bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// "<0x0A>"
bool is_byte_text(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>' &&
         text.substr(3, 2).find_first_not_of("0123456789ABCDEF") == std::string_view::npos;
}

class TokenizerOfFile {
 public:
  explicit TokenizerOfFile(const GgufFile& file)
      : file_(file), tokens_(file.texts(kTokens)), types_(read_types()) {
    read_ids();
  }

  PackedFiles files() {
    const std::string& model = file_.text(ggml("model"));
    for (const char* key : {"precompiled_charsmap", "remove_extra_whitespaces"}) {
      const std::string full = ggml(key);
      check<ValueError>(!file_.has(full) || (key[0] == 'r' && !file_.flag(full)), file_.path(),
                        ": ", full, ": text is changed before it is split, which is not built");
    }
    check<ValueError>(model == "gpt2" || model == "llama", file_.path(), ": ", ggml("model"),
                      ": is \"", model,
                      "\", which is not read; what is: gpt2 (byte-level BPE) and llama (pieces)");
    PackedFiles out;
    if (model == "gpt2") {
      out["tokenizer.json"] = byte_level().dump();
    } else {
      out["tokenizer.model"] = pieces();
    }
    out["tokenizer_config.json"] = settings(model == "llama").dump(2) + "\n";
    return out;
  }

 private:
  std::vector<int64_t> read_types() const {
    if (!file_.has(kTypes)) {
      return std::vector<int64_t>(tokens_.size(), kGgufNormal);
    }
    std::vector<int64_t> types = file_.integers(kTypes);
    check<ValueError>(types.size() == tokens_.size(), file_.path(), ": ", kTypes, ": has ",
                      types.size(), " entries, ", kTokens, " ", tokens_.size());
    for (size_t id = 0; id < types.size(); ++id) {
      check<ValueError>(types[id] >= kGgufNormal && types[id] <= kGgufByte, file_.path(), ": ",
                        kTypes, ": token ", id, " has the type ", types[id], ", expected 1 .. 6");
    }
    return types;
  }

  void read_ids() {
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] == kGgufUnused) {
        continue;
      }
      const auto [found, is_new] = ids_.emplace(tokens_[id], static_cast<int64_t>(id));
      check<ValueError>(is_new, file_.path(), ": ", kTokens, ": \"", tokens_[id],
                        "\" is there twice, as ", found->second, " and ", id);
      check<ValueError>(!tokens_[id].empty(), file_.path(), ": ", kTokens, ": token ", id,
                        " is empty");
    }
  }

  const std::string& text_of(int64_t id) const { return tokens_[static_cast<size_t>(id)]; }
  bool is_special(size_t id) const {
    return types_[id] == kGgufControl || types_[id] == kGgufUnknown;
  }

  Json byte_level() {
    const std::string pre_key = ggml("pre");
    const GgufSplitting splitting = gguf_splitting(file_.text(pre_key), file_.path());
    check<ValueError>(!flag_at(file_, "add_space_prefix", false), file_.path(), ": ",
                      ggml("add_space_prefix"), ": is true, which is not built for byte-level BPE");
    add_bos_ = flag_at(file_, "add_bos_token", splitting.takes_whole_pieces);
    Json vocabulary = Json::object();
    Json added = Json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] == kGgufUnused) {
        continue;
      }
      vocabulary[tokens_[id]] = id;
      if (types_[id] != kGgufNormal && types_[id] != kGgufByte) {
        added.push_back(added_token(id));
      }
    }
    Json model = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"ignore_merges", splitting.takes_whole_pieces},
                  {"vocab", std::move(vocabulary)},
                  {"merges", merges()}};
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", std::move(added)},
            {"normalizer", Json::parse(splitting.normalizer)},
            {"pre_tokenizer", Json::parse(splitting.pre_tokenizer)},
            {"post_processor", post_processor()},
            {"decoder",
             {{"type", "ByteLevel"},
              {"add_prefix_space", true},
              {"trim_offsets", true},
              {"use_regex", true}}},
            {"model", std::move(model)}};
  }

  Json added_token(size_t id) const {
    return {
        {"id", id},        {"content", tokens_[id]}, {"single_word", false},     {"lstrip", false},
        {"rstrip", false}, {"normalized", false},    {"special", is_special(id)}};
  }

  Json merges() const {
    const std::string key = ggml("merges");
    Json out = Json::array();
    const std::vector<std::string>& list = file_.texts(key);
    for (size_t rank = 0; rank < list.size(); ++rank) {
      const std::string& text = list[rank];
      // A token may be a space in files of others; a byte-level one never is.
      const size_t space = text.find(' ', 1);
      const bool two = text.size() > 2 && space != std::string::npos && space + 1 < text.size() &&
                       text.find(' ', space + 1) == std::string::npos;
      check<ValueError>(two, file_.path(), ": ", key, ": number ", rank, ", \"", text,
                        "\", is not two tokens with a space between them");
      const std::string left = text.substr(0, space);
      const std::string right = text.substr(space + 1);
      for (const std::string& token : {left, right, left + right}) {
        check<ValueError>(ids_.contains(token), file_.path(), ": ", key, ": number ", rank, ", \"",
                          text, "\": there is no token \"", token, "\"");
      }
      out.push_back({left, right});
    }
    return out;
  }

  // The id that a flag puts around texts.
  std::optional<int64_t> framing(bool on, const char* name) const {
    const std::optional<int64_t> id = id_at(file_, name);
    check<ValueError>(!on || id.has_value(), file_.path(), ": ", ggml(name),
                      ": is missing, but stands around every text");
    return on ? id : std::nullopt;
  }

  Json post_processor() const {
    const auto before = framing(add_bos_, "bos_token_id");
    const auto after = framing(flag_at(file_, "add_eos_token", false), "eos_token_id");
    if (!before && !after) {
      return {{"type", "ByteLevel"},
              {"add_prefix_space", true},
              {"trim_offsets", false},
              {"use_regex", true}};
    }
    Json single = Json::array();
    Json pair = Json::array();
    Json special = Json::object();
    const auto put = [&](const std::optional<int64_t>& id) {
      if (id) {
        const std::string& text = text_of(*id);
        for (Json* list : {&single, &pair}) {
          list->push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
        }
        special[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
      }
    };
    put(before);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    for (const char* part : {"A", "B"}) {
      pair.push_back({{"Sequence", {{"id", part}, {"type_id", 0}}}});
    }
    put(after);
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", pair},
            {"special_tokens", special}};
  }

  // SentencePiece's ModelProto: pieces, trainer_spec, normalizer_spec.
  std::string pieces() {
    const std::string pre_key = ggml("pre");
    check<ValueError>(!file_.has(pre_key) || file_.text(pre_key) == "default", file_.path(), ": ",
                      pre_key, ": is \"", file_.has(pre_key) ? file_.text(pre_key) : "",
                      "\", expected default for pieces");
    const std::string scores_key = ggml("scores");
    const std::vector<double> scores = file_.numbers(scores_key);
    check<ValueError>(scores.size() == tokens_.size(), file_.path(), ": ", scores_key, ": has ",
                      scores.size(), " entries, ", kTokens, " ", tokens_.size());
    add_bos_ = flag_at(file_, "add_bos_token", true);
    check_pieces();
    WireWriter model;
    // Rows behind the last token have none.
    size_t used = tokens_.size();
    while (used > 0 && types_[used - 1] == kGgufUnused) {
      --used;
    }
    for (size_t id = 0; id < used; ++id) {
      WireWriter piece;
      piece.text(1, tokens_[id]);
      piece.number(2, static_cast<float>(scores[id]));
      piece.varint(3, static_cast<uint64_t>(types_[id]));
      model.text(1, piece.bytes());
    }
    constexpr uint64_t kBpe = 2;
    WireWriter trainer;
    trainer.varint(3, kBpe);
    trainer.varint(4, used);
    trainer.varint(35, 1);  // byte_fallback
    // By their texts SentencePiece finds them.
    constexpr std::array<std::pair<uint32_t, const char*>, 3> kNamed = {
        {{45, "bos_token_id"}, {46, "eos_token_id"}, {47, "padding_token_id"}}};
    trainer.text(44, text_of(unknown_));
    for (const auto& [field, name] : kNamed) {
      const auto id = id_at(file_, name);
      trainer.text(field, id ? std::string_view(text_of(*id)) : std::string_view());
    }
    model.text(2, trainer.bytes());
    WireWriter normalizer;
    normalizer.text(1, "identity");
    normalizer.varint(3, flag_at(file_, "add_space_prefix", true) ? 1 : 0);
    normalizer.varint(4, 0);
    normalizer.varint(5, 1);
    model.text(3, normalizer.bytes());
    return model.bytes();
  }

  // One piece is the unknown one, and the 256 bytes are there.
  void check_pieces() {
    if (const auto named = id_at(file_, "unknown_token_id")) {
      types_[static_cast<size_t>(*named)] = kGgufUnknown;
    }
    const auto unknown = std::count(types_.begin(), types_.end(), int64_t{kGgufUnknown});
    check<ValueError>(unknown == 1, file_.path(), ": ", kTypes, ": ", unknown,
                      " tokens are the unknown one (type 2, or ", ggml("unknown_token_id"),
                      "), expected one");
    unknown_ = std::find(types_.begin(), types_.end(), int64_t{kGgufUnknown}) - types_.begin();
    int bytes = 0;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] == kGgufByte) {
        check<ValueError>(is_byte_text(tokens_[id]), file_.path(), ": ", kTokens, ": token ", id,
                          ", \"", tokens_[id], "\", is no byte, as its type 6 says");
        ++bytes;
      }
      check<ValueError>(!tokens_[id].empty(), file_.path(), ": ", kTokens, ": token ", id,
                        " is empty");
    }
    check<ValueError>(bytes == kByteValues, file_.path(), ": ", kTypes, ": ", bytes,
                      " tokens are bytes (<0x00> .. <0xFF>, type 6), expected ", kByteValues);
  }

  Json settings(bool of_pieces) const {
    Json json = {{"tokenizer_class", of_pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"model_max_length",
                  file_.count(concat(file_.text("general.architecture"), ".context_length"))}};
    for (const auto& [name, key] :
         {std::pair{"bos_token", "bos_token_id"}, std::pair{"eos_token", "eos_token_id"},
          std::pair{"pad_token", "padding_token_id"}, std::pair{"unk_token", "unknown_token_id"}}) {
      if (const auto id = id_at(file_, key)) {
        json[name] = text_of(*id);
      }
    }
    if (of_pieces) {
      json["legacy"] = true;
      json["add_bos_token"] = framing(add_bos_, "bos_token_id").has_value();
      json["add_eos_token"] =
          framing(flag_at(file_, "add_eos_token", false), "eos_token_id").has_value();
      json["add_prefix_space"] = flag_at(file_, "add_space_prefix", true);
      Json special = Json::object();
      for (size_t id = 0; id < tokens_.size(); ++id) {
        if (is_special(id)) {
          special[concat(id)] = added_token(id);
          special[concat(id)].erase("id");
        }
      }
      json["added_tokens_decoder"] = special;
    }
    if (const char* const key = "tokenizer.chat_template"; file_.has(key)) {
      json["chat_template"] = file_.text(key);
    }
    return json;
  }

  const GgufFile& file_;
  const std::vector<std::string>& tokens_;
  std::vector<int64_t> types_;
  std::unordered_map<std::string, int64_t> ids_;
  int64_t unknown_ = 0;
  bool add_bos_ = false;
};

// Ids that end a text: of a chat model the one that ends an answer, too.
std::string generation_config(const GgufFile& file, const TokenIds& ids) {
  Json ends = Json::array();
  for (const int64_t id : ids.eos) {
    ends.push_back(id);
  }
  for (const char* name : {"eot_token_id", "eom_token_id"}) {
    const auto id = id_at(file, name);
    if (id && std::find(ends.begin(), ends.end(), Json(*id)) == ends.end()) {
      ends.push_back(*id);
    }
  }
  const auto shown = [](const std::optional<int64_t>& id) { return id ? Json(*id) : Json(); };
  const Json json = {{"_from_model_config", true},
                     {"bos_token_id", shown(ids.bos)},
                     {"eos_token_id", ends.empty()       ? Json()
                                      : ends.size() == 1 ? ends[0]
                                                         : ends},
                     {"pad_token_id", shown(ids.pad)}};
  return json.dump(2) + "\n";
}

const bool kRegistered = register_packed_folder(kGgufEnding, gguf_folder);

}  // namespace
}  // namespace gguf_texts

TokenIds gguf_token_ids(const GgufFile& file) {
  TokenIds ids;
  ids.bos = gguf_texts::id_at(file, "bos_token_id");
  ids.pad = gguf_texts::id_at(file, "padding_token_id");
  if (const auto eos = gguf_texts::id_at(file, "eos_token_id")) {
    ids.eos.push_back(*eos);
  }
  return ids;
}

PackedFiles gguf_tokenizer_files(const GgufFile& file) {
  return gguf_texts::TokenizerOfFile(file).files();
}

PackedFiles gguf_folder(const std::string& path) {
  const GgufFile file(path);
  const TokenIds ids = gguf_token_ids(file);
  const GgufReading reading = read_gguf_config(file, ids);
  const auto tokens = static_cast<int64_t>(file.texts(gguf_texts::kTokens).size());
  check<ValueError>(tokens == reading.config.vocab_size, path, ": ", gguf_texts::kTokens, ": has ",
                    tokens, " tokens, but the model's table of embeddings ",
                    reading.config.vocab_size, " rows");
  PackedFiles files = gguf_tokenizer_files(file);
  files["config.json"] = reading.config_json;
  files["generation_config.json"] = gguf_texts::generation_config(file, ids);
  return files;
}

}  // namespace tapestry
