#include "text/tokenizers/huggingface/huggingface_tokenizer.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/added_tokens.h"
#include "text/tokenizers/huggingface/decoder.h"
#include "text/tokenizers/huggingface/model.h"
#include "text/tokenizers/huggingface/normal_form.h"
#include "text/tokenizers/huggingface/normalizer.h"
#include "text/tokenizers/huggingface/post_processor.h"
#include "text/tokenizers/huggingface/pre_tokenizer.h"
#include "text/tokenizers/huggingface/space_pool.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/util/checksum.h"
#include "text/util/utf8.h"

namespace tapestry::data {

namespace hf = huggingface;

namespace {

const hf::Json& part_of(const hf::Json& json, const char* key) {
  static const hf::Json null;
  const auto found = json.find(key);
  return found == json.end() ? null : *found;
}

// White space at the beginning and the end of a token, as characters or as the one that stands for
// the byte of a space.
struct Margins {
  int leading = 0;
  int trailing = 0;
};

Margins margins_of(std::string_view token) {
  constexpr uint32_t kSpaceCharacter = 0x120;
  Margins margins;
  bool at_start = true;
  for (size_t at = 0; at < token.size(); at += character_length(token, at)) {
    const uint32_t point = code_point_at(token, at);
    if (point == kSpaceCharacter || hf::is_white_space(point)) {
      margins.leading += at_start ? 1 : 0;
      ++margins.trailing;
    } else {
      at_start = false;
      margins.trailing = 0;
    }
  }
  return margins;
}

bool is_inside_character(std::string_view text, int64_t at) {
  return continues_character(text[static_cast<size_t>(at)]);
}

// Takes white space from the place of a token; source: Rust library, pre_tokenizers/byte_level.
void trim(std::string_view text, bool first, Margins margins, bool prefix, TextSpan& span) {
  if ((first || span.begin == 0) && prefix && margins.leading == 1) {
    margins.leading = 0;
  }
  for (int i = 0; i < margins.leading && span.begin < span.end; ++i) {
    do {
      ++span.begin;
    } while (span.begin < span.end && is_inside_character(text, span.begin));
  }
  int64_t end = span.end;
  int stepped = 0;
  while (stepped < margins.trailing && end > 0) {
    do {
      --end;
    } while (end > 0 && is_inside_character(text, end));
    ++stepped;
  }
  if (stepped == margins.trailing) {
    span.end = std::max(end, span.begin);
  }
}

}  // namespace

struct HuggingFaceTokenizer::Parts {
  std::string path;
  std::string checksum;
  std::unique_ptr<hf::Normalizer> normalizer;
  hf::PreTokenizerSteps pre_tokenizer;
  std::unique_ptr<hf::Model> model;
  std::unique_ptr<hf::AddedTokens> added;
  std::unique_ptr<hf::PostProcessor> post_processor;
  std::unique_ptr<hf::Decoder> decoder;
  bool needs_origins = false;  // to give the right ids
  int64_t vocab_size = 0;
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
  std::vector<std::string> remarks;
  mutable hf::SpacePool spaces;

  void build(const hf::Json& json);
  void find_special_tokens(const std::string& folder);
  std::optional<int32_t> id_of(std::string_view token) const;
  std::optional<int32_t> special_id(std::initializer_list<const char*> names) const;
  const std::string* text_of(int32_t id) const;
  const std::string* decoded_token(int32_t id) const;
  void check_id(int32_t id) const {
    check<ValueError>(id >= 0 && id < vocab_size, path, ": id ", id, " is outside 0 .. ",
                      vocab_size - 1);
  }
};

namespace {

// One text on its way through the parts.
template <class Parts>
class Pass final : public hf::AddedTokenSink, public hf::PieceSink {
 public:
  Pass(const Parts& parts, std::string_view text, hf::ModelSpace& space, Encoding& out, bool spans)
      : parts_(parts),
        text_(text),
        space_(space),
        out_(out),
        spans_(spans),
        tracked_(spans || parts.needs_origins),
        trims_(spans && !parts.post_processor->trims().empty()) {}

