// Rows of `model` about experts.
#include "parallel_core/config/mindformers2/keys.h"

namespace tapestry::config::mindformers2 {
namespace expert_table {
namespace {

constexpr std::string_view kKernel = "a choice of kernel, with the same numbers";
constexpr std::string_view kNone = "-";
constexpr std::string_view kHash = "layers that choose experts by a table of tokens are not built";

constexpr Row kRows[] = {
    {"model", "n_routed_experts", "int?", "256", Fate::kRule, "moe_config.num_experts",
     "null: none", "", kNone},
    {"model", "num_experts_per_tok", "int", "8", Fate::kSame, "moe_config.moe_router_topk", "", "",
     kNone},
    {"model", "n_group", "int?", "8", Fate::kRule,
     "moe_config.moe_router_num_groups|moe_config.topk_method", "above 1: topk_method is noaux_tc",
     "", kNone},
    {"model", "topk_group", "int?", "4", Fate::kRule, "moe_config.moe_router_group_topk",
     "with n_group", "", kNone},
    {"model", "n_shared_experts", "int?", "1", Fate::kRule, "moe_config.shared_expert_num",
     "unless moe_shared_expert_intermediate_size says the width", "", kNone},
    {"model", "moe_intermediate_size", "int", "2048", Fate::kSame, "moe_config.moe_ffn_hidden_size",
     "", "", kNone},
    {"model", "moe_shared_expert_intermediate_size", "int?", "null", Fate::kRule,
     "moe_config.moe_shared_expert_intermediate_size",
     "null: n_shared_experts x moe_intermediate_size", "", kNone},
    {"model", "routed_scaling_factor", "float", "2.5", Fate::kSame,
     "moe_config.moe_router_topk_scaling_factor", "", "", kNone},
    {"model", "first_k_dense_replace", "int", "3", Fate::kSame, "moe_config.first_k_dense_replace",
     "", "", kNone},
    {"model", "moe_layer_freq", "int|list", "1", Fate::kSame, "moe_config.moe_layer_freq", "", "",
     kNone},
    {"model", "norm_topk_prob", "bool", "True", Fate::kSame, "moe_config.norm_topk_prob", "", "",
     kNone},
    {"model", "scoring_func", "str", "", Fate::kNothing, "",
     "MindFormers 2.0 passes over it; moe_router_score_function, sigmoid by default, counts", "",
     kNone},
    {"model", "moe_router_score_function", "str", "sigmoid", Fate::kSame,
     "moe_config.moe_router_score_function", "", "softmax|sigmoid|sqrtsoftplus", kNone},
    {"model", "topk_method", "str", "noaux_tc", Fate::kNothing, "", "n_group says it", "", kNone},
    {"model", "router_dense_type", "str", "float32", Fate::kRefused, "",
     "the router computes in float32", "float32"},
    {"model", "moe_router_dtype", "str", "float32", Fate::kRefused, "",
     "the router computes in float32", "float32"},
    {"model", "moe_router_enable_expert_bias", "bool", "True", Fate::kRule,
     "moe_config.moe_router_enable_expert_bias",
     "with moe_router_score_function sigmoid or sqrtsoftplus", "", kNone},
    {"model", "moe_router_bias_update_rate", "float", "0.001", Fate::kRule,
     "moe_config.moe_router_bias_update_rate", "with moe_router_enable_expert_bias", "", kNone},
    {"model", "moe_router_load_balancing_type", "str", "sub_seq_aux_loss", Fate::kRule,
     "moe_config.moe_router_load_balancing_type|moe_config.moe_aux_loss_choice",
     "with moe_aux_loss_coeff above 0, and then sub_seq_aux_loss is refused, as MindFormers 2.0 "
     "does not know it; moe_aux_loss_choice is scores",
     "aux_loss|seq_aux_loss|global_aux_loss|sub_seq_aux_loss|none", kNone},
    {"model", "moe_aux_loss_coeff", "float", "0.0", Fate::kRule, "moe_config.moe_aux_loss_coeff",
     "0: no balance loss", "", kNone},
    {"model", "moe_z_loss_coeff", "float?", "null", Fate::kNothing, "",
     "MindFormers 2.0 has no loss on the router's logits, and there is none here", "", kNone},
    {"model", "moe_expert_capacity_factor", "float?", "null", Fate::kNothing, "",
     "MindFormers 2.0 drops no tokens, and none are dropped here", "", kNone},
    {"model", "moe_token_drop_policy", "str", "probs", Fate::kNothing, "",
     "MindFormers 2.0 drops no tokens, and none are dropped here", "", kNone},
    {"model", "moe_router_pre_softmax", "bool", "False", Fate::kRule,
     "moe_config.moe_router_pre_softmax",
     "MindFormers 2.0 scores all experts before the choice whatever it says: True with softmax", "",
     kNone},
    {"model", "moe_router_force_expert_balance", "bool", "False", Fate::kSame,
     "moe_config.moe_router_force_load_balancing",
     "random choices here, in turn there: for measuring alone", "", kNone},
    {"model", "moe_apply_probs_on_input", "bool", "False", Fate::kSame,
     "moe_config.moe_apply_probs_on_input", "", "", kNone},
    {"model", "moe_grouped_gemm", "bool", "False", Fate::kNothing, "", kKernel},
    {"model", "moe_permute_fusion", "bool", "False", Fate::kNothing, "", kKernel},
    {"model", "use_pad_tokens", "bool", "True", Fate::kNothing, "", kKernel},
    {"model", "moe_token_dispatcher_type", "str", "alltoall", Fate::kNothing, "",
     "a way of sending, with the same numbers"},
    {"model", "use_shared_expert_gating", "bool", "False", Fate::kSame,
     "moe_config.use_shared_expert_gating", "", "", kNone},
    {"model", "moe_n_hash_layers", "int", "0", Fate::kRefused, "", kHash, "0"},
    {"model", "actual_vocab_size", "any", "", Fate::kRefused, "", kHash},
};

}  // namespace
}  // namespace expert_table

std::span<const Row> expert_rows() { return expert_table::kRows; }

}  // namespace tapestry::config::mindformers2
