// Rows of `parallelism`, `recompute`, `recompute_comm` and `swap`.
#include "parallel_core/config/mindformers2/keys.h"

namespace tapestry::config::mindformers2 {
namespace parallel_table {
namespace {

constexpr std::string_view kSameNumbers = "a way of sending, with the same numbers";
constexpr std::string_view kHost = "activations are in host memory; use recompute";
constexpr std::string_view kRemoved =
    "it is gone since 2.0.0: gradients are reduced in float32; see model.params_dtype";

constexpr Row kRows[] = {
    {"parallelism", "data_parallel_shard", "int", "-1", Fate::kRule, "parallel_config.zero_level",
     "-1, or the number of data-parallel ranks: z3; 1: nothing is sharded. Sharding over a part "
     "of the data-parallel ranks is refused"},
    {"parallelism", "data_parallel_shard_strategy", "str", "optim_grads_params", Fate::kRefused, "",
     "MindFormers 2.0 always shards optimizer, gradients and weights; leave it out",
     "optim_grads_params"},
    {"parallelism", "reshard_after_forward_policy", "str", "default", Fate::kRule,
     "parallel_config.recompute_config.parallel_optimizer_comm_recompute",
     "always: weights are gathered again in backward passes; never: they stay; default: they stay "
     "with pipeline_parallel above 1",
     "always|never|default"},
    {"parallelism", "cpu_offload", "bool", "False", Fate::kNothing, "",
     "all memory is that of the processor"},
    {"parallelism", "disable_gradient_division", "bool", "True", Fate::kRefused, "",
     "False divides gradients a second time", "True"},
    {"parallelism", "dense_fsdp_shard_size", "int?", "null", Fate::kNothing, "",
     "numbers do not depend on it; zero_level shards over all data-parallel ranks"},
    {"parallelism", "param_dtype", "str", "", Fate::kRefused, "", kRemoved},
    {"parallelism", "reduce_dtype", "str", "", Fate::kRefused, "", kRemoved},
    {"parallelism", "tensor_parallel", "int", "1", Fate::kSame,
     "parallel_config.tensor_model_parallel_size"},
    {"parallelism", "context_parallel", "int", "1", Fate::kSame,
     "parallel_config.context_parallel_size"},
    {"parallelism", "context_parallel_method", "str", "colossal", Fate::kNothing, "",
     "context-parallel ranks gather keys and values, with the same numbers",
     "colossal|ulysses|hybrid"},
    {"parallelism", "context_parallel_async", "bool", "False", Fate::kNothing, "", kSameNumbers},
    {"parallelism", "ulysses_degree_in_cp", "int?", "null", Fate::kRule, "",
     "is checked as there: hybrid needs it, between 1 and context_parallel and dividing it; with "
     "ulysses it is context_parallel"},
    {"parallelism", "context_parallel_mask_type", "str", "causal", Fate::kRefused, "",
     "attention is causal", "causal"},
    {"parallelism", "pipeline_parallel", "int", "1", Fate::kSame,
     "parallel_config.pipeline_model_parallel_size"},
    {"parallelism", "pipeline_parallel_layers_per_stage", "str|list?", "auto", Fate::kRule,
     "parallel_config.num_layer_list",
     "auto, or a text for each rank of its chunks, separated by commas, each \"a-b\" or \"a\" from "
     "layer 0 on; together they must be all layers in their order"},
    {"parallelism", "pipeline_parallel_schedule", "str", "1f1b", Fate::kNothing, "",
     "passes are interleaved where pipeline_parallel_interleave_num says so; gpipe has the same "
     "numbers and needs more memory",
     "1f1b|interleaved_1f1b|gpipe"},
    {"parallelism", "pipeline_parallel_microbatch_size", "int", "1", Fate::kNothing, "",
     "MindFormers 2.0 overwrites it with global_batch_size / (ranks x local_batch_size)"},
    {"parallelism", "pipeline_parallel_interleave_num", "int", "1", Fate::kRule,
     "parallel_config.virtual_pipeline_model_parallel_size", "above 1"},
    {"parallelism", "pipeline_parallel_overlap_p2p", "bool", "False", Fate::kSame,
     "parallel_config.overlap_p2p_comm", "numbers do not depend on it", "", "", false},
    {"parallelism", "pipeline_parallel_overlap_b_f", "bool", "False", Fate::kNothing, "",
     kSameNumbers},
    {"parallelism", "pipeline_parallel_enable_dxdw_split", "bool", "False", Fate::kNothing, "",
     kSameNumbers},
    {"parallelism", "pipeline_parallel_p2p_transport", "str", "plain", Fate::kNothing, "",
     kSameNumbers, "plain|auto|batch"},
    {"parallelism", "sequence_parallel", "bool", "False", Fate::kSame,
     "parallel_config.sequence_parallel"},
    {"parallelism", "enable_mc2", "bool", "False", Fate::kRefused, "",
     "it chooses kernels of an accelerator; leave it out", "False"},
    {"parallelism", "enable_loss_parallel", "bool", "False", Fate::kNothing, "",
     "the loss is always computed from each rank's part of the vocabulary"},
    {"parallelism", "expert_parallel", "int", "1", Fate::kRule,
     "parallel_config.expert_model_parallel_size|parallel_config.expert_tensor_parallel_size",
     "experts are divided over expert_parallel ranks, and each is whole: the second key is 1"},
    {"parallelism", "expert_tensor_parallel", "int", "1", Fate::kRefused, "",
     "it is gone since 2.0.0: each expert is whole on its rank", "1"},
    {"parallelism", "npu_nums_per_device", "int", "8", Fate::kNothing, "", kSameNumbers},
    {"parallelism", "moe_token_dispatcher_type", "str", "alltoall", Fate::kNothing, "",
     kSameNumbers, "alltoall|alltoall_deredundancy|alltoall_deredundency"},
    {"parallelism", "expert_parallel_async_d2h", "bool", "False", Fate::kNothing, "", kSameNumbers},
    {"parallelism", "expert_parallel_use_safe_tokens", "bool", "True", Fate::kNothing, "",
     "an expert without tokens computes nothing"},

    {"recompute", "mode", "str", "None", Fate::kRule, "parallel_config.recompute_config",
     "None: nothing; full needs full_recompute_layer, select needs select_module",
     "None|full|select"},
    {"recompute", "full_recompute_layer", "list?", "null", Fate::kRule,
     "parallel_config.recompute_config.recompute_layers",
     "layers \"5\" or \"0-19\" in ascending order; with mode select too"},
    {"recompute", "select_module", "map?", "null", Fate::kRule,
     "parallel_config.recompute_config.select_recompute|"
     "parallel_config.recompute_config.select_recompute_layers",
     "each expression is matched against the modules of a layer; all must have the same layers"},
    {"recompute", "exclude_op", "list?", "null", Fate::kRule,
     "parallel_config.recompute_config.select_recompute_exclude",
     "parts of names of operators, large or small letters"},
    {"recompute_comm", "enable", "bool", "False", Fate::kNothing, "",
     "what sequence parallelism gathers is gathered again in any case"},
    {"recompute_comm", "select_module", "map?", "null", Fate::kNothing, "",
     "what sequence parallelism gathers is gathered again in any case"},
    {"swap", "enable", "bool", "False", Fate::kRefused, "", kHost, "False"},
    {"swap", "default_prefetch", "int", "1", Fate::kNothing, "", kHost},
    {"swap", "layer_swap", "list?", "null", Fate::kNothing, "", kHost},
    {"swap", "op_swap", "list?", "null", Fate::kNothing, "", kHost},
};

}  // namespace
}  // namespace parallel_table

std::span<const Row> parallel_rows() { return parallel_table::kRows; }

}  // namespace tapestry::config::mindformers2
