// Statements of which the description of a family is made. `member` is a name in config.json; `key`
// is one of model_config, or of moe_config if it begins with "moe_config.".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

using RulePtr = std::shared_ptr<const Rule>;
using config::Value;

/// The value of a key.
Value value_of(const AllConfig& config, const std::string& key);
/// The same as JSON.
hf::Json json_of(const Value& value);
/// Gives a key a value; an integer also to a key that wants a number. ValueError, naming the key,
/// for a value of another type or one that the key does not allow.
void set_value(AllConfig& config, const std::string& key, const Value& value);
/// Objects unless the key has the value. `advice` is "use VALUE" unless it is given.
void object_unless(const AllConfig& config,
                   const std::string& key,
                   const Value& value,
                   std::vector<Objection>& out,
                   const std::string& advice = "");

/// An integer from 1.
RulePtr size(const std::string& member, const std::string& key, int64_t by_default);
RulePtr number(const std::string& member, const std::string& key, double by_default);
/// A number above 0 or null, which is 0 here, or with `keeps_null` null.
RulePtr optional_number(const std::string& member,
                        const std::string& key,
                        std::optional<double> by_default,
                        bool keeps_null = false);
/// The key is 1 / member, or 1 / sqrt(member).
RulePtr reciprocal(const std::string& member, const std::string& key, double by_default);
RulePtr inverse_root(const std::string& member, const std::string& key, double by_default);
/// embedding_multiplier is the root of hidden_size.
RulePtr embeddings_by_root_of_width();
/// A switch that chooses between two values of a key.
RulePtr either(const std::string& member,
               bool by_default,
               const std::string& key,
               const std::string& if_true,
               const std::string& if_false);
/// A switch that stands for all the keys, which must then be equal.
RulePtr flag(const std::string& member, const std::vector<std::string>& keys, bool by_default);
/// A key that has one value in all models of the family.
RulePtr fixed(const std::string& key, const Value& value);
inline RulePtr fixed(const std::string& key, const char* value) {
  return fixed(key, Value(std::string(value)));
}
/// A limit on what can be written: nothing is read, and nothing written.
RulePtr only(const std::string& key, const Value& value, const std::string& advice);
inline RulePtr only(const std::string& key, const char* value, const std::string& advice) {
  return only(key, Value(std::string(value)), advice);
}
/// The same of several values, the first of which is the advice.
RulePtr only_among(const std::string& key, const std::vector<std::string>& values);
/// A member that is written so and says nothing here.
RulePtr written(const std::string& member, const hf::Json& json);
/// A switch that must stand as models here are built; `otherwise` says what it would mean.
RulePtr required(const std::string& member, bool value, const std::string& otherwise);

struct Activation {
  std::string theirs;
  std::string ours;
  bool writes = true;
};
/// hidden_act, by a table: the first row of a value is written. `gates`: of a gated MLP, also where
/// the activation is no gate by itself.
RulePtr activation(const std::string& member,
                   const std::string& by_default,
                   const std::vector<Activation>& table,
                   bool gates = false);
/// hidden_act: silu, of a gated MLP.
RulePtr gated_silu();

/// Two members, of blocks and of embeddings, for which there is one key here. No `embedding`: that
/// of some blocks alone, of which the key can say 0.
RulePtr hidden_dropout(const std::string& residual,
                       const std::string& embedding,
                       double by_default);

struct Norms {
  bool qk = false;             ///< on queries and keys; `qk_member` may say so instead
  std::string qk_member = {};  ///< a switch, off where it is left out
  std::string qk_scope = "head";
  std::string placement = "pre";  ///< norm_placement; empty: another rule decides it
  bool zero_centered = false;     ///< gains are stored less 1
};
/// A norm at the end, and the others where `norms` says.
Rules norms_of_blocks(const Norms& norms = {});

struct Heads {
  int64_t heads;
  std::optional<int64_t> groups = {};    ///< num_key_value_heads; none: as many as heads
  std::optional<int64_t> head_dim = {};  ///< none: hidden_size / heads
  bool fill_width = false;               ///< heads of another size are not possible
  bool grouped = true;                   ///< false: there is no num_key_value_heads
};
/// num_attention_heads, num_key_value_heads, head_dim.
RulePtr heads(const Heads& by_default);

struct LatentAttention {
  int64_t heads;
  int64_t q_rank;  ///< q_lora_rank where it is left out; null is none
  int64_t kv_rank;
  /// rope_interleave decides whether channels turn in pairs; else they do.
  bool has_interleave = false;
};
/// Multi-head latent attention: heads and the sizes of what they are made of.
Rules latent_attention(const LatentAttention& by_default);

struct RotationForm {
  /// Share of the channels where it is left out; none: all, always.
  std::optional<double> share = {};
  std::string share_member = "partial_rotary_factor";
  std::string theta_member = "rope_theta";
  bool pairs = false;         ///< channels (2j, 2j + 1) turn together, not (j, j + d/2)
  bool decides_pairs = true;  ///< else another rule says which do
  bool backward = false;
  /// Layers with a window have a base of their own, this where it is left out, and no scaling;
  /// rope_parameters then has an object for each kind of layers.
  std::optional<double> sliding_theta = {};
  std::string sliding_member = {};  ///< that of the base in older files, if they have one
  bool temperature = false;         ///< llama_4_scaling_beta: queries grow with their position
  bool alpha = false;               ///< `alpha` of a scaling "dynamic" makes the base larger
  /// Layers without a window turn a share of their pairs (rope_type proportional); there is one
  /// object for each kind, in all files, and `share` is that of full_attention.
  bool proportional = false;
};
/// Rotation: rope_theta, rope_scaling and partial_rotary_factor, or rope_parameters in place of
/// all; scaled in any way of rotary_scaling.h.
Rules rotation(double theta, const RotationForm& form = {});

