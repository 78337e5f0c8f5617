#include "optim/optimizer.h"
#include "tests/parallel_core/drill/planted_faults.h"

namespace tapestry::testing {

namespace {

// Optimizer, schedule and step are those of another configuration.
std::function<void(FindFaultOptions&)> step_with_change(
    const std::function<void(AllConfig&)>& change) {
  return [change](FindFaultOptions& options) {
    options.training.parts.step_config = [change](const AllConfig& config) {
      AllConfig changed = config;
      change(changed);
      return changed;
    };
  };
}

// A group of its own for the parameters whose path ends so, with other factors of learning rate and
// weight decay; the rest is as it should be.
std::function<void(FindFaultOptions&)> group_apart(const std::string& ending,
                                                   double lr_mult,
                                                   std::optional<double> wd_mult) {
  return [=](FindFaultOptions& options) {
    options.training.param_groups = [=](const nn::Module& model) {
      std::vector<optim::ParamGroup> groups(4);
      for (size_t i = 0; i < groups.size(); ++i) {
        const bool decays = i % 2 == 0;
        groups[i].wd_mult = decays ? 1 : 0;
        if (i >= 2) {
          groups[i].lr_mult = lr_mult;
          groups[i].wd_mult = wd_mult.value_or(groups[i].wd_mult);
        }
      }
      for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
        const size_t kind = entry.parameter->flags().decay ? 0 : 1;
        groups[kind + (entry.name.ends_with(ending) ? 2 : 0)].params.push_back(*entry.parameter);
      }
      std::erase_if(groups, [](const optim::ParamGroup& group) { return group.params.empty(); });
      return groups;
    };
  };
}

}  // namespace

std::vector<PlantedFault> optimizer_faults() {
  using Scheduled = OptimizerConfig;
  return {
      {"clip_off",
       {},
       step_with_change([](AllConfig& c) { c.optimizer_config.clip_grad = 0; }),
       {"clip"},
       "AdamW",
       "as if clipping were off"},
      {"clip_at_half",
       {},
       step_with_change([](AllConfig& c) { c.optimizer_config.clip_grad = 0.5; }),
       {"clip"},
       "AdamW",
       "as if gradients were clipped at 0.5"},
      {"beta2",
       {},
       step_with_change([](AllConfig& c) { c.optimizer_config.betas[1] = 0.999; }),
       {"optimizer"},
       "AdamW",
       "as if beta2 were 0.999"},
      {"eps",
       {},
       step_with_change([](AllConfig& c) { c.optimizer_config.eps = 1e-6; }),
       {"optimizer"},
       "AdamW",
       "as if eps were 1e-06"},
      {"norms_decay",
       {},
       group_apart("_norm.weight", 1, 1),
       {"optimizer"},
       "_norm",
       "as if every tensor decayed"},
      {"decay_coupled",
       {},
       step_with_change([](AllConfig& c) { c.optimizer_config.optimizer_type = "Adam"; }),
       {"optimizer"},
       "AdamW",
       "Adam, not AdamW"},
      {"warmup_longer",
       {},
       step_with_change([](AllConfig& c) { c.optimizer_config.lr_warmup_iters = 3; }),
       {"schedule"},
       "learning rate"},
      {"schedule_one_step_early",
       {.stored = "gpt2_tiny"},
       step_with_change([](AllConfig& c) {
         Scheduled& o = c.optimizer_config;
         o.lr_warmup_init = o.learning_rate / 2;  // what the first of two steps leads to
         o.lr_warmup_iters = 1;
         o.lr_decay_iters = 5;
       }),
       {"schedule"},
       "learning rate"},
      {"learning_rate_of_one_group",
       {},
       group_apart("qkv_proj.weight", 0.5, {}),
       {"schedule"},
       "qkv_proj"},
      {"parameter_left_out",
       {},
       group_apart("layers.1.mlp.projection.weight", 0, {}),
       {"schedule", "optimizer"},
       "layers.1.mlp.projection"},
  };
}

}  // namespace tapestry::testing
