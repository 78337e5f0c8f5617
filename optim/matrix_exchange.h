// Bringing the parts that ranks have of a matrix to one of them, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "nn/parameter_runs.h"
#include "optim/parameter_layout.h"

namespace tapestry::optim {

/// Lets a function of whole logical tensors be computed once each, by the ranks of a layout in
/// turn: tensors are taken in rounds of one for each rank, the largest first. In a round each
/// element goes to the tensor's owner once and its result comes back to every rank that has it, in
/// two exchanges over the ranks with pieces (ParameterLayout::copies) and two over those with
/// slices; so a rank sends and receives about as much as it holds. Beside what it holds, a rank
/// needs memory for one whole tensor, and its result.
///
/// The function sees the same bits in every layout that gives its elements the same bits.
class MatrixExchange {
 public:
  /// One logical tensor, and what this rank has of it: the numbers `range` of its slice.
  struct Item {
    const nn::LogicalTensor* logical = nullptr;
    nn::ElementRange range;
    DType dtype = kFloat32;
  };

  /// For parameters that these ranks share (ParameterLayout); null: this rank alone.
  /// `cut_in_pieces`: the copies hold pieces.
  MatrixExchange(const RankGroup* slices, const RankGroup* copies, bool cut_in_pieces);

  /// What the function is given: the elements [range.size()] of item i that this rank has.
  using Read = std::function<Tensor(size_t item)>;
  /// The function, of a tensor [logical.shape]; the result has its shape and dtype.
  using Compute = std::function<Tensor(size_t item, const Tensor& whole)>;
  /// What it gave, [range.size()] elements.
  using Write = std::function<void(size_t item, const Tensor& elements)>;

  /// Collective: the same items in the same order on every rank.
  void run(const std::vector<Item>& items,
           const Read& read,
           const Compute& compute,
           const Write& write);

 private:
  // Who has what of a logical tensor.
  struct Holders {
    std::vector<nn::ElementRange> ranges;   // by rank of copies(): numbers of this rank's slice
    std::vector<nn::LogicalTensor> slices;  // by rank of slices()
    std::vector<bool> counts;               // of these, which send theirs
  };
  class Round;

  void learn_holders(const std::vector<Item>& items);
  void learn_ranges(const std::vector<const Item*>& items);
  void learn_slices(const std::vector<const Item*>& items);

  const RankGroup* slices_ = nullptr;  // null: one rank
  const RankGroup* copies_ = nullptr;
  bool cut_in_pieces_ = false;
  std::map<std::string, Holders> holders_;
};

}  // namespace tapestry::optim
