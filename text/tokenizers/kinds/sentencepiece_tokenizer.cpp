#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/added_tokens.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/huggingface/vocabulary.h"
#include "text/util/checksum.h"
#include "text/util/file.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

// Just enough of the protobuf wire format to tell a model from other files and to find a few
// fields.
class WireReader {
 public:
  WireReader(std::string_view bytes, uint64_t base) : bytes_(bytes), base_(base) {}

  struct Field {
    uint64_t number = 0;
    uint64_t wire_type = 0;
    uint64_t varint = 0;       // of wire type 0
    std::string_view content;  // of wire types 2 and 5
    uint64_t offset = 0;       // of the content in the file
  };

  bool next(Field& field) {
    if (at_ == bytes_.size()) {
      return false;
    }
    const uint64_t key = varint();
    field = {};
    field.number = key >> 3U;
    field.wire_type = key & 7U;
    require(field.number > 0, "field number 0");
    switch (field.wire_type) {
      case 0:
        field.varint = varint();
        break;
      case 1:
        take(8);
        break;
      case 2: {
        const uint64_t length = varint();
        field.offset = base_ + at_;
        field.content = take(length);
        break;
      }
      case 5:
        field.offset = base_ + at_;
        field.content = take(4);
        break;
      default:
        require(false, concat("wire type ", field.wire_type));
    }
    return true;
  }

  void require(bool condition, const std::string& what) const {
    check<ValueError>(condition, "offset ", base_ + at_, ": ", what,
                      ": this is not a SentencePiece model, or it is damaged");
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      require(at_ < bytes_.size(), "the data end inside a number");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    require(false, "a number of more than 64 bits");
    return 0;
  }

  std::string_view take(uint64_t count) {
    require(count <= bytes_.size() - at_,
            concat("a field of ", count, " bytes, but ", bytes_.size() - at_, " are left"));
    const std::string_view content = bytes_.substr(at_, count);
    at_ += count;
    return content;
  }

  std::string_view bytes_;
  uint64_t base_;
  size_t at_ = 0;
};

SentencePiece read_piece(std::string_view bytes, uint64_t offset) {
  WireReader reader(bytes, offset);
  WireReader::Field field;
  SentencePiece piece;
  while (reader.next(field)) {
    if (field.number == 1) {
      reader.require(field.wire_type == 2, "a piece without text");
      piece.text = field.content;
    } else if (field.number == 2) {
      reader.require(field.wire_type == 5, "a piece without score");
      std::memcpy(&piece.score, field.content.data(), sizeof(piece.score));
    } else if (field.number == 3) {
      reader.require(field.wire_type == 0, "a piece without type");
      piece.type = static_cast<int64_t>(field.varint);
    }
  }
  return piece;
}

void inspect_piece(const SentencePiece& piece, SentencePieceModelInfo& info) {
  constexpr int64_t kUserDefined = 4;
  ++info.pieces;
  if (piece.text == "\n") {
    info.newline_is_user_defined = info.newline_is_user_defined || piece.type == kUserDefined;
  } else if (piece.text.find('\n') != std::string::npos) {
    info.newline_inside_piece = true;
  }
}

void inspect_trainer(std::string_view bytes, uint64_t offset, SentencePieceModelInfo& info) {
  WireReader reader(bytes, offset);
  WireReader::Field field;
  while (reader.next(field)) {
    if (field.number == 3) {
      info.model_type = static_cast<int64_t>(field.varint);
    }
  }
}

void inspect_normalizer(std::string_view bytes, uint64_t offset, SentencePieceModelInfo& info) {
  WireReader reader(bytes, offset);
  WireReader::Field field;
  while (reader.next(field)) {
    if (field.number == 2) {
      info.has_normalization_rules = !field.content.empty();
    } else if (field.number == 3) {
      info.add_dummy_prefix = field.varint != 0;
    } else if (field.number == 4) {
      info.remove_extra_whitespaces = field.varint != 0;
    }
  }
}

}  // namespace

SentencePieceModelInfo inspect_sentencepiece_model(std::string_view bytes) {
  SentencePieceModelInfo info;
  WireReader reader(bytes, 0);
  WireReader::Field field;
  bool has_trainer = false;
  bool has_normalizer = false;
  while (reader.next(field)) {
    has_trainer = has_trainer || field.number == 2;
    has_normalizer = has_normalizer || field.number == 3;
    if (field.number >= 1 && field.number <= 5) {
      reader.require(field.wire_type == 2, concat("field ", field.number, " is not a message"));
    }
    if (field.number == 1) {
      inspect_piece(read_piece(field.content, field.offset), info);
    } else if (field.number == 2) {
      inspect_trainer(field.content, field.offset, info);
    } else if (field.number == 3) {
      inspect_normalizer(field.content, field.offset, info);
    }
  }
  reader.require(info.pieces > 0, "no pieces");
  // They stand after the pieces: without them the file was cut between two fields.
  reader.require(has_trainer && has_normalizer, "no trainer_spec or normalizer_spec");
  return info;
}

