// Rules by which lists of names in a configuration choose parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// True if the rule equals one of the names, is part of one, or matches one as a shell pattern
/// (`*`, `?`, `[abc]`, `[!abc]`).
bool rule_matches(const std::string& rule, const std::vector<std::string>& names);

/// The names by which rules know one of the logical tensors of a parameter: its own, the
/// parameter's in memory, and MindFormers' (mindformers_name) where there is one. None of them
/// depends on the layout.
std::vector<std::string> rule_names(const std::string& parameter,
                                    const std::string& logical,
                                    int64_t num_layers);

/// What rules say of a parameter, and which of them.
struct ParameterChoice {
  std::string parameter;  ///< in memory
  bool chosen = false;    ///< it decays, or it takes AdamW
  std::string reason;
};

bool has_decay_rules(const OptimizerConfig& config);

/// Of each parameter that is trained whether weight decay applies, by weight_decay_include and
/// weight_decay_exclude. The first that holds: an include rule matches: yes; an exclude rule: no; a
/// vector: no; the name ends in .bias: no; else yes. Source of the order: MindFormers'
/// mindformers/pynative/trainer/utils.py. ValueError, naming them, where rules would part the
/// logical tensors that make one parameter.
std::vector<ParameterChoice> decay_choices(const AllConfig& config, const nn::Module& model);

/// Of each whether Muon leaves it to AdamW, by adamw_include: vectors, and what a rule matches.
std::vector<ParameterChoice> adamw_choices(const AllConfig& config, const nn::Module& model);

/// A rule, as "optimizer_config.weight_decay_include: 'embed'", and whether it matches a parameter.
struct RuleUse {
  std::string rule;
  bool used = false;
};
/// Of all rules that are given, for this rank's part of the model: the same list on every rank.
std::vector<RuleUse> rule_uses(const AllConfig& config, const nn::Module& model);

}  // namespace tapestry
