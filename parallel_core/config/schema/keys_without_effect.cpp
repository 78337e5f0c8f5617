// Keys that no code reads, with all that is said about them. A configuration may hold them, as
// those of other programs do; what they are given is kept in AllConfig::without_effect for the next
// reader of the resolved configuration.
#include "parallel_core/config/schema/keys_without_effect.h"

#include <algorithm>

#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace keys_without_effect {
namespace {

using enum Type;

struct More {
  Check check = {};
  std::string_view aliases = {};
  Null null = Null::kByType;
  bool path = false;
  bool planned = false;
};

struct Row {
  std::string_view name;
  Type type;
  std::string_view initial;  // as YAML; null: the key may be null
  std::string_view doc;
  std::string_view reason = {};  // why only the default is taken; empty: any value is
  More more = {};
};

constexpr std::string_view kNoCounters =
    "it reads counters of an accelerator, and there is none; profile_level: level1 shows FLOP/s "
    "and "
    "bytes of every op";
constexpr std::string_view kSearch = "the search for a parallel layout is not built yet";
constexpr std::string_view kHetero =
    "all stages have the same number of ranks; num_layer_list and offset give them different "
    "numbers of layers";
constexpr std::string_view kDecoderOnly =
    "models are decoder-only GPTs; use num_layers and self-attention";
constexpr std::string_view kZero = "what is sharded, parallel_config.zero_level says";
constexpr std::string_view kHotExperts =
    "copies of the experts that are loaded most would make a run depend on its layout; even out "
    "the load by moe_router_load_balancing_type or moe_router_enable_expert_bias, and leave this "
    "key out";
constexpr std::string_view kTokenFiles =
    "tokens per expert and step are in metrics.jsonl of the output folder; leave this key out";
constexpr std::string_view kGathered =
    "context-parallel ranks gather keys and values a few heads at a time, for which "
    "context_parallel_size is enough";
constexpr std::string_view kExactRows =
    "Known for compatibility: messages have exactly the rows that go to a rank.";
constexpr std::string_view kEager = "operations run eagerly, there is nothing compiled to keep";

constexpr Row kTraining[] = {
    {"enable_compile_cache", kBool, "False", "Known for compatibility.", kEager},
    {"compile_cache_path", kString, "null", "Known for compatibility.", kEager, {.path = true}},
    {"save_network_params", kBool, "False",
     "Known for compatibility: whatever it says, the weights of each checkpoint are files of their "
     "own, without the optimizer's states."},
    {"save_trainable_params", kBool, "False", "Known for compatibility.",
     "all parameters are trained, so this would be the weights once more; they are files of their "
     "own in each checkpoint"},
    {"exception_save", kBool, "False", "Save when an error ends the run.",
     "ranks that fail in the middle of a step cannot agree on what to save; set save_interval or "
     "save_interval_minutes for what may be lost. A signal and exit_duration_in_mins save"},
    {"enable_mem_align", kBool, "False", "Known for compatibility.",
     "buffers are always aligned to 64 bytes; no other alignment is built"},
    {"profile_l2_cache", kBool, "False", "Record an accelerator's cache use.", kNoCounters},
    {"profile_hbm_ddr", kBool, "False", "Record an accelerator's memory bandwidth.", kNoCounters},
    {"profile_pcie", kBool, "False", "Record traffic between host and accelerator.", kNoCounters},
    {"profile_aicore_metrics",
     kInt,
     "0",
     "Set of an accelerator's counters.",
     kNoCounters,
     {.check = between(-1, 6)}},
    {"search_parallel",
     kBool,
     "False",
     "Search for a parallel layout.",
     kSearch,
     {.planned = true}},
    {"search_parallel_data_path",
     kString,
     "\"\"",
     "Measurements for the search.",
     kSearch,
     {.null = Null::kDefault, .path = true, .planned = true}},
    {"nnodes",
     kInt,
     "0",
     "Machines, for the search.",
     kSearch,
     {.check = at_least(0), .planned = true}},
    {"nproc_per_node",
     kIntList,
     "null",
     "Processes per machine, for the search.",
     kSearch,
     {.check = at_least(1), .planned = true}},
};

constexpr Row kParallel[] = {
    {"gradient_accumulation_fusion", kBool, "False",
     "Known for compatibility: matrix products always add weight gradients straight into the "
     "accumulated ones."},
    {"use_cpu_initialization", kBool, "False", "Initialise weights on the CPU. Always so here."},
    {"deterministic_mode", kBool, "False", "Same bits every run. Always so here."},
    {"heterogeneous_pipeline", kBool, "False", "Stages with different numbers of ranks.", kHetero},
    {"pipeline_stage_device",
     kIntList,
     "null",
     "Ranks of each stage.",
     kHetero,
     {.check = at_least(1)}},
};

constexpr Row kDataset[] = {
    {"dataset_size",
     kInt,
     "null",
     "Known for compatibility.",
     "the size follows from the data; a run is as long as train_samples, training_iters or epochs "
     "say",
     {.check = above(0)}},
};

constexpr Row kModel[] = {
    {"use_attn_mask_compression", kBool, "False",
     "Known for compatibility: causality, windows and documents never need a mask in memory."},
    {"use_ring_attention", kBool, "False", "How context-parallel ranks share keys and values.",
     kGathered},
    {"fa_config.next_tokens",
     kInt,
     "0",
     "How many later tokens a token sees: none, as attention is causal, so that any number from 0 "
     "on is taken.",
     {},
     {.check = between(0, 2147483647)}},
    {"fa_config.input_layout",
     kString,
     "BNSD",
     "Known for compatibility: order of axes inside attention, which changes no result.",
     {},
     {.check = one_of("BNSD|SBH|BSH|BSND|TND")}},
    {"mask_func_type",
     kString,
     "attn_mask_fill",
     "Known for compatibility: hidden scores count as minus infinity either way.",
     {},
     {.check = one_of("attn_mask_fill|attn_mask_add")}},
    {"fp8_format", kString, "null", "8-bit compute.",
     "no kernel multiplies 8-bit numbers; the narrowest type is compute_dtype: bfloat16"},
    {"head_skip_weight_param_allocation", kBool, "True", "Known for compatibility.",
     "whether the head has a matrix of its own, untie_embeddings_and_output_weights says"},
    {"flatten_labels_and_input_mask", kBool, "True",
     "Known for compatibility: the loss takes labels of any shape."},
    {"attention_type",
     kString,
     "self_attn",
     "Kind of attention.",
     kDecoderOnly,
     {.check = one_of("self_attn|cross_attn")}},
    {"encoder_num_layers",
     kInt,
     "null",
     "Known for compatibility.",
     kDecoderOnly,
     {.check = above(0)}},
    {"decoder_num_layers",
     kInt,
     "null",
     "Known for compatibility.",
     kDecoderOnly,
     {.check = above(0)}},
    {"use_query_layer", kBool, "False", "Known for compatibility.", kDecoderOnly},
    {"use_visual_encoder", kBool, "False", "Known for compatibility.", kDecoderOnly},
    {"use_retriever", kBool, "False", "Known for compatibility.", kDecoderOnly},
    {"retro_add_retriever", kBool, "False", "Known for compatibility.", kDecoderOnly},
    {"enable_flash_sp", kBool, "False", "FlashSP in place of ring attention.", kGathered},
    {"bias_dropout_fusion", kBool, "False",
     "Known for compatibility: operations are fused where that helps; results are the same."},
    {"masked_softmax_fusion", kBool, "False",
     "Known for compatibility: mask and softmax are one operation with `use_fused_kernels`."},
    {"clone_scatter_output_in_embedding", kBool, "False",
     "Known for compatibility: with sequence parallelism a rank never has the whole output."},
    {"transformer_impl",
     kString,
     "local",
     "Known for compatibility.",
     "there is one implementation; leave the key out",
     {.check = one_of("local|transformer_engine")}},
};

constexpr Row kOptimizer[] = {
    {"weight_decay_kwargs", kString, "null", "Known for compatibility.",
     "use start_weight_decay, end_weight_decay and weight_decay_incr_style"},
    {"zero_without_ddp", kBool, "False", "Sharding without the data-parallel wrapper.", kZero},
    {"zero_config", kMapping, "null", "Sharding without the data-parallel wrapper.", kZero},
    {"zero_config.param_resident", kBool, "False", "Keep some weights whole."},
    {"zero_config.param_resident_rate",
     kFloat,
     "1.0",
     "Share of weights that is kept whole.",
     {},
     {.check = {.low = 0, .high = 1, .low_open = true}}},
    {"zero_config.allreduce_after_grad_accumulation", kBool, "False", "Reduce once per step."},
    {"zero_config.grad_allreduce_op",
     kString,
     "mean",
     "Mean or sum over ranks.",
     {},
     {.check = one_of("mean|sum")}},
    {"zero_config.opt_parallel_group", kString, "null", "Group of ranks."},
    {"zero_config.cpu_offload", kBool, "False", "Known for compatibility."},
    {"zero_config.with_context_parallel", kBool, "False",
     "Known for compatibility: sharding always includes the context-parallel ranks."},
};

constexpr Row kMoe[] = {
    {"routing_policy",
     kString,
     "TopkRouterV1",
     "Known for compatibility: both name the one router.",
     {},
     {.check = one_of("TopkRouterV1|TopkRouterV2")}},
    {"moe_token_dispatcher_type",
     kString,
     "alltoall",
     "How tokens reach the experts.",
     {},
     {.check = one_of("alltoall")}},
    {"use_allgather_dispatcher", kBool, "False", kExactRows},
    {"group_wise_a2a", kBool, "False", kExactRows},
    {"enable_deredundency", kBool, "False", kExactRows},
    {"npu_nums_per_device",
     kInt,
     "1",
     "Known for compatibility: it belongs to `enable_deredundency`.",
     {},
     {.check = above(0)}},
    {"comp_comm_parallel", kBool, "False",
     "Known for compatibility: `moe_shared_expert_overlap` hides communication."},
    {"comp_comm_parallel_degree",
     kInt,
     "2",
     "Known for compatibility: it belongs to `comp_comm_parallel`.",
     {},
     {.check = above(0)}},
    {"moe_permute_fusion",
     kBool,
     "False",
     "Known for compatibility: rows are always moved in one pass.",
     {},
     {.aliases = "use_fused_ops_permute"}},
    {"use_fused_ops_topkrouter", kBool, "False",
     "Known for compatibility: the choice of experts is always one pass."},
    {"enable_gmm_safe_tokens",
     kBool,
     "False",
     "Known for compatibility: experts without tokens need none.",
     {},
     {.aliases = "use_pad_tokens"}},
    {"max_router_load",
     kInt,
     "131072",
     "Known for compatibility: the number of tokens has no limit.",
     {},
     {.check = above(0)}},
    {"ep_extend_tp", kBool, "True", "Known for compatibility: of inference alone."},
    {"dispatch_global_max_bs", kInt, "0", "Known for compatibility: of inference alone."},
    {"save_token_distribution", kBool, "False", "Files with the tokens of each expert.",
     kTokenFiles},
    {"cur_layer", kInt, "0", "The layer in the names of the files of `save_token_distribution`.",
     kTokenFiles},
    {"enable_cold_hot_expert", kBool, "False",
     "Copy the experts that are loaded most to every rank.", kHotExperts},
    {"update_step", kInt, "10000",
     "Steps after which the experts of `enable_cold_hot_expert` are chosen again.", kHotExperts},
    {"hot_expert_num", kInt, "0", "How many experts `enable_cold_hot_expert` copies.", kHotExperts},
    {"cold_token_percent", kFloat, "1.0",
     "The share of tokens of the experts that `enable_cold_hot_expert` does not copy.",
     kHotExperts},
    {"moe_module_name", kString, "\"\"",
     "The module whose experts `enable_cold_hot_expert` copies.", kHotExperts},
};

// TRL's names for what is otherwise here.
constexpr std::string_view kOnceBefore =
    "the reference's log-probabilities are computed once, before training, so that there is never "
    "a "
    "second copy of the weights; leave this key out";
constexpr std::string_view kOneEngine =
    "the trainer's own engine samples, with its weights; leave this key out";
constexpr Row kPostTraining[] = {
    {"precompute_ref_log_probs", kBool, "True", "Known for compatibility.", kOnceBefore},
    {"precompute_ref_batch_size", kInt, "null",
     "Known for compatibility: the reference's passes have the rows of training's."},
    {"sync_ref_model", kBool, "False", "Let the reference follow the policy.", kOnceBefore},
    {"ref_model_mixup_alpha", kFloat, "0.6", "The policy's share in that.", kOnceBefore},
    {"ref_model_sync_steps", kInt, "512", "Every so many steps.", kOnceBefore},
    {"padding_free", kBool, "False",
     "Known for compatibility: sequences share rows without padding between them."},
    {"use_vllm", kBool, "False", "Sample with another engine.", kOneEngine},
    {"use_adaptive_entropy", kBool, "False", "Adapt `entropy_coef` to a target.",
     "the coefficient is fixed; set entropy_coef"},
    {"use_liger_kernel", kBool, "False", "Known for compatibility.",
     "heads and losses are computed in chunks of tokens in any case; leave this key out"},
};

constexpr Row kMonitor[] = {
    {"dump_path",
     kString,
     "null",
     "Known for compatibility: values are computed in memory, so no file is written to this folder "
     "and none is deleted.",
     {},
     {.path = true}},
};

struct Rows {
  std::string_view section;
  std::span<const Row> rows;
};

constexpr Rows kRows[] = {
    {"training_config", kTraining},   {"parallel_config", kParallel},
    {"dataset_config", kDataset},     {"model_config", kModel},
    {"optimizer_config", kOptimizer}, {"moe_config", kMoe},
    {"monitor_config", kMonitor},     {"post_training_config", kPostTraining},
};

Key key_of(std::string_view section, const Row& row) {
  return {.name = row.name,
          .field = {.type = row.type,
                    .nullable = row.initial == "null",
                    .section = section,
                    .name = row.name,
                    .initial = row.initial},
          .check = row.more.check,
          .null = row.more.null,
          .path = row.more.path,
          .aliases = row.more.aliases,
          .accepted = row.reason.empty() ? std::string_view() : row.initial,
          .reason = row.reason,
          .planned = row.more.planned,
          .doc = row.doc};
}

std::string_view mapping_of(std::string_view name) {
  return name.substr(0, std::min(name.find('.'), name.size()));
}

Value initial_value(const Field& field) {
  const std::string text(field.initial);
  if (text == "null") {
    return {};
  }
  switch (field.type) {
    case kBool:
      return {text == "True"};
    case kInt:
      return {int64_t{std::stoll(text)}};
    case kFloat:
      return {std::stod(text)};
    default:
      return {text == R"("")" ? std::string() : text};
  }
}

}  // namespace
}  // namespace keys_without_effect

