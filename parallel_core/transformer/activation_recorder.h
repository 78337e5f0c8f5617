// Intermediate values of a forward pass under layout-free names, to find where two computations
// begin to differ.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/tensor.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/sequence_part.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// While it lives, keeps what the model of the current rank reports: of each name the first value,
/// and of that the first row of the batch, as a float32 copy of the shape [1, ...].
///
/// Names: embedding, layers.I.{attention_norm, attention, attention_residual, ffn_norm, mlp,
/// output} and final_norm [1, S, H], attention_residual being what ffn_norm is the norm of;
/// layers.I.attention.{query, key, value} as projected, with their biases, and
/// layers.I.attention.{q, k, v} as attended, after norm and rotation [1, heads or groups, S, D];
/// layers.I.attention.context, before the output projection [1, S, heads * D]; of a dense MLP
/// layers.I.mlp.{gate, up}, or up alone, with their biases, and layers.I.mlp.active, before its
/// projection [1, S, F]; logits [1, S, V]. Of mixtures of experts layers.I.moe.router_logits and
/// layers.I.moe.gates [1, S, E], a gate being 0 where an expert is not chosen or drops the token,
/// and layers.I.moe.shared_expert_gate [1, S, 1].
class ActivationRecorder : public Observer {
 public:
  ActivationRecorder() : scope_(*this) {}

  const std::map<std::string, Tensor>& values() const { return values_; }
  /// Where they lie in the whole row.
  const std::map<std::string, ValuePlacement>& placements() const { return placements_; }

  bool wants_values() const override { return true; }
  void value_made(const ObservedValue& value) override;

 protected:
  /// A row of the batch as it is kept.
  static Tensor row_of(const ObservedValue& value, int64_t row);
  static ValuePlacement placement_of_row(const ObservedValue& value);

 private:
  std::map<std::string, Tensor> values_;
  std::map<std::string, ValuePlacement> placements_;
  ObserverScope scope_;
};

/// Where an axis of a reported value lies in that of the whole.
struct ReportedAxis {
  int64_t size = -1;  ///< of the whole; -1: that of the value, which is all of it
  std::vector<ValuePlacement::Range> ranges = {};
};
inline ReportedAxis whole_axis() { return {}; }
/// `count` from `begin` on, of `size`.
ReportedAxis sliced_axis(int64_t begin, int64_t count, int64_t size);
/// The tokens that a rank has of each sequence.
ReportedAxis token_axis(const SequencePart& part);

/// Whether somebody records: for values that are made only to be reported. Not in a second run.
bool activations_are_recorded();

/// Whether somebody may put other values in the place of the model's.
bool activations_are_replaced();

/// Reports a value of the model that is made to be shown; free of cost unless somebody records.
/// `axes` are those of the value as it is given: batch-first, or with batch_axis 1 sequence-first.
/// `with_gradient` is a tensor of the graph that has the value's gradient; left out: the value.
void report_activation(std::string_view name,
                       const Tensor& value,
                       const std::vector<ReportedAxis>& axes,
                       int64_t batch_axis = 0,
                       const Tensor& with_gradient = {});
/// Reports a value that the model goes on with, and puts another in its place where an observer has
/// one (Observer::replacement). True if it has: the value no longer follows from earlier ones.
bool pass_activation(std::string_view name,
                     Tensor& value,
                     const std::vector<ReportedAxis>& axes,
                     int64_t batch_axis = 0);
/// The same without the report, for values that report_activation() shows.
bool replace_activation(std::string_view name,
                        Tensor& value,
                        const std::vector<ReportedAxis>& axes,
                        int64_t batch_axis = 0);
/// The name "layers.<layer>.<name>".
std::string layer_value(int64_t layer, std::string_view name);
/// Its layer; 0 of names without one.
int64_t layer_of_value(std::string_view name);

/// Runs `report`, which calls report_activation() or pass_activation(), if somebody records.
template <class Report>
void report_if_recorded(const Report& report) {
  if (activations_are_recorded()) [[unlikely]] {
    report();
  }
}

/// What `make` returns: a value that is made to be shown, without a graph and unobserved.
template <class Make>
Tensor shown_only(const Make& make) {
  const NoGradGuard guard;
  const UnobservedScope unobserved;
  return make();
}

/// Axes of hidden states [B, S, H], or [S, B, H] with batch_axis 1, as ranks divide them outside of
/// the layers' products.
std::vector<ReportedAxis> hidden_axes(const Tensor& hidden,
                                      int64_t batch_axis,
                                      const ContextParallelLayout& context,
                                      const TensorParallelLayout& tensor);

}  // namespace tapestry
