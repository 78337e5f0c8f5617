// The gradients of a model's parameters where no other data-parallel rank adds to them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel_core/distributed/model_gradients.h"

namespace tapestry {

/// Gives every parameter a main_grad in memory of its own, which it has from its first contribution
/// to the next start_step(): the activations of a step and the gradients that take their place need
/// no memory side by side. The zeros of a new step are written only where they are read before
/// something is added.
class OnDemandGradients final : public ModelGradients {
 public:
  struct Options {
    DType dtype = kFloat32;  ///< or bfloat16, whose sums are rounded stochastically
    bool exact = false;      ///< exact sums, which become float32
    uint64_t seed = 0;       ///< with element, step and contribution: of these random numbers
  };
  /// The parameters outlive the object. TypeError unless dtype is float32 or bfloat16,
  /// ValueError unless it is float32 in exact mode.
  OnDemandGradients(const std::vector<nn::Module::NamedParameter>& parameters,
                    const Options& options);

  void start_step(int64_t step, int64_t backward_passes) override;
  /// Sums what tensor-parallel ranks and stages have to add (finalize_model_grads).
  void finish_reduce() override;
  bool exact() const override { return exact_; }
  void scale(double factor) override;
  double squares(const std::function<bool(const nn::Parameter&)>& counts) const override;
  Held held_gradient(const nn::Module::NamedParameter& entry) const override;
  double sum_over_pieces(double value, bool /*of_experts*/) const override { return value; }
  ProcessGroup* pieces_group(bool /*of_experts*/) const override { return nullptr; }
  void gather_gradients() override {}
  void release_gradients() override {}
  void parameters_changed() override {}

 private:
  static double squares_of(const nn::Parameter& parameter);
  void round_gradients();

  bool exact_;
  uint64_t seed_;
  std::vector<const nn::Parameter*> parameters_;
  std::vector<std::string> names_;
  bool is_scaled_ = false;  // since finish_reduce
};

}  // namespace tapestry
