// Tokens and their ids.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizers/huggingface/component.h"

namespace tapestry::data::huggingface {

class Vocabulary {
 public:
  /// {"token": id, ...}. ValueError for ids that are no integers, that two tokens have, or that
  /// leave more holes than there are tokens.
  static Vocabulary of_ids(const Json& json, const std::string& place);

  /// Adds a token with the next id; where the token is there already, it has this id from now on.
  void append(std::string token);

  std::optional<int32_t> find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
  }
  /// The largest id, and one.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  /// Different tokens.
  int64_t count() const { return static_cast<int64_t>(ids_.size()); }
  /// Null for an id that no token has.
  const std::string* token(int64_t id) const {
    return id >= 0 && id < size() ? tokens_[static_cast<size_t>(id)] : nullptr;
  }

 private:
  std::deque<std::string> texts_;  // which stay where they are
  std::vector<const std::string*> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace tapestry::data::huggingface
