// The configuration of a run as plain structs, and the functions that read it from YAML.
//
// The members are the keys of the YAML sections; schema.h holds the table with their types, checks
// and documentation (docs/configuration.md is generated from it). The initialisers below are the
// defaults. A key that is null in YAML is an empty optional here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/post_training_config.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry {

/// The configuration is wrong. what() lists all findings, one per line, each with its place:
/// `file.yaml:12:9: ...` or `--set section.key=value: ...`.
class ConfigError : public ValueError {
 public:
  explicit ConfigError(std::vector<std::string> findings);
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  std::vector<std::string> findings_;
};

/// Clipping of the gradients before the update.
struct GradClipConfig {
  std::string grad_clip_type;  // ClipGlobalNorm | GradClipByValue
  double clip_value = 0.0;
  bool operator==(const GradClipConfig&) const = default;
};

/// A switch, or the name of a checkpoint, which switches it on.
struct ResumeChoice {
  bool on = false;
  std::string checkpoint;  // empty: the latest
  bool operator==(const ResumeChoice&) const = default;
};

/// Values for a constructor that a program registered under a name: whatever it knows.
struct OwnOptions {
  std::map<std::string, config::Value> values;
  bool operator==(const OwnOptions&) const = default;
};

struct LossFuncConfig {
  // CrossEntropyLoss, the same, or a registered name
  std::string loss_func_type = "VocabParallelCrossEntropy";
  bool operator==(const LossFuncConfig&) const = default;
};

struct TrainingConfig {
  int64_t seed = 1234;
  std::string output_dir = "./output";
  int64_t training_iters = 0;  // 0: given by epochs or dataset_config.train_samples
  std::optional<int64_t> epochs;
  std::optional<int64_t> log_interval = 10;
  std::string log_style = "dynamic";  // dynamic | static
  std::string log_format = "text";    // text | json
  std::optional<int64_t> eval_interval;
  int64_t eval_iters = 10;
  std::optional<int64_t> save_interval;
  std::optional<double> save_interval_seconds;
  std::optional<double> save_interval_minutes;  // resolved: seconds
  bool save_last = true;
  bool async_save = false;
  bool remove_redundancy = false;
  int64_t max_shard_size = 5'000'000'000;  // bytes
  std::optional<double> exit_duration_in_mins;
  std::optional<int64_t> max_nonfinite_steps = 10;
  std::optional<std::string> best_metric_comparison;
  std::optional<std::string> eval_metric;
  std::optional<GradClipConfig> grad_clip_kwargs;
  std::optional<bool> use_clip_grad;    // resolved: optimizer_config.clip_grad
  std::optional<double> max_grad_norm;  // the same
  std::optional<double> loss_scale;
  std::optional<double> loss_scale_value;
  std::optional<int64_t> loss_scale_factor;
  std::optional<int64_t> loss_scale_window;
  bool schedule_counts_overflows = false;
  std::optional<LossFuncConfig> loss_func_kwargs;
  std::string loss_reduction = "mean";
  bool calculate_per_token_loss = false;
  bool exact = false;  ///< the same bits in every layout; see kernels/machine/exact.h
  std::optional<int64_t> gradient_accumulation_steps;  // resolved: part of micro_batch_num
  // {sequences of the first steps, increment, sequences until the full batch}; empty: always full
  std::optional<std::vector<int64_t>> rampup_batch_size;
  bool wrap_with_ddp = false;
  bool accumulate_allreduce_grads_in_fp32 = false;
  bool overlap_grad_reduce = false;
  bool delay_grad_reduce = false;
  bool use_distributed_optimizer = false;
  std::optional<int64_t> bucket_size;
  bool check_for_nan_in_grad = false;
  bool autopsy = true;
  std::string on_anomaly = "continue";  // stop | skip | continue
  std::optional<double> loss_spike_threshold;
  int64_t loss_spike_window = 32;
  int64_t max_capsules = 3;
  bool fp16 = false;
  bool bf16 = false;
  ResumeChoice resume_training;
  bool crc_check = true;
  std::string load_checkpoint;  // empty: start from initial weights
  std::string ckpt_format = "safetensors";
  std::string prefix = "network";
  int64_t keep_checkpoint_max = 5;
  double keep_checkpoint_per_n_minutes = 0;  // 0: keep_checkpoint_max counts
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool new_dataset = false;
  std::optional<int64_t> num_threads;
  bool log_param_grad_norms = false;
  std::vector<int64_t> dump_activation_steps;
  std::vector<int64_t> dump_grad_steps;
  std::vector<int64_t> dump_weight_steps;
  bool profile = false;
  std::optional<std::string> profile_save_path;
  int64_t profile_step_start = 1;
  int64_t profile_step_end = 5;
  std::string profile_level = "level0";
  std::string profile_framework = "all";
  bool profile_with_stack = false;
  bool profile_memory = false;
  bool profile_communication = false;
  bool profile_parallel_strategy = false;
  bool profile_data_process = false;
  bool profile_data_simplification = false;
  bool profile_offline_analyse = false;
  bool profile_op_time = true;
  std::string profile_dynamic_profiler_config_path;
  bool operator==(const TrainingConfig&) const = default;
};

