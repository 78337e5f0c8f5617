#include "autograd/kernels/attention_units.h"

#include <algorithm>

#include "autograd/kernels/ceil_div.h"

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
      parts_(ceil_div(shape.q_len, rows_)) {}

AttentionRows AttentionForwardUnits::operator[](int64_t unit) const {
  const int64_t plane = unit % planes_;
  const int64_t begin = (parts_ - 1 - unit / planes_) * rows_;
  return {.sample = plane / heads_,
          .head = plane % heads_,
          .q_begin = begin,
          .q_end = std::min(begin + rows_, q_len_)};
}

AttentionBackwardUnits::AttentionBackwardUnits(const AttentionShape& shape, int64_t team)
    : groups_(shape.groups),
      heads_(shape.heads / shape.groups),
      q_len_(shape.q_len),
      kv_len_(shape.kv_len),
      whole_(shape.batch * shape.groups) {
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

int64_t AttentionBackwardUnits::most_keys() const { return whole_ > 0 ? kv_len_ : k_rows_; }

}  // namespace tapestry::kernels
