// A tensor on its way into a dump: what it is, where it lies in the whole, and its value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry::dump {

/// What a rank's tensor is to the logical one.
enum class TensorState : uint8_t {
  kWhole,  ///< all of it
  kSlice,  ///< the part that `ranges` says; ranks together have all of it
  /// A summand, of all of it or of the part that `ranges` says. Where ranks have equal summands
  /// (a weight's gradient that tensor-parallel ranks share), one of them writes its own.
  kPartial,
  kCopy,  ///< all of it, and other ranks of the group should have the same
};
/// "whole", "slice", "partial", "copy"
std::string_view name_of(TensorState state);
std::optional<TensorState> tensor_state_of(std::string_view name);

/// Indices begin .. end - 1 along an axis of the logical tensor.
struct AxisRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const AxisRange&, const AxisRange&) = default;
};
/// The ranges that a part has along one axis, one after the other: {{4, 8}}, or {{0, 4}, {12, 16}}
/// as a rank has of a sequence under context parallelism. Never empty.
using AxisRanges = std::vector<AxisRange>;

struct DumpedTensor {
  std::string op_type;  ///< "MatMul"; "Module" for what a module takes and gives
  /// Layout-free: "layers.0.attention.q"; of the backward pass with "Gradients/" in front.
  std::string op_name;
  int64_t task_id = 0;    ///< place of the op among those of the step, from 0
  int64_t timestamp = 0;  ///< microseconds since 1970; 0: now
  bool input = false;     ///< else an output
  int64_t slot = 0;       ///< which of them
  Tensor value;           ///< any dtype and strides
  /// What the value is for the model, where it was made from a narrower or wider one; absent: as
  /// `value`. Named in the file's name and the column Data Type.
  std::optional<DType> original_dtype;

  std::string module;  ///< path of the innermost module; "" outside of all
  std::string pass;    ///< "forward", "backward", "optimizer", ...
  int64_t micro_batch = 0;
  /// Global numbers of the samples whose rows the logical tensor has along `sample_axis`, in order:
  /// that axis of `global_shape` is a multiple of their number, and each has as many
  /// consecutive rows. Empty if the tensor belongs to no samples (weights and their gradients).
  std::vector<int64_t> samples;
  int64_t sample_axis = 0;
  /// The logical tensor of this micro-batch, of which ranks may have parts. Empty: that of `value`.
  std::optional<Shape> global_shape;
  /// Per axis, of a slice (or of a summand of a slice). Empty: from 0 on along every axis. Ranks
  /// with the same ranges have equal copies, or with kPartial summands.
  std::vector<AxisRanges> ranges;
  TensorState state = TensorState::kWhole;
  std::string source;  ///< "attention.cpp:123"; may be empty
};

}  // namespace tapestry::dump
