// The experts of a mixture that a rank has, as one module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/precision.h"
#include "parallel_core/transformer/activation.h"
#include "parallel_core/transformer/moe/expert_product.h"
#include "parallel_core/transformer/recompute_policy.h"

namespace tapestry {

/// E/ep experts, each an MLP H -> F -> H like ParallelMLP's, of which a rank has F/etp channels.
///
/// There is one parameter per matrix, whichever experts have tokens: `w1` [E/ep, 2F/etp, H] (gate
/// rows first; F/etp without a gate) and `w2` [E/ep, H, F/etp], and with mlp_has_bias `w1_bias`
/// [E/ep, 2F/etp] and `w2_bias` [E/ep, H]. They are made of every expert's own logical tensors
/// layers.I.moe.experts.E.w_gate.weight [F, H], .w_up.weight, .w_down.weight [H, F] and .bias, so
/// that start values, names and optimizers know single experts alone.
///
/// Adapters of lora_config (stacked experts alone have them, lora/adapter_plan.h) add s B[e] A[e]
/// to a matrix of each expert: `lora_a1` [E/ep, rank, H] and `lora_b1` [E/ep, 2F/etp, rank] to w1,
/// `lora_a2` [E/ep, rank, F/etp] and `lora_b2` [E/ep, H, rank] to w2.
class Experts final : public nn::Module, public nn::Callable<Experts> {
 public:
  /// `layer_number` counts from 1. ValueError, naming the key, if ep does not divide the experts or
  /// etp their channels.
  Experts(const TransformerConfig& config, int64_t layer_number);
  Experts(const AllConfig& config, int64_t layer_number)
      : Experts(config.model_config, layer_number) {}

  std::string type_name() const override { return "Experts"; }
  std::string extra_repr() const override;

  /// w2[e] activation(w1[e] x + b1[e]) for rows x [R, H] of expert e, ends[e - 1] to ends[e] - 1
  /// (ends [E/ep]); the bias of w2 comes with it where slices are not shared. With several slices
  /// that is the rank's part of the sum over them, of which lacks_output_bias() may be true.
  ///
  /// In exact mode, with several slices, the part is float32, and x should be float32, so that its
  /// gradient is such a part, too; the bias of w2 never comes with it.
  Tensor forward(const Tensor& x, const ExpertRows& rows, const LayerPass& pass);

  /// Whether forward() leaves the bias of w2 to finished().
  bool lacks_output_bias() const;
  /// y [R, H], summed over slices, in the activations' dtype, with what forward() has left out:
  /// the bias of each row's expert (counted from this rank's first; empty if none is lacking).
  Tensor finished(const Tensor& y, const std::vector<int64_t>& expert_of_row) const;
  /// Whether the rows' gradients are parts of a sum over slices that is taken in float32.
  bool wants_wide_rows() const;

  int64_t first() const {
    return first_;
  }  ///< of the model's experts, the one that is number 0 here
  int64_t count() const { return count_; }

 private:
  enum class Matrix : uint8_t { kGate, kUp, kDown };
  // What is added to one of the matrices; without parameters: nothing.
  struct Adapter {
    nn::Parameter* a = nullptr;
    nn::Parameter* b = nullptr;
    double scale = 1;
  };

  static const char* name_of(Matrix matrix);
  LogicalInit part_of(std::string name,
                      Shape shape,
                      std::optional<int64_t> divided,
                      int64_t place,
                      int64_t places,
                      InitMethod init) const;
  std::vector<LogicalInit> logical_tensors(const TransformerConfig& config,
                                           const std::string& prefix,
                                           const std::vector<Matrix>& matrices,
                                           bool biases) const;
  nn::Parameter& add(const std::string& name,
                     const Shape& shape,
                     const std::vector<LogicalInit>& logical,
                     nn::ParameterFlags flags);
  Adapter add_adapter(const TransformerConfig& config,
                      const std::string& prefix,
                      const std::vector<Matrix>& matrices,
                      const std::string& number);
  Tensor with_adapter(const Tensor& y,
                      const Tensor& x,
                      const Adapter& adapter,
                      const std::vector<int64_t>& ends) const;
  Tensor multiply(const Tensor& x,
                  const nn::Parameter& weight,
                  const nn::Parameter* bias,
                  const std::vector<int64_t>& ends) const;
  Tensor exactly(const Tensor& x,
                 const nn::Parameter& weight,
                 const nn::Parameter* bias,
                 const ExpertRows& rows,
                 ExpertSums sums) const;
  Tensor inner(const Tensor& x, const ExpertRows& rows) const;
  Tensor outer(const Tensor& x, const ExpertRows& rows) const;

  Activation activation_;
  bool recomputes_;  // the activation, in backward, unless a pass keeps it
  Precision precision_;
  int64_t hidden_;
  int64_t ffn_;
  int64_t slices_;
  int64_t slice_;
  int64_t count_;
  int64_t first_;
  int64_t inner_matrices_ = 1;  // that lie one below the other in w1
  nn::Parameter* w1_ = nullptr;
  nn::Parameter* w2_ = nullptr;
  nn::Parameter* w1_bias_ = nullptr;
  nn::Parameter* w2_bias_ = nullptr;
  Adapter w1_adapter_;
  Adapter w2_adapter_;
};

}  // namespace tapestry
