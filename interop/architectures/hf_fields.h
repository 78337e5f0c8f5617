// The members of a config.json: typed access, and what is wrong with them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/read/model_folder.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::hf {

using Json = nlohmann::json;

/// Sizes above this are refused.
inline constexpr int64_t kMaxSize = 2147483647;

/// A value, how the file writes it, and whether it does.
template <class T>
struct Found {
  T value;
  std::string text;
  bool written;
};

/// The content of a file with one JSON object. IoError, naming it, for anything else, for a key
/// that comes twice, and for deep nesting.
Json parse_strictly(const std::string& text, const std::string& file);

/// Reads members of the object, notes findings and collects settings. Who calls it knows what the
/// members mean.
class Fields {
 public:
  Fields(const std::string& text, const std::string& file) : json(parse_strictly(text, file)) {
    out.file = file;
  }

  /// Notes what is wrong with a member, once.
  void finding(const std::string& name, const std::string& text);

  /// The value of a key that is there and not null.
  const Json* find(const std::string& name) const {
    const auto found = json.find(name);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const std::string& name) const { return json.contains(name); }

  /// `value` where the file says nothing; a finding for a value of another type.
  template <class T>
  Found<T> take(const std::string& name,
                const T& value,
                bool (Json::*is_type)() const noexcept,
                const char* expected) {
    const Json* found = find(name);
    if (found == nullptr) {
      return {value, has(name) ? "null" : Json(value).dump(), has(name)};
    }
    if (!(found->*is_type)()) {
      finding(name, concat("expected ", expected, ", got ", found->dump()));
      return {value, found->dump(), true};
    }
    return {found->get<T>(), found->dump(), true};
  }
  /// From 1 to kMaxSize; what is wrong with it is noted once.
  Found<int64_t> size(const std::string& name, int64_t value);
  /// What size() has found before for this member.
  int64_t size_of(const std::string& name) const { return sizes_.at(name); }
  int64_t integer(const std::string& name, int64_t value) {
    return take<int64_t>(name, value, &Json::is_number_integer, "an integer").value;
  }
  Found<double> number(const std::string& name, double value) {
    return take<double>(name, value, &Json::is_number, "a number");
  }
  Found<bool> boolean(const std::string& name, bool value) {
    return take<bool>(name, value, &Json::is_boolean, "true or false");
  }
  Found<std::string> text(const std::string& name, const std::string& value) {
    return take<std::string>(name, value, &Json::is_string, "a string");
  }

  template <class T>
  void set(const std::string& key, const Found<T>& found, const std::string& name) {
    set_value(key, config::Value(found.value), name, found.text, found.written);
  }
  /// A key of model_config, as the member `name` gives it.
  void set_value(const std::string& key,
                 config::Value value,
                 const std::string& name,
                 const std::string& shown,
                 bool written = true);
  /// The same of moe_config.
  void set_moe(const std::string& key,
               config::Value value,
               const std::string& name,
               const std::string& shown,
               bool written = true) {
    set_value(key, std::move(value), name, shown, written);
    out.settings.back().section = "moe_config";
  }
  template <class T>
  void set_moe(const std::string& key, const Found<T>& found, const std::string& name) {
    set_moe(key, config::Value(found.value), name, found.text, found.written);
  }
  /// What every model of the type has.
  void set_by_type(const std::string& key, config::Value value) {
    set_value(key, std::move(value), "model_type", Json(out.model_type).dump());
  }
  void set_moe_by_type(const std::string& key, config::Value value) {
    set_moe(key, std::move(value), "model_type", Json(out.model_type).dump());
  }

  void refuse_present(const std::string& name, const std::string& why) {
    if (find(name) != nullptr) {
      finding(name, concat(why, ", which is not supported"));
    }
  }
  /// A switch that must stand as models here are built.
  void require(const std::string& name, bool value, const std::string& why) {
    if (boolean(name, value).value != value) {
      finding(name, concat(value ? "false" : "true", ": ", why, ", which is not supported"));
    }
  }

  /// tie_word_embeddings.
  void read_tie(bool by_default);
  /// The ids of the tokens that begin and end a text and fill up rows.
  void read_token_ids(const TokenIds& defaults);

  Json json;
  HfConfig out;
  std::vector<std::string> findings;

 private:
  std::map<std::string, int64_t> sizes_;
};

}  // namespace tapestry::hf