/// Numbers of layers per pipeline stage: one row, or one row per virtual stage.
using LayerTable = std::vector<std::vector<int64_t>>;

/// Layers as they were written: a boolean, numbers per stage, rows of numbers per chunk, in which a
/// boolean may stand for all or none; or, by pattern, a list of patterns or a mapping from patterns
/// to one of these. recompute_tables.h turns it into numbers.
struct RecomputeChoice {
  config::Value value = false;
  bool operator==(const RecomputeChoice&) const = default;
};

/// What one layer recomputes.
struct LayerRecompute {
  bool full = false;
  bool keeps_input = true;  ///< of a fully recomputed layer: false inside of a group of layers
  std::vector<std::string> select;  ///< patterns, also those without effect next to `full`
  std::vector<std::string> select_comm;
  std::vector<std::string> exclude;
  std::vector<std::string> comm_exclude;
  bool repeats_communication = true;  ///< mp_comm_recompute
  bool slices_input = false;          ///< recompute_slice_activation
  bool operator==(const LayerRecompute&) const = default;
};

struct RecomputeConfig {
  RecomputeChoice recompute;
  std::optional<std::vector<int64_t>> recompute_layers;
  RecomputeChoice select_recompute;
  std::optional<std::vector<int64_t>> select_recompute_layers;
  RecomputeChoice select_comm_recompute;
  RecomputeChoice select_recompute_exclude;
  RecomputeChoice select_comm_recompute_exclude;
  bool mp_comm_recompute = true;
  std::optional<bool> parallel_optimizer_comm_recompute;  // empty: as zero_level says
  bool recompute_slice_activation = false;
  bool operator==(const RecomputeConfig&) const = default;
};

struct ModelParallelConfig {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  std::optional<int64_t> data_parallel_size;  // only held against the ranks that there are
  int64_t context_parallel_size = 1;
  int64_t expert_model_parallel_size = 1;
  std::optional<int64_t> expert_tensor_parallel_size;  // empty: tensor_model_parallel_size
  std::optional<int64_t> virtual_pipeline_model_parallel_size;
  bool sequence_parallel = false;
  DType recv_dtype = kFloat32;  // always the compute dtype
  std::optional<std::string> zero_level;
  bool standalone_embedding_stage = false;
  bool overlap_grad_reduce = false;
  bool overlap_p2p_comm = true;
  std::optional<LayerTable> num_layer_list;
  std::optional<LayerTable> offset;
  std::optional<RecomputeConfig> recompute_config;
  bool operator==(const ModelParallelConfig&) const = default;
};

struct DatasetConfig {
  std::string dataset_dir = "./dataset";
  std::optional<bool> shuffle;
  int64_t batch_size = 1;       // sequences of one micro-batch
  int64_t micro_batch_num = 1;  // micro-batches of one step
  int64_t train_samples = 0;
  std::string data_layout = "BSH";
  std::optional<int64_t> eos_token_id;  // empty: the tokenizer's
  std::optional<int64_t> pad_token_id;
  bool drop_remainder = true;
  bool reset_attention_mask = false;
  bool reset_position_ids = false;
  bool eod_mask_loss = false;
  std::optional<int64_t> seq_length;  // the model's, if given
  std::optional<std::vector<std::string>>
      data_path;  // one prefix, prefixes, or weight, prefix, ...
  std::optional<std::vector<std::string>> train_data_path;  // in place of data_path and split
  std::optional<std::vector<std::string>> valid_data_path;
  std::optional<std::vector<std::string>> test_data_path;
  std::optional<std::vector<std::string>> text;  // files that are tokenised on first use
  std::string split = "969,30,1";
  std::optional<std::string> step_data_dir;
  bool step_data_as_samples = false;       // its rows one after the other, whatever their step
  std::optional<std::string> data_source;  // registered name; empty: the keys above say it
  OwnOptions data_source_kwargs;
  std::string tokenizer_type = "sentencepiece";
  std::optional<std::string> tokenizer_model;
  std::optional<double> character_coverage;  // of a tokenizer that is trained on first use
  std::optional<std::vector<std::string>> sft_data_path;  // files, or weight, file, ...
  std::optional<std::vector<std::string>> sft_valid_data_path;
  bool sft_packing = true;
  std::string sft_long_examples = "cut";  // cut|drop
  std::string sft_loss = "answers";       // answers|all
  std::optional<std::string> chat_template;
  std::optional<std::string> chat_date;  // YYYY-MM-DD, what strftime_now of a template tells
  bool skip_bad_lines = false;           // of JSONL: left out and listed
  bool operator==(const DatasetConfig&) const = default;
};

struct RotaryConfig {
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;
  bool rotary_backward = false;
  std::optional<double> seq_len_interpolation_factor;
  double rotary_base = 10000.0;
  std::optional<double> sliding_rotary_base;  // of sliding_attention layers, which are unscaled
  std::string rope_type = "default";          // default|llama3|yarn|longrope|dynamic|proportional
  double rope_scaling_factor = 8.0;
  int64_t original_max_position_embeddings = 8192;
  double low_freq_factor = 1.0;  // llama3
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // yarn
  double beta_slow = 1.0;
  bool truncate = true;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool mscale_on_angles = false;  // the ratio of both multiplies angles, not cosines and sines
  std::optional<double> attention_factor;           // yarn, longrope
  std::optional<std::vector<double>> short_factor;  // longrope
  std::optional<std::vector<double>> long_factor;
  bool operator==(const RotaryConfig&) const = default;
};

