#include "text/tokenizers/tokenizer.h"

#include <utility>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::data {

std::string describe(const TokenizerIdentity& identity) {
  return concat(identity.type, " tokenizer of ", identity.vocab_size, " ids",
                identity.checksum.empty() ? "" : concat(" (crc64 ", identity.checksum, ")"));
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    ids.push_back(static_cast<uint8_t>(c));
  }
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    check<ValueError>(id >= 0 && id <= kEod, "byte tokenizer: id ", id, " is outside 0 .. ", kEod);
    if (id != kEod) {
      text.push_back(static_cast<char>(static_cast<uint8_t>(id)));
    }
  }
  return text;
}

Encoding ByteTokenizer::encode_with_spans(std::string_view text) const {
  Encoding encoding{encode(text), {}};
  encoding.spans.reserve(text.size());
  for (int64_t at = 0; at < static_cast<int64_t>(text.size()); ++at) {
    encoding.spans.push_back({at, at + 1});
  }
  return encoding;
}

std::unique_ptr<TextDecoder> ByteTokenizer::text_decoder() const {
  // Holds back a character of which bytes are still to come.
  class Decoder final : public TextDecoder {
   public:
    explicit Decoder(const ByteTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    std::string add(int32_t id) override {
      held_ += tokenizer_.decode({&id, 1});
      std::string text = held_.substr(0, without_cut_character(held_));
      held_.erase(0, text.size());
      return text;
    }
    std::string finish() override { return std::exchange(held_, {}); }

   private:
    const ByteTokenizer& tokenizer_;
    std::string held_;
  };
  return std::make_unique<Decoder>(*this);
}

std::optional<int32_t> ByteTokenizer::id_of(std::string_view token) const {
  return token.size() == 1 ? std::optional<int32_t>(static_cast<uint8_t>(token[0])) : std::nullopt;
}

std::string ByteTokenizer::describe() const {
  return concat("byte tokenizer, ", vocab_size(), " ids");
}

}  // namespace tapestry::data
