#include "parallel_core/dist_checkpointing/peft_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/peft_names.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/lora/model_cells.h"

namespace tapestry {

namespace {

constexpr std::string_view kWeightEnding = ".weight";

constexpr const char* kOutputLayer = "lm_head";
constexpr const char* kNoBias = "none";
constexpr const char* kLoraOnly = "lora_only";

// Of a module of the plan, by its path.
struct Wanted {
  int64_t rank = 0;
  double alpha = 0;
  bool operator==(const Wanted&) const = default;
};
using WantedModules = std::map<std::string, Wanted>;

std::string path_of(const std::string& hf_path, const std::string& logical) {
  return hf_path.empty() ? logical : hf_path;
}

WantedModules wanted_modules(const AdapterPlan& plan) {
  WantedModules out;
  for (const AdaptedModule& module : plan.modules) {
    out[path_of(module.hf_path, module.module)] = {module.rank, module.alpha};
  }
  return out;
}

// A module that PEFT could put an adapter beside.
struct KnownModule {
  std::string path;
  bool linear = false;     // or a table of embeddings
  bool adapted = false;    // here it can have an adapter
  bool parameter = false;  // of stacked experts, which target_parameters name
};

bool is_meant(const PeftModules& peft, const KnownModule& module) {
  return module.parameter ? peft.targets_parameter(module.path) : peft.targets(module.path);
}

// All of the model: of routed experts those that the first one stands for.
std::vector<KnownModule> known_modules(const TransformerConfig& config) {
  std::vector<KnownModule> out;
  for (const ModelCell& cell : model_cells(config)) {
    for (const ModelModule& module : cell.modules) {
      const bool table = module.name.ends_with("_embeddings");
      const bool norm = module.name.ends_with("norm");
      if (!norm) {
        out.push_back({.path = path_of(module.hf_path, module.name),
                       .linear = !table && cell.experts == 0,
                       .adapted = cell.takes_adapter,
                       .parameter = cell.experts > 0});
      }
    }
  }
  const FileNames names(name_scheme(config), config);
  if (stacks_experts(names.scheme)) {
    return out;
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const char* matrix : {"w_gate", "w_up", "w_down"}) {
      if (is_moe_layer(config, layer)) {
        const std::string tensor = concat("layers.", layer, ".moe.experts.0.", matrix, ".weight");
        std::string name = file_place(names, tensor, {1, 1}).name;
        name.resize(name.size() - kWeightEnding.size());
        out.push_back({.path = std::move(name), .linear = true});
      }
    }
  }
  return out;
}

// Ends of a path that begin behind its dots, the shortest first, and the path itself.
std::vector<std::string> ends_of(const std::string& path) {
  std::vector<std::string> out;
  for (size_t dot = path.rfind('.'); dot != std::string::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    out.push_back(path.substr(dot + 1));
  }
  out.push_back(path);
  return out;
}

// For each of the wanted paths the shortest end that none of the others has.
std::vector<std::string> shortest_names(const std::vector<std::string>& wanted,
                                        const std::vector<std::string>& others) {
  std::set<std::string> taken;
  for (const std::string& path : others) {
    for (std::string& end : ends_of(path)) {
      taken.insert(std::move(end));
    }
  }
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const std::string& path : wanted) {
    const std::vector<std::string> ends = ends_of(path);
    const auto end = std::find_if(ends.begin(), ends.end(),
                                  [&](const std::string& name) { return !taken.contains(name); });
    const std::string& name = end == ends.end() ? path : *end;
    if (known.insert(name).second) {
      names.push_back(name);
    }
  }
  return names;
}

// Whether the file means these modules of the model, each with its rank and alpha.
bool means(const PeftModules& peft,
           const WantedModules& wanted,
           const std::vector<KnownModule>& known) {
  return std::all_of(known.begin(), known.end(), [&](const KnownModule& module) {
    const auto found = wanted.find(module.path);
    if (found == wanted.end()) {
      const bool passed_over = peft.config().targets.all_linear && !module.linear;
      return passed_over || !is_meant(peft, module);
    }
    return is_meant(peft, module) && peft.rank(module.path) == found->second.rank &&
           peft.alpha(module.path) == found->second.alpha;
  });
}

