#include "autograd/ops/heads/leaf_order.h"

#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

Tensor LeafOrder::apply(const Tensor& x) const {
  const NoGradGuard guard;
  return rows.defined() ? index_select(x, 0, rows) : dense(x);
}

Tensor LeafOrder::undo(const Tensor& x) const {
  if (!rows.defined()) {
    return x;
  }
  const NoGradGuard guard;
  Tensor places = empty_like(rows);
  const auto* from = rows.data<int64_t>();
  auto* to = places.data<int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    to[from[i]] = i;
  }
  return index_select(x, 0, places);
}

LeafOrder leaf_order(int64_t rows) {
  const ExactTokens& tokens = exact_tokens();
  if (tokens.samples == 0 || tokens.rows() != rows) {
    return {};
  }
  const int64_t chunks = 2 * tokens.leaves;
  if (tokens.length % chunks != 0) {  // one leaf, which nobody divides
    return {.rows = {}, .leaf_rows = tokens.length, .run_rows = tokens.length};
  }
  const int64_t chunk = tokens.length / chunks;
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(rows));
  bool moves = false;
  for (int64_t sample = 0; sample < tokens.samples; ++sample) {
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t first = (i % 2 == 0 ? i / 2 : chunks - 1 - i / 2) * chunk;
      for (int64_t token = first; token < first + chunk; ++token) {
        const int64_t row =
            tokens.samples_first ? sample * tokens.length + token : token * tokens.samples + sample;
        moves = moves || row != std::ssize(order);
        order.push_back(row);
      }
    }
  }
  return {
      .rows = moves ? tensor(order, {rows}) : Tensor(), .leaf_rows = 2 * chunk, .run_rows = chunk};
}

}  // namespace tapestry
