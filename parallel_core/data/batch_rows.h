// Rows of batches: cut out, put together, compared.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/data/data_source.h"

namespace tapestry::data {

/// Attention masks of so many rows that hide later keys alone, as Batch has them.
std::vector<uint8_t> causal_masks(int64_t rows, int64_t seq);

/// Tokens, labels and masks of `from` behind those of `to`. Adding up Batch::batch is the caller's.
void append_rows(Batch& to, const Batch& from);

/// Rows [first, first + count): tokens, labels and masks, without sample_ids and origin.
Batch part_of(const Batch& all, int64_t first, int64_t count);

/// Whether the `count` rows from `a` on have the tokens, labels and masks of those from `b` on.
bool same_rows(const Batch& all, int64_t a, int64_t b, int64_t count);

/// Of `folders` parts with equally many rows each, the first of every kind, in their order. Empty
/// unless every kind is there `copies` times.
std::vector<int64_t> distinct_folders(const Batch& all, int64_t folders, int64_t copies);

}  // namespace tapestry::data
