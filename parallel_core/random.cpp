#include "parallel_core/random.h"

#include "autograd/kernels/philox.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

RandomContext& random_context() { return RankContext::current().slot<RandomContext>(); }

RandomKey initialization_key(std::string_view logical_name) {
  return {random_context().seed, stream_of(logical_name), 0};
}

RandomKey dropout_key(int64_t row, int64_t layer, DropoutSite site) {
  const RandomContext& context = random_context();
  check<ValueError>(row >= 0 && row < static_cast<int64_t>(context.sample_ids.size()),
                    "dropout: row ", row, " of a micro-batch of ", context.sample_ids.size(),
                    " samples");
  uint64_t stream = stream_of("dropout");
  stream = combine(stream, static_cast<uint64_t>(context.step));
  stream = combine(stream, static_cast<uint64_t>(context.sample_ids[static_cast<size_t>(row)]));
  stream = combine(stream, static_cast<uint64_t>(layer));
  stream = combine(stream, static_cast<uint64_t>(site));
  return {context.seed, stream, 0};
}

Tensor hidden_dropout(
    const Tensor& x, double p, int64_t layer, DropoutSite site, int64_t batch_axis) {
  check<ValueError>(p >= 0 && p < 1, "dropout: the probability must lie in [0, 1), got ", p);
  if (p == 0) {
    return x;
  }
  const int64_t rows = x.size(batch_axis);
  const int64_t per_row = x.numel() / std::max<int64_t>(rows, 1);
  check<ValueError>(rows == static_cast<int64_t>(random_context().sample_ids.size()),
                    "dropout: hidden states of ", rows, " rows, but the micro-batch has ",
                    random_context().sample_ids.size(), " samples");
  const Tensor keep = empty({rows, x.size(1 - batch_axis), x.size(2)}, kBool);
  for (int64_t row = 0; row < rows; ++row) {
    const RandomKey key = dropout_key(row, layer, site);
    kernels::fill_bernoulli(per_row, key.seed, key.stream, key.offset, 1 - p,
                            keep.data<bool>() + row * per_row);
  }
  return dropout_mask(x, batch_axis == 0 ? keep : keep.transpose(0, 1), p);
}

}  // namespace tapestry
