// The files that one rank has recorded of a step: tokens, labels and masks.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/data/data_source.h"

namespace tapestry::data {

/// The rows in FOLDER/{tokens,labels,loss_mask,attention_mask}.npy, the last two of which may be
/// missing. Without sample_ids and origin; attention_mask is empty where it is the causal one.
/// `vocab_size` 0 leaves ids unchecked. ValueError for arrays that disagree or ids out of range,
/// IoError for bad files.
Batch read_recorded_rank(const std::string& folder, int64_t vocab_size);

/// How many rows there are, from the header of tokens.npy alone. ValueError if that is no array of
/// rows, IoError for a bad header.
int64_t recorded_rows(const std::string& folder);

}  // namespace tapestry::data