// The paths of modules that hold tensors which are trained whole, of a tied table both.
std::vector<std::string> saved_paths(const TransformerConfig& config, const AdapterPlan& plan) {
  const FileNames names(name_scheme(config), config);
  std::vector<std::string> out;
  const auto add = [&](const std::string& tensor) {
    std::string module = tensor.substr(kPeftPrefix.size());
    module.resize(module.rfind('.'));
    if (std::find(out.begin(), out.end(), module) == out.end()) {
      out.push_back(std::move(module));
    }
  };
  for (const std::string& tensor : plan.saved_modules) {
    if (is_adapted_bias(plan, tensor)) {
      continue;  // by `bias`, and no module of its own
    }
    const bool vector = tensor.ends_with(".bias") || tensor.find("norm.") != std::string::npos;
    add(peft_place(names, plan, tensor, vector ? Shape{1} : Shape{1, 1}).name);
    if (const std::string twin = peft_twin(config, tensor); !twin.empty()) {
      add(twin);
    }
  }
  return out;
}

// Every module that has a name of its own, norms too.
std::vector<std::string> all_paths(const TransformerConfig& config) {
  std::vector<std::string> out = {kOutputLayer};
  for (const ModelCell& cell : model_cells(config)) {
    for (const ModelModule& module : cell.modules) {
      out.push_back(path_of(module.hf_path, module.name));
    }
  }
  return out;
}

