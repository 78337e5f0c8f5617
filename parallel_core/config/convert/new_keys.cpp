#include "parallel_core/config/convert/new_keys.h"

#include <algorithm>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/keys.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {
namespace {

using mindformers2::Fate;
using mindformers2::Row;

std::string flag_text(bool value) { return value ? "True" : "False"; }

// The family whose class the model may be; empty: none.
std::string family_of(const AllConfig& config) {
  const TransformerConfig& m = config.model_config;
  if (m.normalization != "RMSNorm" && m.normalization != "FusedRMSNorm") {
    return {};
  }
  if (m.multi_latent_attention) {
    return m.mtp_num_layers <= 1 && m.untie_embeddings_and_output_weights ? "deepseek_v3" : "";
  }
  const bool dense = config.moe_config.num_experts == 1 && m.mtp_num_layers == 0;
  return dense && m.qk_layernorm && !m.layer_types ? "qwen3" : "";
}

class NewKeys {
 public:
  NewKeys(Tree& tree, const AllConfig& config, int64_t ranks)
      : tree_(tree), config_(config), ranks_(ranks), family_(family_of(config)) {}

  void put_all() {
    put_same();
    put_training();
    put_layout();
    put_optimizer();
    put_schedule();
    put_data();
    if (!family_.empty()) {
      put_model();
    }
    if (config_.monitor_config.max_logits_interval) {
      tree_.put("callbacks",
                concat("[{type: MaxLogitsMonitor, step_interval: ",
                       *config_.monitor_config.max_logits_interval, "}]"),
                origin_text(config_, "monitor_config.max_logits_interval"));
    }
  }

 private:
  // Rows whose value is that of a key here.
  void put_same() {
    for (const Row& row : mindformers2::rows()) {
      const std::string_view here = row.here.substr(0, row.here.find('|'));
      const size_t dot = here.find('.');
      const Key* key =
          row.fate == Fate::kSame ? find_key(here.substr(0, dot), here.substr(dot + 1)) : nullptr;
      if (key == nullptr || !is_wanted(row)) {
        continue;
      }
      const Value value = key->field.get(config_);
      if (value.is_null() && (row.initial == "null" || !row.type.ends_with('?'))) {
        continue;
      }
      const std::string text = yaml_of(*key, value);
      const auto accepted = split_text(row.accepted, '|');
      if (accepted.empty() || std::find(accepted.begin(), accepted.end(), text) != accepted.end()) {
        put(mindformers2::path_of(row), text, std::string(here));
      }
    }
  }

  bool is_wanted(const Row& row) const {
    if (row.section == "model") {
      const bool experts = row.here.starts_with("moe_config.");
      return !family_.empty() && !(family_ == "qwen3" && row.qwen3 == "-") &&
             (!experts || config_.moe_config.num_experts > 1);
    }
    if (row.key.starts_with("dataloader.config.")) {
      return config_.dataset_config.data_path.has_value();
    }
    const DatasetConfig& data = config_.dataset_config;
    return row.section != "train_dataset" ||
           (row.key != "dataloader.drop_remainder" && (data.data_path || data.sft_data_path));
  }

  void put(const std::string& path, const std::string& yaml, const std::string& here) {
    tree_.put(path, yaml, origin_text(config_, here));
  }

  void put_training() {
    const TrainingConfig& t = config_.training_config;
    const bool saves = t.save_interval.has_value() || t.save_last;
    put("checkpoint.enable_save", flag_text(saves), "training_config.save_last");
    put("checkpoint.save_path", path_text(t.output_dir + "/checkpoint"),
        "training_config.output_dir");
    if (t.save_interval) {
      put("checkpoint.save_interleaved_steps", concat(*t.save_interval),
          "training_config.save_interval");
    }
    put("checkpoint.no_load_optim", flag_text(!t.resume_training.on),
        "training_config.resume_training");
    put("training.global_batch_size", concat(global_batch_size(config_, ranks_)),
        "dataset_config.micro_batch_num");
    if (config_.optimizer_config.clip_grad > 0) {
      put("training.max_norm", number_text(config_.optimizer_config.clip_grad),
          "optimizer_config.clip_grad");
    }
  }

