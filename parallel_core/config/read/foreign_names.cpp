#include "parallel_core/config/read/foreign_names.h"

#include <algorithm>
#include <array>

#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

constexpr std::string_view kRanks =
    "the number of data-parallel ranks follows from those that are started: all ranks / (tensor x "
    "pipeline x context parallel sizes); start them with RANKS=N pretrain_gpt.sh or mpirun -n N";
constexpr std::string_view kMetrics = "every step is in metrics.jsonl of the output folder";
constexpr std::string_view kEager = "operations run eagerly";
constexpr std::string_view kProcessor = "training runs on the processor";
constexpr std::string_view kOpposite = "with the opposite value";
constexpr std::string_view kBatch =
    "sequences of one micro-batch; global batch = batch_size x micro_batch_num x data-parallel "
    "ranks";
constexpr std::string_view kWholeBatch =
    "global batch / (batch_size x data-parallel ranks) micro-batches";
constexpr std::string_view kEveryStep = "in steps, null for none";

constexpr std::string_view kKeyTp = "parallel_config.tensor_model_parallel_size";
constexpr std::string_view kKeyPp = "parallel_config.pipeline_model_parallel_size";
constexpr std::string_view kKeyCp = "parallel_config.context_parallel_size";
constexpr std::string_view kKeyEp = "parallel_config.expert_model_parallel_size";
constexpr std::string_view kKeyEtp = "parallel_config.expert_tensor_parallel_size";
constexpr std::string_view kKeyVpp = "parallel_config.virtual_pipeline_model_parallel_size";
constexpr std::string_view kKeyLr = "optimizer_config.learning_rate";
constexpr std::string_view kKeyIters = "training_config.training_iters";
constexpr std::string_view kKeyDropouts =
    "model_config.hidden_dropout|model_config.attention_dropout";
constexpr std::string_view kKeyBiases =
    "model_config.qkv_has_bias|model_config.out_proj_has_bias|model_config.mlp_has_bias";
constexpr std::string_view kKeyRecompute = "parallel_config.recompute_config";

constexpr std::string_view kFolders =
    "a checkpoint is a folder checkpoint/step_NNNNNNNN that is whole whatever the layout";
constexpr std::string_view kOwnRows = "every rank reads its own rows";

using Use = ForeignName::Use;