std::vector<SentencePiece> sentencepiece_pieces(std::string_view bytes) {
  std::vector<SentencePiece> pieces;
  WireReader reader(bytes, 0);
  WireReader::Field field;
  while (reader.next(field)) {
    if (field.number == 1) {
      reader.require(field.wire_type == 2, "field 1 is not a message");
      pieces.push_back(read_piece(field.content, field.offset));
    }
  }
  reader.require(!pieces.empty(), "no pieces");
  return pieces;
}

struct SentencePieceTokenizer::Processor {
  sentencepiece::SentencePieceProcessor processor;
};

// What the files beside the model add to it.
struct SentencePieceTokenizer::Beside {
  huggingface::Vocabulary pieces;
  std::unique_ptr<huggingface::AddedTokens> added;
  bool legacy = true;
  sentencepiece::SentencePieceProcessor without_prefix;  // where not legacy
};

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& model_file)
    : processor_(std::make_unique<Processor>()), model_file_(model_file) {
  const std::string bytes = read_file(model_file);
  check<IoError>(!bytes.empty(), model_file, ": is empty, expected a SentencePiece model");
  try {
    const SentencePieceModelInfo info = inspect_sentencepiece_model(bytes);
    separable_ = info.newline_is_user_defined && !info.newline_inside_piece &&
                 !info.add_dummy_prefix && !info.remove_extra_whitespaces &&
                 !info.has_normalization_rules;
  } catch (const ValueError& error) {
    throw IoError(concat(model_file, ": ", error.what()));
  }
  checksum_ = crc64(bytes);
  const auto status = processor_->processor.LoadFromSerializedProto(bytes);
  check<IoError>(status.ok(), model_file,
                 ": the SentencePiece model cannot be used: ", status.ToString());
  bos_ = processor_->processor.bos_id();
  eod_ = processor_->processor.eos_id();
  pad_ = processor_->processor.pad_id();
  read_folder(bytes);
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::read_folder(const std::string& bytes) {
  namespace hf = huggingface;
  namespace fs = std::filesystem;
  const fs::path parent = fs::path(model_file_).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    if (const fs::path file = fs::path(folder) / name; path_exists(file.string())) {
      files_beside_.push_back(file.string());
    }
  }
  if (files_beside_.empty()) {
    return;
  }
  beside_ = std::make_unique<Beside>();
  for (int32_t id = 0; id < processor_->processor.GetPieceSize(); ++id) {
    beside_->pieces.append(processor_->processor.IdToPiece(id));
  }
  const auto find = [&](const std::string& text) -> std::optional<int64_t> {
    const auto id = beside_->pieces.find(text);
    return id ? std::optional<int64_t>(*id) : std::nullopt;
  };
  try {
    beside_->added =
        std::make_unique<hf::AddedTokens>(hf::added_tokens_beside(folder, find), beside_->pieces,
                                          nullptr, hf::AddedTokens::NewIds::kSaid);
  } catch (const ValueError& error) {
    throw ValueError(concat(model_file_, ": ", error.what()));
  }
  const hf::TokenizerSettings settings = hf::read_tokenizer_settings(folder);
  beside_->legacy = settings.legacy;
  if (!settings.legacy) {
    // A field that is given again takes the place of the first one: add_dummy_prefix is false.
    const auto status =
        beside_->without_prefix.LoadFromSerializedProto(bytes + std::string("\x1a\x02\x18\x00", 4));
    check<IoError>(status.ok(), model_file_,
                   ": the SentencePiece model cannot be used: ", status.ToString());
  }
  const hf::SpecialTokens named = hf::read_special_tokens(folder);
  const auto take = [&](const char* key, const std::optional<std::string>& text, int32_t& id) {
    if (!text) {
      return;
    }
    if (const auto found = id_of(*text)) {
      id = *found;
    } else {
      remarks_.push_back(concat((fs::path(folder) / "tokenizer_config.json").string(), ": ", key,
                                " is \"", *text,
                                "\", which the tokenizer does not have; it is passed over"));
    }
  };
  take("bos_token", named.bos, bos_);
  take("eos_token", named.eos, eod_);
  take("pad_token", named.pad, pad_);
  // Without a class the folder's is Llama's, which adds the beginning unless it is told not to.
  const bool frames = settings.is_there && (settings.name.empty() || settings.frames_texts);
  if (settings.add_bos.value_or(frames) && bos_ >= 0) {
    before_.push_back(bos_);
  }
  if (settings.add_eos.value_or(false) && eod_ >= 0) {
    after_.push_back(eod_);
  }
}

