// Tokens that are found in a text before the model sees it: special ones, and those of users.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/normalizer.h"
#include "text/tokenizers/huggingface/vocabulary.h"

namespace tapestry::data::huggingface {

/// An entry of `added_tokens`.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  ///< not beside letters, marks, numbers
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< and behind it
  bool normalized = false;   ///< is looked for in the normalized text, as it is normalized
  bool special = false;      ///< is left out of decoded text
  /// What decoders get: the content, normalized as the text is that it is looked for in. Only what
  /// is then still the content of a special token is left out.
  std::string decoded;
};

/// Takes added tokens and what lies between them, in order.
class AddedTokenSink {
 public:
  /// Not empty.
  virtual void stretch(const Slice& text) = 0;
  virtual void token(const AddedToken& token, const Slice& text) = 0;

 protected:
  ~AddedTokenSink() = default;
};

class AddedTokens {
 public:
  /// How the library that the list is for gives new tokens their ids.
  enum class NewIds {
    kNext,  ///< the next free one, which is what an entry has to say
    kSaid,  ///< what an entry says, if no other token has it
  };
  /// ValueError for entries that are not of the form, and for an id that is not the model's for
  /// this token or, for a new one, not one that it can have.
  AddedTokens(const Json& list,
              const Vocabulary& vocabulary,
              const Normalizer* normalizer,
              NewIds new_ids = NewIds::kNext);

  /// Those that are looked for in the text as it is, or in the normalized one: leftmost, the
  /// longest of these, and behind it the next. ValueError where that takes more than
  /// most_steps_for() the text.
  void split(const Slice& text, bool normalized, AddedTokenSink& sink) const;

  const AddedToken* find(std::string_view content) const;
  const AddedToken* by_id(int32_t id) const;
  bool is_special(const std::string& content) const { return special_.contains(content); }
  /// The largest id and one; 0: none.
  int64_t size() const { return size_; }

 private:
  // A trie of bytes, of which the first are a table.
  struct Trie {
    struct Node {
      std::vector<std::pair<uint8_t, uint32_t>> children;
      int32_t token = -1;  // index in tokens_
    };
    std::vector<Node> nodes = std::vector<Node>(1);
    std::array<bool, 256> first{};

    void insert(std::string_view text, int32_t token);
    /// The longest that begins at `at`; -1: none. Adds to `steps` the bytes that it looked at.
    int32_t longest(std::string_view text, size_t at, size_t& end, size_t& steps) const;
  };

  void add(AddedToken token,
           const Vocabulary& vocabulary,
           const std::string& place,
           NewIds new_ids);

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_set<std::string> special_;
  int64_t size_ = 0;
  Trie raw_;
  Trie normalized_;
};

}  // namespace tapestry::data::huggingface
