// What programs call the values of a transformer: names of modules and ops of Hugging Face's
// transformers and of Megatron in those of Tapestry, which no layout changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/util/regular_expression.h"

namespace tapestry::accuracy {

/// How a value lies in another program's tensor, whose last axis has several side by side.
enum class Cut : uint8_t {
  kNone,    ///< all of it
  kThirds,  ///< q, k, v (GPT-2's c_attn)
  kHalves,  ///< gate, up (Megatron's linear_fc1)
  kGroups,  ///< of each group of heads its q, its k, its v (Megatron's linear_qkv)
};

/// A value in a program's own tensor.
struct NamedValue {
  std::string name;  ///< Tapestry's: "layers.0.attention.query", in backward with "Gradients/"
  Cut cut = Cut::kNone;
  int64_t part = 0;  ///< which of them
};

/// What an input or output of a module is, by the path that transformers' Llama, Qwen2, Mixtral,
/// Qwen2-MoE and GPT-2 models or Megatron's GPT models (megatron.core, and Megatron-LM before it)
/// give it; wrappers in front ("module.") do not matter. Nothing for what has no name here.
///
/// In backward ("Gradients/PATH") the op's inputs are the gradients of the module's outputs and its
/// outputs those of the module's inputs.
///
/// Names: those of ActivationRecorder (parallel_core/transformer/activation_recorder.h).
struct ModuleTensor {
  std::string_view op_name;
  bool input = false;
  int64_t slot = 0;
  /// The other side knows layers.I.mlp.gate: a fused first matrix gives gate and up.
  bool has_gate = false;
  /// The module has a second output, which in Megatron is a bias that is not added yet.
  bool has_second_output = false;
};
std::vector<NamedValue> named_values(const ModuleTensor& tensor);

/// What the user says about names: texts in place of names that match an expression as a whole. The
/// first one that matches counts. "Gradients/NAME" and "Updates/NAME" that no expression matches
/// follow NAME, so that an entry for a value or a parameter also says what its gradient is called.
class NameMap {
 public:
  NameMap() = default;
  /// A YAML or JSON file: a mapping of expressions to texts, in which $1 is the first
  /// group. IoError if it cannot be read; ValueError, with the file and the entry, for anything
  /// else than such a mapping.
  explicit NameMap(const std::string& file);

  bool empty() const { return rules_.empty(); }
  /// Nothing if no expression matches.
  std::optional<std::string> find(const std::string& name) const;
  /// The name as it is if no expression matches.
  std::string apply(const std::string& name) const;

 private:
  struct Rule {
    RegularExpression expression;
    std::string text;
  };
  std::vector<Rule> rules_;
};

}  // namespace tapestry::accuracy
