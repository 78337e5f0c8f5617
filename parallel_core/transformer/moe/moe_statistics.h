// What the mixtures of a model did in a training step, on all ranks together.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "nn/module.h"
#include "parallel_core/config/config.h"
#include "parallel_core/transformer/moe/moe_layer.h"

namespace tapestry {

/// One layer, over all micro-batches of the step.
struct MoELayerStatistics {
  std::vector<int64_t> tokens_per_expert;   ///< [E] assignments, before anything is dropped
  std::vector<int64_t> dropped_per_expert;  ///< [E] of these
  // How close decisions were, see Routing.
  double smallest_router_gap = 1e9;
  double smallest_capacity_gap = 1e9;
  std::optional<double> smallest_group_gap;  ///< with groups of experts
  std::vector<double> expert_bias;           ///< [E] after the step; empty without a bias
  /// tokens_per_expert of each micro-batch of each data-parallel rank, [micro-batches][ranks][E];
  /// empty unless they are kept.
  std::vector<std::vector<std::vector<int64_t>>> of_micro_batches;

  /// Share of the assignments that were dropped.
  double drop_rate() const;
  /// Assignments of the expert with the most of them, in units of the mean; and with the fewest.
  double largest_load() const;
  double smallest_load() const;
};

struct MoEStepStatistics {
  /// Balance and z losses with their coefficients, summed over layers, averaged over the
  /// micro-batches of all data-parallel ranks.
  double aux_loss = 0;
  int64_t micro_batches = 0;                     ///< of a data-parallel rank
  std::map<int64_t, MoELayerStatistics> layers;  ///< by their number from 0, of all stages
};

/// Looks after the mixtures of the calling rank's model: sets what their balance losses weigh in
/// backward, adds up what they count, and has routers adjust themselves.
class MoEStatistics {
 public:
  /// `model` outlives the object. `keeps_micro_batches`: what each of them counts is kept too.
  MoEStatistics(nn::Module& model, const TransformerConfig& config, bool keeps_micro_batches);

  /// Whether some stage has a mixture; if not, the other calls do nothing.
  bool any() const { return !numbers_.empty(); }
  /// Before a step in which each data-parallel rank has so many micro-batches: forgets what was
  /// counted, and sets aux_loss_scale() to the loss scale over the micro-batches of all of them.
  void start_step(double loss_scale, int64_t micro_batches);
  /// After it, on all ranks. A step that changed the weights (`updated`) also moves the selection
  /// biases, by the counts of the global batch (TopKRouter::finish_step).
  MoEStepStatistics finish_step(bool updated);

 private:
  void sum_over_data_parallel();
  void add_micro_batches(MoEStepStatistics& out) const;

  const MoEConfig moe_;
  std::vector<int64_t> numbers_;   // of all layers that are mixtures
  std::vector<MoELayer*> layers_;  // those of this rank
  double parts_ = 1;               // micro-batches of all data-parallel ranks
  bool keeps_micro_batches_;
  int64_t micro_batches_ = 0;  // of this rank
};

}  // namespace tapestry