struct FlashAttentionConfig {
  double keep_prob = 1.0;
  int64_t pre_tokens = 2147483647;
  int64_t sparse_mode = 0;
  bool operator==(const FlashAttentionConfig&) const = default;
};

/// A distribution by name, or a constant.
struct Initializer {
  std::string name = "normal";     // "constant" if `constant` holds a number
  std::optional<double> constant;  // the number that was given instead of a name
  bool operator==(const Initializer&) const = default;
};

/// One balance loss of the routers, with its weight.
struct MoEBalanceLoss {
  std::string type;  // aux_loss | seq_aux_loss | global_aux_loss | device
  double coeff = 0.0;
  bool operator==(const MoEBalanceLoss&) const = default;
};

/// Keys of other programs' mixtures of experts that are short for keys of MoEConfig. All have their
/// defaults in TransformerConfig::moe.
struct MoECompatibility {
  std::optional<bool> use_gating_sigmoid;    // resolved: moe_router_score_function
  std::optional<bool> enable_sdrop;          // resolved: moe_token_drop_policy
  std::optional<int64_t> shared_expert_num;  // resolved: moe_shared_expert_intermediate_size
  std::optional<double> aux_loss_factor;     // resolved: moe_aux_loss_coeff and its type
  DType router_dense_type = kFloat32;
  bool operator==(const MoECompatibility&) const = default;
};

/// Layers of the kind linear_attention: gated delta nets.
struct LinearAttentionConfig {
  int64_t num_key_heads = 16;
  int64_t num_value_heads = 32;  // a multiple of them
  int64_t key_head_dim = 128;
  int64_t value_head_dim = 128;
  int64_t conv_kernel_dim = 4;
  bool allow_neg_eigval = false;       // beta is up to 2
  std::optional<double> norm_epsilon;  // empty: the model's
  bool operator==(const LinearAttentionConfig&) const = default;
};

/// Layers of the kind conv: gated short convolutions.
struct ShortConvConfig {
  int64_t kernel_dim = 3;
  bool has_bias = false;  // of its matrices and of the convolution
  bool operator==(const ShortConvConfig&) const = default;
};

/// Layers of the kind mamba: Mamba-2.
struct MambaConfig {
  std::optional<int64_t> num_heads;  // resolved: never empty where there are such layers
  int64_t head_dim = 64;
  int64_t num_groups = 1;  // of B and C; divides the heads
  int64_t state_dim = 128;
  int64_t conv_kernel_dim = 4;
  bool conv_has_bias = true;
  bool proj_has_bias = false;
  std::optional<std::vector<double>> time_step_limit;  // {least, most}; empty: none
  bool operator==(const MambaConfig&) const = default;
};

/// Residual streams that every block reads from and writes to by learned, input-dependent weights
/// (manifold-constrained hyper-connections, arXiv:2512.24880).
struct HyperConnectionConfig {
  bool enabled = false;
  int64_t num_streams = 4;
  int64_t sinkhorn_iterations = 20;
  double init_gating_factor = 0.01;
  double norm_epsilon = 1e-6;
  bool operator==(const HyperConnectionConfig&) const = default;
};

/// Mixtures of experts: the layers whose feed-forward block is one.
struct MoEConfig {
  int64_t num_experts = 1;  // of a layer; 1: none
  int64_t moe_router_topk = 2;
  std::vector<int64_t> moe_layer_freq = {1};  // {f}: layers divisible by f; or 0 or 1 per layer
  int64_t first_k_dense_replace = 0;
  std::optional<int64_t> moe_ffn_hidden_size;  // resolved: never empty
  std::optional<int64_t> moe_shared_expert_intermediate_size;
  bool use_shared_expert_gating = false;
  bool moe_shared_expert_overlap = false;
  bool moe_router_pre_softmax = false;
  std::string moe_router_score_function = "softmax";  // softmax | sigmoid
  std::optional<bool> norm_topk_prob;                 // resolved: never empty
  double moe_router_topk_scaling_factor = 1.0;
  std::string topk_method = "greedy";  // greedy | group_limited_greedy | noaux_tc
  std::optional<int64_t> moe_router_num_groups;
  std::optional<int64_t> moe_router_group_topk;
  double moe_router_norm_epsilon = 1e-20;  // added to the sum that gates are divided by
  bool moe_router_has_bias = false;
  bool moe_beside_dense = false;  // and the router's norm and scales that go with it
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  // none | aux_loss | seq_aux_loss | global_aux_loss | device
  std::string moe_router_load_balancing_type = "none";
  double moe_aux_loss_coeff = 0.0;
  std::optional<std::vector<std::string>> aux_loss_types;  // in place of the two above
  std::optional<std::vector<double>> aux_loss_factors;
  std::vector<MoEBalanceLoss> balance_losses;  // resolved: what the four keys above ask for
  std::optional<int64_t> expert_group_size;    // number of groups of the balance loss "device"
  std::optional<double> moe_z_loss_coeff;
  std::string moe_aux_loss_choice = "routed";  // routed | scores: what counts as an assignment
  std::optional<double> moe_input_jitter_eps;
  std::optional<double> moe_expert_capacity_factor;  // resolved: empty or above 0
  bool moe_pad_expert_input_to_capacity = false;
  std::string moe_token_drop_policy = "probs";  // probs | position | choice
  bool callback_moe_droprate = false;
  std::optional<std::string> upcycle_from;
  bool moe_router_force_load_balancing = false;
  bool moe_grouped_gemm = false;
  bool moe_apply_probs_on_input = false;
  bool use_self_defined_alltoall = false;
  MoECompatibility compatibility;
  bool operator==(const MoEConfig&) const = default;
};

