// The ids of pieces that a text repeats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tapestry::data::huggingface {

/// A table of a bounded size, in which a piece takes the place of another one with the same place;
/// for one thread at a time. A piece that is too long, or has too many ids, is not kept.
class PieceCache {
 public:
  static constexpr size_t kLongestPiece = 54;
  static constexpr size_t kMostIds = 16;
  static constexpr size_t kSmallest = 256;     // entries of 128 bytes
  static constexpr size_t kLargest = 1 << 15;  // 4 MB

  /// What to find and to store a piece by.
  static uint64_t hash(std::string_view piece);

  /// Appends the ids of a piece that is there to `ids`; false if it is not.
  bool append(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const {
    if (entries_.empty() || piece.size() > kLongestPiece) {
      return false;
    }
    const Entry& entry = entries_[hash & (entries_.size() - 1)];
    if (entry.hash != hash || entry.length != piece.size() ||
        std::memcmp(entry.text.data(), piece.data(), piece.size()) != 0) {
      return false;
    }
    ids.insert(ids.end(), entry.ids.data(), entry.ids.data() + entry.count);
    return true;
  }
  void store(std::string_view piece, uint64_t hash, std::span<const int32_t> ids);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint8_t length = 0;
    uint8_t count = 0;
    std::array<char, kLongestPiece> text{};
    std::array<int32_t, kMostIds> ids{};
  };

  std::vector<Entry> entries_;
  size_t stored_ = 0;  // since the table has this size
};

inline uint64_t PieceCache::hash(std::string_view piece) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
  const auto load = [&](size_t at, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, piece.data() + at, bytes);
    return value;
  };
  uint64_t sum = piece.size() * kMix;
  const auto mix = [&](uint64_t value) {
    sum = (sum ^ value) * kMix;
    sum ^= sum >> 32U;
  };
  const size_t size = piece.size();
  if (size >= 8) {
    for (size_t at = 0; at + 8 < size; at += 8) {
      mix(load(at, 8));
    }
    mix(load(size - 8, 8));
  } else if (size >= 4) {
    mix(load(0, 4) << 32U | load(size - 4, 4));
  } else if (size > 0) {
    mix(load(0, 1) << 16U | load(size / 2, 1) << 8U | load(size - 1, 1));
  }
  return sum;
}

}  // namespace tapestry::data::huggingface
