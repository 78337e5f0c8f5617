// training_config.exact: what follows from it, and what has no bits of its own that all layouts
// could have.
#include <algorithm>
#include <string>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {
namespace exact_rules {
namespace {

constexpr const char* kExact = "training_config.exact";
constexpr const char* kTp = "parallel_config.tensor_model_parallel_size";
constexpr const char* kEtp = "parallel_config.expert_tensor_parallel_size";
constexpr const char* kCp = "parallel_config.context_parallel_size";

// What a key says, beside which there are no exact bits.
class Refusals {
 public:
  explicit Refusals(Resolution& r) : r_(r) {}

  /// Unless the key is wrong by itself. `reason` goes on with what to do.
  void refuse(bool holds, const char* key, const std::string& reason) {
    if (!holds || !r_.sound({key})) {
      return;
    }
    const std::string path = key;
    const size_t dot = path.find('.');
    const Key* row = find_key(path.substr(0, dot), path.substr(dot + 1));
    const std::string value =
        row == nullptr ? "" : concat(to_yaml(row->field.get(r_.config())), " ");
    r_.error(key, concat(value, "cannot stand beside ", kExact, ": True: ", reason));
  }

 private:
  Resolution& r_;
};

bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

void check_ranks(Resolution& r, Refusals& refusals) {
  const ModelParallelConfig& p = r.config().parallel_config;
  const TransformerConfig& m = r.config().model_config;
  const int64_t tp = p.tensor_model_parallel_size;
  const auto is_subtree = [](int64_t ranks) {
    return is_power_of_two(ranks) && ranks <= kSumLeaves;
  };
  const std::string subtrees =
      concat("sums over ranks are trees of ", kSumLeaves, " leaves; expected 1, 2, 4 or 8");
  refusals.refuse(!is_subtree(tp), kTp, subtrees);
  refusals.refuse(!is_subtree(p.expert_tensor_parallel_size.value_or(1)), kEtp, subtrees);
  const int64_t groups =
      std::min(m.num_query_groups, m.full_attention_num_query_groups.value_or(m.num_query_groups));
  refusals.refuse(is_subtree(tp) && tp > groups, kTp,
                  concat("the model has ", groups,
                         " groups of keys and values, of which ranks would hold copies; expected "
                         "no more ranks than groups"));
  refusals.refuse(tp > 1 && m.qk_layernorm && m.qk_layernorm_scope == "projection",
                  "model_config.qk_layernorm_scope",
                  "tensor-parallel ranks sum over their heads first; expected head or each_head");
  refusals.refuse(is_subtree(tp) && m.vocab_size % tp != 0, "model_config.vocab_size",
                  concat("the last of ", tp,
                         " tensor-parallel ranks would have fewer rows; make "
                         "it a multiple of ",
                         kSumLeaves, ", which any number of them divides"));
  const int64_t leaves = sequence_leaves(m.seq_length);
  const int64_t cp = p.context_parallel_size;
  refusals.refuse(!is_power_of_two(cp) || cp > leaves, kCp,
                  concat("seq_length ", m.seq_length, " has ", leaves,
                         " leaves that ranks can divide; expected a power of two up to that",
                         leaves < kSumLeaves
                             ? concat(", or a seq_length that is a multiple of ", 2 * kSumLeaves)
                             : std::string()));
}

void check_model(Resolution& r, Refusals& refusals) {
  const TransformerConfig& m = r.config().model_config;
  const std::string float32 = "its sums have another order; leave it out (float32)";
  refusals.refuse(m.compute_dtype != kFloat32 && m.compute_dtype != kBFloat16,
                  "model_config.compute_dtype",
                  "scaled gradients leave the range in which sums are exact; expected float32 or "
                  "bfloat16");
  refusals.refuse(!m.use_fused_kernels, "model_config.use_fused_kernels",
                  "only fused kernels have an order that no layout changes; leave it out");
  refusals.refuse(m.softmax_compute_dtype != kFloat32, "model_config.softmax_compute_dtype",
                  float32);
  refusals.refuse(m.layernorm_compute_dtype != kFloat32, "model_config.layernorm_compute_dtype",
                  float32);
  refusals.refuse(
      has_recurrent_layers(m), "model_config.layer_types",
      "linear_attention, conv and mamba compute in chunks of tokens that depend on the layout; "
      "expected full_attention or sliding_attention");
  refusals.refuse(m.logit_softcap != 0, "model_config.logit_softcap",
                  "tensor-parallel ranks round its derivative elsewhere; leave it out");
  refusals.refuse(
      m.hidden_act == "xielu", "model_config.hidden_act",
      "gradients of its two numbers are sums over whole micro-batches; expected another "
      "activation");
  refusals.refuse(m.layernorm_zero_centered_gamma, "model_config.layernorm_zero_centered_gamma",
                  "gradients of such gains are sums over whole micro-batches; set False");
  refusals.refuse(m.hyper_connections.enabled, "model_config.enable_hyper_connections",
                  "gradients of their weights are sums over whole micro-batches; set False");
  refusals.refuse(m.score_head, "model_config.score_head",
                  "its loss is no mean over tokens; set False");
}

void check_experts(Resolution& r, Refusals& refusals) {
  const MoEConfig& moe = r.config().moe_config;
  if (moe.num_experts <= 1) {
    return;
  }
  refusals.refuse(moe.moe_expert_capacity_factor.has_value(),
                  "moe_config.moe_expert_capacity_factor",
                  "what experts drop depends on the other tokens of the micro-batch; leave it out, "
                  "so that no token is dropped");
  refusals.refuse(moe.moe_input_jitter_eps.value_or(0) > 0, "moe_config.moe_input_jitter_eps",
                  "its noise is not built for it; leave it out");
  refusals.refuse(moe.moe_router_force_load_balancing, "moe_config.moe_router_force_load_balancing",
                  "its scores are not built for it; set False");
  refusals.refuse(moe.moe_beside_dense, "moe_config.moe_beside_dense",
                  "gradients of its scales are sums over whole micro-batches; set False");
  for (const MoEBalanceLoss& loss : r.config().model_config.moe.balance_losses) {
    if (loss.coeff > 0 && loss.type != "seq_aux_loss") {
      refusals.refuse(
          true,
          moe.aux_loss_types ? "moe_config.aux_loss_types"
                             : "moe_config.moe_router_load_balancing_type",
          concat(loss.type,
                 " balances the experts of a micro-batch, which layouts divide in other "
                 "ways; expected seq_aux_loss, or moe_router_enable_expert_bias: True "
                 "without a loss"));
      return;
    }
  }
}

void check_optimizer(Resolution& r, Refusals& refusals) {
  const OptimizerConfig& o = r.config().optimizer_config;
  const std::vector<std::string> known = {"AdamW", "Adam", "SGD", "Lion"};
  refusals.refuse(std::count(known.begin(), known.end(), o.optimizer_type) == 0,
                  "optimizer_config.optimizer_type",
                  "its updates sum over rows, columns or products of matrices that layouts divide, "
                  "or nobody knows; expected AdamW, Adam, SGD or Lion, which update each element "
                  "by itself");
  refusals.refuse(o.optimizer_in_backward, "optimizer_config.optimizer_in_backward",
                  "it updates before the gradients of all micro-batches and ranks are summed; set "
                  "False");
  refusals.refuse(o.main_grads_dtype != kFloat32, "optimizer_config.main_grads_dtype",
                  "gradients are rounded once, to float32; leave it out");
}

void check_losses(Resolution& r, Refusals& refusals) {
  const TrainingConfig& t = r.config().training_config;
  refusals.refuse(t.loss_reduction != "mean", "training_config.loss_reduction",
                  "the loss of a step is one mean over all of its tokens; leave it out (mean)");
  refusals.refuse(t.loss_scale.value_or(1) != 1, "training_config.loss_scale",
                  "scaled gradients leave the range in which sums are exact; leave it out");
  if (t.loss_func_kwargs) {
    const std::string& type = t.loss_func_kwargs->loss_func_type;
    refusals.refuse(type != "VocabParallelCrossEntropy" && type != "CrossEntropyLoss",
                    "training_config.loss_func_kwargs.loss_func_type",
                    "nobody knows in which order a loss of the program's own sums; expected "
                    "CrossEntropyLoss");
  }
  refusals.refuse(r.config().post_training_config.task.has_value(), "post_training_config.task",
                  "losses of tasks are sums over whole sequences and micro-batches; leave exact "
                  "out for them");
  const LoraConfig& lora = r.config().lora_config;
  if (lora.use_lora) {
    refusals.refuse(lora.base_dtype != "params_dtype", "lora_config.base_dtype",
                    "products with blocks of few bits have an order of their own; leave it out "
                    "(params_dtype)");
    refusals.refuse(lora.lora_dropout > 0, "lora_config.lora_dropout",
                    "an adapter's input is dropped in layers that have no order for it; set 0");
    refusals.refuse(lora.use_dora, "lora_config.use_dora",
                    "norms of columns are sums that layouts divide; set False");
  }
}

// One mean over the tokens of a step, however they are divided.
void set_mean_over_tokens(Resolution& r) {
  constexpr const char* kPerToken = "training_config.calculate_per_token_loss";
  TrainingConfig& t = r.config().training_config;
  if (t.calculate_per_token_loss || !r.sound({kPerToken})) {
    return;
  }
  if (r.given(kPerToken)) {
    r.error(kPerToken, concat("False cannot stand beside ", kExact,
                              ": True: a mean of the micro-batches' means depends on how the batch "
                              "is divided; leave it out or set True"));
    return;
  }
  t.calculate_per_token_loss = true;
  r.derived(kPerToken, kExact);
}

}  // namespace
}  // namespace exact_rules

void resolve_exact(Resolution& r) {
  using namespace exact_rules;  // NOLINT(google-build-using-namespace)
  if (!r.sound({kExact}) || !r.config().training_config.exact) {
    return;
  }
  Refusals refusals(r);
  check_ranks(r, refusals);
  check_model(r, refusals);
  check_experts(r, refusals);
  check_optimizer(r, refusals);
  check_losses(r, refusals);
  set_mean_over_tokens(r);
}

}  // namespace tapestry::config
