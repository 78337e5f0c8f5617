#include "parallel_core/tensor_parallel/low_rank.h"

#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/random.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/tensor_parallel/low_rank_linear.h"
#include "parallel_core/tensor_parallel/low_rank_parts.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

namespace {

struct AddLowRank {
  static constexpr OpName name = "add_low_rank";
  LowRankParts parts;
  Tensor rounded;  // b in y's dtype, where that differs
  SavedTensor t = {}, b = {};
  Tensor leaf = {};  // b itself, whose main_grad may take the gradient

  void for_float64() { rounded = {}; }

  Tensor forward(const Tensor& y, const Tensor& t_, const Tensor& b_) {
    if (b_.requires_grad()) {
      leaf = b_;
      t.save(t_);
    }
    if (t_.requires_grad()) {
      b.save(b_);
    }
    if (b_.dtype() != y.dtype() && !rounded.defined()) {
      rounded = b_.to(y.dtype());
    }
    return with_low_rank(*parts, y, t_, rounded.defined() ? rounded : b_);
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = dy;
    }
    if (grad_enabled()) {
      recorded(dy, needs, out);
      return out;
    }
    const Tensor rows = dense(matrix_of(dy));
    const bool is_half = size_of(dy.dtype()) == 2;
    const DType sums = is_half ? kFloat32 : dy.dtype();
    Tensor dt;
    Tensor db;
    Tensor bs;
    Tensor low;
    if (needs[1]) {
      bs = dense(rounded.defined() ? rounded : b.get());
      dt = empty({rows.size(0), columns()}, sums);
    }
    if (needs[2]) {
      low = dense(t.get());
      db = empty(leaf.shape(), sums);
    }
    for (const LowRankPart& part : *parts) {
      const bool lies_apart = part.rows.count > 1;
      const Tensor own = lies_apart ? dense(columns_of(rows, part.rows)) : rows;
      const void* const dy_of_part = element_of(own, lies_apart ? 0 : part.rows.first);
      if (needs[1]) {
        kernels::gemm({.dtype = dy.dtype(),
                       .c_dtype = sums,
                       .m = rows.size(0),
                       .n = part.rank,
                       .k = part.rows.total(),
                       .alpha = part.scale,
                       .lda = own.size(1),
                       .ldb = part.rank,
                       .beta = part.is_first ? 0.0 : 1.0,
                       .ldc = columns()},
                      dy_of_part, element_of(bs, part.element), element_of(dt, part.column));
      }
      if (needs[2]) {
        kernels::gemm({.dtype = dy.dtype(),
                       .c_dtype = sums,
                       .trans_a = true,
                       .m = part.rows.total(),
                       .n = part.rank,
                       .k = rows.size(0),
                       .alpha = part.scale,
                       .lda = own.size(1),
                       .ldb = columns(),
                       .ldc = part.rank},
                      dy_of_part, element_of(low, part.column), element_of(db, part.element));
      }
    }
    if (needs[1]) {
      out[1] = dt.to(dy.dtype()).view(low_shape(dy));
    }
    if (needs[2]) {
      const Tensor added = is_half ? add_to_main_grad(leaf, db) : Tensor();
      out[2] = added.defined() ? added : db.to(leaf.dtype());
    }
    return out;
  }

 private:
  int64_t columns() const { return parts->back().column + parts->back().rank; }
  Shape low_shape(const Tensor& dy) const {
    Shape shape = dy.shape();
    shape.back() = columns();
    return shape;
  }

