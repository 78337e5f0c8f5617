#include "parallel_core/config/schema/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/show/render.h"
#include "tests/says.h"
#include "text/util/regular_expression.h"

namespace tapestry::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The keys of the original's sections, by section; entries of mappings follow their mapping.
const std::map<std::string, std::string> kOriginalKeys = {
    {"training_config",
     "seed output_dir training_iters epochs log_interval eval_interval save_interval "
     "best_metric_comparison eval_metric grad_clip_kwargs grad_clip_kwargs.grad_clip_type "
     "grad_clip_kwargs.clip_value loss_scale loss_scale_value loss_scale_factor loss_scale_window "
     "loss_reduction calculate_per_token_loss wrap_with_ddp accumulate_allreduce_grads_in_fp32 "
     "overlap_grad_reduce delay_grad_reduce use_distributed_optimizer bucket_size "
     "check_for_nan_in_grad fp16 bf16 resume_training crc_check load_checkpoint "
     "enable_compile_cache compile_cache_path ckpt_format prefix keep_checkpoint_max no_load_optim "
     "no_load_rng new_dataset enable_mem_align profile profile_save_path profile_step_start "
     "profile_step_end profile_level profile_framework profile_with_stack profile_memory "
     "profile_communication profile_parallel_strategy profile_l2_cache profile_hbm_ddr "
     "profile_pcie "
     "profile_data_process profile_data_simplification profile_offline_analyse profile_op_time "
     "profile_aicore_metrics profile_dynamic_profiler_config_path search_parallel "
     "search_parallel_data_path nnodes nproc_per_node loss_func_kwargs "
     "loss_func_kwargs.loss_func_type eval_iters num_threads log_param_grad_norms "
     "dump_activation_steps dump_grad_steps "
     "dump_weight_steps"},
    {"parallel_config",
     "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size "
     "expert_model_parallel_size virtual_pipeline_model_parallel_size sequence_parallel recv_dtype "
     "zero_level standalone_embedding_stage overlap_grad_reduce gradient_accumulation_fusion "
     "overlap_p2p_comm use_cpu_initialization deterministic_mode num_layer_list recompute_config "
     "recompute_config.recompute recompute_config.select_recompute "
     "recompute_config.select_comm_recompute recompute_config.select_recompute_exclude "
     "recompute_config.select_comm_recompute_exclude recompute_config.mp_comm_recompute "
     "recompute_config.parallel_optimizer_comm_recompute "
     "recompute_config.recompute_slice_activation recompute_config.recompute_layers "
     "recompute_config.select_recompute_layers recompute select_recompute select_comm_recompute "
     "heterogeneous_pipeline pipeline_stage_device offset"},
    {"dataset_config",
     "dataset_dir shuffle batch_size micro_batch_num train_samples data_layout eos_token_id "
     "drop_remainder pad_token_id reset_attention_mask reset_position_ids eod_mask_loss seq_length "
     "dataset_size data_path train_data_path valid_data_path test_data_path text split "
     "step_data_dir tokenizer_type tokenizer_model "
     "character_coverage"},
    {"model_config",
     "vocab_size num_layers num_attention_heads hidden_size ffn_hidden_size seq_length "
     "encoder_attn_mask_type attention_type position_embedding_type parallel_position_embedding "
     "rotary_config rotary_config.rotary_percent rotary_config.rotary_interleaved "
     "rotary_config.seq_len_interpolation_factor rotary_config.rotary_base "
     "rotary_config.rope_type rotary_config.rope_scaling_factor rotary_config.low_freq_factor "
     "rotary_config.high_freq_factor rotary_config.original_max_position_embeddings "
     "use_query_layer "
     "use_visual_encoder use_retriever group_query_attention num_query_groups qkv_has_bias "
     "out_proj_has_bias head_skip_weight_param_allocation apply_query_key_layer_scaling "
     "use_flash_attention fa_config fa_config.keep_prob fa_config.pre_tokens fa_config.next_tokens "
     "fa_config.input_layout fa_config.sparse_mode enable_flash_sp mask_func_type mlp_has_bias "
     "gated_linear_unit hidden_act apply_swiglu_fusion normalization norm_epsilon "
     "apply_residual_connection_post_norm use_final_norm residual_connection_dtype "
     "fp32_residual_connection init_method_std init_method bias_init params_dtype "
     "embedding_init_dtype compute_dtype softmax_compute_dtype attention_softmax_in_fp32 "
     "fp16_lm_cross_entropy hidden_dropout attention_dropout out_hidden_size num_experts "
     "untie_embeddings_and_output_weights flatten_labels_and_input_mask recompute_method "
     "recompute_num_layers recompute_granularity recompute_activations select_recompute "
     "select_comm_recompute kv_channels bias_dropout_fusion masked_softmax_fusion "
     "retro_add_retriever clone_scatter_output_in_embedding fp8_format add_bias_linear "
     "distribute_saved_activations transformer_impl encoder_num_layers decoder_num_layers "
     "model_type apply_rope_fusion use_sandwich_norm attn_post_norm_scale ffn_post_norm_scale "
     "window_size qk_layernorm max_position_embeddings scaled_output_init use_alibi_mask "
     "use_attn_mask_compression use_eod_attn_mask_compression use_eod_reset use_ring_attention "
     "attn_mask_type init_method_type"},
    {"optimizer_config",
     "optimizer_type learning_rate learning_rate_scheduler_kwargs "
     "learning_rate_scheduler_kwargs.warmup_steps learning_rate_scheduler_kwargs.decay_steps "
     "learning_rate_scheduler_kwargs.end_learning_rate learning_rate_scheduler_kwargs.use_cosine "
     "learning_rate_scheduler_kwargs.power weight_decay start_weight_decay end_weight_decay "
     "weight_decay_incr_style weight_decay_kwargs zero_config zero_config.param_resident "
     "zero_config.param_resident_rate zero_config.allreduce_after_grad_accumulation "
     "zero_config.grad_allreduce_op zero_config.opt_parallel_group zero_config.cpu_offload "
     "zero_config.with_context_parallel clip_grad lr_decay_iters lr_decay_samples "
     "lr_wsd_decay_iters lr_wsd_decay_samples lr_warmup_iters lr_warmup_samples lr_warmup_init "
     "lr_warmup_fraction min_lr lr_decay_style lr_wsd_decay_style "
     "use_checkpoint_opt_param_scheduler override_opt_param_scheduler overlap_param_gather betas "
     "eps "
     "beta1 beta2 zero_without_ddp"},
    {"moe_config",
     "num_experts moe_grouped_gemm moe_router_topk moe_router_load_balancing_type "
     "moe_token_dispatcher_type use_self_defined_alltoall moe_expert_capacity_factor "
     "moe_pad_expert_input_to_capacity moe_token_drop_policy moe_aux_loss_coeff moe_z_loss_coeff "
     "moe_input_jitter_eps expert_num n_routed_experts num_moe_experts num_experts_chosen "
     "num_experts_per_tok capacity_factor aux_loss_factor aux_loss_types aux_loss_factors "
     "routing_policy enable_sdrop use_fused_ops_topkrouter router_dense_type moe_router_dtype "
     "shared_expert_num n_shared_experts use_shared_expert_gating moe_shared_expert_overlap "
     "moe_intermediate_size moe_ffn_hidden_size first_k_dense_replace moe_layer_freq topk_method "
     "n_group moe_router_num_groups topk_group moe_router_group_topk norm_topk_prob "
     "routed_scaling_factor moe_router_topk_scaling_factor use_gating_sigmoid "
     "moe_router_score_function balance_via_topk_bias moe_router_enable_expert_bias "
     "topk_bias_update_rate moe_router_bias_update_rate z_loss_factor use_gmm "
     "use_fused_ops_permute moe_permute_fusion enable_gmm_safe_tokens use_pad_tokens "
     "callback_moe_droprate max_router_load expert_group_size group_wise_a2a comp_comm_parallel "
     "comp_comm_parallel_degree use_allgather_dispatcher enable_deredundency npu_nums_per_device "
     "save_token_distribution cur_layer enable_cold_hot_expert update_step hot_expert_num "
     "cold_token_percent moe_module_name ep_extend_tp dispatch_global_max_bs"},
    {"lora_config",
     "use_lora lora_rank lora_alpha lora_dropout target_cells use_rslora use_dora modules_to_save "
     "adapter"},
    {"tensorboard",
     "tensorboard_dir tensorboard_queue_size log_loss_scale_to_tensorboard "
     "log_timers_to_tensorboard log_expert_load_to_tensorboard"}};

