// The table of MindFormers 2.0's keys: every key of its sections has a row that says what becomes
// of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "parallel_core/config/mindformers2/keys.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config::mindformers2 {
namespace {

using ::testing::IsEmpty;

// The keys of MindFormers 2.0's sections, by section.
const std::map<std::string, std::string> kTheirs = {
    {"checkpoint",
     "enable_save save_path save_max save_interleaved_steps no_save_optim async_save prefix "
     "remove_redundancy load_path load_balanced no_load_optim load_worker_number "
     "save_global_layout_cache reshard_worker_num"},
    {"training",
     "steps local_batch_size global_batch_size max_norm seed deterministic rampup_batch_size"},
    {"parallelism",
     "data_parallel_shard data_parallel_shard_strategy reshard_after_forward_policy cpu_offload "
     "disable_gradient_division dense_fsdp_shard_size param_dtype reduce_dtype tensor_parallel "
     "context_parallel context_parallel_method context_parallel_async ulysses_degree_in_cp "
     "context_parallel_mask_type pipeline_parallel pipeline_parallel_layers_per_stage "
     "pipeline_parallel_schedule pipeline_parallel_microbatch_size "
     "pipeline_parallel_interleave_num pipeline_parallel_overlap_p2p pipeline_parallel_overlap_b_f "
     "pipeline_parallel_enable_dxdw_split pipeline_parallel_p2p_transport sequence_parallel "
     "enable_mc2 enable_loss_parallel expert_parallel expert_tensor_parallel npu_nums_per_device "
     "moe_token_dispatcher_type expert_parallel_async_d2h expert_parallel_use_safe_tokens"},
    {"optimizer",
     "type betas eps weight_decay weight_decay_include weight_decay_exclude enable_cpu_offload "
     "enable_fused_opt use_fused amsgrad maximize matched_adamw_rms momentum nesterov ns_steps "
     "ns_coefficients adamw_betas adamw_eps qk_clip_enabled qk_clip_threshold comm_strategy "
     "use_fused_adamw adamw_include swap"},
    {"lr_scheduler",
     "type learning_rate warmup_steps warmup_lr_init warmup_ratio total_steps num_cycles lr_end "
     "decay_steps decay_ratio power decay_start_steps decay_start_ratio keep_steps lr_end1 "
     "final_steps lr_end2 base_lr t_max eta_min t_0 t_mult lr_scale"},
    {"train_dataset",
     "dataloader.type dataloader.shuffle dataloader.column_names "
     "dataloader.python_multiprocessing dataloader.datasets_type dataloader.sizes "
     "dataloader.config.seed dataloader.config.split dataloader.config.seq_length "
     "dataloader.config.eod_mask_loss dataloader.config.reset_position_ids "
     "dataloader.config.create_attention_mask dataloader.config.reset_attention_mask "
     "dataloader.config.create_compressed_eod_mask dataloader.config.eod_pad_length "
     "dataloader.config.eod dataloader.config.pad dataloader.config.data_path dataloader.load_func "
     "dataloader.path dataloader.data_files dataloader.split dataloader.handler.take.n "
     "dataloader.handler.AlpacaInstructDataHandler.seq_length "
     "dataloader.handler.AlpacaInstructDataHandler.padding "
     "dataloader.handler.AlpacaInstructDataHandler.tokenizer.padding_side "
     "dataloader.handler.PackingHandler.seq_length "
     "dataloader.handler.PackingHandler.pack_strategy dataloader.create_attention_mask "
     "dataloader.create_compressed_eod_mask dataloader.compressed_eod_mask_length "
     "dataloader.use_broadcast_data drop_remainder num_parallel_workers prefetch_size numa_enable "
     "use_distribute_dataset"},
    {"model",
     "model_type architectures vocab_size seq_length hidden_size intermediate_size "
     "num_hidden_layers num_attention_heads num_key_value_heads head_dim max_position_embeddings "
     "hidden_act gated_linear_unit rms_norm_eps normalization attention_bias add_bias_linear "
     "tie_word_embeddings rope_theta rope_scaling position_embedding_type beta_fast beta_slow "
     "mscale mscale_all_dim rotary_scaling_factor scaling_factor initializer_range "
     "attention_dropout hidden_dropout params_dtype compute_dtype layernorm_compute_dtype "
     "rotary_dtype softmax_compute_dtype router_dense_type use_flash_attention "
     "use_attn_mask_compression use_eod_attn_mask_compression qk_layernorm multi_latent_attention "
     "mla_qkv_concat q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
     "num_nextn_predict_layers mtp_loss_scaling_factor mtp_loss_factor n_routed_experts "
     "num_experts_per_tok n_group topk_group n_shared_experts moe_intermediate_size "
     "moe_shared_expert_intermediate_size routed_scaling_factor first_k_dense_replace "
     "moe_layer_freq norm_topk_prob scoring_func moe_router_score_function topk_method "
     "moe_router_enable_expert_bias moe_router_bias_update_rate moe_router_load_balancing_type "
     "moe_aux_loss_coeff moe_z_loss_coeff moe_expert_capacity_factor moe_token_drop_policy "
     "moe_router_pre_softmax moe_router_force_expert_balance moe_apply_probs_on_input "
     "moe_grouped_gemm moe_permute_fusion use_pad_tokens use_shared_expert_gating "
     "moe_n_hash_layers actual_vocab_size activation_func_clamp_value enable_hyper_connections "
     "num_residual_streams mhc_sinkhorn_iterations mhc_init_gating_factor mhc_layernorm_epsilon "
     "use_fused_mhc experimental_attention_variant dsa_indexer_n_heads csa_compress_ratios "
     "o_groups "
     "o_lora_rank chunk_loss_num calculate_per_token_loss pad_token_id ignore_token_id offset"},
    {"monitor",
     "health_checkpoint.embedding_local_norm_threshold "
     "health_checkpoint.global_norm_skip_threshold health_checkpoint.global_norm_skip_time "
     "train_state.local_norm train_state.local_loss train_state.device_norm "
     "train_state.device_loss tensorboard.tensorboard_dir tensorboard.tensorboard_log_interval "
     "tensorboard.tensorboard_queue_size tensorboard.output_dir tensorboard.log_interval "
     "tensorboard.queue_size moe_monitor.save_tokens_per_expert_interval "
     "moe_monitor.target_layers"},
    {"context", "mode max_device_memory device_target"},
    {"profiler",
     "enable_profiling start_step end_step output_path profiler_rank profiler_level mstx "
     "profile_memory profile_cpu with_stack enable_profiler stop_step"},
    {"recompute", "mode full_recompute_layer select_module exclude_op"},
    {"recompute_comm", "enable select_module"},
    {"swap", "enable default_prefetch layer_swap op_swap"},
    {"callbacks", "MaxLogitsMonitor.step_interval MaxLogitsReset.step_interval"},
    {"lora_config",
     "target_modules exclude_layers lora_rank lora_alpha lora_dropout lora_a_std lora_b_std"}};

TEST(MindFormers2Table, EveryKeyHasARow) {
  std::vector<std::string> missing;
  for (const auto& [section, keys] : kTheirs) {
    std::istringstream words(keys);
    for (std::string key; words >> key;) {
      if (find_row(concat(section, ".", key)) == nullptr) {
        missing.push_back(concat(section, ".", key));
      }
    }
  }
  EXPECT_THAT(missing, IsEmpty());
  EXPECT_NE(find_row("eval_dataset"), nullptr);
  EXPECT_EQ(find_row("training.epochs"), nullptr);
  for (const SectionRow& section : sections()) {
    EXPECT_TRUE(kTheirs.contains(std::string(section.name)) || section.name == "eval_dataset")
        << section.name;
  }
}

TEST(MindFormers2Table, RowsSayWhatBecomesOfAKey) {
  std::set<std::string> paths;
  for (const Row& row : rows()) {
    const std::string path = path_of(row);
    EXPECT_TRUE(paths.insert(path).second) << path << " stands twice";
    EXPECT_EQ(row.fate == Fate::kSame, row.fate == Fate::kSame && !row.here.empty()) << path;
    if (row.fate != Fate::kSame) {
      EXPECT_FALSE(row.note.empty()) << path << " does not say why, or by which rule";
    }
    if (row.fate == Fate::kNothing) {
      EXPECT_TRUE(row.here.empty()) << path;
    }
    EXPECT_FALSE(row.type.empty()) << path;
  }
}

TEST(MindFormers2Table, KeysThatItNamesAreOurs) {
  for (const Row& row : rows()) {
    for (const std::string_view here : split_text(row.here, '|')) {
      const size_t dot = here.find('.');
      ASSERT_NE(dot, std::string_view::npos) << path_of(row);
      EXPECT_NE(find_key(here.substr(0, dot), here.substr(dot + 1)), nullptr)
          << path_of(row) << " names " << here;
    }
  }
}

}  // namespace
}  // namespace tapestry::config::mindformers2
