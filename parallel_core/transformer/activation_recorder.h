// Intermediate values of a forward pass under layout-free names, to find where two computations
// begin to differ.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// While it lives, keeps what the model of the current rank reports: of each name the first value,
/// and of that the first row of the batch, as a float32 copy of the shape [1, ...].
///
/// Names: embedding, layers.I.{attention_norm, attention, ffn_norm, mlp, output} and final_norm
/// [1, S, H]; layers.I.attention.{q, k, v} after the rotation [1, heads or groups, S, D];
/// layers.I.attention.context, before the output projection [1, S, heads * D]; logits [1, S, V]. Of
/// mixtures of experts layers.I.moe.router_logits and layers.I.moe.gates [1, S, E], a gate being 0
/// where an expert is not chosen or drops the token, and layers.I.moe.shared_expert_gate [1, S, 1].
class ActivationRecorder {
 public:
  ActivationRecorder();
  ActivationRecorder(const ActivationRecorder&) = delete;
  ActivationRecorder& operator=(const ActivationRecorder&) = delete;
  virtual ~ActivationRecorder();

  const std::map<std::string, Tensor>& values() const { return values_; }

  /// Called for every value that is reported, batch-first or, with batch_axis 1, sequence-first.
  virtual void record(const std::string& name, const Tensor& value, int64_t batch_axis);

 protected:
  /// A row of the batch as it is kept.
  static Tensor row_of(const Tensor& value, int64_t batch_axis, int64_t row);

 private:
  ActivationRecorder* previous_;
  std::map<std::string, Tensor> values_;
};

/// Whether somebody records: for values that are made only to be reported.
bool activations_are_recorded();
/// Reports a value of the model; free of cost unless somebody records.
void report_activation(std::string_view name, const Tensor& value, int64_t batch_axis = 0);
/// The same for "layers.<layer>.<name>".
void report_activation(int64_t layer,
                       std::string_view name,
                       const Tensor& value,
                       int64_t batch_axis = 0);

}  // namespace tapestry