  void run() {
    try {
      parts_.added->split({text_}, /*normalized=*/false, *this);
    } catch (const Error& error) {  // of patterns and vocabularies that cannot take this text
      throw ValueError(concat(parts_.path, ": ", error.what()));
    }
    if (!trims_) {
      return;
    }
    for (const bool prefix : parts_.post_processor->trims()) {
      for (size_t i = 0; i < out_.spans.size(); ++i) {
        if (margins_[i].leading + margins_[i].trailing > 0) {
          trim(text_, i == 0, margins_[i], prefix, out_.spans[i]);
        }
      }
    }
  }

  void token(const hf::AddedToken& token, const hf::Slice& text) override {
    out_.ids.push_back(token.id);
    if (spans_) {
      out_.spans.push_back(text.place_of(0, text.text.size()));
      if (trims_) {
        margins_.push_back(margins_of(text.text));
      }
    }
  }

  void stretch(const hf::Slice& text) override {
    if (in_normalized_) {
      parts_.pre_tokenizer.split(text, tracked_, *this);
      return;
    }
    in_normalized_ = true;
    if (parts_.normalizer == nullptr) {
      parts_.added->split(text, /*normalized=*/true, *this);
    } else {
      hf::AlignedText normalized(text, tracked_);
      parts_.normalizer->apply(normalized);
      parts_.added->split(normalized.slice(), /*normalized=*/true, *this);
    }
    in_normalized_ = false;
  }

  void piece(const hf::Slice& piece) override {
    if (!spans_) {
      parts_.model->encode(piece.text, space_, out_.ids);
      return;
    }
    parts_.model->encode_parts(piece.text, space_);
    for (const hf::TokenPart& part : space_.parts) {
      out_.ids.push_back(part.id);
      out_.spans.push_back(piece.place_of(part.begin, part.end));
      if (trims_) {
        margins_.push_back(margins_of(part.unknown
                                          ? piece.text.substr(part.begin, part.end - part.begin)
                                          : *parts_.model->vocabulary().token(part.id)));
      }
    }
  }

 private:
  const Parts& parts_;
  std::string_view text_;
  hf::ModelSpace& space_;
  Encoding& out_;
  bool spans_;
  bool tracked_;
  bool trims_;
  bool in_normalized_ = false;
  std::vector<Margins> margins_;
};

}  // namespace

void HuggingFaceTokenizer::Parts::build(const hf::Json& json) {
  check<ValueError>(json.is_object(), "is ", json.type_name(), ", expected an object");
  const hf::Json& pre = part_of(json, "pre_tokenizer");
  hf::MadeModel made = hf::make_model(part_of(json, "model"), hf::ends_with_byte_level(pre));
  model = std::move(made.model);
  normalizer = hf::make_normalizer(part_of(json, "normalizer"));
  pre_tokenizer = hf::make_pre_tokenizer(pre, made.takes_bytes);
  added = std::make_unique<hf::AddedTokens>(part_of(json, "added_tokens"), model->vocabulary(),
                                            normalizer.get());
  post_processor = std::make_unique<hf::PostProcessor>(part_of(json, "post_processor"));
  decoder = std::make_unique<hf::Decoder>(part_of(json, "decoder"));
  vocab_size = std::max(model->vocabulary().size(), added->size());
  check<ValueError>(vocab_size > 0, "model.vocab: is empty");
  for (const std::vector<int32_t>* ids : {&post_processor->before(), &post_processor->after()}) {
    for (const int32_t id : *ids) {
      check<ValueError>(id < vocab_size, "post_processor: id ", id, " is outside 0 .. ",
                        vocab_size - 1);
    }
  }
  const auto& steps = pre_tokenizer.steps;
  const bool looks = std::any_of(steps.begin(), steps.end(),
                                 [](const auto& step) { return step->looks_at_origin(); });
  needs_origins =
      looks && (normalizer != nullptr || steps.size() > 1 || !steps.front()->looks_at_origin());
}

std::optional<int32_t> HuggingFaceTokenizer::Parts::id_of(std::string_view token) const {
  const hf::AddedToken* found = added->find(token);
  return found != nullptr ? std::optional<int32_t>(found->id) : model->vocabulary().find(token);
}

std::optional<int32_t> HuggingFaceTokenizer::Parts::special_id(
    std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (added->is_special(name)) {
      return id_of(name);
    }
  }
  return std::nullopt;
}

