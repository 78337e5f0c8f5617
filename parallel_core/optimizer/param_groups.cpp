#include "parallel_core/optimizer/param_groups.h"

#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/optimizer/parameter_rules.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

bool updates_pieces(const DistributedDataParallel* data_parallel) {
  return data_parallel != nullptr && data_parallel->shards_optimizer();
}

namespace {

// decays(name, parameter) says which have weight decay.
template <class Decays>
std::vector<optim::ParamGroup> two_groups(const nn::Module& model,
                                          double weight_decay,
                                          const DistributedDataParallel* data_parallel,
                                          const Decays& decays) {
  optim::ParamGroup decay;
  optim::ParamGroup no_decay;
  if (weight_decay != 0) {  // which schedules may raise; a 0 that is given is for good
    decay.weight_decay = weight_decay;
  }
  no_decay.wd_mult = 0;
  const auto add = [&](const std::string& name, const nn::Parameter& parameter,
                       const Tensor& values) {
    optim::ParamGroup& group = decays(name, parameter) ? decay : no_decay;
    group.params.push_back(values);
    group.names.push_back(name);
  };
  if (updates_pieces(data_parallel)) {
    for (const ParameterPiece& piece : data_parallel->pieces()) {
      add(piece.name, *piece.parameter, piece.values);
    }
  } else {
    for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
      add(entry.name, *entry.parameter, *entry.parameter);
    }
  }
  std::vector<optim::ParamGroup> groups;
  for (optim::ParamGroup* group : {&decay, &no_decay}) {
    // A stage without layers has nothing of the second kind, but the same list of learning rates.
    group->may_be_empty = pipeline_place().size > 1;
    if (!group->params.empty() || group->may_be_empty) {
      groups.push_back(std::move(*group));
    }
  }
  return groups;
}

using ParamGroupList = std::vector<optim::ParamGroup>;

// What Muon is for: weights between hidden layers.
bool is_hidden_matrix(const nn::Parameter& parameter) {
  return parameter.flags().matmul && !parameter.flags().head && parameter.dim() >= 2;
}

std::set<std::string> matrices_of_muon(const AllConfig& config, const nn::Module& model) {
  std::set<std::string> matrices;
  if (config.optimizer_config.adamw_include) {
    for (const ParameterChoice& choice : adamw_choices(config, model)) {
      if (!choice.chosen) {
        matrices.insert(choice.parameter);
      }
    }
    return matrices;
  }
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    if (is_hidden_matrix(*entry.parameter)) {
      matrices.insert(entry.name);
    }
  }
  return matrices;
}

// The groups with all but Muon's matrices in groups of their own, which take AdamW.
ParamGroupList with_adamw_groups(const AllConfig& all,
                                 const nn::Module& model,
                                 ParamGroupList groups) {
  const OptimizerConfig& config = all.optimizer_config;
  const std::set<std::string> matrices = matrices_of_muon(all, model);
  const bool by_names = has_decay_rules(config) || config.adamw_include;
  ParamGroupList out;
  for (const optim::ParamGroup& group : groups) {
    // Stages of a pipeline have different parameters, but the same list of learning rates.
    std::array<optim::ParamGroup, 2> halves = {group, group};
    for (optim::ParamGroup& half : halves) {
      half.params.clear();
      half.names.clear();
    }
    halves[1].adamw = true;
    halves[1].lr_mult *=
        config.adamw_learning_rate.value_or(config.learning_rate) / config.learning_rate;
    for (size_t i = 0; i < group.params.size(); ++i) {
      optim::ParamGroup& half = halves[matrices.contains(group.names[i]) ? 0 : 1];
      half.params.push_back(group.params[i]);
      half.names.push_back(group.names[i]);
    }
    for (optim::ParamGroup& half : halves) {
      const bool others_may_have =
          pipeline_place().size > 1 && (by_names || half.adamw || half.wd_mult != 0);
      if (!half.params.empty() || others_may_have) {
        out.push_back(std::move(half));
      }
    }
  }
  return out;
}