/// One cell with its own rank or alpha.
struct LoraCell {
  std::string cell;  // a regular expression, as in LoraTargets
  std::optional<int64_t> rank;
  std::optional<double> alpha;
  bool operator==(const LoraCell&) const = default;
};

struct LoraTargets {
  std::vector<std::string> patterns;  // regular expressions, matched against whole names
  std::vector<LoraCell> cells;
  bool operator==(const LoraTargets&) const = default;
};

/// Low-rank additions to frozen weights. What names mean is said in lora/adapter_plan.h.
struct LoraConfig {
  bool use_lora = false;
  int64_t lora_rank = 8;
  double lora_alpha = 32;
  double lora_dropout = 0.0;
  std::optional<LoraTargets> target_cells;
  std::vector<std::string> exclude_cells;  // regular expressions, as in LoraTargets
  std::optional<double> lora_a_std;        // empty: uniform, as PEFT
  double lora_b_std = 0.0;
  bool use_rslora = false;
  bool use_dora = false;
  std::string bias = "none";                 // none | lora_only: those beside adapters are trained
  std::vector<std::string> modules_to_save;  // regular expressions: trained whole
  std::optional<std::string> adapter;        // a folder with the adapter to start from
  std::string base_dtype = "params_dtype";   // params_dtype | q8_0 | q4_0
  bool operator==(const LoraConfig&) const = default;
};

struct TransformerConfig {
  // Long, as those of AllConfig.
  TransformerConfig();
  TransformerConfig(const TransformerConfig& other);
  TransformerConfig(TransformerConfig&& other) noexcept;
  TransformerConfig& operator=(const TransformerConfig& other);
  TransformerConfig& operator=(TransformerConfig&& other) noexcept;
  ~TransformerConfig();