  // The same as recorded ops, whose derivatives are known.
  void recorded(const Tensor& dy, NeedsGrad needs, std::array<Tensor, 3>& out) const {
    const Tensor rows = matrix_of(dy);
    TensorList dts;
    TensorList dbs;
    for (const LowRankPart& part : *parts) {
      const Tensor own = columns_of(rows, part.rows);
      if (needs[1]) {
        const Tensor part_b =
            b.get()
                .reshape({b.get().numel()})
                .slice(0, part.element, part.element + part.rows.total() * part.rank)
                .reshape({part.rows.total(), part.rank})
                .to(dy.dtype());
        const Tensor term = matmul(own, part_b) * part.scale;
        if (part.is_first) {
          dts.push_back(term);
        } else {
          dts.back() = dts.back() + term;
        }
      }
      if (needs[2]) {
        const Tensor low = matrix_of(t.get()).slice(1, part.column, part.column + part.rank);
        dbs.push_back((matmul(own.t(), low) * part.scale).reshape({part.rows.total() * part.rank}));
      }
    }
    if (needs[1]) {
      out[1] = cat(dts, 1).reshape(low_shape(dy));
    }
    if (needs[2]) {
      out[2] = cat(dbs, 0).reshape(leaf.shape()).to(leaf.dtype());
    }
  }
};

thread_local int adapters_off_scopes = 0;

// Random numbers of another time: what runs again in backward draws what it drew in forward.
class ContextOfForward {
 public:
  explicit ContextOfForward(const RandomContext& context)
      : now_(std::exchange(random_context(), context)) {}
  ContextOfForward(const ContextOfForward&) = delete;
  ContextOfForward& operator=(const ContextOfForward&) = delete;
  ~ContextOfForward() { random_context() = now_; }

 private:
  RandomContext now_;
};

}  // namespace

AdaptersOff::AdaptersOff() { ++adapters_off_scopes; }

AdaptersOff::~AdaptersOff() { --adapters_off_scopes; }

bool adapters_are_off() { return adapters_off_scopes > 0; }

RowBlocks rows_of(const nn::LogicalTensor& weight) {
  const Shape& view = weight.view_shape;
  RowBlocks out;
  int64_t inner = 1;
  for (int64_t i = 0; i + 1 < view.size(); ++i) {  // the last axis is the input
    if (i < weight.axis) {
      out.count *= view[i];
    } else if (i > weight.axis) {
      inner *= view[i];
    }
  }
  // Of a weight that is divided along its input the whole is one block.
  const bool by_rows = weight.axis + 1 < view.size();
  out.first = by_rows ? weight.begin * inner : 0;
  out.rows = by_rows ? (weight.end - weight.begin) * inner : out.count;
  out.stride = by_rows ? view[weight.axis] * inner : out.count;
  out.count = by_rows ? out.count : 1;
  return out;
}

Tensor add_low_rank(const Tensor& y,
                    const Tensor& t,
                    const Tensor& b,
                    const Tensor& rounded,
                    const std::vector<LowRankModule>& modules) {
  return apply_op(AddLowRank{low_rank_parts(modules), rounded}, y, t, b);
}

Shape LowRankAddition::a_shape(const LowRankSpec& spec, int64_t input_size) {
  int64_t ranks = 0;
  for (const LowRankModule& module : spec.modules) {
    ranks += module.rank;
  }
  return {ranks, input_size};
}

Shape LowRankAddition::b_shape(const LowRankSpec& spec) {
  int64_t rows = 0;
  int64_t elements = 0;
  for (const LowRankModule& module : spec.modules) {
    for (const LowRankModule::Output& output : module.outputs) {
      rows += output.rows.total();
      elements += output.rows.total() * module.rank;
    }
  }
  const int64_t rank = spec.modules.front().rank;
  return elements == rows * rank ? Shape{rows, rank} : Shape{elements};
}