  void put_layout() {
    const ModelParallelConfig& p = config_.parallel_config;
    put("parallelism.data_parallel_shard", zero_level(config_) == 3 ? "-1" : "1",
        "parallel_config.zero_level");
    if (zero_level(config_) == 3) {
      put("parallelism.reshard_after_forward_policy",
          keeps_gathered_weights(config_) ? "never" : "always", "parallel_config.zero_level");
    }
    put("parallelism.expert_parallel", concat(p.expert_model_parallel_size),
        "parallel_config.expert_model_parallel_size");
    put("parallelism.pipeline_parallel_interleave_num",
        concat(p.virtual_pipeline_model_parallel_size.value_or(1)),
        "parallel_config.virtual_pipeline_model_parallel_size");
    put_stages();
    if (p.recompute_config && p.recompute_config->recompute_layers) {
      const Key* key = find_key("parallel_config", "recompute_config.recompute_layers");
      put("recompute.mode", "full", "parallel_config.recompute_config.recompute_layers");
      put("recompute.full_recompute_layer", yaml_of(*key, key->field.get(config_)),
          "parallel_config.recompute_config.recompute_layers");
    }
  }

  // A text for each rank, with a range of layers for each of its chunks. Without a list the split
  // is that of the schema, which a list below `tapestry` leaves alone.
  void put_stages() {
    const ModelParallelConfig& p = config_.parallel_config;
    if (!p.num_layer_list || p.num_layer_list->empty()) {
      return;
    }
    std::vector<std::string> texts(p.num_layer_list->front().size());
    int64_t next = 0;
    for (const auto& row : *p.num_layer_list) {
      for (size_t rank = 0; rank < row.size() && rank < texts.size(); ++rank) {
        if (row[rank] < 1) {
          return;
        }
        texts[rank] += concat(texts[rank].empty() ? "" : ",", next, "-", next + row[rank] - 1);
        next += row[rank];
      }
    }
    std::string list;
    for (const std::string& text : texts) {
      list += concat(list.empty() ? "[\"" : ", \"", text, "\"");
    }
    put("parallelism.pipeline_parallel_layers_per_stage", list + "]",
        "parallel_config.num_layer_list");
  }

  void put_numbers(const char* path, const char* key) {
    const Key& row = *find_key("optimizer_config", key);
    put(path, yaml_of(row, row.field.get(config_)), concat("optimizer_config.", key));
  }

  void put_optimizer() {
    const std::string& type = config_.optimizer_config.optimizer_type;
    if (type == "AdamW") {
      put_numbers("optimizer.betas", "betas");
      put_numbers("optimizer.eps", "eps");
    } else if (type == "Muon") {
      put_numbers("optimizer.adamw_betas", "betas");
      put_numbers("optimizer.adamw_eps", "eps");
      for (const char* key : {"matched_adamw_rms", "momentum", "nesterov", "ns_steps"}) {
        put_numbers(concat("optimizer.", key).c_str(), key);
      }
      put("optimizer.qk_clip_enabled", flag_text(config_.optimizer_config.qk_clip_enabled),
          "optimizer_config.qk_clip_enabled");
    }
  }

  void put_schedule() {
    const OptimizerConfig& o = config_.optimizer_config;
    const std::string style = o.lr_decay_style.value_or("constant");
    const std::string type = style == "linear"   ? "LinearWithWarmUpLR"
                             : style == "cosine" ? "CosineWithWarmUpLR"
                                                 : "ConstantWarmUpLR";
    put("lr_scheduler.type", type, "optimizer_config.lr_decay_style");
    put("lr_scheduler.learning_rate", number_text(o.learning_rate),
        "optimizer_config.learning_rate");
    if (o.lr_warmup_iters > 0) {
      put("lr_scheduler.warmup_steps", concat(o.lr_warmup_iters),
          "optimizer_config.lr_warmup_iters");
      put("lr_scheduler.warmup_lr_init", number_text(o.lr_warmup_init.value_or(0)),
          "optimizer_config.lr_warmup_init");
    }
    if (style == "cosine") {
      put("lr_scheduler.lr_end", number_text(o.min_lr), "optimizer_config.min_lr");
      if (o.lr_decay_iters) {
        put("lr_scheduler.decay_steps", concat(*o.lr_decay_iters),
            "optimizer_config.lr_decay_iters");
      }
    }
  }

  void put_data() {
    const DatasetConfig& d = config_.dataset_config;
    if (d.data_path) {
      put("train_dataset.dataloader.type", "BlendedMegatronDatasetDataLoader",
          "dataset_config.data_path");
      put("train_dataset.dataloader.config.split", string_text(d.split), "dataset_config.split");
    } else if (d.sft_data_path) {
      const Key& key = *find_key("dataset_config", "sft_data_path");
      put("train_dataset.dataloader.type", "HFDataLoader", "dataset_config.sft_data_path");
      put("train_dataset.dataloader.path", "json", "dataset_config.sft_data_path");
      put("train_dataset.dataloader.data_files", yaml_of(key, key.field.get(config_)),
          "dataset_config.sft_data_path");
      put("train_dataset.dataloader.handler",
          d.sft_packing ? "[{type: AlpacaInstructDataHandler}, {type: PackingHandler}]"
                        : "[{type: AlpacaInstructDataHandler}]",
          "dataset_config.sft_packing");
    }
  }