constexpr ForeignName kNames[] = {
    // the model: nanoGPT, GPT-2, Llama and their like
    {"n_layer", "model_config.num_layers"},
    {"n_layers", "model_config.num_layers"},
    {"num_hidden_layers", "model_config.num_layers"},
    {"depth", "model_config.num_layers"},
    {"n_head", "model_config.num_attention_heads"},
    {"n_heads", "model_config.num_attention_heads"},
    {"num_heads", "model_config.num_attention_heads"},
    {"n_kv_heads", "model_config.num_query_groups", "with group_query_attention: True"},
    {"num_key_value_heads", "model_config.num_query_groups", "with group_query_attention: True"},
    {"n_embd", "model_config.hidden_size"},
    {"d_model", "model_config.hidden_size"},
    {"dim", "model_config.hidden_size"},
    {"n_inner", "model_config.ffn_hidden_size"},
    {"d_ff", "model_config.ffn_hidden_size"},
    {"intermediate_size", "model_config.ffn_hidden_size"},
    {"multiple_of", "model_config.ffn_hidden_size", "the width itself"},
    {"block_size", "model_config.seq_length"},
    {"context_length", "model_config.seq_length"},
    {"max_seq_len", "model_config.seq_length"},
    {"max_seq_length", "model_config.seq_length"},
    {"seq_len", "model_config.seq_length"},
    {"n_ctx", "model_config.seq_length"},
    {"n_positions", "model_config.max_position_embeddings"},
    {"max_position_embedding", "model_config.max_position_embeddings"},
    {"head_dim", "model_config.kv_channels"},
    {"dropout", kKeyDropouts},
    {"resid_pdrop", "model_config.hidden_dropout"},
    {"embd_pdrop", "model_config.hidden_dropout"},
    {"hidden_dropout_prob", "model_config.hidden_dropout"},
    {"hidden_dropout_rate", "model_config.hidden_dropout"},
    {"attn_pdrop", "model_config.attention_dropout"},
    {"attention_probs_dropout_prob", "model_config.attention_dropout"},
    {"attention_dropout_rate", "model_config.attention_dropout"},
    {"bias", kKeyBiases},
    {"attention_bias", "model_config.qkv_has_bias|model_config.out_proj_has_bias"},
    {"mlp_bias", "model_config.mlp_has_bias"},
    {"activation", "model_config.hidden_act"},
    {"activation_function", "model_config.hidden_act"},
    {"rms_norm_eps", "model_config.norm_epsilon", "with normalization: RMSNorm"},
    {"layer_norm_epsilon", "model_config.norm_epsilon"},
    {"layer_norm_eps", "model_config.norm_epsilon"},
    {"layernorm_epsilon", "model_config.norm_epsilon"},
    {"norm_eps", "model_config.norm_epsilon"},
    {"rope_theta", "model_config.rotary_config.rotary_base"},
    {"theta", "model_config.rotary_config.rotary_base"},
    {"partial_rotary_factor", "model_config.rotary_config.rotary_percent"},
    {"rope_scaling",
     "model_config.rotary_config.seq_len_interpolation_factor|model_config.rotary_config.rope_"
     "type"},
    {"tie_word_embeddings", "model_config.untie_embeddings_and_output_weights", kOpposite},
    {"share_embeddings_and_output_weights", "model_config.untie_embeddings_and_output_weights",
     kOpposite},
    {"initializer_range", "model_config.init_method_std"},
    {"sliding_window", "model_config.window_size", "[W - 1, 0] for a window of W tokens"},
    {"torch_dtype", "model_config.compute_dtype"},
    {"dtype", "model_config.compute_dtype"},
    {"param_init_type", "model_config.params_dtype"},
    {"param_init_dtype", "model_config.params_dtype"},
    {"layernorm_compute_type", "model_config.layernorm_compute_dtype"},
    {"softmax_compute_type", "model_config.softmax_compute_dtype"},
    {"use_flash_attention_2", "model_config.use_flash_attention"},
    {"use_past", "", "it belongs to generation: the program generate"},
    {"num_shared_experts", "moe_config.shared_expert_num"},
    {"router_aux_loss_coef", "moe_config.moe_aux_loss_coeff",
     "with a moe_router_load_balancing_type"},
    {"aux_loss_alpha", "moe_config.moe_aux_loss_coeff", "with a moe_router_load_balancing_type"},
    {"router_z_loss_coef", "moe_config.moe_z_loss_coeff"},
    {"router_jitter_noise", "moe_config.moe_input_jitter_eps"},
    {"scoring_func", "moe_config.moe_router_score_function"},
    {"decoder_sparse_step", "moe_config.moe_layer_freq", "one 0 or 1 per layer"},
    {"mlp_only_layers", "moe_config.moe_layer_freq", "one 0 or 1 per layer"},
    // batches and data
    {"micro_batch_size", "dataset_config.batch_size", kBatch},
    {"per_device_train_batch_size", "dataset_config.batch_size", kBatch},
    {"train_batch_size", "dataset_config.batch_size", kBatch},
    {"train_micro_batch_size_per_gpu", "dataset_config.batch_size", kBatch},
    {"global_batch_size", "dataset_config.micro_batch_num", kWholeBatch},
    {"dataset", "dataset_config.data_path"},
    {"data_dir", "dataset_config.data_path"},
    {"train_data", "dataset_config.data_path"},
    {"train_file", "dataset_config.data_path"},
    {"data_prefix", "dataset_config.data_path"},
    {"tokenizer", "dataset_config.tokenizer_type|dataset_config.tokenizer_model"},
    {"tokenizer_name", "dataset_config.tokenizer_type|dataset_config.tokenizer_model"},
    {"vocab_file", "dataset_config.tokenizer_model"},
    {"num_workers", "", "batches are read by the training thread"},
    // length, intervals, files
    {"max_iters", kKeyIters},
    {"max_steps", kKeyIters},
    {"train_iters", kKeyIters},
    {"num_steps", kKeyIters},
    {"total_steps", kKeyIters},
    {"num_train_epochs", "training_config.epochs"},
    {"num_epochs", "training_config.epochs"},
    {"max_epochs", "training_config.epochs"},
    {"logging_steps", "training_config.log_interval", kEveryStep},
    {"log_steps", "training_config.log_interval", kEveryStep},
    {"eval_steps", "training_config.eval_interval", kEveryStep},
    {"eval_step_interval", "training_config.eval_interval", kEveryStep},
    {"save_steps", "training_config.save_interval", kEveryStep},
    {"save_checkpoint_steps", "training_config.save_interval", kEveryStep},
    {"always_save_checkpoint", "training_config.save_interval", kEveryStep},
    {"save_total_limit", "training_config.keep_checkpoint_max"},
    {"out_dir", "training_config.output_dir"},
    {"output", "training_config.output_dir"},
    {"save", "training_config.output_dir"},
    {"save_dir", "training_config.output_dir"},
    {"init_from", "training_config.load_checkpoint"},
    {"load", "training_config.load_checkpoint"},
    {"pretrained", "training_config.load_checkpoint"},
    {"resume_from_checkpoint", "training_config.resume_training|training_config.load_checkpoint"},
    {"seed_everything", "training_config.seed"},
    {"random_seed", "training_config.seed"},
    {"wandb_log", "", kMetrics},
    {"wandb_project", "", kMetrics},
    {"wandb_run_name", "", kMetrics},
    {"report_to", "tensorboard.tensorboard_dir", "a folder"},
    {"device", "", kProcessor},
    {"device_target", "", kProcessor},
    {"device_id", "", kProcessor},
    {"compile", "", kEager},
    {"backend", "", "ranks communicate by MPI"},
    // the optimizer
    {"lr", kKeyLr},
    {"max_lr", kKeyLr},
    {"base_lr", kKeyLr},
    {"optimizer", "optimizer_config.optimizer_type"},
    {"optim", "optimizer_config.optimizer_type"},
    {"adam_beta1", "optimizer_config.beta1"},
    {"adam_beta2", "optimizer_config.beta2"},
    {"adam_eps", "optimizer_config.eps"},
    {"adam_epsilon", "optimizer_config.eps"},
    {"wd", "optimizer_config.weight_decay"},
    {"grad_clip", "optimizer_config.clip_grad"},
    {"gradient_clip_val", "optimizer_config.clip_grad"},
    {"max_grad_norm", "optimizer_config.clip_grad"},
    {"gradient_clipping", "optimizer_config.clip_grad"},
    {"decay_lr", "optimizer_config.lr_decay_style"},
    {"lr_scheduler", "optimizer_config.lr_decay_style"},
    {"lr_scheduler_type", "optimizer_config.lr_decay_style"},
    {"warmup_iters", "optimizer_config.lr_warmup_iters"},
    {"warmup_steps", "optimizer_config.lr_warmup_iters"},
    {"num_warmup_steps", "optimizer_config.lr_warmup_iters"},
    {"warmup_ratio", "optimizer_config.lr_warmup_fraction"},
    {"learning_rate_min", "optimizer_config.min_lr"},
    {"lr_end", "optimizer_config.min_lr"},
    // parallel layouts and memory
    {"parallel_config.data_parallel", "parallel_config.data_parallel_size", "", Use::kValue},
    {"data_parallel", "parallel_config.data_parallel_size", kRanks},
    {"dp_size", "", kRanks},
    {"dp", "", kRanks},
    {"world_size", "", kRanks},
    {"device_num", "", kRanks},
    {"tp", kKeyTp},
    {"tp_size", kKeyTp},
    {"tensor_parallel_size", kKeyTp},
    {"parallel_config.model_parallel", kKeyTp, "", Use::kValue},
    {"model_parallel", kKeyTp},
    {"model_parallel_size", kKeyTp},
    {"pp", kKeyPp},
    {"pp_size", kKeyPp},
    {"pipeline_parallel_size", kKeyPp},
    {"parallel_config.pipeline_stage", kKeyPp, "", Use::kValue},
    {"pipeline_stage", kKeyPp},
    {"parallel_config.micro_batch_num", "dataset_config.micro_batch_num", "", Use::kValue},
    {"vpp", kKeyVpp},
    {"model_config.pp_interleave_num", kKeyVpp, "", Use::kValue},
    {"parallel_config.pp_interleave_num", kKeyVpp, "", Use::kValue},
    {"pp_interleave_num", kKeyVpp},
    {"model_config.offset", "parallel_config.offset", "", Use::kValue},
    {"cp", kKeyCp},
    {"cp_size", kKeyCp},
    {"parallel_config.context_parallel", kKeyCp, "", Use::kValue},
    {"context_parallel", kKeyCp},
    {"ep", kKeyEp},
    {"etp", kKeyEtp},
    {"moe_config.expert_model_parallel", kKeyEtp, "", Use::kValue},
    {"moe_config.expert_tensor_parallel_size", kKeyEtp, "", Use::kValue},
    {"sp", "parallel_config.sequence_parallel"},
    {"parallel_config.use_seq_parallel", "parallel_config.sequence_parallel", "", Use::kValue},
    {"use_seq_parallel", "parallel_config.sequence_parallel"},
    {"vocab_emb_dp", "", "tensor-parallel ranks always share the token table"},
    {"gradient_aggregation_group", "training_config.bucket_size"},
    {"micro_batch_interleave_num", "dataset_config.micro_batch_num"},
    {"zero", "parallel_config.zero_level", "z1, z2 or z3"},
    {"zero_stage", "parallel_config.zero_level", "z1, z2 or z3"},
    {"zero_optimization", "parallel_config.zero_level", "z1, z2 or z3"},
    {"enable_parallel_optimizer", "training_config.use_distributed_optimizer"},
    {"gradient_checkpointing", kKeyRecompute},
    {"activation_checkpointing", kKeyRecompute},
    {"mp_comm_recompute", "parallel_config.recompute_config.mp_comm_recompute"},
    {"parallel_optimizer_comm_recompute",
     "parallel_config.recompute_config.parallel_optimizer_comm_recompute"},
    {"recompute_slice_activation", "parallel_config.recompute_config.recompute_slice_activation"},
    // MindFormers' static configurations
    {"runner_config.epochs", "training_config.epochs", "", Use::kValue},
    {"runner_config.batch_size", "dataset_config.batch_size", kBatch, Use::kValue},
    {"runner_config.gradient_accumulation_steps", "training_config.gradient_accumulation_steps", "",
     Use::kValue},
    {"runner_config.sink_mode", "", kEager, Use::kNothing},
    {"runner_config.sink_size", "", kEager, Use::kNothing},
    {"runner_config.sink_per_epoch", "", kEager, Use::kNothing},
    {"sink_mode", "", kEager},
    {"sink_size", "", kEager},
    {"runner_wrapper.type", "", "the training step is chosen by the layout", Use::kNothing,
     "MFTrainOneStepCell|MFPipelineWithLossScaleCell"},
    {"runner_wrapper.scale_sense", "training_config.loss_scale", "", Use::kValue},
    {"runner_wrapper.loss_scale_value", "", "a number in scale_sense is the scale", Use::kNothing},
    {"runner_wrapper.scale_sense.loss_scale_value", "training_config.loss_scale_value", "",
     Use::kValue},
    {"runner_wrapper.scale_sense.scale_factor", "training_config.loss_scale_factor", "",
     Use::kValue},
    {"runner_wrapper.scale_sense.scale_window", "training_config.loss_scale_window", "",
     Use::kValue},
    {"runner_wrapper.scale_sense.DynamicLossScaleUpdateCell.loss_scale_value",
     "training_config.loss_scale_value", "", Use::kValue},
    {"runner_wrapper.scale_sense.FixedLossScaleUpdateCell.loss_scale_value",
     "training_config.loss_scale", "", Use::kValue},
    {"runner_wrapper.local_norm", "monitor_config.local_norm", "", Use::kValue},
    {"runner_wrapper.use_clip_grad", "training_config.use_clip_grad", "", Use::kValue},
    {"runner_wrapper.max_grad_norm", "training_config.max_grad_norm", "", Use::kValue},
    {"scale_factor", "training_config.loss_scale_factor"},
    {"scale_window", "training_config.loss_scale_window"},
    {"callbacks.MFLossMonitor.per_print_times", "training_config.log_interval", kEveryStep,
     Use::kValue},
    {"callbacks.CheckpointMonitor.prefix", "", kFolders, Use::kNothing},
    {"callbacks.CheckpointMonitor.save_checkpoint_steps", "training_config.save_interval",
     kEveryStep, Use::kValue, "0"},
    {"callbacks.CheckpointMonitor.save_checkpoint_seconds", "training_config.save_interval_seconds",
     "", Use::kValue, "0"},
    {"callbacks.CheckpointMonitor.keep_checkpoint_max", "training_config.keep_checkpoint_max", "",
     Use::kValue},
    {"callbacks.CheckpointMonitor.keep_checkpoint_per_n_minutes",
     "training_config.keep_checkpoint_per_n_minutes", "", Use::kValue, "0"},
    {"callbacks.CheckpointMonitor.integrated_save", "", kFolders, Use::kNothing},
    {"callbacks.CheckpointMonitor.save_network_params", "training_config.save_network_params", "",
     Use::kValue},
    {"callbacks.CheckpointMonitor.save_trainable_params", "training_config.save_trainable_params",
     "", Use::kValue},
    {"callbacks.CheckpointMonitor.exception_save", "training_config.exception_save", "",
     Use::kValue},
    {"callbacks.CheckpointMonitor.async_save", "training_config.async_save", "", Use::kValue},
    {"callbacks.CheckpointMonitor.remove_redundancy", "training_config.remove_redundancy", "",
     Use::kValue},
    {"callbacks.CheckpointMonitor.checkpoint_format", "training_config.ckpt_format", "",
     Use::kValue},
    {"callbacks.CheckpointMonitor.append_info", "",
     "training_state.json of a checkpoint holds epoch, step and loss scale", Use::kNothing},
    {"callbacks.CheckpointMonitor.global_batch_size", "",
     "training_state.json of a checkpoint counts samples", Use::kNothing},
    {"callbacks.CheckpointMonitor.embedding_size", "", "the token table is known as such",
     Use::kNothing},
    {"callbacks.CheckpointMonitor.embedding_local_norm_threshold",
     "monitor_config.embedding_local_norm_threshold", "", Use::kValue},
    {"callbacks.CheckpointMonitor.use_checkpoint_health_monitor",
     "monitor_config.use_checkpoint_health_monitor", "", Use::kValue},
    {"callbacks.CheckpointMonitor.health_ckpts_record_dir",
     "monitor_config.health_ckpts_record_dir", "", Use::kValue},
    {"callbacks.MoEDropRateCallback.type", "moe_config.callback_moe_droprate", "", Use::kSwitch},
    {"callbacks.MoEDropRateCallback.expert_num", "moe_config.num_experts", "", Use::kSame},
    {"callbacks.MoEDropRateCallback.capacity_factor", "moe_config.moe_expert_capacity_factor", "",
     Use::kSame},
    {"callbacks.MoEDropRateCallback.num_layers", "model_config.num_layers", "", Use::kSame},
    {"callbacks.MoEDropRateCallback.mtp_depth", "",
     "layers that predict further tokens are counted where the model has them", Use::kNothing},
    {"callbacks.MaxLogitsMonitor.type", "monitor_config.max_logits_interval", "", Use::kSwitch,
     "1"},
    {"callbacks.MaxLogitsMonitor.step_interval", "monitor_config.max_logits_interval", kEveryStep,
     Use::kValue},
    // a deprecated name of the same
    {"callbacks.MaxLogitsReset.type", "monitor_config.max_logits_interval", "", Use::kSwitch, "1"},
    {"callbacks.MaxLogitsReset.step_interval", "monitor_config.max_logits_interval", kEveryStep,
     Use::kValue},
    {"train_dataset.data_loader.dataset_dir", "dataset_config.step_data_dir", "", Use::kValue},
    {"train_dataset.data_loader.shuffle", "dataset_config.shuffle", "", Use::kValue},
    {"train_dataset.input_columns", "", "recorded steps have tokens, labels and masks",
     Use::kNothing},
    {"train_dataset_task.type", "dataset_config.step_data_as_samples",
     "of a folder only recorded steps are read", Use::kMeans, "NumpyDataloader"},
    {"parallel.full_batch", "", kOwnRows, Use::kNothing, "False|false"},
    {"parallel.dataset_strategy", "", kOwnRows, Use::kNothing},
    {"per_print_times", "training_config.log_interval", kEveryStep},
    {"optimizer.type", "optimizer_config.optimizer_type"},
    {"lr_schedule.type", "optimizer_config.lr_decay_style"},
    {"checkpoint_name_or_path", "training_config.load_checkpoint"},
    {"load_ckpt_format", "training_config.ckpt_format"},
    {"checkpoint_format", "training_config.ckpt_format"},
    {"directory", "training_config.output_dir"},
    {"use_parallel", "", "it follows from the number of ranks"},
    {"run_mode", "", "pretrain_gpt trains, generate writes text"},
    {"trainer", "", "pretrain_gpt is the trainer"},
    {"do_eval", "training_config.eval_interval", kEveryStep},
    {"only_save_strategy", "", "a checkpoint is whole whatever the layout"},
    {"auto_trans_ckpt", "", "a checkpoint is whole whatever the layout"},
    {"src_strategy_path_or_dir", "", "a checkpoint is whole whatever the layout"},
    {"remove_redundancy", "", "a checkpoint is whole whatever the layout"},
    {"integrated_save", "", "a checkpoint is whole whatever the layout"},
    {"processor", "dataset_config.tokenizer_type|dataset_config.tokenizer_model"},
    {"metric", "training_config.eval_metric"},
    {"parallel_mode", "", "it follows from the sizes in parallel_config"},
    {"max_device_memory", "", "memory is taken as it is needed; --dry_run estimates it"},
    {"input_columns", "", "a data set has tokens alone"},
    {"python_multiprocessing", "", "batches are read by the training thread"},
    {"num_parallel_workers", "", "batches are read by the training thread"},
    {"prefetch_size", "", "batches are read by the training thread"},
};

