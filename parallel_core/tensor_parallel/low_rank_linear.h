// A linear layer and what low-rank adapters add to it, as one op: for a layer all of which one rank
// has.
#pragma once

#include <functional>
#include <vector>

#include "parallel_core/tensor_parallel/low_rank.h"

namespace tapestry {

/// What x is multiplied with. `rounded` are copies in x's dtype of what is float32 where x has 16
/// bits; undefined where there is no difference.
struct LowRankWeights {
  Tensor weight, rounded_weight;  ///< [out, in]
  Tensor bias;                    ///< [out] or undefined
  Tensor a, rounded_a;            ///< [sum of ranks, in]
  Tensor b, rounded_b;            ///< all Bs, as add_low_rank() takes them
};

/// y = x W^T + bias + s (x A^T) B^T on the rows of each module: x [.., in], y [.., out].
///
/// t = s x A^T is rounded to x's dtype; [x, t] [W, B]^T is then one sum over in + rank products, of
/// which y is rounded once (where our own tiles multiply; otherwise the second part is added to the
/// first in y). So is dx = [dy, dt] [W; A] with dt = s dy B. Saves x, unless `recompute_x` gives it
/// again (see linear()), and t. Weight and bias may want gradients too.
Tensor low_rank_linear(const Tensor& x,
                       const LowRankWeights& weights,
                       const std::vector<LowRankModule>& modules,
                       std::function<Tensor()> recompute_x = nullptr);

}  // namespace tapestry
