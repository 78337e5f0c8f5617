#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

#include <algorithm>

#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

int64_t TensorParallelLayout::share_of(int64_t total, const char* what) const {
  check<ValueError>(total % size == 0, total, " ", what, " cannot be divided over ", size,
                    " tensor-parallel ranks");
  return total / size;
}

int64_t sum_leaves(const TransformerConfig& config) {
  const int64_t groups = config.num_query_groups;
  const int64_t full = config.full_attention_num_query_groups.value_or(groups);
  int64_t leaves = kSumLeaves;
  while (leaves > 1 && (groups % leaves != 0 || full % leaves != 0)) {
    leaves /= 2;
  }
  return leaves;
}

TensorParallelLayout tensor_parallel_layout(const TransformerConfig& config, bool sequence_first) {
  TensorParallelLayout layout;
  layout.leaves = sum_leaves(config);
  if (!model_parallel_is_initialized()) {
    return layout;
  }
  layout.group = &get_tensor_model_parallel_group();
  layout.rank = layout.group->rank();
  layout.size = layout.group->size();
  if (config.sequence_parallel && layout.size > 1) {
    layout.sequence_axis = sequence_first ? 0 : 1;
  }
  return layout;
}

TensorParallelLayout tensor_parallel_layout(const AllConfig& config) {
  return tensor_parallel_layout(config.model_config, is_sequence_first(config));
}

bool is_sequence_first(const AllConfig& config) {
  return config.dataset_config.data_layout == "SBH";
}

VocabularyShard vocabulary_shard(int64_t vocabulary, int rank, int size) {
  VocabularyShard shard;
  shard.rows = (vocabulary + size - 1) / size;
  shard.first = std::min(rank * shard.rows, vocabulary);
  shard.valid = std::min(shard.rows, vocabulary - shard.first);
  return shard;
}

}  // namespace tapestry
