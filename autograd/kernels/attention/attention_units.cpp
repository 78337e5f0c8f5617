#include "autograd/kernels/attention/attention_units.h"

#include <algorithm>

#include "autograd/kernels/machine/ceil_div.h"

namespace tapestry::kernels {

namespace {

/// Rows of a part of `planes` planes of n rows each: many, unless that makes fewer than `wanted`.
int64_t rows_of_part(int64_t planes, int64_t n, int64_t wanted) {
  int64_t rows = kAttentionChunk;
  while (rows > kAttentionBlock && planes * ceil_div(n, rows) < wanted) {
    rows -= kAttentionBlock;
  }
  return rows;
}

constexpr int64_t kUnitsPerThread = 4;

}  // namespace

AttentionForwardUnits::AttentionForwardUnits(const AttentionShape& shape, int64_t team)
    : heads_(shape.heads),
      q_len_(shape.q_len),
      planes_(shape.batch * shape.heads),
      rows_(rows_of_part(planes_, shape.q_len, kUnitsPerThread * team)),
      parts_(ceil_div(shape.q_len, rows_)),
      by_plane_(planes_ >= team) {}

AttentionRows AttentionForwardUnits::operator[](int64_t unit) const {
  const int64_t plane = by_plane_ ? unit / parts_ : unit % planes_;
  const int64_t later = by_plane_ ? unit % parts_ : unit / planes_;  // parts that come before it
  const int64_t begin = (parts_ - 1 - later) * rows_;
  return {.sample = plane / heads_,
          .head = plane % heads_,
          .q_begin = begin,
          .q_end = std::min(begin + rows_, q_len_)};
}

AttentionBackwardUnits::AttentionBackwardUnits(const AttentionShape& shape,
                                               int64_t team,
                                               const AttentionDocuments& documents)
    : groups_(shape.groups),
      heads_(shape.heads / shape.groups),
      q_len_(shape.q_len),
      kv_len_(shape.kv_len),
      whole_(shape.batch * shape.groups) {
  if (documents.start != nullptr) {
    cut_at_documents(shape, team, documents);
    return;
  }
  constexpr int64_t kProducts = 5;
  constexpr int64_t kProductsOfSplit = 7;
  const int64_t rest = whole_ % team;
  const bool divisible = kv_len_ > kAttentionBlock || q_len_ > kAttentionBlock;
  if (rest == 0 || !divisible || kProductsOfSplit * rest >= kProducts * team) {
    return;
  }
  whole_ -= rest;
  split_ = rest;
  k_rows_ = rows_of_part(split_, kv_len_, kUnitsPerThread * team);
  k_parts_ = ceil_div(kv_len_, k_rows_);
  q_rows_ = rows_of_part(split_ * heads_, q_len_, kUnitsPerThread * team);
  q_parts_ = ceil_div(q_len_, q_rows_);
}

void AttentionBackwardUnits::cut_at_documents(const AttentionShape& shape,
                                              int64_t team,
                                              const AttentionDocuments& documents) {
  struct Segment {
    AttentionPart part;
    int64_t scores;  // that are visible to one head, but for the window and the mask
  };
  std::vector<Segment> all;
  int64_t total = 0;
  const int64_t tokens = std::max(shape.q_offset + q_len_, kv_len_);
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    const int32_t* start = documents.start + sample * documents.batch;
    int64_t begin = 0;
    int64_t scores = 0;
    for (int64_t p = 0; p < tokens; ++p) {
      const int64_t end = p + 1;
      const int64_t query = p - shape.q_offset;  // that of the call, if there is one
      scores += query >= 0 && query < q_len_ ? end - start[p] : 0;
      const bool cut = query >= 0 && query + 1 < q_len_ && start[end] == end;
      if (end < tokens && (!cut || end - begin < kAttentionChunk)) {
        continue;
      }
      for (int64_t group = 0; group < groups_; ++group) {
        AttentionPart part = plane(sample * groups_ + group);
        part.q_begin = std::clamp<int64_t>(begin - shape.q_offset, 0, q_len_);
        part.q_end = std::clamp<int64_t>(end - shape.q_offset, 0, q_len_);
        part.k_begin = std::min(begin, kv_len_);
        part.k_end = std::min(end, kv_len_);
        all.push_back({part, scores});
        total += scores;
      }
      begin = end;
      scores = 0;
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Segment& a, const Segment& b) { return a.scores > b.scores; });
  const auto is_large = [&](const Segment& segment) {
    return team > 1 && 4 * segment.scores * team > 3 * total;
  };
  const auto large = static_cast<int64_t>(std::count_if(all.begin(), all.end(), is_large));
  const int64_t wanted = kUnitsPerThread * team;
  for (const Segment& segment : all) {
    const AttentionPart& whole = segment.part;
    const int64_t keys = whole.k_end - whole.k_begin;
    const int64_t queries = whole.q_end - whole.q_begin;
    if (!is_large(segment) || (keys <= kAttentionBlock && queries <= kAttentionBlock)) {
      segments_.push_back(whole);
      continue;
    }
    const int64_t k_rows = rows_of_part(large, keys, wanted);
    for (int64_t k = whole.k_begin; k < whole.k_end; k += k_rows) {
      AttentionPart part = whole;
      part.k_begin = k;
      part.k_end = std::min(k + k_rows, whole.k_end);
      part.want_dq = false;
      segments_.push_back(part);
    }
    const int64_t q_rows = rows_of_part(large * heads_, queries, wanted);
    for (int64_t q = whole.q_begin; q < whole.q_end; q += q_rows) {
      for (int64_t head = whole.head_begin; head < whole.head_end; ++head) {
        AttentionPart part = whole;
        part.head_begin = head;
        part.head_end = head + 1;
        part.q_begin = q;
        part.q_end = std::min(q + q_rows, whole.q_end);
        part.want_dkv = false;
        segments_.push_back(part);
      }
    }
  }
}

