// How the passes of attention are cut into units of work for a team: no result depends on it, only
// how evenly the team is busy.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/kernels/attention/attention_call.h"

namespace tapestry::kernels {

/// The forward pass: queries of every head, in parts of at most kAttentionChunk, in which keys are
/// packed for many queries at once; smaller ones where threads were left without work otherwise.
class AttentionForwardUnits {
 public:
  AttentionForwardUnits(const AttentionShape& shape, int64_t team);

  int64_t count() const { return planes_ * parts_; }
  /// How many of the first units are so alike that any equal ranges of them are equal shares.
  int64_t even() const { return by_plane_ ? count() : 0; }
  /// Plane by plane, or where there are fewer of these than threads, those first that see most
  /// keys.
  AttentionRows operator[](int64_t unit) const;

 private:
  int64_t heads_;
  int64_t q_len_;
  int64_t planes_;
  int64_t rows_;
  int64_t parts_;
  bool by_plane_;
};

/// The backward pass. A unit is a plane, the query heads of a group with its keys, as long as that
/// makes whole rounds of the team. Planes left over are split: their keys for dk and dv, their
/// queries for dq. That computes the probabilities twice, seven products in place of five, so it is
/// done where the last round would leave more of the team idle.
///
/// Planes of documents are cut where documents are, into segments of at least kAttentionChunk
/// tokens: their keys and queries see nothing outside, so each is a unit as a plane is. Of these,
/// those are split that would be most of a thread's share.
class AttentionBackwardUnits {
 public:
  AttentionBackwardUnits(const AttentionShape& shape,
                         int64_t team,
                         const AttentionDocuments& documents = {});

  int64_t count() const {
    return segments_.empty() ? whole_ + split_ * k_parts_ + split_ * heads_ * q_parts_
                             : static_cast<int64_t>(segments_.size());
  }
  /// As that of AttentionForwardUnits.
  int64_t even() const { return segments_.empty() ? whole_ : 0; }
  AttentionPart operator[](int64_t unit) const;  // the largest first
  /// The most keys whose dk and dv a unit sums.
  int64_t most_keys() const;

 private:
  AttentionPart plane(int64_t index) const;
  void cut_at_documents(const AttentionShape& shape,
                        int64_t team,
                        const AttentionDocuments& documents);

  int64_t groups_;
  int64_t heads_;  // of a group
  int64_t q_len_;
  int64_t kv_len_;
  int64_t whole_;  // planes that are one unit
  int64_t split_ = 0;
  int64_t k_rows_ = 0;
  int64_t k_parts_ = 0;
  int64_t q_rows_ = 0;
  int64_t q_parts_ = 0;
  std::vector<AttentionPart> segments_;  // all units, where there are documents
};

}  // namespace tapestry::kernels
