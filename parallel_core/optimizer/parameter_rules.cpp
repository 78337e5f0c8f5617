#include "parallel_core/optimizer/parameter_rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>

#include "autograd/tensor/error.h"
#include "parallel_core/optimizer/mindformers_names.h"

namespace tapestry {

namespace {

using Rules = std::optional<std::vector<std::string>>;

// One logical tensor, as rules see it.
struct Subject {
  std::vector<std::string> names;
  bool is_vector = false;
  bool is_bias = false;
};

struct Verdict {
  bool chosen = false;
  std::string reason;
};

const std::string* first_match(const Rules& rules, const Subject& subject) {
  if (!rules) {
    return nullptr;
  }
  const auto found = std::find_if(rules->begin(), rules->end(), [&](const std::string& rule) {
    return rule_matches(rule, subject.names);
  });
  return found == rules->end() ? nullptr : &*found;
}

Subject subject_of(const std::string& parameter,
                   const nn::LogicalTensor& logical,
                   int64_t num_layers) {
  return {.names = rule_names(parameter, logical.name, num_layers),
          .is_vector = logical.shape.size() < 2,
          .is_bias = logical.name.ends_with(".bias")};
}

Verdict decay_of(const OptimizerConfig& config, const Subject& subject) {
  if (const std::string* rule = first_match(config.weight_decay_include, subject)) {
    return {true, concat("weight_decay_include: ", *rule)};
  }
  if (const std::string* rule = first_match(config.weight_decay_exclude, subject)) {
    return {false, concat("weight_decay_exclude: ", *rule)};
  }
  if (subject.is_vector) {
    return {false, "a vector"};
  }
  return subject.is_bias ? Verdict{false, "a bias"} : Verdict{true, "no rule"};
}

Verdict adamw_of(const OptimizerConfig& config, const Subject& subject) {
  if (subject.is_vector) {
    return {true, "a vector"};
  }
  const std::string* rule = first_match(config.adamw_include, subject);
  return rule != nullptr ? Verdict{true, concat("adamw_include: ", *rule)}
                         : Verdict{false, "no rule"};
}

// A parameter is updated as a whole, so all that it is made of must have one verdict.
template <class Decide>
std::vector<ParameterChoice> choices(const AllConfig& config,
                                     const nn::Module& model,
                                     const char* what,
                                     const Decide& decide) {
  std::vector<ParameterChoice> out;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const std::vector<nn::LogicalTensor>& parts = entry.parameter->logical();
    const nn::LogicalTensor alone{.name = entry.name, .shape = entry.parameter->shape()};
    const nn::LogicalTensor& first = parts.empty() ? alone : parts.front();
    const int64_t layers = config.model_config.num_layers;
    const Verdict verdict = decide(subject_of(entry.name, first, layers));
    for (const nn::LogicalTensor& part : parts) {
      const Verdict other = decide(subject_of(entry.name, part, layers));
      check<ValueError>(other.chosen == verdict.chosen, "optimizer_config: ", what, " of '",
                        first.name, "' (", verdict.reason, ") and '", part.name, "' (",
                        other.reason, ") would differ, but both lie in the parameter '", entry.name,
                        "', which is updated as a whole; give rules that match both or neither");
    }
    out.push_back({entry.name, verdict.chosen, verdict.reason});
  }
  return out;
}

}  // namespace

bool rule_matches(const std::string& rule, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.find(rule) != std::string::npos ||
           fnmatch(rule.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
  });
}

std::vector<std::string> rule_names(const std::string& parameter,
                                    const std::string& logical,
                                    int64_t num_layers) {
  std::vector<std::string> names = {logical};
  if (parameter != logical) {
    names.push_back(parameter);
  }
  if (std::string theirs = mindformers_name(logical, num_layers); !theirs.empty()) {
    names.push_back(std::move(theirs));
  }
  return names;
}

bool has_decay_rules(const OptimizerConfig& config) {
  return config.weight_decay_include || config.weight_decay_exclude;
}

std::vector<ParameterChoice> decay_choices(const AllConfig& config, const nn::Module& model) {
  return choices(config, model, "weight decay", [&](const Subject& subject) {
    return decay_of(config.optimizer_config, subject);
  });
}

std::vector<ParameterChoice> adamw_choices(const AllConfig& config, const nn::Module& model) {
  return choices(config, model, "Muon's choice", [&](const Subject& subject) {
    return adamw_of(config.optimizer_config, subject);
  });
}

std::vector<RuleUse> rule_uses(const AllConfig& config, const nn::Module& model) {
  std::vector<RuleUse> uses;
  const OptimizerConfig& o = config.optimizer_config;
  const auto add = [&](const char* key, const Rules& rules) {
    for (const std::string& rule : rules.value_or(std::vector<std::string>())) {
      RuleUse use{concat("optimizer_config.", key, ": '", rule, "'")};
      for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
        for (const nn::LogicalTensor& part : entry.parameter->logical()) {
          use.used = use.used || rule_matches(rule, rule_names(entry.name, part.name,
                                                               config.model_config.num_layers));
        }
      }
      uses.push_back(std::move(use));
    }
  };
  add("weight_decay_include", o.weight_decay_include);
  add("weight_decay_exclude", o.weight_decay_exclude);
  if (o.optimizer_type == "Muon") {
    add("adamw_include", o.adamw_include);
  }
  return uses;
}

}  // namespace tapestry
