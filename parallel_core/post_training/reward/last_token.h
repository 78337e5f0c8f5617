// Where a text's value is.
#pragma once

#include <cstdint>
#include <span>

namespace tapestry::post_training {

/// The place, from 0, of the token at which a score head judges a text: the last one that is not
/// `pad`, or the first where all are. Source: GenericForSequenceClassification of transformers,
/// which looks for it among the ids of a padded row; where the pad id also ends texts, that is the
/// token before the end. `pad` -1: there is none, and the last token counts.
template <class Id>
int64_t judged_token(std::span<const Id> ids, int64_t pad) {
  int64_t last = static_cast<int64_t>(ids.size()) - 1;
  while (last > 0 && static_cast<int64_t>(ids[static_cast<size_t>(last)]) == pad) {
    --last;
  }
  return last;
}

}  // namespace tapestry::post_training
