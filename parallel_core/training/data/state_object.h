// An object of the JSON that a checkpoint keeps of a run's data.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::internal {

/// Every member has to be asked for before finish(). IoError, naming `source` and the member, for
/// members that are missing, unknown or of another type, and numbers out of range. It refers to
/// what it is made of.
class StateObject {
 public:
  using Json = nlohmann::ordered_json;
  /// Sums and products of two small ones stay in 64 bits.
  static constexpr int64_t kMost = int64_t{1} << 53;

  StateObject(const Json& json, std::string path, const std::string& source)
      : json_(json), path_(std::move(path)), source_(source) {
    if (!json.is_object()) {
      throw IoError(concat(source_, ": ", path_.empty() ? "the state of the data" : path_, ": is ",
                           json.type_name(), ", expected an object"));
    }
  }

  bool has(const char* name) const { return json_.contains(name); }

  int64_t integer(const char* name, int64_t low = 0) {
    const Json& value = member(name);
    // Numbers beyond 64 bits are no integers to the parser.
    require(is_integer(value, low), name, integer_of(low));
    return value.get<int64_t>();
  }
  bool boolean(const char* name) {
    const Json& value = member(name);
    require(value.is_boolean(), name, "true or false");
    return value.get<bool>();
  }
  std::string text(const char* name) {
    const Json& value = member(name);
    require(value.is_string(), name, "a text");
    return value.get<std::string>();
  }
  std::string checksum(const char* name, bool may_be_empty = false) {
    constexpr size_t kDigits = 16;
    std::string value = text(name);
    const bool whole =
        value.size() == kDigits && value.find_first_not_of("0123456789abcdef") == std::string::npos;
    require(whole || (may_be_empty && value.empty()), name, "16 hexadecimal digits");
    return value;
  }
  double weight(const char* name) {
    const Json& value = member(name);
    require(value.is_number() && value.get<double>() >= 0, name, "a number >= 0");
    return value.get<double>();
  }
  StateObject object(const char* name) { return {member(name), path(name), source_}; }
  // Calls f with each object of a list.
  template <class F>
  void each(const char* name, F&& f) {
    const Json& list = member(name);
    require(list.is_array(), name, "a list");
    for (size_t i = 0; i < list.size(); ++i) {
      StateObject entry(list[i], concat(path(name), "[", i, "]"), source_);
      f(entry);
      entry.finish();
    }
  }
  // Each above the one before.
  std::vector<int64_t> ascending(const char* name) {
    const Json& list = member(name);
    require(list.is_array(), name, "a list");
    std::vector<int64_t> values;
    for (const Json& value : list) {
      const int64_t low = values.empty() ? 1 : values.back() + 1;
      require(is_integer(value, low), concat(name, "[", values.size(), "]"), integer_of(low),
              value);
      values.push_back(value.get<int64_t>());
    }
    return values;
  }
  void finish() const {
    for (const auto& [name, value] : json_.items()) {
      check<IoError>(known_.contains(name), source_, ": ", path(name),
                     ": is not known; the file is of another release or damaged");
    }
  }

 private:
  static bool is_integer(const Json& value, int64_t low) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{kMost}) &&
           value.get<int64_t>() >= low;
  }
  void require(bool holds, std::string_view name, std::string_view expected) const {
    if (!holds) {
      require(false, name, expected, *json_.find(name));
    }
  }
  void require(bool holds,
               std::string_view name,
               std::string_view expected,
               const Json& value) const {
    if (holds) {
      return;
    }
    // A text of the file may be anything; the message has to be one line of UTF-8.
    constexpr size_t kShown = 60;
    std::string shown = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    if (shown.size() > kShown) {
      shown.resize(kShown);
      shown += "...";
    }
    throw IoError(concat(source_, ": ", path(name), ": is ", shown, ", expected ", expected));
  }
  static std::string integer_of(int64_t low) {
    return concat("an integer from ", low, " to ", kMost);
  }
  std::string path(std::string_view name) const {
    return path_.empty() ? std::string(name) : concat(path_, ".", name);
  }
  const Json& member(const char* name) {
    const auto found = json_.find(name);
    check<IoError>(found != json_.end(), source_, ": ", path(name), ": is missing");
    known_.insert(name);
    return *found;
  }

  const Json& json_;
  std::string path_;
  const std::string& source_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace tapestry::internal
