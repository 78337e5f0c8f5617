#include "autograd/ops/transformer/moe_permute.h"

#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "autograd/kernels/moe_permute.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

int64_t rows_in(const RowMap& map) { return static_cast<int64_t>(map.sources.size()); }

kernels::TokenRows token_rows(const RowMap& map) { return {map.tokens, map.topk, map.rows.data()}; }

// As if each assignment were a token of its own.
RowMap by_assignment(const RowMap& map) {
  return {map.tokens * map.topk, 1, map.rows, map.sources};
}

// ValueError unless the two lists of the map are each other's inverse.
void check_map(std::string_view op, const RowMap& map) {
  bool fits = map.tokens >= 0 && map.topk >= 1 &&
              static_cast<int64_t>(map.rows.size()) == map.tokens * map.topk;
  size_t kept = 0;
  for (size_t i = 0; fits && i < map.rows.size(); ++i) {
    const int64_t row = map.rows[i];
    const bool has_row = row >= 0;
    fits = row >= -1 && row < rows_in(map) &&
           (!has_row || map.sources[static_cast<size_t>(row)] == static_cast<int64_t>(i));
    kept += has_row ? 1 : 0;
  }
  check<ValueError>(fits && kept == map.sources.size(), op, ": the map of ", map.tokens,
                    " tokens and ", map.topk, " choices to ", map.sources.size(),
                    " rows contradicts itself; row_map() makes one");
}

struct MoePermute {
  static constexpr OpName name = "moe_permute";
  RowMap map;
  Tensor forward(const Tensor& x_) {
    const RowView x = rows_of(x_);
    Tensor y = empty({rows_in(map), x.n}, x_.dtype());
    kernels::permute_rows({.dtype = x_.dtype(),
                           .map = token_rows(map),
                           .n = x.n,
                           .x = x.tensor.raw(),
                           .x_stride = x.stride,
                           .y = y.raw()});
    return y;
  }
  Tensor backward(const Tensor& dy) const { return moe_unpermute(dy, {}, map); }
};

struct MoeUnpermute {
  static constexpr OpName name = "moe_unpermute";
  RowMap map;
  SavedTensor x = {}, gates = {};
  Tensor forward(const Tensor& x_, const Tensor& gates_) {
    if (gates_.defined()) {
      gates.save(gates_);
      if (gates_.requires_grad()) {
        x.save(x_);
      }
    }
    const RowView rows = rows_of(x_);
    const Tensor factors = gates_.defined() ? dense(gates_) : gates_;
    Tensor y = empty({map.tokens, rows.n}, x_.dtype());
    kernels::unpermute_rows({.dtype = x_.dtype(),
                             .map = token_rows(map),
                             .n = rows.n,
                             .x = rows.tensor.raw(),
                             .x_stride = rows.stride,
                             .gates = factors.defined() ? factors.raw() : nullptr,
                             .y = y.raw()});
    return y;
  }

  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    if (!gates.defined()) {
      return {moe_permute(dy, map), Tensor()};
    }
    return grad_enabled() ? composed_backward(dy, needs) : fused_backward(dy, needs);
  }

 private:
  std::array<Tensor, 2> fused_backward(const Tensor& dy_, NeedsGrad needs) const {
    const RowView dy = rows_of(dy_);
    const Tensor factors = dense(gates.get());
    const RowView rows = needs[1] ? rows_of(x.get()) : RowView{};
    const Tensor dx = needs[0] ? empty({rows_in(map), dy.n}, dy_.dtype()) : Tensor();
    const Tensor dgates = needs[1] ? empty_like(factors) : Tensor();
    kernels::unpermute_rows_backward({.dtype = dy_.dtype(),
                                      .map = token_rows(map),
                                      .n = dy.n,
                                      .x = needs[1] ? rows.tensor.raw() : nullptr,
                                      .x_stride = rows.stride,
                                      .gates = factors.raw(),
                                      .dy = dy.tensor.raw(),
                                      .dy_stride = dy.stride,
                                      .dx = needs[0] ? dx.raw() : nullptr,
                                      .dgates = needs[1] ? dgates.raw() : nullptr});
    return {dx, dgates};
  }

  // The same in recorded ops.
  std::array<Tensor, 2> composed_backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 2> out;
    const Tensor wide = widen(moe_permute(dy, map));
    const Tensor factors = gates;
    if (needs[0]) {
      const Tensor of_rows =
          moe_permute(factors.reshape({map.tokens * map.topk, 1}), by_assignment(map));
      out[0] = mul(wide, of_rows).to(dy.dtype());
    }
    if (needs[1]) {
      const Tensor dots = sum(mul(wide, widen(x.get())), {-1}, /*keepdim=*/true);
      out[1] = moe_unpermute(dots, {}, by_assignment(map)).reshape(factors.shape());
    }
    return out;
  }
};

}  // namespace

