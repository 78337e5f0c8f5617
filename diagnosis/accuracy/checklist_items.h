// What a checklist looks at.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "diagnosis/accuracy/checklist_side.h"

namespace tapestry::accuracy {

/// What another value means for accuracy.
enum class Effect : uint8_t {
  kMeaning,   ///< another model, another optimizer, other data
  kRounding,  ///< the same numbers but for rounding
  kStart,     ///< other start values or another order of the data, unless these are given
};

/// When an item says anything.
enum class Where : uint8_t {
  kAlways,
  kExperts,    ///< one of the two has experts
  kRotary,     ///< one of the two turns queries and keys
  kScaled,     ///< one of the two turns other than by the plain series of frequencies
  kLearned,    ///< one of the two has a table of positions
  kLossScale,  ///< one of the two computes in float16
  kTemplate    ///< one of the two has a template of conversations
};

struct ChecklistItem {
  std::string_view group;
  /// A key of the configuration, "model_config.num_layers", whose value it is; or a name of its
  /// own.
  std::string_view key;
  Effect effect = Effect::kMeaning;
  std::string_view advice;  ///< where the values differ, or only move rounding
  Where where = Where::kAlways;
  /// Our value, where it is not that of the key. Null: there is none, which is no value of its own.
  config::Value (*of)(const AllConfig& config, const SideOptions& options) = nullptr;
  /// What to think of our value whatever the other side has, as of dropout; empty text: nothing.
  std::string (*remark)(const config::Value& value, const ChecklistSide& ours) = nullptr;
  /// A coefficient of 0 and none at all are the same.
  bool zero_is_none = false;
};

/// All items, by group: structure, moe, optimizer, weights, precision, parallel, other. A row is
/// all that another one takes; the readers of foreign files fill in its value under the same key.
std::span<const ChecklistItem> checklist_items();

/// Layers that are looked at one by one; a model with more is none.
inline constexpr int64_t kMostListedLayers = 10'000;

/// The value of the item moe_layers: a 1 for each layer with experts, a 0 for each without.
std::string expert_layers_text(int64_t layers, const std::function<bool(int64_t)>& has_experts);

/// Parameters by what they are, for weight decay.
struct ParameterKind {
  std::string_view name;  ///< logical name, with * for what varies
  bool norm_or_bias = false;
  bool qk_norm = false;
};

/// Those that a model of this configuration has.
std::vector<ParameterKind> parameter_kinds(const AllConfig& config);

/// The weight decay of such a parameter; none where the side does not say.
std::optional<double> weight_decay_of(const ChecklistSide& side, const ParameterKind& kind);

}  // namespace tapestry::accuracy
