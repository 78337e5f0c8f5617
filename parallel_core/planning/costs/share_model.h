// One pipeline stage's share of a model as a model of its own, small enough to be timed.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/planning/layouts/layout.h"

namespace tapestry::planning {

/// A model that the ranks of one stage can train, divided among them as in the layout: the first
/// layers alone, at least one of each kind, and at most two micro-batches. What its ranks say to
/// each other is what they say in a run.
struct ShareModel {
  AllConfig config;
  int64_t copies = 1;           ///< data-parallel ranks
  bool has_all_copies = false;  ///< as many as the layout, and their weights shared out as there
  /// What its times depend on, one line: layouts whose shares are alike have the same.
  std::string key;

  int64_t ranks() const;
};

/// With all data-parallel ranks of the layout, or with as few as its experts need. ConfigError or
/// ValueError where the share makes no model by itself.
ShareModel share_model(const Layout& layout, bool has_all_copies);

/// The first layer of the share, from 0, that is of the same kind as a layer of the model.
int64_t layer_of_share(const TransformerConfig& model,
                       const TransformerConfig& share,
                       int64_t layer);

}  // namespace tapestry::planning
