#include "text/tokenizers/huggingface/piece_cache.h"

#include <algorithm>

namespace tapestry::data::huggingface {

void PieceCache::store(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
  if (piece.size() > kLongestPiece || ids.size() > kMostIds) {
    return;
  }
  if (entries_.empty() || (stored_ > entries_.size() && entries_.size() < kLargest)) {
    std::vector<Entry> larger(entries_.empty() ? kSmallest : entries_.size() * 4);
    for (const Entry& entry : entries_) {
      if (entry.length > 0) {
        larger[entry.hash & (larger.size() - 1)] = entry;
      }
    }
    entries_ = std::move(larger);
    stored_ = 0;
  }
  ++stored_;
  Entry& entry = entries_[hash & (entries_.size() - 1)];
  entry.hash = hash;
  entry.length = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(ids.size());
  std::copy(piece.begin(), piece.end(), entry.text.begin());
  std::copy(ids.begin(), ids.end(), entry.ids.begin());
}

}  // namespace tapestry::data::huggingface
