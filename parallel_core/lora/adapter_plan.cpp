#include "parallel_core/lora/adapter_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/lora_keys.h"
#include "parallel_core/lora/model_cells.h"

namespace tapestry {

namespace {

constexpr const char* kTargets = "lora_config.target_cells";
constexpr const char* kExcluded = "lora_config.exclude_cells";
constexpr const char* kSaved = "lora_config.modules_to_save";
constexpr const char* kBias = "lora_config.bias";
constexpr std::string_view kBiasEnding = ".bias";

// Which modules of a cell a pattern means: those that it matches by their own names, or all if it
// matches the cell's.
template <class Matches>
std::vector<bool> meant(const ModelCell& cell, const Matches& matches) {
  std::vector<bool> out;
  for (const ModelModule& module : cell.modules) {
    out.push_back(matches(module.name) || (!module.hf_path.empty() && matches(module.hf_path)));
  }
  if (std::find(out.begin(), out.end(), true) == out.end() && matches(cell.path)) {
    out.assign(out.size(), true);
  }
  return out;
}

std::vector<bool> meant(const ModelCell& cell, const NamePattern& pattern) {
  return meant(cell, [&](const std::string& name) { return pattern.matches(name); });
}

// The patterns of lora_config, and which of them have had a use.
class Targets {
 public:
  explicit Targets(const LoraConfig& lora) : lora_(lora) {
    for (const std::string& pattern : lora.exclude_cells) {
      excluded_.push_back({NamePattern(pattern, kExcluded)});
    }
    if (!lora.target_cells) {
      return;
    }
    for (const std::string& pattern : lora.target_cells->patterns) {
      patterns_.push_back({NamePattern(pattern, kTargets)});
    }
    for (const LoraCell& cell : lora.target_cells->cells) {
      cells_.push_back({NamePattern(cell.cell, kTargets), &cell});
    }
  }

  struct Use {
    NamePattern pattern;
    const LoraCell* cell = nullptr;
    bool used = false;
    std::string passed_over = {};  // something that it matches and that gets no adapter
  };
  const std::vector<Use>& patterns() const { return patterns_; }
  const std::vector<Use>& cells() const { return cells_; }
  const std::vector<Use>& excluded() const { return excluded_; }

  // Appends the adapted modules of a cell.
  void add_modules(const ModelCell& cell, std::vector<AdaptedModule>& out) {
    std::vector<bool> wanted(cell.modules.size(), !lora_.target_cells && cell.experts == 0);
    for (Use& use : patterns_) {
      const std::vector<bool> fits = meant(cell, use.pattern);
      for (size_t i = 0; i < fits.size(); ++i) {
        wanted[i] = wanted[i] || fits[i];
        use.used = use.used || fits[i];
      }
    }
    for (Use& use : excluded_) {
      const std::vector<bool> fits = meant(cell, use.pattern);
      for (size_t i = 0; i < fits.size(); ++i) {
        use.used = use.used || (fits[i] && wanted[i]);
        wanted[i] = wanted[i] && !fits[i];
      }
    }
    std::vector<const LoraCell*> own(cell.modules.size(), nullptr);
    for (Use& use : cells_) {
      const std::vector<bool> fits = meant(cell, use.pattern);
      for (size_t i = 0; i < fits.size(); ++i) {
        if (fits[i] && wanted[i]) {
          use.used = true;
          own[i] = own[i] != nullptr ? own[i] : use.cell;
        }
      }
    }
    for (size_t i = 0; i < cell.modules.size(); ++i) {
      if (!wanted[i]) {
        continue;
      }
      const ModelModule& module = cell.modules[i];
      AdaptedModule& adapted = out.emplace_back();
      adapted.cell = cell.path;
      adapted.module = module.name;
      adapted.hf_path = module.hf_path;
      adapted.weights = module.weights;
      adapted.in_features = cell.in_features;
      adapted.out_features = module.out_features();
      adapted.experts = cell.experts;
      adapted.rank = lora_.lora_rank;
      adapted.alpha = lora_.lora_alpha;
      if (own[i] != nullptr) {
        adapted.rank = own[i]->rank.value_or(adapted.rank);
        adapted.alpha = own[i]->alpha.value_or(adapted.alpha);
      }
      const auto rank = static_cast<double>(adapted.rank);
      adapted.scale = adapted.alpha / (lora_.use_rslora ? std::sqrt(rank) : rank);
    }
  }