// x A^T of all modules: [.., sum of ranks].
Tensor LowRankAddition::down(const Tensor& x,
                             bool training,
                             const std::function<Tensor()>& recompute_x,
                             bool divides_inputs) const {
  const nn::Parameter& a = *parameters_.a;
  if (in_exact()) {
    check<ValueError>(!training || spec_.dropout == 0,
                      "exact mode: lora_dropout is not supported; set it to 0");
    // Sequence parallelism divides the tokens of what has all input features.
    return divides_inputs ? project_rows(x, a, nullptr, precision_, layout_, recompute_x)
                          : project(x, a, nullptr, precision_, recompute_x, {.tokens_apart = true});
  }
  if (!training || spec_.dropout == 0) {
    return project(x, a, nullptr, precision_, recompute_x);
  }
  check<ValueError>(x.dim() == 3,
                    "lora_dropout: hidden states must be [B, S, H] or [S, B, H], got ",
                    describe(x));
  const Tensor input = x.to(precision_.fused ? precision_.compute : precision_.activation);
  const Tensor rounded = rounded_weight(a, precision_);
  TensorList out;
  int64_t row = 0;
  for (const LowRankModule& module : spec_.modules) {
    const DropoutPlace place{.batch_axis = spec_.batch_axis,
                             .part = spec_.positions(x.size(1 - spec_.batch_axis)),
                             .first_feature = spec_.first_feature,
                             .features = spec_.total_features};
    const bool again = recompute_x != nullptr && input.is_same(x);
    const auto drop = [p = spec_.dropout, place, key = dropout_key(module.name)](const Tensor& t) {
      return hidden_dropout(t, p, key, place);
    };
    const Tensor own = a.slice(0, row, row + module.rank);
    if (precision_.fused) {
      out.push_back(linear(
          drop(input), own, {},
          rounded.defined() ? rounded.slice(0, row, row + module.rank) : Tensor(),
          [drop, kept = again ? Tensor() : input,
           make = again ? recompute_x : std::function<Tensor()>(), context = random_context()] {
            const Tensor values = make ? make() : kept;
            const ContextOfForward scope(context);
            return drop(values);
          }));
    } else {
      const DType compute = precision_.compute;
      out.push_back(linear(drop(input).to(compute), own.to(compute)).to(precision_.activation));
    }
    row += module.rank;
  }
  return out.size() == 1 ? out[0] : cat(out, -1);
}

Tensor LowRankAddition::exact_up(const Tensor& y, const Tensor& t, bool divides_rows) const {
  check<ValueError>(!has_magnitudes(), "exact mode: magnitudes (DoRA) are not supported");
  check<ValueError>(precision_.fused || precision_.compute == kFloat32,
                    "exact mode: adapters in 16 bits need use_fused_kernels");
  const nn::Parameter& b = *parameters_.b;
  // Tokens are divided where t is used as it is, unless t is gathered first.
  const TensorParallelLayout layout = divides_rows ? layout_ : TensorParallelLayout{};
  return exact_add_low_rank(y, t.to(y.dtype()), b,
                            b.dtype() == y.dtype() ? Tensor() : b.compute_copy(y.dtype()),
                            spec_.modules, layout, /*tokens_apart=*/!divides_rows);
}

Tensor LowRankAddition::up(const Tensor& y, const Tensor& t) const {
  const nn::Parameter& b = *parameters_.b;
  if (precision_.fused) {
    return add_low_rank(y, t.to(y.dtype()), b,
                        b.dtype() == y.dtype() ? Tensor() : b.compute_copy(y.dtype()),
                        spec_.modules);
  }
  const DType compute = precision_.compute;
  const Tensor added =
      add_low_rank(zeros(y.shape(), compute), t.to(compute), b.to(compute), {}, spec_.modules);
  return y + added.to(y.dtype());
}

// The lengths of the rows of W + s B A in the order of the magnitudes, and the product by m / n.
Tensor LowRankAddition::row_lengths(const Tensor& weight, bool rows_are_whole) const {
  const NoGradGuard guard;
  const Tensor a = parameters_.a->detach().to(kFloat32);
  const Tensor b = dense(parameters_.b->detach().to(kFloat32)).view({-1});
  TensorList squares;
  int64_t row = 0;
  int64_t element = 0;
  for (const LowRankModule& module : spec_.modules) {
    for (const LowRankModule::Output& output : module.outputs) {
      const int64_t rows = output.rows.total();
      const Tensor own_b =
          b.slice(0, element, element + rows * module.rank).view({rows, module.rank});
      const Tensor w = dense(output.weight.view_of(weight.detach())).to(kFloat32);
      const Tensor sum = w.view({rows, weight.size(1)}) +
                         matmul(own_b, a.slice(0, row, row + module.rank)) * module.scale;
      squares.push_back(tapestry::sum(sum * sum, {1}));
      element += rows * module.rank;
    }
    row += module.rank;
  }
  Tensor all = cat(squares, 0);
  if (!rows_are_whole && layout_.size > 1) {
    layout_.group->all_reduce(all);
  }
  return sqrt(all);
}

