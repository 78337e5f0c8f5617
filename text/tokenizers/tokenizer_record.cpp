#include "text/tokenizers/tokenizer_record.h"

#include <filesystem>
#include <system_error>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/util/file.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kType = "tokenizer_type";
constexpr const char* kVocabSize = "vocab_size";
constexpr const char* kChecksum = "crc64";
constexpr const char* kModel = "tokenizer_model";

fs::path folder_of(const std::string& prefix) {
  const fs::path folder = fs::path(prefix).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

}  // namespace

std::string tokenizer_record_path(const std::string& prefix) { return prefix + ".tokenizer.json"; }

TokenizerRecord make_tokenizer_record(const std::string& prefix,
                                      const Tokenizer& tokenizer,
                                      const std::string& model_file) {
  TokenizerRecord record{tokenizer.identity(), ""};
  if (!model_file.empty()) {
    std::error_code error;
    const fs::path relative = fs::proximate(model_file, folder_of(prefix), error);
    record.model = error ? model_file : relative.string();
  }
  return record;
}

std::string tokenizer_record_text(const TokenizerRecord& record) {
  nlohmann::ordered_json json;
  json[kType] = record.tokenizer.type;
  json[kVocabSize] = record.tokenizer.vocab_size;
  if (!record.tokenizer.checksum.empty()) {
    json[kChecksum] = record.tokenizer.checksum;
    json[kModel] = record.model;
  }
  return json.dump(2) + "\n";
}

std::optional<TokenizerRecord> read_tokenizer_record(const std::string& prefix) {
  const std::string path = tokenizer_record_path(prefix);
  if (!fs::exists(path)) {
    return std::nullopt;
  }
  const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const auto value = json.find(key);
    return value != json.end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  check<IoError>(json.is_object() && !text(kType).empty() && json.contains(kVocabSize) &&
                     json[kVocabSize].is_number_integer(),
                 path, ": is not the record of a tokenizer, expected JSON with \"", kType,
                 "\" and \"", kVocabSize, "\"; prepare the text again, or remove the file");
  return TokenizerRecord{{text(kType), json[kVocabSize].get<int64_t>(), text(kChecksum)},
                         text(kModel)};
}

std::string recorded_model_path(const std::string& prefix, const TokenizerRecord& record) {
  return record.model.empty() ? "" : (folder_of(prefix) / record.model).lexically_normal().string();
}

}  // namespace tapestry::data
