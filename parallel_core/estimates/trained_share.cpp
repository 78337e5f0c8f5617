#include "parallel_core/estimates/trained_share.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <set>
#include <string_view>

#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/lora/adapter_plan.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

// Of "layers.12.attention.wq"; -1 outside of layers.
int64_t layer_number(std::string_view name) {
  constexpr std::string_view kStem = "layers.";
  int64_t layer = -1;
  if (name.starts_with(kStem)) {
    std::from_chars(name.data() + kStem.size(), name.data() + name.size(), layer);
  }
  return layer;
}

bool holds_tensor(const PipelineStage& stage, std::string_view name) {
  const int64_t layer = layer_number(name);
  if (layer < 0) {
    const bool first = name.starts_with("tok_embeddings") || name.starts_with("pos_embeddings");
    return first ? stage.pre_process() : stage.post_process();
  }
  for (const LayerRange& range : stage.chunks) {
    if (layer >= range.first && layer < range.first + range.count) {
      return true;
    }
  }
  return false;
}

// Tensors that every tensor-parallel rank has whole.
bool is_replicated(std::string_view name) {
  return name.find("norm") != std::string_view::npos ||
         name.find("router") != std::string_view::npos ||
         name.find("expert_gate") != std::string_view::npos || name.starts_with("pos_embeddings");
}

}  // namespace

TrainedShare trained_share(const TransformerConfig& config,
                           const PipelineStage& stage,
                           int64_t tp) {
  TrainedShare share;
  if (!config.lora.use_lora) {
    return share;
  }
  const AdapterPlan plan = plan_adapter(config);
  const auto divided = static_cast<double>(tp > 0 ? tp : 1);
  std::set<int64_t> attention;
  std::set<int64_t> mlp;
  for (const AdaptedModule& module : plan.modules) {
    if (!holds_tensor(stage, module.module)) {
      continue;
    }
    const bool by_rows = module.cell.ends_with("qkv_proj") || module.cell.ends_with("mapping");
    (module.cell.ends_with("qkv_proj") ? attention : mlp).insert(layer_number(module.module));
    const auto rank = static_cast<double>(module.rank);
    const double in = static_cast<double>(module.in_features) / (by_rows ? 1 : divided);
    const double out = static_cast<double>(module.out_features) / (by_rows ? divided : 1);
    share.adapters += rank * (in + out) + (config.lora.use_dora ? out : 0);
    share.ranks += rank;
  }
  for (size_t i = 0; i < plan.saved_modules.size(); ++i) {
    const std::string& name = plan.saved_modules[i];
    if (holds_tensor(stage, name)) {
      share.saved += static_cast<double>(plan.saved_sizes[i]) / (is_replicated(name) ? 1 : divided);
    }
  }
  for (const LayerRange& range : stage.chunks) {
    for (int64_t layer = range.first; layer < range.first + range.count; ++layer) {
      share.unread_attention_inputs += attention.contains(layer) ? 0 : 1;
      share.unread_mlp_inputs += mlp.contains(layer) ? 0 : 1;
    }
  }
  return share;
}

TrainedShare trained_share(const TransformerConfig& config) {
  return trained_share(config, whole_model(config), 1);
}

std::string trained_share_text(const TransformerConfig& config) {
  const TrainedShare share = trained_share(config);
  const double base = static_cast<double>(parameter_count(config));
  std::array<char, 32> percent{};
  std::snprintf(percent.data(), percent.size(), "%.3g",
                100 * share.trained() / (base + share.adapters));
  return concat(with_thousands(static_cast<int64_t>(share.trained())), " of ",
                with_thousands(static_cast<int64_t>(base + share.adapters)),
                " parameters are trained (", percent.data(), " %): adapters beside ",
                plan_adapter(config).modules.size(), " matrices",
                share.saved > 0 ? ", and tensors of the base" : "");
}

}  // namespace tapestry
