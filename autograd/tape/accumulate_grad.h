// Where the gradient of a leaf ends.
#pragma once

#include "autograd/tape/node.h"

namespace tapestry {

/// The node that puts a leaf's gradient into its main_grad or grad. It lives as long as a graph
/// uses the leaf, which points back to it without owning it (LeafState::accumulator).
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf) : leaf_(leaf) { set_output(0, leaf); }
  ~AccumulateGrad() override;

  std::string_view name() const override { return "accumulate_grad"; }
  void release_saved() override {}
  bool has_received(const Tensor& gradient) const override;
  void run(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override;

 private:
  void accumulate(Tensor gradient);

  Tensor leaf_;
};

}  // namespace tapestry
