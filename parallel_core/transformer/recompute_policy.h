// The operations of a transformer layer by name, and which of them a layer recomputes.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "autograd/tape/recompute.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// What a layer makes, in this order.
enum class LayerOp : uint8_t {
  kAttentionStreams,  ///< what attention reads of the streams of hyper-connections
  kInputNorm,
  kQkv,  ///< the projection of a mixer's input, also of those that are not attention
  kQNorm,
  kKNorm,
  kVNorm,
  kRotary,
  kConvolution,
  kCoreAttention,
  kRecurrence,
  kMixerNorm,
  kOutputGate,
  kOutProj,
  kAttentionPostNorm,
  kAdd,  ///< the residual stream between attention and MLP
  kMlpStreams,
  kPostAttentionNorm,
  kMapping,
  kActivation,
  kProjection,
  kFfnPostNorm,
  kPerLayerGate,        ///< of per-layer embeddings, with their product
  kPerLayerProjection,  ///< of that
  kPerLayerNorm,
  kCount,
};
using LayerOpSet = std::bitset<static_cast<size_t>(LayerOp::kCount)>;

/// One name of an operation, as patterns see it.
struct LayerOpName {
  std::string path;  ///< "feed_forward.w1.matmul", below the layer
  LayerOp op = LayerOp::kCount;
  /// MindFormers' names come first; those of Megatron and of the modules here are asked only for
  /// patterns that match none of them.
  bool is_alias = false;
};

/// The names of the operations that layers of this model have. docs/memory.md has the table. What
/// is one product here has the names of all that it is made of: `attention.wq`, `wk` and `wv`, and
/// of a gated MLP `feed_forward.w1` and `w3`.
std::vector<LayerOpName> layer_op_names(const TransformerConfig& config);

/// What a pattern names.
struct PatternMatch {
  LayerOpSet ops;
  std::vector<std::string> names;  ///< of these operations
  std::vector<std::string> modules;
  LayerOpSet module_ops;  ///< of the modules: all operations but the last of each
  std::vector<std::string> module_names;
};
/// Each part of the pattern is a regular expression for one whole part of a name, and there are as
/// many. Where they match the front of longer names, that is a module.
PatternMatch match_pattern(const std::string& pattern, const std::vector<LayerOpName>& names);

/// What one layer does, from its patterns.
struct RecomputePolicy {
  bool full = false;
  bool keeps_input = true;
  LayerOpSet again;          ///< recomputed; with `full` all
  LayerOpSet kept;           ///< excluded
  LayerOpSet gathered_kept;  ///< norms behind which the gathered sequence is kept
  bool repeats_communication = true;
  bool slices_input = false;
  /// For the log: names as they were matched.
  std::vector<std::string> select, select_comm, exclude, comm_exclude;

  bool recomputes(LayerOp op) const {
    return (full || again[static_cast<size_t>(op)]) && !keeps(op);
  }
  bool keeps(LayerOp op) const { return kept[static_cast<size_t>(op)]; }
  bool keeps_gathered(LayerOp norm) const {
    return (full && !repeats_communication) || gathered_kept[static_cast<size_t>(norm)];
  }
};
RecomputePolicy recompute_policy(const LayerRecompute& layer,
                                 const std::vector<LayerOpName>& names);

/// Lines for the log: "Set full recompute at layer 0", "Set select recompute on at layer 25: ..",
/// "Set select comm recompute on ..", "Set select recompute exclude ..", for every layer to which
/// they apply. Empty if config.layer_recompute is.
std::string layer_recompute_text(const TransformerConfig& config);

/// What is worth knowing of the patterns: those that name nothing, with the names that there are,
/// and those that name a module where that has no effect.
struct PatternRemarks {
  std::vector<std::string> warnings;
  std::vector<std::string> notes;
};
PatternRemarks pattern_remarks(const TransformerConfig& config);

/// One pass of one layer: which of its operations note their results to be made again.
class LayerPass {
 public:
  /// Everything as the scope around says.
  LayerPass() = default;
  LayerPass(const RecomputePolicy& policy, RecomputedValues& values)
      : policy_(&policy), values_(&values) {}

  /// For the time in which the operation runs.
  RecomputeScope of(LayerOp op) const {
    return RecomputeScope(policy_ == nullptr ? noted_values() : noting(policy_->recomputes(op)));
  }
  /// For what lies between operations.
  RecomputeScope rest() const {
    return RecomputeScope(policy_ == nullptr ? noted_values() : noting(policy_->full));
  }
  bool keeps(LayerOp op) const { return policy_ != nullptr && policy_->keeps(op); }
  bool keeps_gathered(LayerOp norm) const {
    return policy_ != nullptr && policy_->keeps_gathered(norm);
  }
  const RecomputePolicy* policy() const { return policy_; }
  RecomputedValues* values() const { return values_; }

 private:
  RecomputedValues* noting(bool notes) const { return notes ? values_ : nullptr; }

  const RecomputePolicy* policy_ = nullptr;
  RecomputedValues* values_ = nullptr;
};

}  // namespace tapestry