int64_t SentencePieceTokenizer::vocab_size() const {
  const int64_t pieces = processor_->processor.GetPieceSize();
  return beside_ == nullptr ? pieces : std::max(pieces, beside_->added->size());
}

void SentencePieceTokenizer::encode_stretch(
    std::string_view text, bool first, int64_t begin, bool spans, Encoding& out) const {
  const auto& processor = beside_ != nullptr && !beside_->legacy && !first ? beside_->without_prefix
                                                                           : processor_->processor;
  if (!spans) {
    std::vector<int> ids;
    const auto status = processor.Encode(text, &ids);
    check<RuntimeError>(status.ok(), model_file_, ": text cannot be encoded: ", status.ToString());
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    return;
  }
  sentencepiece::ImmutableSentencePieceText pieces;
  const auto status = processor.Encode(text, pieces.mutable_proto());
  check<RuntimeError>(status.ok(), model_file_, ": text cannot be encoded: ", status.ToString());
  const size_t from = out.ids.size();
  for (const auto& piece : pieces.pieces()) {
    out.ids.push_back(static_cast<int32_t>(piece.id()));
    out.spans.push_back(
        {begin + static_cast<int64_t>(piece.begin()), begin + static_cast<int64_t>(piece.end())});
  }
  // Of the bytes of a character only the last one has its place.
  for (size_t i = out.ids.size(); i-- > from + 1;) {
    TextSpan& span = out.spans[i - 1];
    if (span.begin == span.end && processor.IsByte(out.ids[i - 1]) &&
        processor.IsByte(out.ids[i]) && span.begin == out.spans[i].begin) {
      span = out.spans[i];
    }
  }
}

Encoding SentencePieceTokenizer::encode_valid(std::string_view text, bool spans) const {
  Encoding encoding;
  if (beside_ == nullptr) {
    encode_stretch(text, true, 0, spans, encoding);
    return encoding;
  }
  class Sink final : public huggingface::AddedTokenSink {
   public:
    Sink(const SentencePieceTokenizer& tokenizer, bool spans, Encoding& out)
        : tokenizer_(tokenizer), spans_(spans), out_(out) {}
    void token(const huggingface::AddedToken& token, const huggingface::Slice& text) override {
      out_.ids.push_back(token.id);
      if (spans_) {
        out_.spans.push_back(text.place_of(0, text.text.size()));
      }
    }
    void stretch(const huggingface::Slice& text) override {
      if (!inner_) {
        inner_ = true;
        tokenizer_.beside_->added->split(text, /*normalized=*/true, *this);
        inner_ = false;
        return;
      }
      tokenizer_.encode_stretch(text.text, text.origin == 0, text.origin, spans_, out_);
    }

   private:
    const SentencePieceTokenizer& tokenizer_;
    bool spans_;
    Encoding& out_;
    bool inner_ = false;
  };
  Sink sink(*this, spans, encoding);
  beside_->added->split({text}, /*normalized=*/false, sink);
  return encoding;
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  return is_valid_utf8(text) ? encode_valid(text, /*spans=*/false).ids
                             : encode_valid(replace_invalid_utf8(text), /*spans=*/false).ids;
}

Encoding SentencePieceTokenizer::encode_with_spans(std::string_view text) const {
  const ValidText valid(text);
  Encoding encoding = encode_valid(valid.text(), /*spans=*/true);
  for (TextSpan& span : encoding.spans) {
    const bool empty = span.begin == span.end;
    span.begin = valid.begin_in_bytes(span.begin);
    span.end = empty ? span.begin : valid.end_in_bytes(span.end);
  }
  return encoding;
}

void SentencePieceTokenizer::check_id(int32_t id) const {
  check<ValueError>(id >= 0 && id < vocab_size(), model_file_, ": id ", id, " is outside 0 .. ",
                    vocab_size() - 1);
}

std::string SentencePieceTokenizer::decode_pieces(std::span<const int32_t> ids) const {
  std::string text;
  const auto status = processor_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  check<RuntimeError>(status.ok(), model_file_, ": ids cannot be decoded: ", status.ToString());
  return text;
}

