// What layers without attention are made of: the projection of their input, the short convolution
// behind it, numbers of heads, and the state of a text that grows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/core_attention.h"
#include "parallel_core/transformer/kv_cache.h"

namespace tapestry {

/// Entries of a logical tensor along its first axis, heads or channels, and which of them this rank
/// has.
struct MixerRows {
  std::string name;    ///< logical, behind the mixer's: "wq"
  int64_t total = 0;   ///< in the whole model
  int64_t first = 0;   ///< this rank's
  int64_t own = 0;     ///< and how many
  int64_t copies = 1;  ///< ranks of the tensor-parallel group that have the same ones
};

/// The projection of the layer's input to all these rows, one below the other, with adapters where
/// lora_config has them. `prefix`: "layers.0.mamba.".
ParallelLinearSpec mixer_input_spec(const TransformerConfig& config,
                                    const TensorParallelLayout& layout,
                                    const std::string& prefix,
                                    const std::vector<MixerRows>& rows,
                                    bool has_bias,
                                    bool sequence_first);

/// The projection of `columns` channels, of which a rank has its share, to hidden states.
ParallelLinearSpec mixer_output_spec(const TransformerConfig& config,
                                     const TensorParallelLayout& layout,
                                     const std::string& prefix,
                                     const MixerRows& columns,
                                     bool has_bias,
                                     bool sequence_first);

/// What register_parameter() takes.
struct NewParameter {
  Tensor value;
  nn::ParameterFlags flags;
  nn::LogicalTensor logical;
};
/// A number for each of the rank's heads, or channels, without weight decay.
NewParameter mixer_numbers(const std::string& prefix,
                           const MixerRows& rows,
                           InitMethod init,
                           const TensorParallelLayout& layout);

/// Taps of a depthwise causal convolution, [channels, 1, taps], with the last one for the token
/// itself, and a bias if there is one. Channels are this rank's, part by part. See
/// short_convolution().
class ConvolutionTaps final : public nn::Module {
 public:
  ConvolutionTaps(const std::string& prefix,
                  const std::vector<MixerRows>& parts,
                  int64_t taps,
                  bool has_bias,
                  const TensorParallelLayout& layout);

  std::string type_name() const override { return "ShortConvolution"; }
  std::string extra_repr() const override;

  int64_t channels() const { return weight_->size(0); }
  int64_t taps() const { return weight_->size(2); }
  /// [channels, taps].
  Tensor weight() const;
  /// Undefined without.
  Tensor bias() const { return bias_ != nullptr ? Tensor(*bias_) : Tensor(); }

  /// Of x [B, S, channels] of this rank's tokens; where context-parallel ranks divide sequences,
  /// the tokens before come from their ranks.
  Tensor forward(const Tensor& x,
                 bool silu,
                 const AttentionContext& context,
                 const ContextParallelLayout& layout) const;
  /// Of one token each of M texts, x [M, channels]; of new tokens of one text, x [1, N, channels].
  /// Both read what is before in `states` and leave there what the next ones read.
  Tensor step(const Tensor& x,
              bool silu,
              const LayerStates& states,
              const std::vector<int64_t>& slots) const;
  Tensor continued(const Tensor& x, bool silu, const LayerStates& states, int64_t slot) const;

  /// Where the channels lie among those of all ranks.
  ReportedAxis channels_axis() const { return channels_axis_; }

 private:
  ReportedAxis channels_axis_;
  nn::Parameter* weight_;
  nn::Parameter* bias_ = nullptr;
};

/// The new tokens of a pass with a cache, through a mixer that keeps a state of each text.
///
/// `rows` [1, N, P] are what the mixer reads of each token. Texts with one new token go together
/// through `step`, which gets their rows [M, P] and their slots; one with several goes through
/// `pass`, which gets [1, count, P] and the text's slot. Both return [.., width] and bring the
/// states up to date. A text that begins has its state cleared. Tokens behind the last segment's
/// give 0.
Tensor cached_rows(const Tensor& rows,
                   int64_t width,
                   const CachedStep& cached,
                   const LayerStates& states,
                   const std::function<Tensor(const Tensor&, const std::vector<int64_t>&)>& step,
                   const std::function<Tensor(const Tensor&, int64_t)>& pass);

/// ValueError if the data have a mask, which hides no token from a state.
void check_no_mask(const AttentionContext& context, const char* mixer);

}  // namespace tapestry
