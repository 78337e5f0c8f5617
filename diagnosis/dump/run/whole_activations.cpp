#include "diagnosis/dump/run/whole_activations.h"

#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

struct Piece {
  Tensor value;
  ValuePlacement placement;
};

// A placement as numbers: per axis how many ranges, then their ends.
constexpr int64_t kMostRanges = 4;
constexpr int64_t kNumbersPerAxis = 1 + 2 * kMostRanges;

Tensor numbers_of(const ValuePlacement& placement) {
  const auto axes = static_cast<int64_t>(placement.ranges.size());
  const Tensor numbers = zeros({axes, kNumbersPerAxis}, kInt64);
  auto* out = numbers.data<int64_t>();
  for (const auto& ranges : placement.ranges) {
    check<RuntimeError>(std::ssize(ranges) <= kMostRanges, "whole_activations: a rank has ",
                        ranges.size(), " ranges along an axis");
    out[0] = std::ssize(ranges);
    for (size_t i = 0; i < ranges.size(); ++i) {
      out[1 + 2 * i] = ranges[i].begin;
      out[2 + 2 * i] = ranges[i].end;
    }
    out += kNumbersPerAxis;
  }
  return numbers;
}

std::vector<std::vector<ValuePlacement::Range>> ranges_of(const int64_t* numbers, size_t axes) {
  std::vector<std::vector<ValuePlacement::Range>> all(axes);
  for (auto& ranges : all) {
    for (int64_t i = 0; i < numbers[0]; ++i) {
      ranges.push_back({numbers[1 + 2 * i], numbers[2 + 2 * i]});
    }
    numbers += kNumbersPerAxis;
  }
  return all;
}

// With those of the group's other ranks, whose pieces have the same shapes.
std::vector<Piece> gathered(const std::vector<Piece>& own, ProcessGroup& group) {
  if (group.size() == 1) {
    return own;
  }
  std::vector<Piece> out;
  for (const Piece& piece : own) {
    const Tensor numbers = numbers_of(piece.placement);
    const Tensor all_numbers = empty({group.size(), numbers.numel()}, kInt64);
    group.all_gather(all_numbers, numbers);
    const Tensor all = empty({group.size(), piece.value.numel()}, piece.value.dtype());
    group.all_gather(all, dense(piece.value));
    for (int rank = 0; rank < group.size(); ++rank) {
      Piece theirs{all.slice(0, rank, rank + 1).reshape(piece.value.shape()), piece.placement};
      theirs.placement.ranges = ranges_of(all_numbers.data<int64_t>() + rank * numbers.numel(),
                                          piece.placement.ranges.size());
      out.push_back(std::move(theirs));
    }
  }
  return out;
}

// Copies a piece to where it lies in the whole, one range after the other along each axis.
void place(const Tensor& whole, const Tensor& piece, const ValuePlacement& placement, size_t axis) {
  if (axis == placement.ranges.size()) {
    copy_values(piece, whole);
    return;
  }
  const auto along = static_cast<int64_t>(axis);
  int64_t at = 0;
  for (const ValuePlacement::Range& range : placement.ranges[axis]) {
    const int64_t count = range.end - range.begin;
    place(whole.slice(along, range.begin, range.end), piece.slice(along, at, at + count), placement,
          axis + 1);
    at += count;
  }
}

}  // namespace

std::map<std::string, Tensor> whole_activations(const ActivationRecorder& recorder) {
  const NoGradGuard guard;
  const UnobservedScope unobserved;
  std::map<std::string, Tensor> all;
  for (const auto& [name, value] : recorder.values()) {
    std::vector<Piece> pieces = {{value, recorder.placements().at(name)}};
    if (model_parallel_is_initialized()) {
      pieces = gathered(pieces, get_tensor_model_parallel_group());
      pieces = gathered(pieces, get_context_parallel_group());
    }
    const Tensor whole = zeros(pieces[0].placement.global_shape, value.dtype());
    for (const Piece& piece : pieces) {
      place(whole, piece.value, piece.placement, 0);
    }
    all.emplace(name, whole);
  }
  return all;
}

}  // namespace tapestry