bool is_known(const std::string& section, const std::string& name) {
  for (const Key& key : find_section(section)->keys) {
    const auto aliases = split_text(key.aliases, '|');
    if (key.name == name || std::count(aliases.begin(), aliases.end(), name) > 0) {
      return true;
    }
  }
  return false;
}

TEST(Schema, KnowsEveryKeyOfTheOriginal) {
  for (const auto& [section, keys] : kOriginalKeys) {
    ASSERT_NE(find_section(section), nullptr);
    std::istringstream names(keys);
    std::string name;
    while (names >> name) {
      EXPECT_TRUE(is_known(section, name)) << section << "." << name;
    }
  }
}

TEST(Schema, RowsAreConsistent) {
  for (const Section& section : schema()) {
    std::set<std::string_view> names;
    for (const Key& key : section.keys) {
      const std::string path = std::string(section.name) + "." + std::string(key.name);
      EXPECT_TRUE(names.insert(key.name).second) << path << " twice";
      EXPECT_TRUE(key.doc.ends_with('.')) << path << ": documentation";
      EXPECT_EQ(key.accepted.empty(), key.reason.empty()) << path;
      for (const std::string_view alias : split_text(key.aliases, '|')) {
        EXPECT_TRUE(names.insert(alias).second) << path << ": alias " << alias;
      }
      const size_t dot = key.name.find('.');
      if (dot != std::string_view::npos) {  // a mapping stands before its entries
        EXPECT_TRUE(names.contains(key.name.substr(0, dot))) << path;
      }
      if (!key.required && key.field.type != Type::kMapping) {
        EXPECT_EQ(complaint(key, default_value(key)), "") << path << ": its own default";
        EXPECT_TRUE(is_supported(key, default_value(key))) << path << ": its own default";
      }
      for (const std::string_view alias : split_text(key.value_aliases, '|')) {
        const auto choices = split_text(key.check.choices, '|');
        const auto target = alias.substr(alias.find('=') + 1);
        EXPECT_EQ(std::count(choices.begin(), choices.end(), target), 1) << path << " " << alias;
      }
    }
  }
}