  std::optional<std::string> from_hf;           // folder whose config.json gives the keys below
  std::optional<std::string> hf_model_type;     // the family in whose form files are written
  bool sequence_parallel = false;               // resolved: parallel_config.sequence_parallel
  std::vector<LayerRecompute> layer_recompute;  // resolved; empty: nothing beyond what is usual
  MoEConfig moe;                                // resolved: moe_config, if there are experts
  LoraConfig lora;                              // resolved: lora_config, if it is used
  int64_t vocab_size = 0;
  int64_t num_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t seq_length = 0;
  std::optional<int64_t> max_position_embeddings;  // resolved: never empty
  std::optional<std::string> encoder_attn_mask_type;
  std::string position_embedding_type =
      "learned_absolute";  // rope | learned_absolute | alibi | none
  bool parallel_position_embedding = false;
  RotaryConfig rotary_config;
  bool group_query_attention = false;
  int64_t num_query_groups = 32;  // resolved: num_attention_heads without groups
  std::optional<bool> add_bias_linear;
  bool qkv_has_bias = true;
  bool out_proj_has_bias = true;
  bool mlp_has_bias = true;
  bool apply_query_key_layer_scaling = false;
  bool use_flash_attention = false;
  bool use_alibi_mask = false;  // resolved: position_embedding_type == "alibi"
  bool use_eod_reset = false;   // short for dataset_config.reset_attention_mask
  std::optional<FlashAttentionConfig> fa_config;
  std::optional<std::vector<int64_t>> window_size;  // {L, 0}: the token itself and L before it
  // Resolved: empty where all layers are alike, else a kind for each.
  // full_attention | sliding_attention | linear_attention | conv | mamba
  std::optional<std::vector<std::string>> layer_types;
  std::optional<int64_t> sliding_window_pattern;  // resolved: layer_types
  // Resolved: empty where all layers rotate, else 1 for each that does, 0 for the others.
  std::optional<std::vector<int64_t>> no_rope_layers;
  bool qk_layernorm = false;
  std::string qk_layernorm_scope = "head";  // head | each_head | projection
  bool qk_layernorm_after_rotary = false;
  bool v_layernorm = false;
  std::optional<double> clip_qkv;  // bound of queries, keys and values; empty: none
  bool attention_sinks = false;
  bool attention_output_gate = false;
  std::optional<double> attention_scale;  // empty: kv_channels^-1/2
  double attention_softcap = 0.0;         // 0: none
  double logit_softcap = 0.0;
  double embedding_multiplier = 1.0;
  double residual_multiplier = 1.0;
  double logit_multiplier = 1.0;
  double query_temperature_beta = 0.0;
  bool gated_linear_unit = false;  // resolved: True for swiglu and clamped_swiglu
  // gelu | fast_gelu | relu | silu | squared_relu | xielu | swiglu | clamped_swiglu
  std::string hidden_act = "gelu";
  double swiglu_limit = 7.0;  // clamped_swiglu
  double swiglu_alpha = 1.702;
  std::optional<bool> apply_swiglu_fusion;  // empty: use_fused_kernels
  std::string normalization = "LayerNorm";  // LayerNorm | RMSNorm
  double norm_epsilon = 1e-5;
  bool layernorm_zero_centered_gamma = false;
  bool norm_has_bias = true;  // of LayerNorm
  bool norm_has_gain = true;
  bool embedding_norm = false;
  std::string norm_placement = "pre";  // pre | post | sandwich | parallel | parallel_one_norm
  // Of layers without attention: pre | post | sandwich; empty: as the others.
  std::optional<std::string> mixer_norm_placement;
  LinearAttentionConfig linear_attention;
  ShortConvConfig short_conv;
  MambaConfig mamba;
  HyperConnectionConfig hyper_connections;
  bool apply_residual_connection_post_norm = false;
  bool use_final_norm = true;
  std::optional<DType> residual_connection_dtype;  // empty: that of the activations
  bool fp32_residual_connection = false;
  double init_method_std = 0.01;
  bool scaled_output_init = false;
  Initializer init_method;
  Initializer bias_init = {"zeros", std::nullopt};
  DType params_dtype = kFloat32;
  std::optional<DType> embedding_init_dtype;  // empty: params_dtype
  DType compute_dtype = kFloat32;
  DType softmax_compute_dtype = kFloat32;
  DType layernorm_compute_dtype = kFloat32;
  DType rotary_dtype = kFloat32;
  bool attention_softmax_in_fp32 = true;
  bool fp16_lm_cross_entropy = false;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  std::optional<int64_t> out_hidden_size;
  std::optional<int64_t> num_experts;
  bool untie_embeddings_and_output_weights = false;
  bool score_head = false;  // resolved: in place of the output layer one value a token
  std::optional<std::string> recompute_method;
  std::optional<int64_t> recompute_num_layers;
  std::optional<std::string> recompute_granularity;
  bool recompute_activations = false;
  bool select_recompute = false;
  bool select_comm_recompute = false;
  std::optional<int64_t> kv_channels;  // resolved: never empty
  // Of layers of the kind full_attention; empty: as the others.
  std::optional<int64_t> full_attention_kv_channels;
  std::optional<int64_t> full_attention_num_query_groups;
  bool full_attention_value_is_key = false;
  int64_t num_kv_shared_layers = 0;      // the last so many have an earlier layer's keys and values
  bool use_double_wide_mlp = false;      // of these layers
  int64_t per_layer_embedding_size = 0;  // 0: none
  std::optional<int64_t> per_layer_vocab_size;  // empty: vocab_size
  bool layer_scalar = false;
  bool distribute_saved_activations = false;
  std::string model_type = "encoder_or_decoder";
  std::optional<bool> apply_rope_fusion;  // empty: use_fused_kernels
  bool use_fused_kernels = true;
  std::optional<bool> fused_linear_cross_entropy;  // empty: while training with fused kernels
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;  // empty: queries are projected at once
  int64_t kv_lora_rank = 512;
  int64_t qk_head_dim = 128;         // of a head's channels, those that are not rotated
  int64_t qk_pos_emb_head_dim = 64;  // and those that are
  int64_t v_head_dim = 128;
  int64_t mtp_num_layers = 0;  // further tokens that training predicts; 0: none
  double mtp_loss_scaling_factor = 0.1;
  bool use_sandwich_norm = false;  // resolved: norm_placement == "sandwich"
  double attn_post_norm_scale = 1.0;
  double ffn_post_norm_scale = 1.0;
  bool operator==(const TransformerConfig&) const = default;
};

/// Rows of numbers.
using FloatTable = std::vector<std::vector<double>>;

struct LearningRateSchedulerConfig {
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  double end_learning_rate = 0.0;
  bool use_cosine = true;
  double power = 1.0;
  bool operator==(const LearningRateSchedulerConfig&) const = default;
};

