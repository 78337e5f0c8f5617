// What a training step does with the gradients of a model, wherever this rank has them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "nn/module.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// A step is: start_step, the backward passes, finish_reduce, then whatever reads the gradients,
/// the update of the weights, and parameters_changed. All ranks do the same in the same order.
///
/// In exact mode gradients are exact sums (kernels/exact_sums.h) in float64 from start_step to
/// finish_reduce, which rounds them to float32 once all that belongs to them is added: they have
/// the same bits whichever ranks and micro-batches the tokens of a step were divided over. The
/// numbers have half of the memory of the sums, at its beginning.
class ModelGradients {
 public:
  ModelGradients() = default;
  ModelGradients(const ModelGradients&) = delete;
  ModelGradients& operator=(const ModelGradients&) = delete;
  virtual ~ModelGradients() = default;

  /// Parameters, by name, whose local gradients are measured in each step that starts from here on:
  /// what this rank would update with if it were the only data-parallel one. Where gradients are
  /// freed during a step (z2, z3), several backward passes make a sum of their own for these, of
  /// the parameter's size in float32, in exact mode float64.
  void measure_local(std::set<std::string> names) { measured_ = std::move(names); }
  /// Their sums of squares, in double precision, by name; there from finish_reduce() on.
  const std::map<std::string, double>& local_squares() const { return local_squares_; }

  /// Makes all gradients zero. `backward_passes`: how many the step will have, after which a
  /// gradient is complete.
  virtual void start_step(int64_t step, int64_t backward_passes) = 0;
  /// Returns when the gradients of the step are summed over all ranks that add to them. Collective.
  virtual void finish_reduce() = 0;

  /// Whether gradients are exact sums until they are complete.
  virtual bool exact() const { return false; }
  /// Among the exact sums of the step that this rank holds, from finish_reduce() on.
  struct LargestSum {
    double units = 0;  ///< the largest magnitude (kernels/exact_sums.h); NaN: one is not finite
    std::string name;  ///< of its parameter, if that is more than kernels::kExactLimit
  };
  const LargestSum& largest_sum() const { return largest_sum_; }

  /// Multiplies every gradient.
  virtual void scale(double factor) = 0;
  /// Sum of squares, in double precision, of what this rank holds of the gradients of the
  /// parameters for which `counts` says true. Not finite exactly if an element is not.
  virtual double squares(const std::function<bool(const nn::Parameter&)>& counts) const = 0;
  /// What this rank holds of a gradient: the parameter's elements from number `first` on.
  struct Held {
    Tensor elements;
    int64_t first = 0;
  };
  virtual Held held_gradient(const nn::Module::NamedParameter& entry) const = 0;
  /// The sum over the ranks that hold other pieces of the same gradients, of experts or of all
  /// other parameters; the same bits on all of them. Collective.
  virtual double sum_over_pieces(double value, bool of_experts) const = 0;
  /// These ranks; null where this one holds whole gradients.
  virtual ProcessGroup* pieces_group(bool of_experts) const = 0;

  /// Makes the parameters' gradients whole on every rank, to be looked at, until
  /// release_gradients(). Collective.
  virtual void gather_gradients() = 0;
  virtual void release_gradients() = 0;
  /// The optimizer has updated what this rank updates: the parameters follow. Collective.
  virtual void parameters_changed() = 0;

 protected:
  bool is_measured(const std::string& name) const { return measured_.contains(name); }
  bool measures() const { return !measured_.empty(); }
  std::map<std::string, double>& squares_of_step() { return local_squares_; }
  void set_largest_sum(LargestSum largest) { largest_sum_ = std::move(largest); }

 private:
  std::set<std::string> measured_;
  std::map<std::string, double> local_squares_;
  LargestSum largest_sum_;
};

/// RuntimeError, with the parameter, if a gradient of the step on this rank was too large for its
/// sum to be exact for certain: another layout could have other bits. What is not finite passes:
/// that is seen in the norm.
void check_exact_sums(const ModelGradients& gradients, int64_t step);

}  // namespace tapestry