constexpr std::string_view kStaticSections[] = {"runner_config",
                                                "runner_wrapper",
                                                "lr_schedule",
                                                "train_dataset",
                                                "eval_dataset",
                                                "train_dataset_task",
                                                "eval_dataset_task",
                                                "callbacks",
                                                "context",
                                                "parallel",
                                                "optimizer",
                                                "model",
                                                "trainer",
                                                "processor",
                                                "metric",
                                                "eval_callbacks",
                                                "swap_config",
                                                "layer_scale",
                                                "train_precision_sync"};

}  // namespace

std::span<const ForeignName> foreign_names() { return kNames; }

const ForeignName* find_foreign_name(std::string_view section, std::string_view name) {
  const std::string path = concat(section, ".", name);
  const ForeignName* found = nullptr;
  for (const ForeignName& row : kNames) {
    if (row.name == path) {
      return &row;
    }
    found = row.name == name ? &row : found;
  }
  return found;
}

const ForeignName* find_readable_name(std::string_view path) {
  const auto* const row = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& name) {
    return name.use != Use::kMessage && name.name == path;
  });
  return row == std::end(kNames) ? nullptr : row;
}

bool holds_readable_names(std::string_view path) {
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const ForeignName& row) {
    return row.use != Use::kMessage && row.name.size() > path.size() &&
           row.name.starts_with(path) && row.name[path.size()] == '.';
  });
}

bool is_static_section(std::string_view name) {
  return std::find(std::begin(kStaticSections), std::end(kStaticSections), name) !=
         std::end(kStaticSections);
}

std::string foreign_text(const ForeignName& row, std::string_view model_section) {
  if (row.here.empty()) {
    return concat("no key stands for it: ", row.note, "; leave it out");
  }
  std::string keys;
  for (std::string_view key : split_text(row.here, '|')) {
    const size_t dot = key.find('.');
    const std::string_view section = key.substr(0, dot);
    keys += concat(keys.empty() ? "" : " and ", section == "model_config" ? model_section : section,
                   key.substr(dot));
  }
  return concat("here it is ", keys, row.note.empty() ? "" : concat(" (", row.note, ")"));
}

}  // namespace tapestry::config
