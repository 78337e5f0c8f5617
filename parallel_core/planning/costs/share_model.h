// One rank's share of a model as a model of its own, small enough to be timed.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/planning/layouts/layout.h"

namespace tapestry::planning {

/// A model that one process can train, whose products have the sizes that they have on a rank of a
/// layout: heads, widths, vocabulary and experts divided by the ranks that share them, tokens by
/// context-parallel ranks; the first layers alone, at least one of each kind.
struct ShareModel {
  AllConfig config;
  /// What its times depend on, one line: layouts whose shares are alike have the same.
  std::string key;
};

/// ConfigError or ValueError where the share makes no model by itself, as with heads that stay
/// whole on several ranks.
ShareModel share_model(const Layout& layout);

/// The first layer of the share, from 0, that is of the same kind as a layer of the model.
int64_t layer_of_share(const TransformerConfig& model,
                       const TransformerConfig& share,
                       int64_t layer);

}  // namespace tapestry::planning
