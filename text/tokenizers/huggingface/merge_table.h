// The merges of byte-pair encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tapestry::data::huggingface {

/// A hash table of pairs of ids with open addressing. A pair that is given twice has its last rank.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t product = -1;
  };

  explicit MergeTable(size_t merges = 0) {
    size_t places = 16;
    while (places < 2 * merges + 1) {
      places *= 2;
    }
    entries_.resize(places);
    mask_ = places - 1;
  }

  void insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    size_t at = place_of(key);
    while (entries_[at].key != kFree && entries_[at].key != key) {
      at = (at + 1) & mask_;
    }
    entries_[at] = {key, merge};
  }

  /// With kNoRank if the pair is not merged.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = place_of(key);; at = (at + 1) & mask_) {
      if (entries_[at].key == key) {
        return entries_[at].merge;
      }
      if (entries_[at].key == kFree) {
        return {};
      }
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Entry {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32U | static_cast<uint32_t>(right);
  }
  size_t place_of(uint64_t key) const {
    constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
    const uint64_t mixed = (key ^ key >> 29U) * kMix;
    return static_cast<size_t>(mixed >> 24U) & mask_;
  }

  std::vector<Entry> entries_;
  size_t mask_ = 0;
};

}  // namespace tapestry::data::huggingface