  void put_model() {
    const TransformerConfig& m = config_.model_config;
    const auto model = [&](const char* key, const std::string& yaml, const char* here) {
      put(concat("model.", key), yaml, here);
    };
    tree_.put("model.model_type", family_);
    model("intermediate_size", concat(m.ffn_hidden_size), "model_config.ffn_hidden_size");
    model("tie_word_embeddings", flag_text(!m.untie_embeddings_and_output_weights),
          "model_config.untie_embeddings_and_output_weights");
    model("softmax_compute_dtype", std::string(name_of(m.softmax_compute_dtype)),
          "model_config.softmax_compute_dtype");
    model("attention_bias", flag_text(m.qkv_has_bias), "model_config.qkv_has_bias");
    if (family_ == "qwen3") {
      model("num_key_value_heads", concat(m.num_query_groups), "model_config.num_query_groups");
      model("head_dim", concat(m.kv_channels.value()), "model_config.kv_channels");
      return;
    }
    model("qk_layernorm", "True", "model_config.multi_latent_attention");
    put_growth();
    const MoEConfig& e = config_.moe_config;
    model("n_routed_experts", e.num_experts > 1 ? concat(e.num_experts) : "null",
          "moe_config.num_experts");
    if (e.num_experts == 1) {
      return;
    }
    model("n_group", concat(e.moe_router_num_groups.value_or(1)),
          "moe_config.moe_router_num_groups");
    model("topk_group", concat(e.moe_router_group_topk.value_or(1)),
          "moe_config.moe_router_group_topk");
    if (e.moe_shared_expert_intermediate_size) {
      model("moe_shared_expert_intermediate_size", concat(*e.moe_shared_expert_intermediate_size),
            "moe_config.moe_shared_expert_intermediate_size");
    } else {
      model("n_shared_experts", "0", "moe_config.shared_expert_num");
    }
    model("moe_router_enable_expert_bias", flag_text(e.moe_router_enable_expert_bias),
          "moe_config.moe_router_enable_expert_bias");
    model("moe_router_bias_update_rate", number_text(e.moe_router_bias_update_rate),
          "moe_config.moe_router_bias_update_rate");
    if (e.moe_router_load_balancing_type != "none" && e.moe_aux_loss_coeff > 0) {
      model("moe_router_load_balancing_type", e.moe_router_load_balancing_type,
            "moe_config.moe_router_load_balancing_type");
      model("moe_aux_loss_coeff", number_text(e.moe_aux_loss_coeff),
            "moe_config.moe_aux_loss_coeff");
    }
    if (m.mtp_num_layers > 0) {
      model("mtp_loss_scaling_factor", number_text(m.mtp_loss_scaling_factor),
            "model_config.mtp_loss_scaling_factor");
    }
  }

  void put_growth() {
    const RotaryConfig& rotary = config_.model_config.rotary_config;
    if (rotary.rope_type != "yarn") {
      put("model.rotary_scaling_factor", "1", "model_config.rotary_config.rope_type");
      return;
    }
    const std::string prefix = "model_config.rotary_config.";
    put("model.position_embedding_type", "yarn", prefix + "rope_type");
    put("model.rotary_scaling_factor", number_text(rotary.rope_scaling_factor),
        prefix + "rope_scaling_factor");
    put("model.max_position_embeddings", concat(rotary.original_max_position_embeddings),
        prefix + "original_max_position_embeddings");
    put("model.beta_fast", number_text(rotary.beta_fast), prefix + "beta_fast");
    put("model.beta_slow", number_text(rotary.beta_slow), prefix + "beta_slow");
    if (rotary.mscale && rotary.mscale_all_dim) {
      put("model.mscale", number_text(*rotary.mscale), prefix + "mscale");
      put("model.mscale_all_dim", number_text(*rotary.mscale_all_dim), prefix + "mscale_all_dim");
    }
  }

  Tree& tree_;
  const AllConfig& config_;
  int64_t ranks_;
  std::string family_;
};

}  // namespace

void put_new_keys(Tree& tree, const AllConfig& config, int64_t data_parallel_size) {
  NewKeys(tree, config, data_parallel_size).put_all();
}

}  // namespace tapestry::config
