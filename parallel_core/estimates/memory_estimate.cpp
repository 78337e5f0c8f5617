#include "parallel_core/estimates/memory_estimate.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "parallel_core/config/model_matrices.h"
#include "parallel_core/estimates/stage_estimate.h"
#include "parallel_core/estimates/state_estimate.h"

namespace tapestry {

double worst_expert_load(const AllConfig& config) {
  const MoEConfig& moe = config.model_config.moe;
  const int64_t ranks = std::max<int64_t>(config.parallel_config.expert_model_parallel_size, 1);
  if (moe.num_experts <= 1 || ranks == 1) {
    return 1;
  }
  // A token chooses an expert once, so of a rank with few experts not all of its choices.
  const int64_t most = std::min(moe.moe_router_topk, moe.num_experts / ranks);
  const double load = static_cast<double>(ranks * most) / static_cast<double>(moe.moe_router_topk);
  return moe.moe_expert_capacity_factor
             ? std::min(load, std::max(1.0, *moe.moe_expert_capacity_factor))
             : load;
}

int64_t MemoryEstimate::total() const {
  double sum = 0;
  for (const int64_t kind : {parameters, weight_copies, gradients, optimizer, activations, logits,
                             head, workspace, snapshot, unused, process, unbalanced}) {
    sum += static_cast<double>(kind);
  }
  return bytes_of(sum - static_cast<double>(not_at_once));
}

int64_t MemoryEstimate::peak() const { return std::max(total(), start); }

MemoryEstimate estimate_memory(const AllConfig& config, int64_t data_parallel_size) {
  const int64_t layers = config.model_config.num_layers;
  parameter_count(config.model_config);  // throws for numbers that are out of all bounds
  const auto table = layer_ranges(layers, config.parallel_config);
  MemoryEstimate largest;
  const int stages = static_cast<int>(config.parallel_config.pipeline_model_parallel_size);
  for (int rank = 0; rank < stages; ++rank) {
    PipelineStage stage{.rank = rank, .size = stages, .chunks = {}};
    for (const auto& row : table) {
      stage.chunks.push_back(row[static_cast<size_t>(rank)]);
    }
    MemoryEstimate estimate = estimate_stage(config, stage, data_parallel_size, 1);
    if (const double load = worst_expert_load(config); load > 1) {
      const MemoryEstimate worst = estimate_stage(config, stage, data_parallel_size, load);
      estimate.unbalanced = std::max<int64_t>(0, worst.total() - estimate.total());
    }
    if (rank == 0 || estimate.total() > largest.total()) {
      largest = std::move(estimate);
    }
  }
  return largest;
}

std::string size_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  while (size >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", size, kUnits[unit]);
  return text.data();
}

namespace {

// The settings of `estimate.savings` as lines; empty if there are none.
std::string savings_text(const MemoryEstimate& estimate) {
  std::string text;
  for (const MemoryEstimate::Saving& saving : estimate.savings) {
    text += concat("\n  ", saving.setting, " (", size_text(saving.bytes), " less)");
  }
  return text.empty() ? text : "\nThese need less for nearly the same training:" + text;
}

// Of what stands above, which is the most of each kind at any time.
std::string at_once_text(int64_t less) {
  return less > 0 ? concat("\nnever at once: ", size_text(less), " less")
                  : concat("\nat other times: ", size_text(-less), " more");
}

}  // namespace

std::string memory_text(const MemoryEstimate& estimate) {
  std::string text;
  if (estimate.stages > 1) {
    text = concat("pipeline stage ", estimate.stage, " of ", estimate.stages,
                  ", which needs the most:\n");
  }
  text += "parameters (" + std::to_string(estimate.parameter_count) +
          (estimate.expert_parameter_count > 0
               ? concat(", of experts ", estimate.expert_parameter_count)
               : std::string()) +
          "): " + size_text(estimate.parameters) + "\n";
  if (estimate.weight_copies > 0) {
    text += "16-bit copies of weights: " + size_text(estimate.weight_copies) + "\n";
  }
  return text + "gradients: " + size_text(estimate.gradients) +
         "\noptimizer state: " + size_text(estimate.optimizer) +
         (estimate.in_flight > 1
              ? concat("\nactivations of ", estimate.in_flight, " passes in flight: ")
              : std::string("\nactivations of one micro-batch: ")) +
         size_text(estimate.activations) +
         (estimate.recompute_flops > 0 || estimate.recompute_saved > 0
              ? concat(" (recomputation spares ", size_text(estimate.recompute_saved),
                       " of each micro-batch)")
              : std::string()) +
         "\nlogits: " + size_text(estimate.logits) +
         (estimate.head > 0 ? "\ngradients made with the loss: " + size_text(estimate.head)
                            : std::string()) +
         "\nworkspace: " + size_text(estimate.workspace) +
         (estimate.not_at_once != 0 ? at_once_text(estimate.not_at_once) : std::string()) +
         "\nunused, between blocks, at most: " + size_text(estimate.unused) +
         "\nprogram, libraries, messages, files: " + size_text(estimate.process) +
         (estimate.snapshot > 0 ? "\ncopy for async_save: " + size_text(estimate.snapshot)
                                : std::string()) +
         (estimate.unbalanced > 0
              ? concat("\nmore, where one rank's experts get as many tokens as they can: ",
                       size_text(estimate.unbalanced))
              : std::string()) +
         "\ntotal: " + size_text(estimate.total()) +
         (estimate.start > estimate.total()
              ? "\nat the start, with all weights in float32: " + size_text(estimate.start)
              : std::string());
}

void check_fits(const MemoryEstimate& estimate, int64_t available, const MemoryShare& share) {
  check<ValueError>(
      estimate.peak() <= available,
      share.ranks > 1 ? concat("one of ", share.ranks, " ranks") : "this configuration",
      " needs about ", size_text(estimate.peak()), " of memory, but ", size_text(available),
      " are available",
      share.ranks_on_host > 1
          ? concat(" to it, its share of ", size_text(available * share.ranks_on_host), " for ",
                   share.ranks_on_host, " ranks on this machine")
          : std::string(),
      ":\n", memory_text(estimate), share.more, "\nWhat would help: ",
      estimate.activations + estimate.logits + estimate.workspace > estimate.total() / 2
          ? "a smaller dataset_config.batch_size (with more micro_batch_num) or "
            "model_config.seq_length"
          : "fewer model_config.num_layers or a smaller hidden_size and ffn_hidden_size",
      ", a machine with more memory, or a smaller preset: try "
      "examples/gpt/pretrain_gpt_tiny.yaml",
      estimate.recompute_could_save > 0
          ? concat("\nThe same training, a quarter slower: recompute_config: True (",
                   size_text(estimate.recompute_could_save), " less)")
          : std::string(),
      savings_text(estimate));
}

}  // namespace tapestry
