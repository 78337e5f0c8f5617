#include "parallel_core/data/token_dataset.h"

#include <algorithm>

namespace tapestry::data {

int64_t TokenDataset::epoch(int64_t first_sample) const {
  // 128 bits: the product of a long run's tokens need not fit in 64.
  __extension__ using Wide = __int128;
  const Wide tokens = Wide{first_sample} * seq_length();
  return static_cast<int64_t>(tokens / std::max<int64_t>(1, tokens_per_epoch()));
}

}  // namespace tapestry::data