// Stretches between tokens that have a text are decoded alone.
std::string SentencePieceTokenizer::decode_tokens(std::span<const int32_t> ids,
                                                  bool with_special) const {
  std::string text;
  std::vector<int32_t> stretch;
  for (const int32_t id : ids) {
    check_id(id);
    const huggingface::AddedToken* token = beside_ ? beside_->added->by_id(id) : nullptr;
    const bool piece = id < processor_->processor.GetPieceSize();
    const bool special = token != nullptr ? beside_->added->is_special(token->content)
                                          : piece && processor_->processor.IsControl(id);
    if (token == nullptr && !special) {
      if (piece) {
        stretch.push_back(id);
      }
      continue;
    }
    if (special && !with_special) {
      continue;
    }
    text += decode_pieces(stretch) + (token != nullptr ? token->content : this->piece(id));
    stretch.clear();
  }
  return text + decode_pieces(stretch);
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  return decode_tokens(ids, /*with_special=*/false);
}

std::string SentencePieceTokenizer::decode_with_special(std::span<const int32_t> ids) const {
  return decode_tokens(ids, /*with_special=*/true);
}

// What a piece adds to a text depends on whether anything stands before it, and on the bytes beside
// it where it is one. So bytes are held until another piece comes; it is decoded behind the last
// ids that have text, and their text taken away.
class SentencePieceTokenizer::PieceDecoder {
 public:
  explicit PieceDecoder(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string add(int32_t id) {
    const bool byte = tokenizer_.processor_->processor.IsByte(id);
    std::string text = byte ? std::string() : take();
    ids_.push_back(id);
    return byte ? text : text + take();
  }

  std::string finish() {
    std::string text = take();
    ids_.clear();
    known_ = 0;
    return text;
  }

 private:
  std::string take() {
    std::string text = tokenizer_.decode_pieces(ids_);
    std::string rest = text.substr(std::min(known_, text.size()));
    if (!rest.empty()) {  // else nothing stands before the next piece yet, as far as is known
      const auto& processor = tokenizer_.processor_->processor;
      size_t last = ids_.size() - 1;
      while (last > 0 && (processor.IsByte(ids_[last]) || processor.IsControl(ids_[last]))) {
        --last;
      }
      while (last > 0 && processor.IsByte(ids_[last - 1])) {
        --last;
      }
      ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(last));
      text = tokenizer_.decode_pieces(ids_);
    }
    known_ = text.size();
    return rest;
  }

  const SentencePieceTokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t known_ = 0;  // bytes of the text of ids_ that were given
};

class SentencePieceTokenizer::Decoder final : public TextDecoder {
 public:
  explicit Decoder(const SentencePieceTokenizer& tokenizer)
      : tokenizer_(tokenizer), pieces_(tokenizer) {}

  std::string add(int32_t id) override {
    tokenizer_.check_id(id);
    const Beside* beside = tokenizer_.beside_.get();
    const huggingface::AddedToken* token = beside ? beside->added->by_id(id) : nullptr;
    if (token == nullptr) {
      return id < tokenizer_.processor_->processor.GetPieceSize() ? pieces_.add(id) : "";
    }
    return beside->added->is_special(token->content) ? "" : pieces_.finish() + token->content;
  }
  std::string finish() override { return pieces_.finish(); }

 private:
  const SentencePieceTokenizer& tokenizer_;
  PieceDecoder pieces_;
};

std::unique_ptr<TextDecoder> SentencePieceTokenizer::text_decoder() const {
  return std::make_unique<Decoder>(*this);
}

std::optional<int32_t> SentencePieceTokenizer::find_piece(std::string_view piece) const {
  const auto& processor = processor_->processor;
  const int id = processor.PieceToId(piece);
  return id >= 0 && id < processor.GetPieceSize() && processor.IdToPiece(id) == piece
             ? std::optional<int32_t>(id)
             : std::nullopt;
}

std::optional<int32_t> SentencePieceTokenizer::id_of(std::string_view token) const {
  const huggingface::AddedToken* added = beside_ ? beside_->added->find(token) : nullptr;
  return added != nullptr ? std::optional<int32_t>(added->id) : find_piece(token);
}

int32_t SentencePieceTokenizer::bos_id() const { return bos_; }

int32_t SentencePieceTokenizer::eod_id() const { return eod_; }

int32_t SentencePieceTokenizer::pad_id() const { return pad_; }

int32_t SentencePieceTokenizer::unk_id() const { return processor_->processor.unk_id(); }

std::string SentencePieceTokenizer::piece(int32_t id) const {
  check_id(id);
  const huggingface::AddedToken* added = beside_ ? beside_->added->by_id(id) : nullptr;
  if (added != nullptr) {
    return added->content;
  }
  return id < processor_->processor.GetPieceSize() ? processor_->processor.IdToPiece(id) : "";
}

std::string SentencePieceTokenizer::describe() const {
  return concat("SentencePiece tokenizer ", model_file_, ", ", vocab_size(), " ids");
}

}  // namespace tapestry::data
