// The rows of a micro-batch as layers see them that predict further tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/data/data_source.h"

namespace tapestry {

/// [batch, seq] row-major, as the batch's.
struct RowsAhead {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  std::vector<float> loss_mask;
};

/// Position i of depth k >= 1: the token of position i + k, and the label and mask of that
/// position. The label of the last position is the token behind the row; tokens and labels beyond
/// that are 0 and do not count. Where the batch has documents, neither does a position whose token
/// or label belongs to another document than itself. The batch needs labels.
///
/// Of whole rows: what context-parallel ranks share out is cut afterwards.
RowsAhead rows_ahead(const data::Batch& batch, int64_t depth);

/// sum(loss_mask) of that.
double tokens_that_count_ahead(const data::Batch& batch, int64_t depth);

}  // namespace tapestry