struct OptimizerConfig {
  std::string optimizer_type = "AdamW";  // | Adam | SGD | Lion | Came | Adafactor | Muon
  double learning_rate = 1e-3;
  std::optional<LearningRateSchedulerConfig> learning_rate_scheduler_kwargs;
  double weight_decay = 0.0;
  std::optional<std::vector<std::string>> weight_decay_include;  // names that decay in any case
  std::optional<std::vector<std::string>> weight_decay_exclude;  // and that never do
  std::optional<double> start_weight_decay;                      // resolved: never empty
  std::optional<double> end_weight_decay;                        // resolved: never empty
  std::string weight_decay_incr_style = "constant";
  double clip_grad = 0.0;  // 0: off
  std::vector<double> betas = {0.9, 0.999};
  std::optional<double> beta1;
  std::optional<double> beta2;
  double eps = 1e-8;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double beta3 = 0.99;                     // Came
  std::optional<double> decay_rate = 0.8;  // Came, Adafactor; Came without: the second of betas
  double clip_threshold = 1.0;
  bool scale_parameter = false;
  double eps1 = 1e-30;
  double eps2 = 1e-3;
  double eps3 = 1e-16;
  int64_t ns_steps = 5;                                   // Muon
  std::optional<FloatTable> ns_coefficients;              // rows {a, b, c, iterations}
  std::optional<std::vector<std::string>> adamw_include;  // names that Muon leaves to AdamW
  bool qk_clip_enabled = false;
  double qk_clip_threshold = 100.0;
  OwnOptions optimizer_kwargs;                // of a registered optimizer_type
  std::string ns_dtype = "auto";              // auto | float32 | bfloat16
  std::string adjust_lr = "match_rms_adamw";  // match_rms_adamw | original
  double matched_adamw_rms = 0.2;
  std::optional<double> adamw_learning_rate;  // learning_rate
  std::optional<std::string> lr_decay_style;  // resolved: empty only with scheduler_kwargs
  std::optional<int64_t> lr_decay_iters;
  std::optional<int64_t> lr_decay_samples;
  std::optional<int64_t> lr_wsd_decay_iters;
  std::optional<int64_t> lr_wsd_decay_samples;
  std::string lr_wsd_decay_style = "linear";
  std::optional<double> lr_num_cycles;  // cosine, cosine_restarts
  int64_t lr_keep_iters = 0;            // cooldown: at the largest rate, before it falls
  int64_t lr_final_iters = 0;           // cooldown: at min_lr, before final_lr
  std::optional<double> final_lr;       // cooldown; empty: min_lr
  int64_t lr_restart_iters = 0;         // warm_restarts: of the first cycle
  int64_t lr_restart_mult = 1;          // warm_restarts: each cycle is so many times the last
  double lr_decay_power = 1.0;          // polynomial
  OwnOptions lr_schedule_kwargs;        // of a registered lr_decay_style
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction;
  std::optional<double> lr_warmup_init;  // empty: 0, a step ahead
  double min_lr = 0.0;
  bool use_checkpoint_opt_param_scheduler = true;
  bool override_opt_param_scheduler = false;
  bool overlap_param_gather = false;
  DType exp_avg_dtype = kFloat32;     // float32 | bfloat16
  DType exp_avg_sq_dtype = kFloat32;  // float32 | bfloat16
  DType main_grads_dtype = kFloat32;  // float32 | bfloat16
  bool store_param_remainders = false;
  bool optimizer_in_backward = false;
  bool operator==(const OptimizerConfig&) const = default;
};

/// TensorBoard's event files of a run.
struct TensorBoardConfig {
  std::optional<std::string> tensorboard_dir;  // empty: none are written
  int64_t tensorboard_queue_size = 10;
  int64_t tensorboard_log_interval = 1;
  bool log_loss_scale_to_tensorboard = false;
  bool log_timers_to_tensorboard = false;
  bool log_expert_load_to_tensorboard = false;
  std::optional<int64_t> histogram_interval;
  bool operator==(const TensorBoardConfig&) const = default;
};

/// What other programs see of a run while it trains.
struct TelemetryConfig {
  std::optional<std::string> run_name;  // empty: the name of the output folder
  bool prometheus = false;
  std::optional<std::string> prometheus_file;  // empty: metrics.prom in the output folder
  double prometheus_interval = 5;              // seconds
  std::optional<int64_t> http_port;            // 0: one that is free; empty: none
  std::string http_address = "127.0.0.1";
  std::optional<std::string> mlflow_dir;  // empty: nothing is written for MLflow
  std::string mlflow_experiment = "Default";
  int64_t mlflow_log_interval = 1;  // steps
  bool operator==(const TelemetryConfig&) const = default;
};

/// What is measured beside the loss, and which steps and checkpoints are held to be bad.
struct MonitorConfig {
  using Formats = std::optional<std::vector<std::string>>;  // of log | tensorboard
  bool monitor_on = false;
  std::vector<std::string> target = {".*"};
  bool invert = false;
  int64_t step_interval = 1;
  Formats local_loss_format;
  Formats device_local_loss_format;
  Formats local_norm_format;
  Formats device_local_norm_format;
  Formats optimizer_state_format;
  Formats weight_state_format;
  std::optional<double> throughput_baseline;  // samples per second and rank
  bool print_struct = false;
  bool local_norm = false;
  std::string value_format = "fixed";  // fixed | scientific | general
  std::optional<double> slow_rank_factor;
  std::optional<int64_t> max_logits_interval;                    // steps; empty: not measured
  std::optional<int64_t> save_tokens_per_expert_interval;        // micro-batches; empty: never
  std::optional<std::vector<int64_t>> tokens_per_expert_layers;  // {n}: the first n; empty: all
  bool use_skip_data_by_global_norm = false;
  bool check_for_global_norm = false;
  double global_norm_spike_threshold = 3.0;
  int64_t global_norm_spike_count_threshold = 10;
  std::optional<double> global_norm_spike_factor;
  int64_t global_norm_median_window = 32;
  bool use_checkpoint_health_monitor = false;
  double embedding_local_norm_threshold = 1.0;
  std::optional<std::string> health_ckpts_record_dir;  // empty: output_dir
  bool check_for_nan_in_loss_and_grad = false;
  bool operator==(const MonitorConfig&) const = default;
};

