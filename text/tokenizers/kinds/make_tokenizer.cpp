#include "text/tokenizers/kinds/make_tokenizer.h"

#include <filesystem>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/huggingface_tokenizer.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"

namespace tapestry::data {

bool is_tokenizer_type(std::string_view type) {
  return type == "byte" || type == "sentencepiece" || type == "character" || type == "huggingface";
}

std::string tokenizer_file(const std::string& type, const std::string& model) {
  const std::filesystem::path file = std::filesystem::path(model) / "tokenizer.json";
  return type == "huggingface" && path_exists(file.string()) ? file.string() : model;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& model_file) {
  if (type == "byte") {
    check<ValueError>(model_file.empty(), "tokenizer_model: \"", model_file,
                      "\" is given, but the byte tokenizer has no model file");
    return std::make_unique<ByteTokenizer>();
  }
  check<ValueError>(is_tokenizer_type(type), "tokenizer_type: \"", type, "\" is unknown, expected ",
                    kTokenizerTypes);
  check<ValueError>(!model_file.empty(), "tokenizer_model: the ", type,
                    " tokenizer needs a model file");
  if (type == "character") {
    return std::make_unique<CharacterTokenizer>(model_file);
  }
  if (type == "huggingface") {
    return std::make_unique<HuggingFaceTokenizer>(model_file);
  }
  return std::make_unique<SentencePieceTokenizer>(model_file);
}

}  // namespace tapestry::data
