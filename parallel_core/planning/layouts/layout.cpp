#include "parallel_core/planning/layouts/layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/tensor/error.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/layer_split.h"
#include "parallel_core/training/ranks/initialize_ranks.h"

namespace tapestry::planning {

namespace {

std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      all.push_back(divisor);
    }
  }
  return all;
}

std::string split_text(const LayerTable& table) {
  std::string text;
  for (const std::vector<int64_t>& row : table) {
    text += text.empty() ? "" : " / ";
    for (size_t i = 0; i < row.size(); ++i) {
      text += concat(i == 0 ? "" : ", ", row[i]);
    }
  }
  return text;
}

// Rows of a micro-batch share what these compute from all of them: a mean over the tokens that
// count, statistics of a router, an expert's capacity.
bool depends_on_micro_batch(const AllConfig& config) {
  if (config.training_config.exact) {
    return false;
  }
  const DatasetConfig& data = config.dataset_config;
  const bool masks = data.eod_mask_loss || data.sft_data_path || data.step_data_dir ||
                     data.data_source || config.post_training_config.task;
  const MoEConfig& moe = config.model_config.moe;
  const bool routes =
      moe.num_experts > 1 && (!moe.balance_losses.empty() || moe.moe_z_loss_coeff ||
                              moe.moe_expert_capacity_factor || moe.moe_router_enable_expert_bias);
  return (masks && !config.training_config.calculate_per_token_loss) || routes;
}

void set_sizes(ModelParallelConfig& p, const LayoutChoice& choice, bool has_experts) {
  p.tensor_model_parallel_size = choice.tensor;
  p.pipeline_model_parallel_size = choice.pipeline;
  p.context_parallel_size = choice.context;
  p.data_parallel_size = choice.data;
  p.expert_model_parallel_size = choice.expert;
  p.expert_tensor_parallel_size.reset();
  if (has_experts && choice.expert_tensor > 0) {
    p.expert_tensor_parallel_size = choice.expert_tensor;
  }
  p.virtual_pipeline_model_parallel_size.reset();
  if (choice.chunks > 1) {
    p.virtual_pipeline_model_parallel_size = choice.chunks;
  }
  p.num_layer_list.reset();
  if (!choice.layers.empty()) {
    p.num_layer_list = LayerTable{choice.layers};
  }
  p.offset.reset();
  p.standalone_embedding_stage = false;
  p.sequence_parallel = choice.sequence_parallel;
}

void set_sharing(AllConfig& made, const LayoutChoice& choice) {
  made.training_config.use_distributed_optimizer = false;
  made.parallel_config.zero_level.reset();
  if (choice.zero_level > 0) {
    made.parallel_config.zero_level = concat("z", choice.zero_level);
  } else {
    made.optimizer_config.overlap_param_gather = false;
  }
  if (choice.overlap) {
    made.training_config.wrap_with_ddp = true;
    made.origins.erase("training_config.wrap_with_ddp");  // what was derived would be so again
    made.training_config.overlap_grad_reduce = true;
    made.optimizer_config.overlap_param_gather = choice.zero_level > 0;
  }
  if (choice.recompute) {
    made.parallel_config.recompute_config.emplace().recompute.value = true;
  }
}

}  // namespace

int64_t Layout::ranks_of_stage() const {
  const ModelParallelConfig& p = config.parallel_config;
  return p.tensor_model_parallel_size * p.context_parallel_size * data_parallel_size;
}

int64_t Layout::ranks() const {
  return ranks_of_stage() * config.parallel_config.pipeline_model_parallel_size;
}

std::string Layout::text() const {
  const ModelParallelConfig& p = config.parallel_config;
  std::string text;
  const auto add = [&](const auto&... parts) {
    text += concat(text.empty() ? "" : ", ", parts...);
  };
  const auto add_size = [&](const char* name, int64_t size) {
    if (size > 1) {
      add(name, " ", size);
    }
  };
  add_size("tp", p.tensor_model_parallel_size);
  if (p.sequence_parallel && p.tensor_model_parallel_size > 1) {
    add("sp");
  }
  if (p.pipeline_model_parallel_size > 1) {
    const std::string split = split_text(layers_per_chunk(config.model_config.num_layers, p));
    add("pp ", p.pipeline_model_parallel_size, split.size() <= 24 ? concat(" (", split, ")") : "");
  }
  add_size("vpp", p.virtual_pipeline_model_parallel_size.value_or(1));
  add_size("cp", p.context_parallel_size);
  add_size("dp", data_parallel_size);
  add_size("ep", p.expert_model_parallel_size);
  if (p.expert_tensor_parallel_size) {
    add("etp ", *p.expert_tensor_parallel_size);
  }
  if (const int level = zero_level(config); level > 0 && ranks_of_stage() > 1) {
    add("z", level);
  }
  if (p.recompute_config && p.recompute_config->recompute.value == config::Value(true)) {
    add("recompute");
  }
  return concat(text.empty() ? "one rank" : text, "; ", config.dataset_config.batch_size, " x ",
                config.dataset_config.micro_batch_num);
}

KeptBatch kept_batch(const AllConfig& config, int64_t data_parallel_size) {
  return {.sequences = global_batch_size(config, data_parallel_size),
          .micro_batch = depends_on_micro_batch(config) ? config.dataset_config.batch_size : 0};
}