/// Which layers have a window.
struct Windows {
  enum class Kind : uint8_t {
    kNone,
    kAll,       ///< all, where sliding_window is a number
    kSwitched,  ///< with use_sliding_window, those from max_window_layers on
    kSwitchedForAll,
    kByList,  ///< layer_types, or all but every `period`-th
  };
  Kind kind = Kind::kNone;
  std::optional<int64_t> by_default = {};  ///< sliding_window where it is left out
  int64_t period = 0;
  bool writes_period = false;  ///< as sliding_window_pattern, beside layer_types
  bool last_is_full = false;   ///< the last layer has no window, whatever a file says
  /// Layers without a window are not rotated, where any has one.
  bool rotates_sliding_alone = false;
};
/// sliding_window and what says which layers have it; layer_types says so in all newer files.
RulePtr windows(const Windows& form);
RulePtr no_window();
RulePtr window(std::optional<int64_t> by_default);
RulePtr switched_window(bool all_layers = false);
/// no_rope_layers, or no_rope_layer_interval: all but every so many-th layer are rotated.
RulePtr rotated_layers(int64_t interval);

/// Layers of one kind without attention between layers with full attention.
struct MixerLayers {
  std::string kind;                ///< "linear_attention", "conv" or "mamba"
  std::vector<std::string> words;  ///< what files call it; the first is written
  std::vector<std::string> attention_words = {"full_attention"};
  std::string older_member = {};  ///< of the list, in older files
  // Where there is no list: every so many-th layer has attention; or those of a list of numbers; or
  // all have it or none.
  int64_t period = 0;
  std::string period_member = {};
  std::string attention_list = {};
  bool attends_by_default = false;
  bool needs_both = false;  ///< a model has layers of both kinds
};
/// layer_types; no layer has a window.
RulePtr mixer_layers(const MixerLayers& form);
/// The members linear_*, with the defaults of Qwen3-Next, or those that follow from attention's.
Rules delta_net_sizes();
RulePtr delta_net_sizes_by_heads();
/// The members mamba_* and time_step_limit.
RulePtr mamba_sizes();
/// Rotation if position_embedding_type is "rope", else none.
RulePtr rotation_by_member(const Rules& rotation);
/// Rotation unless rope_parameters has null as rope_theta.
RulePtr rotation_unless_null(const Rules& rotation);
/// Head size and key/value heads of layers without a window, which have others where they are left
/// out, values that are keys, and layers with the keys of others (Gemma 4).
Rules heads_by_kind(int64_t head_dim);
/// A second embedding for each layer: its width where it is left out, and rows of its table.
Rules per_layer_embeddings(int64_t size, int64_t rows);

/// One MLP a layer, no experts.
RulePtr dense();
/// Experts beside the dense MLP of every layer, where enable_moe_block says so.
Rules experts_beside_dense();
/// Number of experts, and num_experts_per_tok. `also` is what newer files call the first.
RulePtr experts(const std::string& member,
                int64_t number,
                int64_t topk,
                const std::string& also = "");
/// Gates are a softmax over all experts, of the largest ones; norm_topk_prob says whether those are
/// divided by their sum, or it always is so.
Rules gates_by_norm_topk_prob(bool by_default);
Rules normalised_gates();
/// Gates are sigmoids, and a learned number per expert counts for the choice alone: norm_topk_prob,
/// routed_scaling_factor, and the best topk_group of n_group groups, each as good as its two best.
/// The numbers stay as they are unless a run moves them (moe_router_bias_update_rate).
/// `bias_member`: the switch of these numbers, which must be on. Then there are no groups.
Rules sigmoid_gates(const std::string& bias_member = "");
/// Gates are a softmax over all experts, times routed_scaling_factor; topk_method
/// group_limited_greedy chooses among the best topk_group of n_group groups (DeepSeek-V2).
Rules grouped_softmax_gates();
/// Width inside an expert.
RulePtr expert_width(const std::string& member, int64_t by_default);
RulePtr shared_expert(const std::string& member, int64_t by_default);
RulePtr no_shared_expert();
/// `member` times an expert's width (expert_width() comes before), without a gate of its own.
RulePtr shared_experts(const std::string& member, int64_t by_default);
/// Experts in every layer; in all but the first first_k_dense_replace; or as decoder_sparse_step
/// and mlp_only_layers say.
RulePtr experts_everywhere();
RulePtr experts_after(int64_t first_dense, const std::string& member = "first_k_dense_replace");
RulePtr sparse_layers();
/// What is said of dense MLPs' width is of no layer, so that nothing can contradict it.
RulePtr no_dense_width();
/// Layers behind the model's own that predict further tokens; 0 where it is left out. A run may
/// leave them out. Files of the family may have them: its names say so (with_layers_ahead).
RulePtr layers_ahead(const std::string& member);
/// router_aux_loss_coef, which is written only: the loss here is another one.
RulePtr balance_loss();

/// The rules one behind the other; each part is a rule or several.
template <class... Parts>
Rules joined(const Parts&... parts) {
  Rules out;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, Rules>) {
      out.insert(out.end(), part.begin(), part.end());
    } else {
      out.push_back(part);
    }
  };
  (add(parts), ...);
  return out;
}

}  // namespace tapestry::architectures