// A row bound to the wrong member would write one key and read another.
TEST(Schema, EveryRowHasAMemberOfItsOwn) {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      AllConfig config;
      const Value before = key.field.get(config);
      Value changed = before;
      switch (key.field.type) {
        case Type::kBool:
          changed = Value{!(before.is<bool>() && before.as<bool>())};
          break;
        case Type::kInt:
          changed = Value{int64_t{987}};
          break;
        case Type::kFloat:
          changed = Value{0.123};
          break;
        case Type::kString:
          changed = Value{std::string("text")};
          break;
        case Type::kDType:
          changed = Value{std::string("float16")};
          break;
        case Type::kIntList:
          changed = Value{Value::List{Value{int64_t{5}}}};
          break;
        case Type::kFloatList:
          changed = Value{Value::List{Value{0.5}}};
          break;
        case Type::kStringList:
          changed = Value{Value::List{Value{std::string("a")}}};
          break;
        case Type::kLayerTable:
          changed = Value{Value::List{Value{int64_t{5}}}};
          break;
        case Type::kFloatTable:
          changed = Value{Value::List{Value{0.5}, Value{2.0}}};
          break;
        case Type::kRecompute:
          changed = Value{Value::List{Value{true}}};
          break;
        case Type::kSwitchOrName:
          changed = Value{std::string("step_00000001")};
          break;
        case Type::kInitializer:
          changed = Value{0.5};
          break;
        case Type::kOptions:
          changed = Value{Value::Map{{"a", Value{0.5}}}};
          break;
        case Type::kLoraTargets:
        case Type::kMapping:
          continue;
      }
      key.field.set(config, changed);
      EXPECT_EQ(to_yaml(key.field.get(config)), to_yaml(changed))
          << section.name << "." << key.name;
      for (const Section& other_section : schema()) {
        for (const Key& other : other_section.keys) {
          if (&other != &key && other.field.type != Type::kMapping) {
            EXPECT_EQ(to_yaml(other.field.get(config)), to_yaml(default_value(other)))
                << section.name << "." << key.name << " writes " << other.name;
          }
        }
      }
    }
  }
}

