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
/// Objects unless the key has the value. `advice` is "use VALUE" unless it is given.
void object_unless(const AllConfig& config,
                   const std::string& key,
                   const Value& value,
                   std::vector<Objection>& out,
                   const std::string& advice = "");

/// An integer from 1.
RulePtr size(const std::string& member, const std::string& key, int64_t by_default);
RulePtr number(const std::string& member, const std::string& key, double by_default);
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
/// A member that is written so and says nothing here.
RulePtr written(const std::string& member, const hf::Json& json);
/// A switch that must stand as models here are built; `otherwise` says what it would mean.
RulePtr required(const std::string& member, bool value, const std::string& otherwise);

struct Activation {
  std::string theirs;
  std::string ours;
  bool writes = true;
};
/// hidden_act, by a table: the first row of a value is written.
RulePtr activation(const std::string& member,
                   const std::string& by_default,
                   const std::vector<Activation>& table);
/// hidden_act: silu, of a gated MLP.
RulePtr gated_silu();

/// Norms before each block and at the end, and nowhere else; on each head's queries and keys only
/// if `qk_norm`.
Rules norms_before_blocks(bool qk_norm);

struct Heads {
  int64_t heads;
  std::optional<int64_t> groups = {};    ///< num_key_value_heads; none: as many as heads
  std::optional<int64_t> head_dim = {};  ///< none: hidden_size / heads
};
/// num_attention_heads, num_key_value_heads, head_dim.
RulePtr heads(const Heads& by_default);

/// Rotation of all channels by halves: rope_theta and rope_scaling, or rope_parameters in place of
/// both; unscaled, linear or llama3.
Rules rotation(double theta);

/// No window; `sliding_window`, where leaving it out means `by_default`; or that one only with
/// use_sliding_window, from layer max_window_layers on. layer_types says the same by layer. What is
/// built is one window for all layers or none.
RulePtr no_window();
RulePtr window(std::optional<int64_t> by_default);
RulePtr switched_window();

/// One MLP a layer, no experts.
RulePtr dense();
/// Number of experts, and num_experts_per_tok.
RulePtr experts(const std::string& member, int64_t number, int64_t topk);
/// Gates are a softmax over all experts, of the largest ones; norm_topk_prob says whether those are
/// divided by their sum, or it always is so.
Rules gates_by_norm_topk_prob(bool by_default);
Rules normalised_gates();
/// Width inside an expert.
RulePtr expert_width(const std::string& member, int64_t by_default);
RulePtr shared_expert(const std::string& member, int64_t by_default);
RulePtr no_shared_expert();
/// Experts in every layer; or as decoder_sparse_step and mlp_only_layers say.
RulePtr experts_everywhere();
RulePtr sparse_layers();
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
