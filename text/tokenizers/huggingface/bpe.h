// Byte-pair encoding.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "text/tokenizers/huggingface/merge_table.h"
#include "text/tokenizers/huggingface/model.h"

namespace tapestry::data::huggingface {

/// A piece is its characters at first; then, as long as there is such a pair, the neighbours with
/// the merge of the lowest rank become one, the leftmost of equals. Sources: Sennrich et al. 2016,
/// arXiv:1508.07909; Rust library `tokenizers`, models/bpe.
///
/// A character without a token becomes the tokens of its bytes, <0xE2>, with byte_fallback and if
/// there are all of these, else unk_token, else nothing. With ignore_merges a piece that is a token
/// stays one.
class Bpe final : public Model {
 public:
  /// ValueError for what is not of the form, for merges of tokens that are not there, and for
  /// dropout.
  Bpe(const Component& component, bool bytes);

  bool takes_bytes() const { return takes_bytes_; }
  void encode(std::string_view piece, ModelSpace& space, std::vector<int32_t>& ids) const override;
  void encode_parts(std::string_view piece, ModelSpace& space) const override;

 private:
  void read_merges(const Component& component);
  void learn_neighbours();
  std::optional<int32_t> whole_token(std::string_view piece) const;
  int32_t id_of_character(std::string_view character) const;
  void begin_with_bytes(std::string_view piece, ModelSpace& space) const;
  void begin_with_characters(std::string_view piece, ModelSpace& space) const;
  bool fall_back_to_bytes(std::string_view text, uint32_t& at, ModelSpace& space) const;
  void merge_few(ModelSpace& space) const;
  void merge_many(ModelSpace& space) const;
  void encode_merged(std::string_view piece, ModelSpace& space, std::vector<int32_t>& ids) const;
  bool cuts_before(std::string_view piece, size_t at) const;

  MergeTable merges_;
  std::optional<int32_t> unk_id_;
  std::string prefix_;
  std::string suffix_;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool takes_bytes_ = false;
  std::array<int32_t, 256> id_of_byte_{};                     // of the character that stands for it
  std::array<int32_t, 128> id_of_ascii_{};                    // -1: none
  std::array<int32_t, 256> id_of_fallback_{};                 // of <0xNN>; -1: none
  std::vector<bool> is_fallback_;                             // by id
  bool merges_bytes_ = false;                                 // tokens <0xNN> are merged, too
  std::unordered_map<std::string, int32_t> tokens_of_bytes_;  // for ignore_merges
  // Characters that are neighbours in the product of some merge. No merge crosses others, so a long
  // piece can be cut there without a change.
  bool can_cut_ = false;
  std::array<std::array<bool, 128>, 128> ascii_neighbours_{};
  std::unordered_set<uint64_t> neighbours_;
};

}  // namespace tapestry::data::huggingface