TEST(Schema, DocumentationIsUpToDate) {
  std::ifstream file("docs/configuration.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), render_configuration_markdown())
      << "run: config_doc > docs/configuration.md";
}

TEST(Schema, HelpNamesEverySectionAndEveryKey) {
  const std::string sections = render_sections_help();
  for (const Section& section : schema()) {
    EXPECT_THAT(sections, HasSubstr("  " + std::string(section.name) + " "));
    const std::string help = render_configuration_help(std::string(section.name));
    for (const Key& key : section.keys) {
      EXPECT_THAT(help, HasSubstr("\n  " + std::string(key.name) + " ("));
    }
  }
}

TEST(Schema, HelpOnOneKey) {
  const std::string help = render_configuration_help("optimizer_config.clip_grad");
  EXPECT_THAT(help, HasSubstr("optimizer_config:\n  clip_grad (float, >= 0, default 0.0)"));
  EXPECT_THAT(help, Not(HasSubstr("weight_decay")));
  EXPECT_EQ(render_configuration_help("clip_grad"), help);
  EXPECT_THAT(render_configuration_help("rotary_base"), HasSubstr("rotary_config.rotary_base ("));
  const std::string both = render_configuration_help("seq_length");
  EXPECT_THAT(both, HasSubstr("dataset_config:\n"));
  EXPECT_THAT(both, HasSubstr("model_config:\n"));
}

TEST(Schema, HelpFindsKeysByOtherNames) {
  struct Row {
    const char* topic;
    const char* key;
    const char* remark;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"lr", "\n  learning_rate (", "lr: here it is optimizer_config.learning_rate"},
           {"--lr", "\n  learning_rate (", "lr: here it is"},
           {"optimizer_config.lr", "\n  learning_rate (", "lr: here it is"},
           {"max_steps", "\n  training_iters (", "here it is training_config.training_iters"},
           {"train-iters", "\n  training_iters (", "here it is training_config.training_iters"},
           {"n_layer", "\n  num_layers (", "here it is model_config.num_layers"},
           {"per_print_times", "\n  log_interval (", "in steps, null for none"},
           {"add_qkv_bias", "\n  qkv_has_bias (", "model_config:"},
           {"learning_rte", "\n  learning_rate (", "There is no learning_rte; the nearest is"},
           {"Learning-Rate=1e-3", "\n  learning_rate (", "optimizer_config:"},
           {"warmup_it", "\n  lr_warmup_iters (", "with this name or value"},
           {"llama3", "\n  rotary_config.rope_type (", "with this name or value"},
           {"wandb_project", "metrics.jsonl", "no key stands for it"},
           {"modle_config", "\n  hidden_size (", "the nearest is model_config"},
           {"loss", "  training_config.loss_scale\n", "this name or value"}}) {
    const std::string help = "\n" + render_configuration_help(row.topic);
    EXPECT_THAT(help, Says(row.key)) << row.topic;
    EXPECT_THAT(help, Says(row.remark)) << row.topic;
  }
  try {
    render_configuration_help("bananas");
    FAIL() << "accepted";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), Says("--help bananas: ... no such section or key"));
  }
}

// Whatever name a message offers a key for, --help finds that key.
TEST(Schema, HelpFindsEveryForeignName) {
  for (const ForeignName& row : foreign_names()) {
    const std::string name(row.name.substr(row.name.rfind('.') + 1));
    EXPECT_NO_THROW(EXPECT_FALSE(render_configuration_help(name).empty())) << name;
    EXPECT_NO_THROW(render_configuration_help(std::string(row.name))) << row.name;
  }
}

// Whether a key's text leans on that of another key, which `--help KEY` does not show.
bool leans_on_neighbour(std::string_view doc) {
  static const RegularExpression kNeighbour(
      // "The same in minutes.", "As above, but ..."
      "(^|[.;:] )(The same|the same in|As above|As before|Likewise|Ditto|Similarly|See above)\\b|"
      // "What these numbers move by.", "Type of its products.", "Dropout of their input."
      "^([A-Za-z'-]+ ){0,4}(it|its|they|them|their|this|these|those|such|others)\\b|"
      // "for the last three keys", "unless one of the next keys is given", "the key before"
      "\\b(next|last|previous|other) (one |ones|(two |three |four |five )?keys?\\b)|"
      "\\bkeys? (above|below|before|after)\\b|\\b(see|said|as) (above|below)\\b");
  return kNeighbour.is_found_in(doc);
}

TEST(Schema, HelpTextsStandAlone) {
  for (const char* doc :
       {"The same in minutes.", "The same over all parameters of the rank.", "As above, per row.",
        "What these numbers move by.", "Dropout of their input.", "Type of its products; auto.",
        "Token that ends a document, for the last three keys.",
        "Biases of all layers, unless one of the next three keys is given.",
        "What becomes of such a step: stop ends it.", "Not together with the key before."}) {
    EXPECT_TRUE(leans_on_neighbour(doc)) << doc;
  }
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      EXPECT_FALSE(key.doc.empty()) << section.name << "." << key.name;
      EXPECT_FALSE(leans_on_neighbour(key.doc))
          << section.name << "." << key.name << ": " << key.doc;
    }
  }
}

TEST(Schema, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("sede", "seed"), 1);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Value, TextReadsBack) {
  EXPECT_EQ(to_yaml(Value{}), "null");
  EXPECT_EQ(to_yaml(Value{1e-6}), "1e-06");
  EXPECT_EQ(to_yaml(Value{0.1}), "0.1");
  EXPECT_EQ(to_yaml(Value{3.0}), "3.0");
  EXPECT_EQ(string_text("null"), "\"null\"");
  EXPECT_EQ(string_text("12"), "\"12\"");
  EXPECT_EQ(string_text(""), "\"\"");
  EXPECT_EQ(string_text("a: b"), "\"a: b\"");
  EXPECT_EQ(string_text("./out-1"), "./out-1");
  EXPECT_EQ(string_text("q\"\\\n\t"), "\"q\\\"\\\\\\n\\x09\"");
}

}  // namespace
}  // namespace tapestry::config