LayoutOrRefusal make_layout(const AllConfig& config,
                            const LayoutChoice& choice,
                            const KeptBatch& batch) {
  LayoutOrRefusal made{.layout = {config, choice.data}, .refusal = {}};
  AllConfig& c = made.layout.config;
  c.dataset_config.batch_size = choice.micro_batch;
  c.dataset_config.micro_batch_num = batch.sequences / (choice.micro_batch * choice.data);
  c.training_config.gradient_accumulation_steps = TrainingConfig().gradient_accumulation_steps;
  set_sizes(c.parallel_config, choice, c.model_config.moe.num_experts > 1);
  set_sharing(c, choice);
  try {
    resolve(c);
    require_supported(c);
    const auto ranks = static_cast<int>(choice.ranks());
    check_world_size(c.parallel_config, ranks);
    check_expert_ranks(c, ranks);
    check_rampup(c, choice.data);
    layer_ranges(c.model_config.num_layers, c.parallel_config);
  } catch (const Error& error) {
    made.refusal = error.what();
    made.refusal.resize(std::min(made.refusal.find('\n'), made.refusal.size()));
  }
  return made;
}

namespace {

// One kind of parallelism after the other, each over what the ones before have left.
class Choices {
 public:
  Choices(const AllConfig& config, int64_t ranks, int64_t hosts, const KeptBatch& batch)
      : model_(config.model_config), ranks_(ranks), on_host_(ranks / hosts), batch_(batch) {}

  std::vector<LayoutChoice> run() {
    for (const int64_t tensor : divisors_of(ranks_)) {
      if (tensor > on_host_ || model_.num_attention_heads % tensor != 0) {
        continue;
      }
      for (const int64_t pipeline : divisors_of(ranks_ / tensor)) {
        for (const int64_t context : divisors_of(ranks_ / tensor / pipeline)) {
          if (pipeline <= model_.num_layers && tensor * context <= on_host_ &&
              (context == 1 || model_.seq_length % (2 * context) == 0)) {
            choice_ = {.tensor = tensor,
                       .pipeline = pipeline,
                       .context = context,
                       .data = ranks_ / tensor / pipeline / context};
            add_experts();
          }
        }
      }
    }
    return std::move(all_);
  }

 private:
  void add_experts() {
    if (batch_.sequences % choice_.data != 0) {
      return;
    }
    const int64_t experts = model_.moe.num_experts;
    if (experts <= 1) {
      add_micro_batches();
      return;
    }
    const int64_t stage = choice_.tensor * choice_.context * choice_.data;
    for (const int64_t expert : divisors_of(std::gcd(stage, experts))) {
      for (const int64_t slices : {choice_.tensor, int64_t{1}}) {
        if (stage % (expert * slices) == 0 &&
            (slices > 1 || choice_.tensor == slices || expert > 1)) {
          choice_.expert = expert;
          choice_.expert_tensor = slices == choice_.tensor ? 0 : slices;
          add_micro_batches();
        }
        if (choice_.tensor == 1) {
          break;
        }
      }
    }
  }

  void add_micro_batches() {
    const int64_t rows = batch_.sequences / choice_.data;
    for (const int64_t micro_batch : divisors_of(rows)) {
      if (batch_.micro_batch != 0 && micro_batch != batch_.micro_batch) {
        continue;
      }
      choice_.micro_batch = micro_batch;
      add_chunks(rows / micro_batch);
    }
  }

  void add_chunks(int64_t micro_batches) {
    for (const int64_t chunks : {1, 2, 4}) {
      const int64_t parts = choice_.pipeline * chunks;
      if (chunks > 1 && (choice_.pipeline == 1 || parts > model_.num_layers ||
                         micro_batches < choice_.pipeline)) {
        break;
      }
      choice_.chunks = chunks;
      for (const bool sequence : {false, true}) {
        if (!sequence || choice_.tensor > 1) {
          choice_.sequence_parallel = sequence;
          all_.push_back(choice_);
        }
      }
    }
  }

  const TransformerConfig& model_;
  int64_t ranks_;
  int64_t on_host_;
  KeptBatch batch_;
  LayoutChoice choice_;
  std::vector<LayoutChoice> all_;
};

}  // namespace

std::vector<LayoutChoice> all_choices(const AllConfig& config,
                                      int64_t ranks,
                                      int64_t hosts,
                                      const KeptBatch& batch) {
  return Choices(config, ranks, hosts, batch).run();
}

std::vector<int64_t> balanced_layers(int64_t layers, int64_t stages, double head) {
  // As many layers for the last stage as make it no slower than the others.
  const double share = (static_cast<double>(layers) + head) / static_cast<double>(stages);
  const auto last = std::clamp<int64_t>(static_cast<int64_t>(std::llround(share - head)), 0,
                                        layers - (stages - 1));
  std::vector<int64_t> split(static_cast<size_t>(stages), 0);
  const int64_t others = layers - last;
  for (int64_t stage = 0; stage + 1 < stages; ++stage) {
    split[static_cast<size_t>(stage)] =
        others / (stages - 1) + (stage >= stages - 1 - others % (stages - 1) ? 1 : 0);
  }
  split.back() = last;
  ModelParallelConfig even;
  even.pipeline_model_parallel_size = stages;
  return layers_per_chunk(layers, even) == LayerTable{split} ? std::vector<int64_t>{} : split;
}

}  // namespace tapestry::planning