AttentionPart AttentionBackwardUnits::plane(int64_t index) const {
  const int64_t group = index % groups_;
  return {.sample = index / groups_,
          .group = group,
          .head_begin = group * heads_,
          .head_end = (group + 1) * heads_,
          .q_begin = 0,
          .q_end = q_len_,
          .k_begin = 0,
          .k_end = kv_len_,
          .want_dq = true,
          .want_dkv = true};
}

AttentionPart AttentionBackwardUnits::operator[](int64_t unit) const {
  if (!segments_.empty()) {
    return segments_[static_cast<size_t>(unit)];
  }
  if (unit < whole_) {
    return plane(unit);
  }
  unit -= whole_;
  if (unit < split_ * k_parts_) {  // causal queries see the first keys most
    AttentionPart part = plane(whole_ + unit % split_);
    part.k_begin = unit / split_ * k_rows_;
    part.k_end = std::min(part.k_begin + k_rows_, kv_len_);
    part.want_dq = false;
    return part;
  }
  unit -= split_ * k_parts_;
  const int64_t of_head = unit % (split_ * heads_);
  AttentionPart part = plane(whole_ + of_head / heads_);
  part.head_begin += of_head % heads_;
  part.head_end = part.head_begin + 1;
  part.q_begin = (q_parts_ - 1 - unit / (split_ * heads_)) * q_rows_;
  part.q_end = std::min(part.q_begin + q_rows_, q_len_);
  part.want_dkv = false;
  return part;
}

int64_t AttentionBackwardUnits::most_keys() const {
  if (segments_.empty()) {
    return whole_ > 0 ? kv_len_ : k_rows_;
  }
  int64_t most = 0;
  for (const AttentionPart& part : segments_) {
    most = std::max(most, part.want_dkv ? part.k_end - part.k_begin : 0);
  }
  return most;
}

}  // namespace tapestry::kernels
