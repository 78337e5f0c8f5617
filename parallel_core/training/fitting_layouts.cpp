#include "parallel_core/training/fitting_layouts.h"

#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/training/ranks/initialize_ranks.h"

namespace tapestry {
namespace fitting_layouts_file {
namespace {

constexpr int64_t kMostRanksHere = 16;
constexpr int64_t kMostHosts = 128;
constexpr size_t kMostShown = 4;

struct Sizes {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t data = 1;
  std::optional<std::string> zero_level = {};

  int64_t ranks() const { return tensor * pipeline * data; }
};

// What a user may choose between, of so many ranks: the first of each that fits is shown.
std::vector<std::vector<Sizes>> choices(int64_t ranks) {
  if (ranks == 1) {
    return {{Sizes{}}};
  }
  std::vector<std::vector<Sizes>> all = {{{.data = ranks},
                                          {.data = ranks, .zero_level = "z1"},
                                          {.data = ranks, .zero_level = "z2"},
                                          {.data = ranks, .zero_level = "z3"}},
                                         {{.pipeline = ranks}},
                                         {{.tensor = ranks}},
                                         {}};
  for (int64_t tensor = 2; tensor < ranks; tensor *= 2) {
    all.back().push_back({.tensor = tensor, .pipeline = ranks / tensor});
  }
  return all;
}

// The run in another layout; none where it cannot have it, or not with its batch of a step.
std::optional<AllConfig> in_layout(const AllConfig& config,
                                   const Sizes& sizes,
                                   int64_t global_batch,
                                   bool recomputes) {
  const int64_t rows = config.dataset_config.batch_size * sizes.data;
  if (global_batch % rows != 0) {
    return std::nullopt;
  }
  AllConfig made = config;
  made.dataset_config.micro_batch_num = global_batch / rows;
  made.training_config.gradient_accumulation_steps = TrainingConfig().gradient_accumulation_steps;
  ModelParallelConfig& p = made.parallel_config;
  p.tensor_model_parallel_size = sizes.tensor;
  p.pipeline_model_parallel_size = sizes.pipeline;
  p.context_parallel_size = 1;
  p.data_parallel_size.reset();
  p.expert_model_parallel_size =
      std::gcd(config.parallel_config.expert_model_parallel_size, sizes.data);
  p.expert_tensor_parallel_size.reset();
  p.virtual_pipeline_model_parallel_size.reset();
  p.num_layer_list.reset();
  p.offset.reset();
  p.sequence_parallel = p.sequence_parallel && sizes.tensor > 1;
  if (sizes.zero_level) {
    p.zero_level = sizes.zero_level;
  }
  if (recomputes) {
    p.recompute_config.emplace().recompute.value = true;
  }
  try {
    resolve(made);
    check_expert_ranks(made, static_cast<int>(sizes.ranks()));
  } catch (const Error&) {
    return std::nullopt;
  }
  return made;
}

std::vector<std::string> settings_of(const AllConfig& made, const AllConfig& config) {
  std::vector<std::string> settings;
  const auto add = [&](std::string_view key, const auto& value, const auto& was) {
    if (value != was) {
      settings.push_back(concat(key, "=", value));
    }
  };
  const ModelParallelConfig& p = made.parallel_config;
  const ModelParallelConfig& was = config.parallel_config;
  add("parallel_config.tensor_model_parallel_size", p.tensor_model_parallel_size,
      was.tensor_model_parallel_size);
  add("parallel_config.pipeline_model_parallel_size", p.pipeline_model_parallel_size,
      was.pipeline_model_parallel_size);
  add("parallel_config.context_parallel_size", p.context_parallel_size, was.context_parallel_size);
  add("parallel_config.expert_model_parallel_size", p.expert_model_parallel_size,
      was.expert_model_parallel_size);
  add("parallel_config.zero_level", p.zero_level.value_or("null"), was.zero_level.value_or("null"));
  const auto unset = [&](std::string_view key, bool is_set) {
    if (is_set) {
      settings.push_back(concat(key, "=null"));
    }
  };
  unset("parallel_config.virtual_pipeline_model_parallel_size",
        was.virtual_pipeline_model_parallel_size.value_or(1) > 1);
  unset("parallel_config.num_layer_list", was.num_layer_list.has_value());
  unset("parallel_config.offset", was.offset.has_value());
  unset("parallel_config.data_parallel_size", was.data_parallel_size.has_value());
  if (p.recompute_config != was.recompute_config) {
    settings.emplace_back("recompute_config=True");
  }
  add("dataset_config.micro_batch_num", made.dataset_config.micro_batch_num,
      config.dataset_config.micro_batch_num);
  return settings;
}

class Search {
 public:
  Search(const AllConfig& config, const RankMemory& memory)
      : config_(config),
        memory_(memory),
        global_batch_(global_batch_size(config, memory.data_parallel_size)) {}

