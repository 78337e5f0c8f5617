#include "parallel_core/training/log/parameter_rules_log.h"

#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/optimizer/parameter_rules.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

void warn_of_unused_rules(const AllConfig& config, const nn::Module& model) {
  const std::vector<RuleUse> uses = rule_uses(config, model);
  if (uses.empty()) {
    return;
  }
  std::vector<float> used;
  for (const RuleUse& use : uses) {
    used.push_back(use.used ? 1 : 0);
  }
  // Stages of a pipeline and ranks of experts have other parameters.
  const Tensor anywhere = tensor(used, {static_cast<int64_t>(used.size())});
  get_world_group().all_reduce(anywhere, ReduceOp::kMax);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (anywhere.data<float>()[i] == 0) {
      log_warning(concat(uses[i].rule, " matches no parameter; the log files show their names"));
    }
  }
}

}  // namespace

void log_parameter_rules(const AllConfig& config, const nn::Module& model) {
  const OptimizerConfig& o = config.optimizer_config;
  if (has_decay_rules(o)) {
    for (const ParameterChoice& choice : decay_choices(config, model)) {
      log_detail(concat(choice.parameter, ": weight decay ", choice.chosen ? o.weight_decay : 0.0,
                        ", ", choice.reason));
    }
  }
  if (o.optimizer_type == "Muon" && o.adamw_include) {
    for (const ParameterChoice& choice : adamw_choices(config, model)) {
      log_detail(
          concat(choice.parameter, ": ", choice.chosen ? "AdamW, " : "Muon, ", choice.reason));
    }
  }
  warn_of_unused_rules(config, model);
}

}  // namespace tapestry