/// Where the value of a key came from.
struct ConfigOrigin {
  enum class Kind { kDefault, kFile, kOverride, kCode, kDerived };
  Kind kind = Kind::kDefault;
  std::string text;   // "gpt.yaml:12", "--set", "derived from hidden_act"; for messages see `place`
  std::string place;  // "gpt.yaml:12:3" or "--set section.key=value"; empty for the rest
  std::string value;  // as YAML, when the configuration was completed: resolve() sees what changed
  std::string idle;   // "without use_lora": why the value has no effect; empty if it has one
};

struct AllConfig {
  // Long, so not in every source that copies a configuration.
  AllConfig();
  AllConfig(const AllConfig& other);
  AllConfig(AllConfig&& other) noexcept;
  AllConfig& operator=(const AllConfig& other);
  AllConfig& operator=(AllConfig&& other) noexcept;
  ~AllConfig();

  TrainingConfig training_config;
  ModelParallelConfig parallel_config;
  DatasetConfig dataset_config;
  TransformerConfig model_config;
  OptimizerConfig optimizer_config;
  MoEConfig moe_config;
  LoraConfig lora_config;
  PostTrainingConfig post_training_config;
  TensorBoardConfig tensorboard;
  TelemetryConfig telemetry;
  MonitorConfig monitor_config;
  /// Values of keys that no code reads, by "section.key", where they are not the defaults.
  std::map<std::string, config::Value> without_effect;

  /// Values that are valid but belong to a feature that is not built yet, each with its place and
  /// the reason. A run must refuse them (require_supported); a dry run prints them.
  std::vector<std::string> unsupported;
  /// Remarks for the log: values that have no effect here, or that were adjusted.
  std::vector<std::string> notes;
  /// Origin per "section.key" (also "section.key.entry"); the model's section is "model_config".
  std::map<std::string, ConfigOrigin> origins;
  /// The YAML name of the model's section.
  std::string model_section = "model_config";

  /// Equal values; origins, notes and section name do not count.
  bool same_values(const AllConfig& other) const;
};

struct LoadOptions {
  /// YAML section of the model. With the default, `gpt_config` is accepted as well.
  std::string model_type = "model_config";
  /// "section.key=value", applied in this order after the file. Values are read as YAML.
  std::vector<std::string> overrides;
};

/// Reads, checks and completes a configuration. IoError if the file cannot be read; ConfigError
/// with all findings if it is wrong. Findings of features not built yet only go to `unsupported`,
/// unless there are errors too.
AllConfig init_configs_from_yaml(const std::string& path, const LoadOptions& options = {});

/// The same on a text; `name` stands for the file in messages.
AllConfig init_configs_from_text(const std::string& text,
                                 const std::string& name,
                                 const LoadOptions& options = {});

/// ValueError for a configuration that was made in C++ and not completed by resolve().
void require_complete(const AllConfig& config);

/// The same, and ConfigError with config.unsupported unless that is empty.
void require_supported(const AllConfig& config);

/// The clipping that holds, from grad_clip_kwargs or optimizer_config.clip_grad; empty: none.
std::optional<GradClipConfig> gradient_clipping(const AllConfig& config);

/// What a run that starts from its beginning takes its weights from.
struct StartWeights {
  std::string path;    ///< of a file or folder; empty: the weights are initial ones
  bool dense = false;  ///< it is a dense model, of which the mixture is made (upcycle_from)
};

/// load_checkpoint; or, where a run is to go on and has nothing to go on with yet, from_hf; or
/// moe_config.upcycle_from.
StartWeights start_weights(const AllConfig& config);

/// What data-parallel ranks share out: 0 nothing, 1 optimizer state, 2 also gradients, 3 also
/// weights (parallel_config.zero_level, training_config.use_distributed_optimizer).
int zero_level(const AllConfig& config);

/// With z3: weights that were gathered stay until the update
/// (recompute_config.parallel_optimizer_comm_recompute).
bool keeps_gathered_weights(const AllConfig& config);

/// Elements of one gradient bucket: training_config.bucket_size, else 40 million, or one million
/// for each data-parallel rank if that is more.
int64_t bucket_size(const AllConfig& config, int64_t data_parallel_size);

/// Whether training makes loss and logits in one op: fused_linear_cross_entropy or its default.
bool fuses_head_and_loss(const TransformerConfig& config);

/// All layers: the model's own, and behind them those that predict further tokens
/// (mtp_num_layers), whose numbers follow.
int64_t all_layers(const TransformerConfig& config);
/// The layer of the model, from 0, of whose kind a layer is: itself, or the last one for those that
/// predict further tokens. The functions of a layer below answer for these too.
int64_t kind_of(const TransformerConfig& config, int64_t layer);