// PEFT takes the end of a path for a name of modules_to_save, dots or not.
std::vector<std::string> names_of_saved(const TransformerConfig& config,
                                        const std::vector<std::string>& saved) {
  const std::vector<std::string> all = all_paths(config);
  std::vector<std::string> names;
  for (const std::string& path : saved) {
    const std::vector<std::string> ends = ends_of(path);
    const auto end = std::find_if(ends.begin(), ends.end(), [&](const std::string& name) {
      return std::all_of(all.begin(), all.end(), [&](const std::string& other) {
        return !other.ends_with(name) ||
               std::find(saved.begin(), saved.end(), other) != saved.end();
      });
    });
    const std::string& name = end == ends.end() ? path : *end;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

bool saves_the_same(const TransformerConfig& config,
                    const PeftModules& peft,
                    const std::vector<std::string>& saved) {
  const std::vector<std::string> all = all_paths(config);
  return std::all_of(all.begin(), all.end(), [&](const std::string& path) {
    return peft.saves(path) == (std::find(saved.begin(), saved.end(), path) != saved.end());
  });
}

std::string escaped(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (std::string_view(".^$|()[]{}*+?\\").find(c) != std::string_view::npos) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

std::string end_pattern(const std::string& pattern) { return concat("(.*\\.)?(", pattern, ")"); }

// Adds ranks or alphas that are not the usual one, by the shortest expressions that do.
template <class Value>
std::vector<std::pair<std::string, Value>> patterns_for(
    const WantedModules& wanted, Value usual, const std::function<Value(const Wanted&)>& value_of) {
  std::map<Value, std::vector<std::string>> by_value;
  for (const auto& [path, of] : wanted) {
    by_value[value_of(of)].push_back(path);
  }
  std::vector<std::pair<std::string, Value>> out;
  for (const auto& [value, paths] : by_value) {
    if (value == usual) {
      continue;
    }
    std::vector<std::string> others;
    for (const auto& [other, with] : by_value) {
      if (other != value) {
        others.insert(others.end(), with.begin(), with.end());
      }
    }
    for (const std::string& name : shortest_names(paths, others)) {
      out.emplace_back(name, value);
    }
  }
  return out;
}

// What exclude_cells take away of the linear modules: their paths, by the longer plan without them.
std::vector<std::string> excluded_paths(TransformerConfig config, const WantedModules& wanted) {
  if (config.lora.exclude_cells.empty()) {
    return {};
  }
  config.lora.exclude_cells.clear();
  std::vector<std::string> out;
  for (const auto& [path, of] : wanted_modules(plan_adapter(config))) {
    if (!wanted.contains(path)) {
      out.push_back(path);
    }
  }
  return out;
}

LoraConfig explicit_targets(LoraConfig lora, const WantedModules& wanted) {
  LoraTargets targets;
  for (const auto& [path, of] : wanted) {
    targets.patterns.push_back(escaped(path));
    if (of.rank != lora.lora_rank || of.alpha != lora.lora_alpha) {
      targets.cells.push_back({.cell = escaped(path), .rank = of.rank, .alpha = of.alpha});
    }
  }
  lora.target_cells = std::move(targets);
  return lora;
}

// The names of the file as expressions; empty where they say more than expressions can.
std::optional<LoraTargets> direct_targets(const PeftConfig& peft) {
  if (peft.layers || !peft.excluded.empty()) {
    return std::nullopt;
  }
  LoraTargets targets;
  for (const std::vector<std::string>* names : {&peft.targets.names, &peft.parameters}) {
    for (const std::string& name : *names) {
      targets.patterns.push_back(concat("(.*\\.)?", escaped(name)));
    }
  }
  if (peft.targets.pattern) {
    targets.patterns.push_back(*peft.targets.pattern);
  }
  for (const auto& [pattern, rank] : peft.rank_pattern) {
    const auto same = std::find_if(peft.alpha_pattern.begin(), peft.alpha_pattern.end(),
                                   [&](const auto& entry) { return entry.first == pattern; });
    LoraCell cell{.cell = end_pattern(pattern), .rank = rank, .alpha = {}};
    if (same != peft.alpha_pattern.end()) {
      cell.alpha = same->second;
    }
    targets.cells.push_back(std::move(cell));
  }
  for (const auto& [pattern, alpha] : peft.alpha_pattern) {
    const bool known = std::any_of(peft.rank_pattern.begin(), peft.rank_pattern.end(),
                                   [&](const auto& entry) { return entry.first == pattern; });
    if (!known) {
      targets.cells.push_back({.cell = end_pattern(pattern), .rank = {}, .alpha = alpha});
    }
  }
  return targets;
}

// What the configuration would have, by plan_adapter; nothing where that refuses it.
std::optional<WantedModules> planned(TransformerConfig model, const LoraConfig& lora) {
  model.lora = lora;
  model.lora.use_lora = true;
  model.lora.modules_to_save.clear();
  model.lora.bias = kNoBias;
  try {
    return wanted_modules(plan_adapter(model));
  } catch (const ValueError&) {
    return std::nullopt;
  }
}

// Every name of target_parameters must mean something.
void check_parameters(const PeftModules& peft,
                      const std::vector<KnownModule>& known,
                      const std::string& source) {
  for (const std::string& name : peft.config().parameters) {
    check<ValueError>(
        std::any_of(known.begin(), known.end(),
                    [&](const KnownModule& module) {
                      return module.parameter && is_named({name}, module.path);
                    }),
        source, ": target_parameters: '", name,
        "' means nothing here: adapters stand beside linear modules "
        "(target_modules), and beside the matrices of experts where the model's files "
        "have all experts in one tensor, as those of GPT-OSS");
  }
}

WantedModules wanted_by(const PeftModules& peft,
                        const TransformerConfig& model,
                        const std::string& source) {
  WantedModules out;
  const std::vector<KnownModule> known = known_modules(model);
  check_parameters(peft, known, source);
  for (const KnownModule& module : known) {
    const bool passed_over =
        peft.config().targets.all_linear && !module.linear && !module.parameter;
    if (!is_meant(peft, module) || passed_over) {
      continue;
    }
    check<ValueError>(module.adapted, source, ": target_modules mean ", module.path,
                      "; embeddings, the output layer, routers and the experts behind them get no "
                      "adapter here");
    out[module.path] = {peft.rank(module.path), peft.alpha(module.path)};
  }
  check<ValueError>(!out.empty(), source,
                    ": target_modules mean no module of this model, whose "
                    "modules have paths like ",
                    known.back().path);
  return out;
}

std::vector<std::string> saved_patterns(const PeftModules& peft,
                                        const TransformerConfig& model,
                                        const std::string& source) {
  const bool tied = !model.untie_embeddings_and_output_weights && !model.score_head;
  const bool head = peft.saves(kOutputLayer);
  std::string table;
  std::vector<std::string> out;
  bool has_table = false;
  for (const ModelCell& cell : model_cells(model)) {
    for (const ModelModule& module : cell.modules) {
      const std::string path = path_of(module.hf_path, module.name);
      const bool is_table = module.name == "tok_embeddings";
      table = is_table ? path : table;
      if (peft.saves(path)) {
        has_table = has_table || is_table;
        out.push_back(escaped(path));
      }
    }
  }
  if (tied && head && !has_table) {
    out.emplace_back(kOutputLayer);
  }
  check<ValueError>(!tied || !has_table || head || peft.config().ensure_weight_tying, source,
                    ": modules_to_save mean ", table,
                    " and not lm_head, which are one matrix in this model and would part: set "
                    "tie_word_embeddings: false in the base's config.json and give its weights an "
                    "lm_head.weight (merging the adapter does that)");
  check<ValueError>(!out.empty() || peft.config().modules_to_save.empty(), source,
                    ": modules_to_save mean nothing of this model");
  return out;
}

// Whether the adapter in a folder has trained the output layer of a model that has one matrix for
// it and for the table of embeddings by itself. Adapters of the matrix as one hold it twice.
bool parts_tied_head(const PeftModules& peft,
                     const TransformerConfig& model,
                     const std::string& folder) {
  if (model.untie_embeddings_and_output_weights || model.score_head || !peft.saves(kOutputLayer) ||
      peft.config().ensure_weight_tying) {
    return false;
  }
  const FileNames names(name_scheme(model), model);
  std::string table = file_place(names, "tok_embeddings.weight", {1, 1}).name;
  if (!peft.saves(table.substr(0, table.size() - kWeightEnding.size()))) {
    return true;
  }
  if (!holds_adapter(folder)) {
    return false;
  }
  table = concat(kPeftPrefix, table);
  const std::string head = concat(kPeftPrefix, kOutputLayer, kWeightEnding);
  const std::unique_ptr<TensorSource> files = open_adapter(folder);
  return files->contains(head) && files->contains(table) && !same_bytes(*files, head, table);
}

}  // namespace

PeftConfig peft_config_of(const TransformerConfig& config,
                          const std::string& base,
                          const PeftConfig* came) {
  const AdapterPlan plan = plan_adapter(config);
  const WantedModules wanted = wanted_modules(plan);
  const std::vector<KnownModule> known = known_modules(config);
  const std::vector<std::string> saved = saved_paths(config, plan);
  const LoraConfig& lora = config.lora;
  const auto fits = [&](const PeftConfig& peft) {
    const PeftModules modules(peft, kAdapterConfigFile);
    return means(modules, wanted, known) && saves_the_same(config, modules, saved);
  };
  const bool transposed = name_scheme(config).transposed();
  const bool trains_biases = lora.bias == kLoraOnly;
  if (came != nullptr && came->use_rslora == lora.use_rslora && came->use_dora == lora.use_dora &&
      came->trains_biases == trains_biases && came->dropout == lora.lora_dropout && fits(*came)) {
    return *came;
  }
  PeftConfig peft{.base = base,
                  .task_type = config.score_head ? kSequenceClassification : "CAUSAL_LM",
                  .rank = lora.lora_rank,
                  .alpha = lora.lora_alpha,
                  .dropout = lora.lora_dropout,
                  .use_rslora = lora.use_rslora,
                  .use_dora = lora.use_dora,
                  .trains_biases = trains_biases,
                  .fan_in_fan_out = transposed};
  const std::vector<std::string> taken_away = excluded_paths(config, wanted);
  for (const bool parameters : {false, true}) {
    std::vector<std::string> paths;
    std::vector<std::string> others;
    std::vector<std::string> excluded;
    for (const KnownModule& module : known) {
      if (module.parameter != parameters) {
        continue;
      }
      // PEFT excludes modules, not parameters.
      const bool away = !parameters && std::find(taken_away.begin(), taken_away.end(),
                                                 module.path) != taken_away.end();
      (wanted.contains(module.path) || away ? paths : others).push_back(module.path);
      if (away) {
        excluded.push_back(module.path);
      }
    }
    if (!excluded.empty()) {
      std::vector<std::string> kept;
      for (const auto& [path, of] : wanted) {
        kept.push_back(path);
      }
      peft.excluded.names = shortest_names(excluded, kept);
    }
    (parameters ? peft.parameters : peft.targets.names) = shortest_names(paths, others);
  }
  peft.rank_pattern =
      patterns_for<int64_t>(wanted, peft.rank, [](const Wanted& w) { return w.rank; });
  peft.alpha_pattern =
      patterns_for<double>(wanted, peft.alpha, [](const Wanted& w) { return w.alpha; });
  peft.modules_to_save = names_of_saved(config, saved);
  check<RuntimeError>(fits(peft), "adapter_config.json: cannot express this lora_config");
  return peft;
}

LoraConfig lora_config_of(const PeftConfig& peft,
                          const TransformerConfig& model,
                          const std::string& source) {
  const PeftModules modules(peft, source);
  LoraConfig lora{.use_lora = true,
                  .lora_rank = peft.rank,
                  .lora_alpha = peft.alpha,
                  .lora_dropout = peft.dropout,
                  .use_rslora = peft.use_rslora,
                  .use_dora = peft.use_dora,
                  .bias = peft.trains_biases ? kLoraOnly : kNoBias};
  const WantedModules wanted = wanted_by(modules, model, source);
  lora.modules_to_save = saved_patterns(modules, model, source);
  if (peft.targets.all_linear && planned(model, lora) == wanted) {
    return lora;
  }
  if (const auto direct = direct_targets(peft)) {
    LoraConfig candidate = lora;
    candidate.target_cells = direct;
    if (planned(model, candidate) == wanted) {
      return candidate;
    }
  }
  return explicit_targets(std::move(lora), wanted);
}

void configure_adapter(AllConfig& config, const std::string& folder) {
  const std::string source = concat(folder, "/", kAdapterConfigFile);
  const PeftConfig peft = read_peft_config(folder);
  if (peft.task_type == kSequenceClassification) {
    config.model_config.score_head = true;
  }
  if (parts_tied_head(PeftModules(peft, source), config.model_config, folder)) {
    config.model_config.untie_embeddings_and_output_weights = true;
  }
  config.lora_config = lora_config_of(peft, config.model_config, source);
  config.lora_config.adapter = folder;
  config.model_config.lora = config.lora_config;
  plan_adapter(config);  // refuses what cannot be trained whole by itself
}

void check_adapter_config(const TransformerConfig& config, const std::string& folder) {
  const std::string source = concat(folder, "/", kAdapterConfigFile);
  const PeftConfig peft = read_peft_config(folder);
  const WantedModules theirs = wanted_by(PeftModules(peft, source), config, source);
  const WantedModules ours = wanted_modules(plan_adapter(config));
  const auto differs = [&](const std::string& what, const auto& here, const auto& there) {
    return concat(source, ": ", what, " is ", there, ", but lora_config says ", here,
                  "; start from the adapter with its own values, or leave lora_config.adapter out");
  };
  for (const auto& [path, of] : ours) {
    const auto found = theirs.find(path);
    check<ValueError>(found != theirs.end(), source, ": has no adapter for ", path,
                      ", which lora_config.target_cells mean");
    check<ValueError>(found->second.rank == of.rank,
                      differs("the rank of " + path, of.rank, found->second.rank));
    check<ValueError>(found->second.alpha == of.alpha,
                      differs("lora_alpha of " + path, of.alpha, found->second.alpha));
  }
  for (const auto& [path, of] : theirs) {
    check<ValueError>(ours.contains(path), source, ": has an adapter for ", path,
                      ", which lora_config.target_cells do not mean");
  }
  check<ValueError>(peft.use_rslora == config.lora.use_rslora,
                    differs("use_rslora", config.lora.use_rslora, peft.use_rslora));
  check<ValueError>(peft.use_dora == config.lora.use_dora,
                    differs("use_dora", config.lora.use_dora, peft.use_dora));
  const char* bias = peft.trains_biases ? kLoraOnly : kNoBias;
  check<ValueError>(bias == config.lora.bias, differs("bias", config.lora.bias, bias));
}

}  // namespace tapestry
