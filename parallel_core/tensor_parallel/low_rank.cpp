#include "parallel_core/tensor_parallel/low_rank.h"

#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/exact_runs.h"
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
#include "parallel_core/tensor_parallel/axis_collectives.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

namespace {

using Modules = std::vector<LowRankModule>;

// One B: its rows in the layer, its columns of x A^T and its place among all Bs.
struct LowRankPart {
  RowBlocks rows;
  int64_t rank = 0;
  int64_t column = 0;
  int64_t element = 0;
  double scale = 1;
  bool is_first = true;  // of its columns
};

std::vector<LowRankPart> parts_of(const Modules& modules) {
  std::vector<LowRankPart> out;
  int64_t column = 0;
  int64_t element = 0;
  for (const LowRankModule& module : modules) {
    for (size_t i = 0; i < module.outputs.size(); ++i) {
      const RowBlocks& rows = module.outputs[i].rows;
      out.push_back({rows, module.rank, column, element, module.scale, i == 0});
      element += rows.total() * module.rank;
    }
    column += module.rank;
  }
  return out;
}

int64_t last_axis(const Tensor& x) { return x.shape().back(); }

Tensor matrix_of(const Tensor& x) { return x.reshape({x.numel() / last_axis(x), last_axis(x)}); }

// The columns of y [N, out] that a part adds to: [N, rows].
Tensor columns_of(const Tensor& y, const RowBlocks& rows) {
  if (rows.count == 1) {
    return y.slice(1, rows.first, rows.first + rows.rows);
  }
  return y.reshape({y.size(0), rows.count, rows.stride})
      .slice(2, rows.first, rows.first + rows.rows)
      .reshape({y.size(0), rows.total()});
}

template <class T>
void* element_of(const T& tensor, int64_t index) {
  return static_cast<std::byte*>(tensor.raw()) + index * size_of(tensor.dtype());
}

// y + s t B^T on the rows of each part; all of one dtype.
Tensor with_products(const std::vector<LowRankPart>& parts,
                     const Tensor& y,
                     const Tensor& t,
                     const Tensor& b) {
  const Tensor out = dense_copy(y);
  const Tensor low = dense(t);
  const Tensor bs = dense(b);
  const int64_t width = last_axis(y);
  const int64_t tokens = y.numel() / width;
  for (const LowRankPart& part : parts) {
    kernels::GemmShape shape{.dtype = y.dtype(),
                             .c_dtype = y.dtype(),
                             .trans_b = true,
                             .batch = part.rows.count,
                             .m = tokens,
                             .n = part.rows.rows,
                             .k = part.rank,
                             .alpha = part.scale,
                             .lda = last_axis(low),
                             .stride_a = 0,
                             .ldb = part.rank,
                             .stride_b = part.rows.rows * part.rank,
                             .beta = 1,
                             .ldc = width,
                             .stride_c = part.rows.stride};
    kernels::gemm(shape, element_of(low, part.column), element_of(bs, part.element),
                  element_of(out, part.rows.first));
  }
  return out;
}

struct AddLowRank {
  static constexpr OpName name = "add_low_rank";
  std::shared_ptr<const std::vector<LowRankPart>> parts;
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
    return with_products(*parts, y, t_, rounded.defined() ? rounded : b_);
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

// The leaves of a sum over the rows of each part of a module, which `own` has one below the other:
// leaf i is that of each part.
std::vector<kernels::SumRun> runs_of(std::span<const LowRankPart> parts, int64_t leaves) {
  std::vector<kernels::SumRun> out;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    int64_t first = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t rows = parts[i].rows.total();
      out.push_back({.begin = first + leaf * rows / leaves,
                     .end = first + (leaf + 1) * rows / leaves,
                     .ends_leaf = i + 1 == parts.size()});
      first += rows;
    }
  }
  return out;
}

// The same in exact mode, from the rank's piece of t, or all of it, of which dt is the sum over the
// ranks that divide the rows.
struct ExactAddLowRank {
  static constexpr OpName name = "exact_add_low_rank";
  std::shared_ptr<const std::vector<LowRankPart>> parts;
  Tensor rounded;  // b in y's dtype, where that differs
  TensorParallelLayout layout;
  bool tokens_apart;  // of db
  SavedTensor t = {}, b = {};
  Tensor gathered = {};  // t of all tokens, where the rank has a piece
  Tensor leaf = {};

  void for_float64() { rounded = {}; }