void HuggingFaceTokenizer::Parts::find_special_tokens(const std::string& folder) {
  const hf::SpecialTokens named = hf::read_special_tokens(folder);
  const auto choose = [&](const std::optional<std::string>& text,
                          const std::optional<int64_t>& id) -> std::optional<int32_t> {
    if (text) {
      if (const auto found = id_of(*text)) {
        return found;
      }
    }
    return id && *id >= 0 && *id < vocab_size ? std::optional<int32_t>(static_cast<int32_t>(*id))
                                              : std::nullopt;
  };
  const auto or_known = [&](std::optional<int32_t> id, std::initializer_list<const char*> names) {
    return id ? *id : special_id(names).value_or(-1);
  };
  eos = or_known(choose(named.eos, named.eos_id),
                 {"<|endoftext|>", "</s>", "<|end_of_text|>",
                  "<\xEF\xBD\x9C"
                  "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                  "<eos>", "<|im_end|>"});
  std::optional<int32_t> begin = choose(named.bos, named.bos_id);
  if (!begin && !post_processor->before().empty()) {
    begin = post_processor->before().front();
  }
  bos = or_known(begin, {"<s>", "<|begin_of_text|>",
                         "<\xEF\xBD\x9C"
                         "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                         "<bos>"});
  pad = or_known(choose(named.pad, named.pad_id), {"<pad>", "<|pad|>", "[PAD]"});
}

const std::string* HuggingFaceTokenizer::Parts::text_of(int32_t id) const {
  const hf::AddedToken* found = added->by_id(id);
  return found != nullptr ? &found->content : model->vocabulary().token(id);
}

const std::string* HuggingFaceTokenizer::Parts::decoded_token(int32_t id) const {
  const hf::AddedToken* found = added->by_id(id);
  return found != nullptr ? &found->decoded : model->vocabulary().token(id);
}

HuggingFaceTokenizer::HuggingFaceTokenizer(const std::string& path) {
  const hf::TokenizerFiles files = hf::find_tokenizer_files(path);
  auto parts = std::make_unique<Parts>();
  hf::Json json;
  if (files.tokenizer_json.empty()) {
    parts->path = files.vocab_json;
    parts->checksum = hf::tokenizer_checksum(files);
    json = hf::tokenizer_json_of(files);
  } else {
    parts->path = files.tokenizer_json;
    const std::string bytes = hf::read_tokenizer_file(files.tokenizer_json);
    parts->checksum = crc64(bytes);
    json = hf::parse_json(bytes, files.tokenizer_json);
  }
  hf::apply_folder(json, files, parts->remarks);
  try {
    parts->build(json);
  } catch (const Error& error) {
    throw ValueError(concat(parts->path, ": ", error.what()));
  }
  parts->find_special_tokens(files.folder);
  parts_ = std::move(parts);
}

HuggingFaceTokenizer::~HuggingFaceTokenizer() = default;

int64_t HuggingFaceTokenizer::vocab_size() const { return parts_->vocab_size; }

std::vector<int32_t> HuggingFaceTokenizer::encode(std::string_view text) const {
  const ValidText valid(text);
  Encoding encoding;
  constexpr size_t kUsualBytesOfToken = 4;
  encoding.ids.reserve(text.size() / kUsualBytesOfToken + 1);
  hf::SpacePool::Lease space(parts_->spaces);
  Pass(*parts_, valid.text(), *space, encoding, /*spans=*/false).run();
  return std::move(encoding.ids);
}

Encoding HuggingFaceTokenizer::encode_with_spans(std::string_view text) const {
  const ValidText valid(text);
  Encoding encoding;
  hf::SpacePool::Lease space(parts_->spaces);
  Pass(*parts_, valid.text(), *space, encoding, /*spans=*/true).run();
  if (valid.text().data() != text.data()) {
    for (TextSpan& span : encoding.spans) {
      const bool empty = span.begin == span.end;
      span.begin = valid.begin_in_bytes(span.begin);
      span.end = empty ? span.begin : valid.end_in_bytes(span.end);
    }
  }
  return encoding;
}

std::vector<int32_t> HuggingFaceTokenizer::ids_before() const {
  return parts_->post_processor->before();
}

std::vector<int32_t> HuggingFaceTokenizer::ids_after() const {
  return parts_->post_processor->after();
}

namespace {

// Text of ids that come; Parts is the tokenizer's.
template <class Parts>
class HuggingFaceDecoder final : public TextDecoder {
 public:
  HuggingFaceDecoder(const Parts& parts, bool with_special)
      : parts_(parts), with_special_(with_special), run_(*parts.decoder) {}

  void give(int32_t id) {
    parts_.check_id(id);
    const std::string* text = parts_.decoded_token(id);
    if (text != nullptr && (with_special_ || !parts_.added->is_special(*text))) {
      run_.add(*text);
    }
  }
  std::string add(int32_t id) override {
    give(id);
    return run_.take();
  }
  std::string finish() override {
    run_.finish();
    std::string text = run_.take();
    run_ = hf::Decoder::Run(*parts_.decoder);
    return text;
  }

 private:
  const Parts& parts_;
  bool with_special_;
  hf::Decoder::Run run_;
};

template <class Parts>
std::string decode_all(const Parts& parts, std::span<const int32_t> ids, bool with_special) {
  HuggingFaceDecoder decoder(parts, with_special);
  for (const int32_t id : ids) {
    decoder.give(id);
  }
  return decoder.finish();
}

}  // namespace

std::string HuggingFaceTokenizer::decode(std::span<const int32_t> ids) const {
  return decode_all(*parts_, ids, /*with_special=*/false);
}

std::string HuggingFaceTokenizer::decode_with_special(std::span<const int32_t> ids) const {
  return decode_all(*parts_, ids, /*with_special=*/true);
}

std::unique_ptr<TextDecoder> HuggingFaceTokenizer::text_decoder() const {
  return std::make_unique<HuggingFaceDecoder<Parts>>(*parts_, /*with_special=*/false);
}

std::optional<int32_t> HuggingFaceTokenizer::id_of(std::string_view token) const {
  return parts_->id_of(token);
}

std::string HuggingFaceTokenizer::token(int32_t id) const {
  parts_->check_id(id);
  const std::string* text = parts_->text_of(id);
  return text == nullptr ? std::string() : *text;
}

int32_t HuggingFaceTokenizer::bos_id() const { return parts_->bos; }

int32_t HuggingFaceTokenizer::eod_id() const { return parts_->eos; }

int32_t HuggingFaceTokenizer::pad_id() const { return parts_->pad; }

std::vector<std::string> HuggingFaceTokenizer::remarks() const { return parts_->remarks; }

std::string HuggingFaceTokenizer::describe() const {
  return concat("Hugging Face tokenizer ", parts_->path, ", ", vocab_size(), " ids");
}

TokenizerIdentity HuggingFaceTokenizer::identity() const {
  return {"huggingface", vocab_size(), parts_->checksum};
}

}  // namespace tapestry::data