// y times m / n, which is 1 for rows that have no magnitude.
Tensor LowRankAddition::scaled(const Tensor& y, const Tensor& weight, bool rows_are_whole) const {
  const Tensor ratio = *parameters_.magnitude / row_lengths(weight, rows_are_whole);
  std::vector<int64_t> places(static_cast<size_t>(last_axis(y)), 0);  // 0: the one before them
  int64_t next = 1;
  for (const LowRankModule& module : spec_.modules) {
    for (const LowRankModule::Output& output : module.outputs) {
      const RowBlocks& rows = output.rows;
      for (int64_t i = 0; i < rows.total(); ++i) {
        places[static_cast<size_t>(rows.first + i / rows.rows * rows.stride + i % rows.rows)] =
            next++;
      }
    }
  }
  const Tensor factors = index_select(cat({ones({1}), ratio}, 0), 0,
                                      tensor(places, {static_cast<int64_t>(places.size())}));
  return (y.to(kFloat32) * factors).to(y.dtype());
}

void LowRankAddition::start_magnitudes(const Tensor& weight, bool rows_are_whole) const {
  if (parameters_.magnitude != nullptr) {
    const NoGradGuard guard;
    const Tensor b = parameters_.b->detach();
    const Tensor kept = dense_copy(b);
    copy_values(zeros(b.shape(), b.dtype()), b);
    copy_values(row_lengths(weight, rows_are_whole), parameters_.magnitude->detach());
    copy_values(kept, b);
    parameters_.magnitude->bump_version();
  }
}

bool LowRankAddition::takes_product(const nn::Parameter& weight, bool training) const {
  return precision_.fused && !in_exact() && layout_.size == 1 && !has_magnitudes() &&
         !(training && spec_.dropout > 0) && !weight.is_quantized();
}

Tensor LowRankAddition::product(const Tensor& x,
                                const nn::Parameter& weight,
                                const nn::Parameter* bias,
                                std::function<Tensor()> recompute_x) const {
  const Tensor operand = x.to(precision_.compute);
  if (!operand.is_same(x)) {
    recompute_x = nullptr;
  }
  return low_rank_linear(
      operand,
      {weight, rounded_weight(weight, precision_), bias != nullptr ? Tensor(*bias) : Tensor(),
       *parameters_.a, rounded_weight(*parameters_.a, precision_), *parameters_.b,
       rounded_weight(*parameters_.b, precision_)},
      spec_.modules, std::move(recompute_x));
}

Tensor LowRankAddition::to_columns(const Tensor& y,
                                   const Tensor& x,
                                   const Tensor& weight,
                                   bool training) const {
  Tensor t = down(x, training, nullptr, /*divides_inputs=*/false);
  if (in_exact()) {
    return exact_up(y, t, /*divides_rows=*/!is_replicated_);
  }
  if (layout_.size > 1) {
    t = layout_.sequence_axis
            ? gather_from_sequence_parallel_region(t, *layout_.sequence_axis, *layout_.group)
            : copy_to_model_parallel_region(t, *layout_.group);
  }
  const Tensor sum = up(y, t);
  return has_magnitudes() ? scaled(sum, weight, /*rows_are_whole=*/true) : sum;
}

Tensor LowRankAddition::to_rows(const Tensor& y,
                                const Tensor& x,
                                const Tensor& weight,
                                bool training,
                                std::function<Tensor()> recompute_x) const {
  Tensor t = down(x, training, recompute_x, /*divides_inputs=*/true);
  if (in_exact()) {
    return exact_up(y, t, /*divides_rows=*/false);
  }
  if (layout_.size > 1) {
    t = layout_.sequence_axis
            ? reduce_scatter_to_sequence_parallel_region(t, *layout_.sequence_axis, *layout_.group)
            : reduce_from_model_parallel_region(t, *layout_.group);
  }
  const Tensor sum = up(y, t);
  return has_magnitudes() ? scaled(sum, weight, /*rows_are_whole=*/false) : sum;
}

}  // namespace tapestry