  Tensor forward(const Tensor& y, const Tensor& t_, const Tensor& b_) {
    const bool gathers = layout.size > 1 && layout.sequence_axis;
    const Tensor all =
        gathers ? start_all_gather(t_, *layout.sequence_axis, *layout.group).wait() : t_;
    if (b_.requires_grad()) {
      leaf = b_;
      if (gathers) {
        gathered = all;
      } else {
        t.save(t_);
      }
    }
    if (t_.requires_grad()) {
      b.save(b_);
    }
    if (b_.dtype() != y.dtype() && !rounded.defined()) {
      rounded = b_.to(y.dtype());
    }
    return with_products(*parts, y, all, rounded.defined() ? rounded : b_);
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    check<RuntimeError>(!grad_enabled(), name,
                        ": exact mode has no derivatives of derivatives (create_graph)");
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = dy;
    }
    const Tensor rows = dense(matrix_of(dy));
    if (needs[1]) {
      out[1] = input_gradient(dy, rows);
    }
    if (needs[2]) {
      out[2] = exact_main_grad(leaf);
      check<RuntimeError>(out[2].defined(), name, ": exact mode needs exact sums for ",
                          describe(leaf));
      add_products(rows, out[2].data<double>());
    }
    return out;
  }

 private:
  int64_t columns() const { return parts->back().column + parts->back().rank; }

  Tensor input_gradient(const Tensor& dy, const Tensor& rows) const {
    const Tensor bs = dense(rounded.defined() ? rounded : b.get());
    Shape shape = dy.shape();
    shape.back() = columns();
    const Tensor dt = empty(shape, kFloat32);
    const std::span<const LowRankPart> all(*parts);
    for (size_t first = 0; first < all.size();) {
      size_t end = first + 1;
      while (end < all.size() && !all[end].is_first) {
        ++end;
      }
      const auto module = all.subspan(first, end - first);
      TensorList own;
      for (const LowRankPart& part : module) {
        own.push_back(columns_of(rows, part.rows));
      }
      const Tensor factors = dense(own.size() == 1 ? own[0] : cat(own, 1));
      kernels::tree_gemm({.dtype = dy.dtype(),
                          .c_dtype = kFloat32,
                          .m = factors.size(0),
                          .n = module[0].rank,
                          .k = factors.size(1),
                          .lda = factors.size(1),
                          .ldb = module[0].rank,
                          .ldc = columns()},
                         runs_of(module, layout.leaves / layout.size), factors.raw(),
                         element_of(bs, module[0].element), element_of(dt, module[0].column));
      first = end;
    }
    return scaled(summed(dt)).to(dy.dtype());
  }

  Tensor summed(const Tensor& partial) const {
    if (layout.size == 1) {
      return partial;
    }
    return (layout.sequence_axis
                ? start_reduce_scatter(partial, *layout.sequence_axis, *layout.group)
                : start_all_reduce(partial, *layout.group))
        .wait();
  }

  // By the modules' scales, which come after the sum over the ranks: each product is rounded.
  Tensor scaled(const Tensor& dt) const {
    TensorList out;
    for (const LowRankPart& part : *parts) {
      if (part.is_first) {
        out.push_back(dt.slice(-1, part.column, part.column + part.rank) * part.scale);
      }
    }
    return out.size() == 1 ? out[0] : cat(out, -1);
  }

  void add_products(const Tensor& rows, double* sums) const {
    const Tensor low = dense(gathered.defined() ? gathered : t.get());
    for (const LowRankPart& part : *parts) {
      const bool lies_apart = part.rows.count > 1;
      const Tensor own = lies_apart ? dense(columns_of(rows, part.rows)) : rows;
      exact_token_gemm({.dtype = rows.dtype(),
                        .m = part.rows.total(),
                        .n = part.rank,
                        .k = rows.size(0),
                        .alpha = part.scale,
                        .lda = own.size(1),
                        .ldb = columns(),
                        .ldc = part.rank},
                       element_of(own, lies_apart ? 0 : part.rows.first),
                       element_of(low, part.column), sums + part.element, tokens_apart);
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
                    const Modules& modules) {
  return apply_op(
      AddLowRank{std::make_shared<std::vector<LowRankPart>>(parts_of(modules)), rounded}, y, t, b);
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
  return apply_op(
      ExactAddLowRank{std::make_shared<std::vector<LowRankPart>>(parts_of(spec_.modules)),
                      b.dtype() == y.dtype() ? Tensor() : b.compute_copy(y.dtype()), layout,
                      /*tokens_apart=*/!divides_rows},
      y, t.to(y.dtype()), Tensor(b));
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