std::vector<Key> with_keys_without_effect(std::string_view section, std::span<const Key> read) {
  using namespace keys_without_effect;
  std::vector<Key> keys(read.begin(), read.end());
  for (const Rows& rows : kRows) {
    for (const Row& row : rows.section == section ? rows.rows : std::span<const Row>()) {
      const auto sibling = std::find_if(keys.rbegin(), keys.rend(), [&](const Key& key) {
        return mapping_of(key.name) == mapping_of(row.name);
      });
      keys.insert(sibling == keys.rend() ? keys.end() : sibling.base(), key_of(section, row));
    }
  }
  return keys;
}

// A mapping and its entries behave as members do: an entry brings its mapping, null takes both.
void Field::set(AllConfig& config, const Value& value) const {
  if (set_member != nullptr) {
    set_member(config, value);
    return;
  }
  const std::string path = concat(section, ".", name);
  if (const std::string_view mapping = keys_without_effect::mapping_of(name); mapping != name) {
    const Field& parent = find_key(section, mapping)->field;
    if (parent.get(config).is_null()) {
      parent.set(config, Value::Map{});
    }
  }
  if (value == keys_without_effect::initial_value(*this)) {
    std::erase_if(config.without_effect, [&path](const auto& kept) {
      return kept.first == path || kept.first.starts_with(path + ".");
    });
  } else {
    config.without_effect[path] = value;
  }
}

Value Field::get(const AllConfig& config) const {
  if (get_member != nullptr) {
    return get_member(config);
  }
  const auto kept = config.without_effect.find(concat(section, ".", name));
  return kept == config.without_effect.end() ? keys_without_effect::initial_value(*this)
                                             : kept->second;
}

}  // namespace tapestry::config
