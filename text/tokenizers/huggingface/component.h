// Components of tokenizer.json as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/io/json.h"
#include "text/tokenizers/huggingface/pattern.h"

namespace tapestry::data::huggingface {

using Json = nlohmann::json;

/// Parses the bytes of a file. IoError, naming it, for what is not JSON, or nested more than 64
/// deep.
Json parse_json(const std::string& bytes, const std::string& path);

/// One component: an object with a `type`. What is asked of it and is not there, or of another
/// type, is a ValueError that names where it stands.
class Component {
 public:
  Component(const Json& json, std::string place);

  const std::string& type() const { return type_; }
  const std::string& place() const { return place_; }
  const Json& json() const { return json_; }
  /// Whether the key is there and not null.
  bool has(const char* key) const;
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& otherwise) const;
  bool flag(const char* key) const;
  bool flag(const char* key, bool otherwise) const;
  int64_t integer(const char* key, int64_t least, int64_t most) const;
  /// A list under `key`.
  const Json& list(const char* key) const;
  /// {"String": ...} or {"Regex": ...} under `key`; a text alone is itself, too.
  Pattern pattern(const char* key) const;
  /// The components of a list.
  std::vector<Component> parts(const char* key) const;
  [[noreturn]] void fail(const std::string& what) const;
  /// For a type that is not known: "pre_tokenizer: a component of type UnicodeScripts is not ...".
  [[noreturn]] void refuse() const;

 private:
  const Json& at(const char* key) const;

  const Json& json_;
  std::string type_;
  std::string place_;
};

}  // namespace tapestry::data::huggingface