/// Whether the feed-forward block of a layer, counted from 0, is a mixture of experts.
bool is_moe_layer(const TransformerConfig& config, int64_t layer);

/// What mixes the tokens of a layer (layer_types).
enum class MixerKind : uint8_t { kAttention, kGatedDelta, kShortConv, kMamba };
/// The same for a kind's name; layers of no kind have attention.
MixerKind mixer_kind(const std::string& layer_type);
/// Of a layer, counted from 0.
MixerKind mixer_kind(const TransformerConfig& config, int64_t layer);
/// Whether a layer of the model has the mixer.
bool has_mixer(const TransformerConfig& config, MixerKind kind);
/// Whether a layer has anything but attention: a state that grows from token to token.
bool has_recurrent_layers(const TransformerConfig& config);

/// Whether an activation is a gate by itself, of an input twice as wide as its output: gate first,
/// then up. Others become one by gated_linear_unit: activation(gate) * up.
bool is_gated(const std::string& hidden_act);
/// Whether the MLP has one, and so w_gate beside w_up.
bool has_gated_mlp(const TransformerConfig& config);

/// Whether queries of a layer, counted from 0, see the window alone.
bool has_window(const TransformerConfig& config, int64_t layer);
/// Number of tokens before its own that a query of the layer sees; nothing: all.
std::optional<int64_t> window_left(const TransformerConfig& config, int64_t layer);
/// Whether the layer's queries and keys are rotated.
bool has_rotation(const TransformerConfig& config, int64_t layer);
/// The rotation of its queries and keys: sliding layers have another with sliding_rotary_base. That
/// of whole heads where the others' is proportional.
RotaryConfig rotation_of(const TransformerConfig& config, int64_t layer);
/// That of sliding layers, where it is another.
std::optional<RotaryConfig> sliding_rotation(const TransformerConfig& config);

/// norm_placement of a layer, counted from 0, or mixer_norm_placement.
const std::string& norm_placement(const TransformerConfig& config, int64_t layer);
// What it says: norms of the blocks' inputs and of their outputs; attention and MLP that read the
// same sum; and one norm for both of them.
bool norms_inputs(const TransformerConfig& config, int64_t layer);
bool norms_outputs(const TransformerConfig& config, int64_t layer);
bool has_parallel_blocks(const TransformerConfig& config, int64_t layer);
bool shares_norm(const TransformerConfig& config, int64_t layer);
/// Whether any layer norms the outputs of its blocks.
bool norms_outputs_somewhere(const TransformerConfig& config);

/// Channels of a head of queries and keys, and heads of keys and values, of a layer from 0: those
/// of layers of the kind full_attention may be others (full_attention_kv_channels and so on).
int64_t kv_channels(const TransformerConfig& config, int64_t layer);
int64_t num_query_groups(const TransformerConfig& config, int64_t layer);
/// Whether the layer's values are what its keys are made of (full_attention_value_is_key).
bool value_is_key(const TransformerConfig& config, int64_t layer);
/// The layer whose keys and values the layer has in place of its own (num_kv_shared_layers): the
/// last one of its kind that has any; nothing: it has its own.
std::optional<int64_t> keys_from(const TransformerConfig& config, int64_t layer);
/// Whether a later layer has this one's.
bool gives_keys(const TransformerConfig& config, int64_t layer);
/// Width inside the dense MLP of a layer: with use_double_wide_mlp that of num_kv_shared_layers
/// is twice ffn_hidden_size.
int64_t ffn_hidden_size(const TransformerConfig& config, int64_t layer);
/// Whether the layer has a dense MLP and experts, whose sum counts (moe_beside_dense).
bool has_experts_beside_dense(const TransformerConfig& config, int64_t layer);
/// Rows of the table of per-layer embeddings.
int64_t per_layer_vocab_size(const TransformerConfig& config);

/// What scores are multiplied by: attention_scale, or kv_channels^-1/2; with multi-latent attention
/// and yarn that times (0.1 mscale_all_dim ln(rope_scaling_factor) + 1)^2 (DeepSeek-V2,
/// arXiv:2405.04434).
double attention_scale(const TransformerConfig& config);
/// The same of a layer, from 0, by its own kv_channels.
double attention_scale(const TransformerConfig& config, int64_t layer);

/// Channels of a head that are rotated; with rope_type proportional all are, some of them by 0.
int64_t rotated_channels(const TransformerConfig& config);
/// The same of a layer, from 0.
int64_t rotated_channels(const TransformerConfig& config, int64_t layer);
/// Channels of a head's values.
int64_t value_channels(const TransformerConfig& config);

/// Width inside an expert.
int64_t moe_ffn_hidden_size(const TransformerConfig& config);

/// Ranks that share each matrix of an expert.
int64_t expert_tensor_parallel_size(const ModelParallelConfig& config);

/// Sequences of one step over all ranks: batch_size * micro_batch_num * data_parallel_size.
int64_t global_batch_size(const AllConfig& config, int64_t data_parallel_size = 1);

/// Steps of the whole run: training_iters, or train_samples / global batch (rounded down). 0 if
/// only `epochs` limits the run.
int64_t total_training_iters(const AllConfig& config, int64_t data_parallel_size = 1);

}  // namespace tapestry