// What the schedule writes before each step cannot be set here.
void check_settings(const optim::ParamGroup& group, size_t index, double weight_decay) {
  check<ValueError>(!group.lr, "param group ", index, ": lr ", group.lr.value_or(0),
                    " would be overwritten by the schedule; give lr_mult, a factor");
  const double own = group.weight_decay.value_or(0);
  check<ValueError>(own == 0 || own == weight_decay, "param group ", index, ": weight_decay ", own,
                    " would be overwritten by the schedule with optimizer_config.weight_decay ",
                    weight_decay, "; give wd_mult, a factor");
}

// Lists of names that nobody would read.
void check_no_rules(const OptimizerConfig& config) {
  for (const auto& [key, rules] : {std::pair{"weight_decay_include", &config.weight_decay_include},
                                   std::pair{"weight_decay_exclude", &config.weight_decay_exclude},
                                   std::pair{"adamw_include", &config.adamw_include}}) {
    check<ValueError>(!rules->has_value(), "param groups: optimizer_config.", key,
                      " has no effect with groups of one's own; leave it out");
  }
}

}  // namespace

std::vector<optim::ParamGroup> get_param_groups(const nn::Module& model,
                                                double weight_decay,
                                                const DistributedDataParallel* data_parallel) {
  return two_groups(model, weight_decay, data_parallel,
                    [](const std::string& /*name*/, const nn::Parameter& parameter) {
                      return parameter.flags().decay;
                    });
}

std::vector<optim::ParamGroup> configured_groups(const AllConfig& config,
                                                 const nn::Module& model,
                                                 const DistributedDataParallel* data_parallel) {
  const OptimizerConfig& o = config.optimizer_config;
  ParamGroupList groups;
  if (has_decay_rules(o)) {
    std::map<std::string, bool> decays;
    for (const ParameterChoice& choice : decay_choices(config, model)) {
      decays.emplace(choice.parameter, choice.chosen);
    }
    groups = two_groups(model, o.weight_decay, data_parallel,
                        [&](const std::string& name, const nn::Parameter& /*parameter*/) {
                          return decays.at(name);
                        });
  } else {
    groups = get_param_groups(model, o.weight_decay, data_parallel);
  }
  return o.optimizer_type == "Muon" ? with_adamw_groups(config, model, std::move(groups)) : groups;
}

std::vector<optim::ParamGroup> completed_groups(const AllConfig& config,
                                                const nn::Module& model,
                                                std::vector<optim::ParamGroup> groups,
                                                const DistributedDataParallel* data_parallel) {
  const double weight_decay = config.optimizer_config.weight_decay;
  check_no_rules(config.optimizer_config);
  const std::vector<nn::Module::NamedParameter> parameters = model.trained_parameters();
  std::map<const TensorImpl*, std::string> names;
  for (const nn::Module::NamedParameter& entry : parameters) {
    names.emplace(entry.parameter->impl(), entry.name);
  }
  std::map<std::string, Tensor> pieces;
  if (updates_pieces(data_parallel)) {
    for (const ParameterPiece& piece : data_parallel->pieces()) {
      pieces.emplace(piece.name, piece.values);
    }
  }
  std::map<std::string, size_t> group_of;
  for (size_t i = 0; i < groups.size(); ++i) {
    optim::ParamGroup& group = groups[i];
    check_settings(group, i, weight_decay);
    if (group.weight_decay == 0.0) {
      group.wd_mult = 0;
    }
    group.weight_decay.reset();
    group.names.clear();
    for (Tensor& parameter : group.params) {
      const auto name = names.find(parameter.impl());
      check<ValueError>(name != names.end(), "param group ", i, ": holds a tensor ",
                        describe(parameter), " that is no parameter of the model");
      const auto [first, is_new] = group_of.emplace(name->second, i);
      check<ValueError>(is_new, "param group ", i, ": parameter '", name->second, "' is in group ",
                        first->second, " already");
      group.names.push_back(name->second);
      if (updates_pieces(data_parallel)) {
        parameter = pieces.at(name->second);
      }
    }
  }
  for (const nn::Module::NamedParameter& entry : parameters) {
    check<ValueError>(group_of.contains(entry.name), "param groups: parameter '", entry.name,
                      "' is in none of them; a group with lr_mult 0 leaves it as it is");
  }
  return groups;
}

}  // namespace tapestry