  std::vector<FittingLayout> run() {
    for (const bool recomputes : {false, true}) {
      for (const bool hosts : {false, true}) {
        // One rank alone is worth to know of, and is no answer for who wants several.
        bool several = false;
        for (int64_t ranks = 1; ranks <= (hosts ? kMostHosts : kMostRanksHere) && !several;
             ranks *= 2) {
          several = add(ranks, hosts, recomputes) && ranks > 1;
        }
        if (!found_.empty()) {
          return std::move(found_);
        }
      }
    }
    return {};
  }

 private:
  bool add(int64_t ranks, bool hosts, bool recomputes) {
    const int64_t machine = memory_.available * memory_.ranks_on_host;
    const int64_t room = hosts ? machine : machine / ranks;
    const size_t before = found_.size();
    for (const std::vector<Sizes>& choice : choices(ranks)) {
      for (const Sizes& sizes : choice) {
        const auto made = in_layout(config_, sizes, global_batch_, recomputes);
        if (!made || found_.size() == kMostShown) {
          continue;
        }
        const int64_t bytes = bytes_of(*made, sizes.data);
        if (bytes >= 0 && bytes <= room) {
          found_.push_back({ranks, hosts, settings_of(*made, config_), bytes, room});
          break;
        }
      }
    }
    return found_.size() > before;
  }

  // -1 for a layout that the layers cannot be divided over.
  static int64_t bytes_of(const AllConfig& config, int64_t data_parallel_size) {
    try {
      return estimate_memory(config, data_parallel_size).peak();
    } catch (const ValueError&) {
      return -1;
    }
  }

  const AllConfig& config_;
  const RankMemory& memory_;
  int64_t global_batch_;
  std::vector<FittingLayout> found_;
};

std::string text_of(const FittingLayout& layout) {
  std::string settings;
  for (const std::string& setting : layout.settings) {
    settings += concat(" --set ", setting);
  }
  return concat("\n  RANKS=", layout.ranks, settings, ": about ", size_text(layout.bytes),
                layout.ranks > 1 ? " a rank" : "", ", ", size_text(layout.available),
                " are available");
}

std::string layouts_text(const std::vector<FittingLayout>& layouts) {
  if (layouts.empty()) {
    return concat("\nNo layout of up to ", kMostHosts,
                  " machines like this one fits, a rank on each, not even with all layers "
                  "recomputed.");
  }
  std::string text =
      layouts.front().one_on_each_host
          ? "\nNo layout fits on this machine. These would on several like it, a rank on each "
            "(HOSTFILE of pretrain_gpt.sh):"
          : "\nThese layouts would fit on this machine, with the same batch of a step:";
  for (const FittingLayout& layout : layouts) {
    text += text_of(layout);
  }
  return text;
}

}  // namespace
}  // namespace fitting_layouts_file

std::vector<FittingLayout> fitting_layouts(const AllConfig& config, const RankMemory& memory) {
  return fitting_layouts_file::Search(config, memory).run();
}

void check_memory(const AllConfig& config,
                  const MemoryEstimate& estimate,
                  const RankMemory& memory) {
  if (estimate.peak() <= memory.available) {
    return;
  }
  check_fits(estimate, memory.available,
             {.ranks = memory.ranks,
              .ranks_on_host = memory.ranks_on_host,
              .more = fitting_layouts_file::layouts_text(fitting_layouts(config, memory))});
}

}  // namespace tapestry
