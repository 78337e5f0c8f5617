#include "text/tokenizers/kinds/character_tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/util/checksum.h"
#include "text/util/file.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

constexpr const char* kTypeField = "tokenizer_type";
constexpr const char* kCharacters = "characters";

// "'e' (U+0065)"
std::string shown(uint32_t code_point) {
  char number[16];
  std::snprintf(number, sizeof(number), "U+%04X", code_point);
  return code_point < ' ' ? number : concat("'", utf8(code_point), "' (", number, ")");
}

}  // namespace

CharacterTokenizer::CharacterTokenizer(const std::string& model_file) : model_file_(model_file) {
  const std::string bytes = read_file(model_file);
  const auto json = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  check<IoError>(json.is_object() && json.value(kTypeField, nlohmann::json()) == "character" &&
                     json.contains(kCharacters) && json[kCharacters].is_array(),
                 model_file, ": is not the model of a character tokenizer, expected JSON with \"",
                 kTypeField, "\": \"character\" and \"", kCharacters, "\"");
  for (const auto& entry : json[kCharacters]) {
    const std::vector<uint32_t> points =
        entry.is_string() ? code_points(entry.get<std::string>()) : std::vector<uint32_t>();
    check<IoError>(points.size() == 1 && (characters_.empty() || points[0] > characters_.back()),
                   model_file, ": ", kCharacters, ": entry ", characters_.size(), " is ",
                   entry.dump(), ", expected one character, greater than the one before");
    characters_.push_back(points[0]);
  }
  check<IoError>(!characters_.empty(), model_file, ": ", kCharacters, " is empty");
  checksum_ = crc64(bytes);
}

int32_t CharacterTokenizer::id_of_character(uint32_t point) const {
  const auto at = std::lower_bound(characters_.begin(), characters_.end(), point);
  if (at == characters_.end() || *at != point) {
    throw ValueError(concat(model_file_, ": the character ", shown(point), " is not among the ",
                            characters_.size(),
                            " of this tokenizer; make one of a text that has it"));
  }
  return static_cast<int32_t>(at - characters_.begin());
}

std::vector<int32_t> CharacterTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const uint32_t point : code_points(text)) {
    ids.push_back(id_of_character(point));
  }
  return ids;
}

Encoding CharacterTokenizer::encode_with_spans(std::string_view text) const {
  Encoding encoding;
  const ValidText valid(text);
  int64_t at = 0;
  for (const uint32_t point : code_points(valid.text())) {
    const int64_t end = at + static_cast<int64_t>(utf8(point).size());
    encoding.ids.push_back(id_of_character(point));
    encoding.spans.push_back({valid.begin_in_bytes(at), valid.end_in_bytes(end)});
    at = end;
  }
  return encoding;
}

std::unique_ptr<TextDecoder> CharacterTokenizer::text_decoder() const {
  class Decoder final : public TextDecoder {
   public:
    explicit Decoder(const CharacterTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    std::string add(int32_t id) override { return tokenizer_.decode({&id, 1}); }
    std::string finish() override { return {}; }

   private:
    const CharacterTokenizer& tokenizer_;
  };
  return std::make_unique<Decoder>(*this);
}

std::optional<int32_t> CharacterTokenizer::id_of(std::string_view token) const {
  const std::vector<uint32_t> points = code_points(token);
  if (points.size() != 1) {
    return std::nullopt;
  }
  const auto at = std::lower_bound(characters_.begin(), characters_.end(), points[0]);
  return at != characters_.end() && *at == points[0]
             ? std::optional<int32_t>(static_cast<int32_t>(at - characters_.begin()))
             : std::nullopt;
}

std::string CharacterTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    check<ValueError>(id >= 0 && id <= eod_id(), model_file_, ": id ", id, " is outside 0 .. ",
                      eod_id());
    if (id != eod_id()) {
      text += utf8(characters_[static_cast<size_t>(id)]);
    }
  }
  return text;
}

std::string CharacterTokenizer::describe() const {
  return concat("character tokenizer ", model_file_, ", ", vocab_size(), " ids");
}

void train_character_tokenizer(const TextInput& input, const std::string& model_file) {
  std::set<uint32_t> found;
  read_documents(input, /*in_pieces=*/true, [&](std::string_view text, bool, const TextPlace&) {
    for (const uint32_t point : code_points(text)) {
      if (found.empty() || *found.rbegin() != point) {
        found.insert(point);
      }
    }
  });
  check<ValueError>(!found.empty(), input.files.front(),
                    input.files.size() > 1 ? " and the other files: " : ": ",
                    "has no text to make a tokenizer of");
  nlohmann::ordered_json json;
  json[kTypeField] = "character";
  json[kCharacters] = nlohmann::ordered_json::array();
  for (const uint32_t point : found) {
    json[kCharacters].push_back(utf8(point));
  }
  write_file_atomically(model_file, json.dump() + "\n");
}

}  // namespace tapestry::data
