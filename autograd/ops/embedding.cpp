#include "autograd/ops/embedding.h"

#include "autograd/kernels/embedding.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

Tensor add_rows(const Tensor& dy, const Tensor& ids, int64_t vocabulary);

struct Embedding {
  static constexpr std::string_view name = "embedding";
  int64_t vocabulary;
  SavedTensor ids;
  Tensor leaf;  // the table itself, whose main_grad may take the gradient
  Tensor forward(const Tensor& weight, const Tensor& ids_) {
    leaf = weight;
    const Tensor dense_ids = dense(ids_);
    ids.save(dense_ids);
    const Tensor table = dense(weight);
    Shape shape = ids_.shape();
    shape.push_back(table.shape()[1]);
    Tensor y = empty(shape, table.dtype());
    kernels::embedding(table.dtype(), dense_ids.numel(), table.shape()[1], table.raw(),
                       dense_ids.data<int64_t>(), y.raw());
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    if (dy.dtype() == kFloat32) {
      if (const auto [buffer, overwrite] = main_grad_target(leaf); buffer.defined()) {
        if (overwrite) {  // only some rows get anything below
          copy_values(broadcast_view(scalar(0, kFloat32), buffer.shape()), buffer);
        }
        const Tensor rows = dense(dy);
        const Tensor positions = ids;
        kernels::embedding_backward(kFloat32, positions.numel(), vocabulary, dy.shape().back(),
                                    positions.data<int64_t>(), rows.raw(), buffer.raw());
        return {buffer, Tensor()};
      }
    }
    return {add_rows(dy, ids, vocabulary), Tensor()};
  }
};

// A table of zeros to whose rows those of dy are added.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  int64_t vocabulary;
  SavedTensor ids;
  Tensor forward(const Tensor& dy, const Tensor& ids_) {
    ids.save(ids_);
    const Tensor rows = dense(dy);
    Tensor dweight = zeros({vocabulary, dy.shape().back()}, dy.dtype());
    kernels::embedding_backward(dy.dtype(), ids_.numel(), vocabulary, dy.shape().back(),
                                ids_.data<int64_t>(), rows.raw(), dweight.raw());
    return dweight;
  }
  std::array<Tensor, 2> backward(const Tensor& ddweight, NeedsGrad /*needs*/) const {
    return {apply_op(Embedding{vocabulary, {}, {}}, ddweight, ids.get()), Tensor()};
  }
};

Tensor add_rows(const Tensor& dy, const Tensor& ids, int64_t vocabulary) {
  return apply_op(EmbeddingBackward{vocabulary, {}}, dy, ids);
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  check<ValueError>(weight.dim() == 2, "embedding: weight must be [V, H], got ", describe(weight));
  check<TypeError>(is_integral(ids.dtype()), "embedding: ids must be int32 or int64, got ",
                   name_of(ids.dtype()));
  check_floating("embedding", weight.dtype());
  const Tensor wide_ids = dense(ids.to(kInt64));
  const int64_t vocabulary = weight.shape()[0];
  const auto* id = wide_ids.data<int64_t>();
  for (int64_t i = 0; i < wide_ids.numel(); ++i) {
    check<IndexError>(id[i] >= 0 && id[i] < vocabulary, "embedding: id ", id[i], " at position ",
                      position_in(ids.shape(), i), " is outside [0, ", vocabulary,
                      "); check tokenizer and vocabulary size");
  }
  return apply_op(Embedding{vocabulary, {}, {}}, weight, wide_ids);
}

}  // namespace tapestry