RowMap row_map(std::span<const int32_t> experts,
               int64_t topk,
               int64_t num_experts,
               std::span<const uint8_t> kept,
               std::vector<int64_t>& counts) {
  const auto assignments = static_cast<int64_t>(experts.size());
  check<ValueError>(topk >= 1 && num_experts >= 1, "row_map: topk is ", topk,
                    " and the number of experts ", num_experts, "; both must be at least 1");
  check<ValueError>(assignments % topk == 0, "row_map: ", assignments, " assignments are not ",
                    topk, " for each token");
  check<ValueError>(assignments <= std::numeric_limits<int32_t>::max(), "row_map: ", assignments,
                    " assignments; more than 2^31 - 1 cannot be numbered");
  check<ValueError>(kept.empty() || kept.size() == experts.size(), "row_map: kept has ",
                    kept.size(), " entries for ", assignments, " assignments");
  counts.assign(static_cast<size_t>(num_experts), 0);
  const auto stays = [&](size_t i) { return kept.empty() || kept[i] != 0; };
  for (size_t i = 0; i < experts.size(); ++i) {
    check<IndexError>(experts[i] >= 0 && experts[i] < num_experts, "row_map: expert ", experts[i],
                      " of assignment ", i, " is outside [0, ", num_experts, ")");
    if (stays(i)) {
      ++counts[static_cast<size_t>(experts[i])];
    }
  }
  std::vector<int64_t> next(counts.size());
  int64_t rows = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    next[e] = std::exchange(rows, rows + counts[e]);
  }
  RowMap map;
  map.tokens = assignments / topk;
  map.topk = topk;
  map.rows.assign(experts.size(), -1);
  map.sources.resize(static_cast<size_t>(rows));
  for (size_t i = 0; i < experts.size(); ++i) {
    if (stays(i)) {
      const int64_t row = next[static_cast<size_t>(experts[i])]++;
      map.rows[i] = static_cast<int32_t>(row);
      map.sources[static_cast<size_t>(row)] = static_cast<int32_t>(i);
    }
  }
  return map;
}

Tensor moe_permute(const Tensor& x, const RowMap& map) {
  check_defined("moe_permute", x, "x");
  check_floating("moe_permute", x.dtype());
  check_map("moe_permute", map);
  check<ValueError>(x.dim() == 2 && x.shape()[0] == map.tokens,
                    "moe_permute: x must be [tokens, n] for the ", map.tokens,
                    " tokens of the map, it is ", x.shape());
  return apply_op(MoePermute{map}, x);
}

Tensor moe_unpermute(const Tensor& x, const Tensor& gates, const RowMap& map) {
  check_defined("moe_unpermute", x, "x");
  check_floating("moe_unpermute", x.dtype());
  check_map("moe_unpermute", map);
  check<ValueError>(x.dim() == 2 && x.shape()[0] == rows_in(map),
                    "moe_unpermute: x must be [rows, n] for the ", rows_in(map),
                    " rows of the map, it is ", x.shape());
  if (gates.defined()) {
    check<TypeError>(gates.dtype() == wide_dtype(x.dtype()), "moe_unpermute: gates for ",
                     name_of(x.dtype()), " must be ", name_of(wide_dtype(x.dtype())), ", they are ",
                     name_of(gates.dtype()));
    check<ValueError>(gates.shape() == (Shape{map.tokens, map.topk}),
                      "moe_unpermute: gates must be [", map.tokens, ", ", map.topk,
                      "] as the map, they are ", gates.shape());
  }
  return apply_op(MoeUnpermute{map}, x, gates);
}

}  // namespace tapestry
