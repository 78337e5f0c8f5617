#include "autograd/ops/embedding.h"

#include "autograd/kernels/embedding.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// A table and the rows taken from it, whose dtypes may differ.
struct Table {
  int64_t vocabulary;
  DType dtype;
  DType row_dtype;
};

Tensor add_rows(const Tensor& dy, const Tensor& ids, const Table& table);

struct Embedding {
  static constexpr OpName name = "embedding";
  Table table;
  SavedTensor ids = {};
  Tensor leaf = {};  // the table itself, whose main_grad may take the gradient
  void for_float64() { table.dtype = table.row_dtype = kFloat64; }
  Tensor forward(const Tensor& weight, const Tensor& ids_) {
    leaf = weight;
    const Tensor dense_ids = dense(ids_);
    ids.save(dense_ids);
    const Tensor values = dense(weight);
    Shape shape = ids_.shape();
    shape.push_back(values.shape()[1]);
    Tensor y = empty(shape, table.row_dtype);
    kernels::embedding(table.dtype, table.row_dtype, dense_ids.numel(), values.shape()[1],
                       values.raw(), dense_ids.data<int64_t>(), y.raw());
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    if (const Tensor sums = exact_main_grad(leaf); sums.defined()) {
      const Tensor rows = dense(dy);
      const Tensor positions = ids;
      kernels::embedding_exact_sums(dy.dtype(), positions.numel(), dy.shape().back(),
                                    positions.data<int64_t>(), rows.raw(), sums.data<double>());
      return {sums, Tensor()};
    }
    if (dy.dtype() != kFloat64) {
      if (const auto [buffer, overwrite] = main_grad_target(leaf); buffer.defined()) {
        if (overwrite) {  // only some rows get anything below
          copy_values(broadcast_view(scalar(0, kFloat32), buffer.shape()), buffer);
        }
        const Tensor rows = dense(dy);
        const Tensor positions = ids;
        kernels::embedding_backward(buffer.dtype(), dy.dtype(), positions.numel(), table.vocabulary,
                                    dy.shape().back(), positions.data<int64_t>(), rows.raw(),
                                    buffer.raw());
        return {buffer, Tensor()};
      }
    }
    return {add_rows(dy, ids, table), Tensor()};
  }
};

// A table of zeros to whose rows those of dy are added.
struct EmbeddingBackward {
  static constexpr OpName name = "embedding_backward";
  Table table;
  SavedTensor ids = {};
  Tensor forward(const Tensor& dy, const Tensor& ids_) {
    ids.save(ids_);
    const Tensor rows = dense(dy);
    Tensor dweight = zeros({table.vocabulary, dy.shape().back()}, table.dtype);
    kernels::embedding_backward(table.dtype, dy.dtype(), ids_.numel(), table.vocabulary,
                                dy.shape().back(), ids_.data<int64_t>(), rows.raw(), dweight.raw());
    return dweight;
  }
  std::array<Tensor, 2> backward(const Tensor& ddweight, NeedsGrad /*needs*/) const {
    return {apply_op(Embedding{table}, ddweight, ids.get()), Tensor()};
  }
};

Tensor add_rows(const Tensor& dy, const Tensor& ids, const Table& table) {
  return apply_op(EmbeddingBackward{table}, dy, ids);
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& ids, std::optional<DType> dtype) {
  check_defined("embedding", weight, "weight", ids, "ids");
  check<ValueError>(weight.dim() == 2, "embedding: weight must be [V, H], got ", describe(weight));
  check<TypeError>(is_index(ids.dtype()), "embedding: ids must be int32 or int64, got ",
                   name_of(ids.dtype()));
  check_floating("embedding", weight.dtype());
  const DType row_dtype = dtype.value_or(weight.dtype());
  check<TypeError>(
      row_dtype == weight.dtype() ||
          (weight.dtype() == kFloat32 && (row_dtype == kBFloat16 || row_dtype == kFloat16)),
      "embedding: rows of ", name_of(row_dtype), " from a table of ", name_of(weight.dtype()),
      "; only a float32 table gives 16-bit rows");
  const Tensor wide_ids = dense(ids.to(kInt64));
  const int64_t vocabulary = weight.shape()[0];
  const auto* id = wide_ids.data<int64_t>();
  for (int64_t i = 0; i < wide_ids.numel(); ++i) {
    check<IndexError>(id[i] >= 0 && id[i] < vocabulary, "embedding: id ", id[i], " at position ",
                      position_in(ids.shape(), i), " is outside [0, ", vocabulary,
                      "); check tokenizer and vocabulary size");
  }
  const Tensor y =
      apply_op(Embedding{Table{vocabulary, weight.dtype(), row_dtype}}, weight, wide_ids);
  watch_versions(y, {weight, ids});  // as PyTorch, which saves both
  return y;
}

}  // namespace tapestry
