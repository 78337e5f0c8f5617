// The unigram language model of pieces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizers/huggingface/model.h"

namespace tapestry::data::huggingface {

/// A piece becomes the tokens whose scores have the greatest sum (Viterbi's path, the earlier
/// beginning among equals); a character that is no token costs 10 more than the least score, and
/// neighbours of this kind become one. With byte_fallback these become the tokens of their bytes,
/// <0xE2>, if there are all of them, else unk_id. Sources: Kudo 2018, arXiv:1804.10959; Rust
/// library `tokenizers`, models/unigram.
class Unigram final : public Model {
 public:
  /// ValueError for what is not of the form.
  explicit Unigram(const Component& component);

  void encode_parts(std::string_view piece, ModelSpace& space) const override;

 private:
  // A trie of bytes: the children of a node lie side by side, sorted.
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;
    int32_t id = -1;
  };
  void build_trie();
  const Node* child(const Node& node, uint8_t byte) const;

  std::vector<double> scores_;
  std::vector<Node> nodes_;
  std::array<int32_t, 256> root_{};  // child of the root; -1: none
  std::optional<int32_t> unk_id_;
  bool byte_fallback_ = false;
  double unknown_score_ = 0;
  std::array<int32_t, 256> id_of_fallback_{};
};

}  // namespace tapestry::data::huggingface
