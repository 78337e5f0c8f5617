// A tensor that is trained, and what optimizers and parallel layouts must know about it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tensor/tensor.h"

namespace tapestry::nn {

/// How a parameter's copies on the ranks of a tensor-parallel group relate.
enum class TensorParallel : uint8_t {
  kReplicated,  ///< equal on every rank, with equal gradients
  kSharded,     ///< each rank holds its slice along `tp_axis`
  kPartial,     ///< equal on every rank, but each rank's gradient is only its share of the sum
};

/// A tensor of the model as the world knows it: unfused, with a name that no parallel layout
/// changes. A parameter is built from one or more of them, or from a slice of each where ranks
/// share them; each is a rectangular piece of the parameter seen under another shape.
struct LogicalTensor {
  std::string name;  ///< for example "layers.0.attention.wq.weight"
  Shape shape;       ///< global shape, [out, in] for weights
  Shape view_shape;  ///< shape under which the parameter is seen to cut the piece
  int64_t axis = 0;  ///< of view_shape, along which [begin, end) is this tensor
  int64_t begin = 0;
  int64_t end = 0;
  Shape offset = {};       ///< first element of this rank's slice in `shape`; empty: zeros
  Shape slice_shape = {};  ///< of this rank's slice; empty: all of `shape`
  int64_t copies = 1;      ///< ranks of the tensor-parallel group that hold this same slice

  /// Sizes of this rank's slice, with the axes of `shape`.
  const Shape& local_shape() const { return slice_shape.empty() ? shape : slice_shape; }
  /// True if this rank holds less than the whole.
  bool is_slice() const { return local_shape() != shape; }

  /// The piece of `whole` (the parameter, its gradient, a moment: any tensor of its shape) as a
  /// view whose elements, in order, are those of this rank's slice of the logical tensor. Shares
  /// storage. ValueError, with the name, unless `whole` is contiguous with as many elements as
  /// view_shape, axis is one of view_shape and 0 <= begin <= end <= its size.
  Tensor view_of(const Tensor& whole) const;
  /// This rank's slice of the global tensor, as a view of local_shape(). ValueError, with the name,
  /// unless that has `shape` and the slice lies inside.
  Tensor slice_of(const Tensor& global) const;
};

/// What is fixed where a parameter is made. Optimizers and norms read these flags, never names.
struct ParameterFlags {
  bool decay = true;      ///< weight decay applies
  bool shared = false;    ///< a further copy of a tensor that another stage owns (tied embeddings)
  bool has_copy = false;  ///< another stage has a further copy of it, whose gradient belongs to it
  bool expert = false;    ///< belongs to one expert of a mixture
  bool matmul = false;    ///< used as an operand of matrix products and in no other way
  bool head = false;      ///< of these, the one that makes logits
  bool adapter = false;   ///< is added to a matrix that stays as it is; no part of a base model
  TensorParallel tp = TensorParallel::kReplicated;
  int64_t tp_axis = 0;  ///< where tp is kSharded
};

/// A trainable tensor owned by a module at a fixed address.
class Parameter : public Tensor {
 public:
  Parameter(const Tensor& value, ParameterFlags flags) : Tensor(value), flags_(flags) {
    set_requires_grad();
  }
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const ParameterFlags& flags() const { return flags_; }
  void set_flags(ParameterFlags flags) { flags_ = flags; }

  /// The values in another floating dtype, for matrix products in reduced precision: the parameter
  /// itself if it has that dtype, else a copy that is kept, and made again only after the parameter
  /// has changed in place. Not part of the graph. An optimizer keeps it up to date.
  Tensor compute_copy(DType wanted) const;

  /// Keeps the numbers of a matrix [out, in], or of several [.., out, in] one below the other, as
  /// blocks in place of floating ones. It wants no gradient then (RuntimeError if it does);
  /// products take quantized(). To everybody else it is a float32 tensor of the same shape, a
  /// window that decodes the blocks when it is touched and whose memory goes when the next such
  /// parameter is touched. What is written there is lost unless store_quantized() follows at once.
  /// ValueError unless the shapes fit.
  void set_quantized(const QuantizedMatrix& matrix);
  bool is_quantized() const { return quantized_.defined(); }
  const QuantizedMatrix& quantized() const { return quantized_; }
  /// Encodes what stands in the window. RuntimeError for a parameter without blocks; ValueError,
  /// see quantize(), for numbers that have none.
  void store_quantized() const;
  /// Encodes `rows` [n, in] in place of the rows from `first_row` on, of all matrices one below the
  /// other, without the window. Errors of quantize_into().
  void store_quantized(const Tensor& rows, int64_t first_row) const;

  /// The logical tensors it is built from; empty for a parameter outside a parallel model.
  const std::vector<LogicalTensor>& logical() const { return logical_; }
  void set_logical(std::vector<LogicalTensor> logical) { logical_ = std::move(logical); }

 private:
  ParameterFlags flags_;
  std::vector<LogicalTensor> logical_;
  QuantizedMatrix quantized_;
};

}  // namespace tapestry::nn