  // A cell that gets no adapter, whatever matches it.
  void pass_over(const ModelCell& cell) {
    for (Use& use : patterns_) {
      const std::vector<bool> fits = meant(cell, use.pattern);
      if (use.passed_over.empty() && std::find(fits.begin(), fits.end(), true) != fits.end()) {
        use.passed_over = cell.modules.front().name;
      }
    }
  }

 private:
  const LoraConfig& lora_;
  std::vector<Use> patterns_;
  std::vector<Use> excluded_;
  std::vector<Use> cells_;
};

// For messages: what names look like in this model.
std::string some_names(const TransformerConfig& config) {
  const ModelCell cell = adapted_cells(config, 0).front();
  const ModelModule& module = cell.modules.front();
  return concat("'", module.name, "', ",
                module.hf_path.empty() ? "" : concat("'", module.hf_path, "', "), "'", cell.path,
                "'");
}

void add_whole(const ModelModule& module, size_t tensor, AdapterPlan& plan) {
  const std::string& name = module.tensors[tensor];
  if (std::find(plan.saved_modules.begin(), plan.saved_modules.end(), name) ==
      plan.saved_modules.end()) {
    plan.saved_modules.push_back(name);
    plan.saved_sizes.push_back(module.sizes[tensor]);
  }
}

void add_saved(const TransformerConfig& config,
               const std::vector<ModelCell>& cells,
               AdapterPlan& plan) {
  for (const std::string& text : config.lora.modules_to_save) {
    const NamePattern pattern(text, kSaved);
    bool used = false;
    for (const ModelCell& cell : cells) {
      const std::vector<bool> fits =
          meant(cell, [&](const std::string& name) { return pattern.matches_end(name); });
      const auto count = std::count(fits.begin(), fits.end(), true);
      if (count == 0 || cell.experts > 0) {
        continue;
      }
      used = true;
      check<ValueError>(count == std::ssize(fits), kSaved, ": '", text, "' matches ",
                        cell.modules[static_cast<size_t>(std::find(fits.begin(), fits.end(), true) -
                                                         fits.begin())]
                            .name,
                        ", which is one parameter with others of ", cell.path,
                        "; name that to train it whole, or adapt the matrix (target_cells)");
      for (const AdaptedModule& adapted : plan.modules) {
        check<ValueError>(adapted.cell != cell.path, kSaved, ": '", text, "' matches ",
                          adapted.module,
                          ", which has an adapter; a matrix is adapted or trained whole");
      }
      for (const ModelModule& module : cell.modules) {
        for (size_t i = 0; i < module.tensors.size(); ++i) {
          add_whole(module, i, plan);
        }
      }
    }
    check<ValueError>(
        used, kSaved, ": '", text, "' matches nothing of the model, whose parts have names like ",
        some_names(config), ", 'tok_embeddings', '", config.score_head ? "score" : "lm_head", "'");
  }
}

// A bias that is fused in memory is one parameter, which is trained or not.
void add_biases(const std::vector<ModelCell>& cells, AdapterPlan& plan) {
  bool found = false;
  for (const ModelCell& cell : cells) {
    if (cell.experts > 0) {
      continue;  // PEFT has biases of modules in mind, and theirs are parameters
    }
    const ModelModule* without = nullptr;
    bool some = false;
    for (const ModelModule& module : cell.modules) {
      const bool adapted =
          std::any_of(plan.modules.begin(), plan.modules.end(), [&](const AdaptedModule& of) {
            return of.cell == cell.path && of.module == module.name;
          });
      for (size_t i = 0; i < module.tensors.size(); ++i) {
        if (module.tensors[i].ends_with(kBiasEnding)) {
          if (adapted) {
            add_whole(module, i, plan);
          }
          some = some || adapted;
          without = adapted ? without : &module;
        }
      }
    }
    check<ValueError>(!some || without == nullptr, kBias,
                      ": lora_only means a part of the bias of ", cell.path,
                      ", which is one parameter: adapt ", without == nullptr ? "" : without->name,
                      " too (target_cells)");
    found = found || some;
  }
  check<ValueError>(found, kBias, ": is lora_only, but no matrix that has an adapter has a bias");
}

// What PEFT does not do beside parameters, and its files cannot say.
void check_experts(const LoraConfig& lora, const AdapterPlan& plan) {
  for (const AdaptedModule& module : plan.modules) {
    check<ValueError>(module.experts == 0 || !lora.use_dora,
                      "lora_config.use_dora: is True, and adapters beside stacked experts (",
                      module.module, ") have no magnitudes; use False");
    check<ValueError>(module.experts == 0 || lora.lora_dropout == 0,
                      "lora_config.lora_dropout: is ", lora.lora_dropout,
                      ", and adapters beside stacked experts (", module.module,
                      ") have no dropout; use 0");
  }
}

std::string adapter_stem(const std::string& weight) {
  constexpr std::string_view kEnd = ".weight";
  check<ValueError>(weight.ends_with(kEnd), "adapter: '", weight, "' is no weight");
  return weight.substr(0, weight.size() - kEnd.size());
}

// Of "layers.12.attention.wq.weight"; -1 of what belongs to no layer.
int64_t layer_of(const std::string& name) {
  constexpr std::string_view kStem = "layers.";
  int64_t layer = -1;
  if (name.starts_with(kStem)) {
    std::from_chars(name.data() + kStem.size(), name.data() + name.size(), layer);
  }
  return layer;
}

}  // namespace

AdapterPlan plan_adapter(const TransformerConfig& config) {
  AdapterPlan plan;
  if (!config.lora.use_lora) {
    return plan;
  }
  Targets targets(config.lora);
  const std::vector<ModelCell> cells = model_cells(config);
  for (const ModelCell& cell : cells) {
    if (cell.takes_adapter) {
      targets.add_modules(cell, plan.modules);
    } else {
      targets.pass_over(cell);
    }
  }
  for (const Targets::Use& use : targets.patterns()) {
    if (!use.passed_over.empty()) {
      plan.warnings.push_back(concat(kTargets, ": '", use.pattern.text(), "' also matches ",
                                     use.passed_over,
                                     ": norms, embeddings, the head and routers get no adapter; "
                                     "modules_to_save trains them whole"));
    } else if (!use.used) {
      plan.warnings.push_back(concat(kTargets, ": '", use.pattern.text(), "' matches nothing"));
    }
  }
  for (const Targets::Use& use : targets.excluded()) {
    if (!use.used) {
      plan.warnings.push_back(concat(kExcluded, ": '", use.pattern.text(),
                                     "' excludes nothing that would get an adapter"));
    }
  }
  const bool excludes = std::any_of(targets.excluded().begin(), targets.excluded().end(),
                                    [](const Targets::Use& use) { return use.used; });
  check<ValueError>(!plan.modules.empty() || !excludes, kExcluded,
                    ": excludes every module that gets an adapter; leave some");
  check<ValueError>(!plan.modules.empty(), kTargets,
                    ": no module matches; an expression must match a whole name, such as ",
                    some_names(config), ": '.*q_proj' means all layers' queries");
  for (const Targets::Use& use : targets.cells()) {
    check<ValueError>(use.used, kTargets, ": the cell '", use.pattern.text(),
                      "' with a rank or alpha of its own matches no module that the expressions "
                      "choose; names are like ",
                      some_names(config));
  }
  check_experts(config.lora, plan);
  add_saved(config, cells, plan);
  if (config.lora.bias == "lora_only") {
    add_biases(cells, plan);
  }
  return plan;
}

AdapterPlan plan_adapter(const AllConfig& config) { return plan_adapter(config.model_config); }

std::vector<AdaptedModule> adapted_modules(const TransformerConfig& config,
                                           const std::string& weight) {
  std::vector<AdaptedModule> out;
  const int64_t layer = layer_of(weight);
  if (!config.lora.use_lora || layer >= config.num_layers) {
    return out;
  }
  for (const ModelCell& cell : adapted_cells(config, layer)) {
    for (const ModelModule& module : cell.modules) {
      if (std::find(module.weights.begin(), module.weights.end(), weight) != module.weights.end()) {
        Targets(config.lora).add_modules(cell, out);
        return out;
      }
    }
  }
  return out;
}

bool is_adapted_bias(const AdapterPlan& plan, std::string_view logical) {
  if (!logical.ends_with(kBiasEnding)) {
    return false;
  }
  const std::string weight =
      concat(logical.substr(0, logical.size() - kBiasEnding.size()), ".weight");
  return std::any_of(plan.modules.begin(), plan.modules.end(), [&](const AdaptedModule& module) {
    return std::find(module.weights.begin(), module.weights.end(), weight) != module.weights.end();
  });
}

std::string lora_a_name(const AdaptedModule& module, int64_t expert) {
  return (module.experts > 0 ? module_of_expert(module.module, expert) : module.module) +
         ".lora_A.weight";
}
std::string lora_b_name(const std::string& weight) {
  return adapter_stem(weight) + ".lora_B.weight";
}
std::string lora_magnitude_name(const std::string& weight) {
  return adapter_stem(weight) + ".lora_magnitude_vector";
}

}  // namespace tapestry
