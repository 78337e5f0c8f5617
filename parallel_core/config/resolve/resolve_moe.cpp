// What follows from the keys of mixtures of experts, and which of them cannot stand together.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {
namespace moe_rules {
namespace {

constexpr const char* kExperts = "moe_config.num_experts";
constexpr const char* kTopk = "moe_config.moe_router_topk";
constexpr const char* kFreq = "moe_config.moe_layer_freq";
constexpr const char* kFirstDense = "moe_config.first_k_dense_replace";
constexpr const char* kFfn = "moe_config.moe_ffn_hidden_size";
constexpr const char* kDenseFfn = "model_config.ffn_hidden_size";
constexpr const char* kShared = "moe_config.moe_shared_expert_intermediate_size";
constexpr const char* kSharedNumber = "moe_config.shared_expert_num";
constexpr const char* kSharedGate = "moe_config.use_shared_expert_gating";
constexpr const char* kScores = "moe_config.moe_router_score_function";
constexpr const char* kSigmoid = "moe_config.use_gating_sigmoid";
constexpr const char* kPreSoftmax = "moe_config.moe_router_pre_softmax";
constexpr const char* kNorm = "moe_config.norm_topk_prob";
constexpr const char* kMethod = "moe_config.topk_method";
constexpr const char* kGroups = "moe_config.moe_router_num_groups";
constexpr const char* kGroupTopk = "moe_config.moe_router_group_topk";
constexpr const char* kLossType = "moe_config.moe_router_load_balancing_type";
constexpr const char* kLossCoeff = "moe_config.moe_aux_loss_coeff";
constexpr const char* kLossFactor = "moe_config.aux_loss_factor";
constexpr const char* kLossTypes = "moe_config.aux_loss_types";
constexpr const char* kLossFactors = "moe_config.aux_loss_factors";
constexpr const char* kPools = "moe_config.expert_group_size";
constexpr const char* kCapacity = "moe_config.moe_expert_capacity_factor";
constexpr const char* kPad = "moe_config.moe_pad_expert_input_to_capacity";
constexpr const char* kPolicy = "moe_config.moe_token_drop_policy";
constexpr const char* kSdrop = "moe_config.enable_sdrop";
constexpr const char* kUpcycle = "moe_config.upcycle_from";
constexpr const char* kForced = "moe_config.moe_router_force_load_balancing";
constexpr const char* kScaling = "moe_config.moe_router_topk_scaling_factor";
constexpr const char* kLayers = "model_config.num_layers";
constexpr const char* kTp = "parallel_config.tensor_model_parallel_size";
constexpr const char* kEp = "parallel_config.expert_model_parallel_size";
constexpr const char* kEtp = "parallel_config.expert_tensor_parallel_size";
constexpr int64_t kMaxWidth = 2147483647;

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// The key that is short for `key` gives it a value, unless that has another already.
template <class T>
void stand_for(Resolution& r, const char* key, const char* by, T& member, const T& value) {
  if (member != value && r.given(key)) {
    r.error(by, concat("means ", last_part(key), ": ", to_yaml(detail::read(value)), ", but it is ",
                       to_yaml(detail::read(member)), "; keep one of them"));
  } else if (member != value) {
    member = value;
    r.config().origins[key] = r.config().origins.at(by);
  }
}

void resolve_shared_number(Resolution& r) {
  MoEConfig& moe = r.config().moe_config;
  if (!r.sound({kSharedNumber, kShared, kFfn, kDenseFfn}) || !moe.compatibility.shared_expert_num) {
    return;
  }
  const int64_t number = *moe.compatibility.shared_expert_num;
  const int64_t width = moe.moe_ffn_hidden_size.value_or(r.config().model_config.ffn_hidden_size);
  if (number > kMaxWidth / std::max<int64_t>(1, width)) {
    r.error(kSharedNumber, concat(number, " times moe_ffn_hidden_size ", width, " is more than ",
                                  kMaxWidth, "; lower one of them"));
    return;
  }
  stand_for(r, kShared, kSharedNumber, moe.moe_shared_expert_intermediate_size,
            number == 0 ? std::nullopt : std::optional(number * width));
}

void resolve_short_keys(Resolution& r) {
  MoEConfig& moe = r.config().moe_config;
  MoECompatibility& other = moe.compatibility;
  if (other.use_gating_sigmoid && r.sound({kSigmoid, kScores})) {
    stand_for<std::string>(r, kScores, kSigmoid, moe.moe_router_score_function,
                           *other.use_gating_sigmoid ? "sigmoid" : "softmax");
  }
  if (other.enable_sdrop && r.sound({kSdrop, kPolicy})) {
    stand_for<std::string>(r, kPolicy, kSdrop, moe.moe_token_drop_policy,
                           *other.enable_sdrop ? "position" : "choice");
  }
  if (other.aux_loss_factor && r.sound({kLossFactor, kLossType, kLossCoeff})) {
    stand_for<std::string>(r, kLossType, kLossFactor, moe.moe_router_load_balancing_type,
                           "aux_loss");
    stand_for(r, kLossCoeff, kLossFactor, moe.moe_aux_loss_coeff, *other.aux_loss_factor);
  }
  resolve_shared_number(r);
  other.use_gating_sigmoid.reset();
  other.enable_sdrop.reset();
  other.aux_loss_factor.reset();
  other.shared_expert_num.reset();
}

// Keys that are known for compatibility and can only mean what is done anyway; their documentation
// says why.
void note_what_has_no_effect(Resolution& r) {
  constexpr std::string_view kKnown = "Known for compatibility: ";
  for (const Key& key : find_section("moe_config")->keys) {
    const std::string path = concat("moe_config.", key.name);
    if (key.doc.starts_with(kKnown) && key.accepted.empty() && r.sound({path.c_str()})) {
      std::string why;
      for (const char c : key.doc.substr(kKnown.size(), key.doc.size() - kKnown.size() - 1)) {
        why += c == '`' ? std::string() : std::string(1, c);
      }
      r.idle(path, concat(": ", why));
    }
  }
}

void note_without_experts(Resolution& r) {
  for (const Key& key : find_section("moe_config")->keys) {
    const std::string path = concat("moe_config.", key.name);
    const bool known = key.doc.starts_with("Known for compatibility") || !key.accepted.empty();
    if (r.given(path) && !known && !key.until_resolved) {
      r.idle(path, "with num_experts 1");
    }
  }
  const ModelParallelConfig& parallel = r.config().parallel_config;
  if (parallel.expert_model_parallel_size > 1) {
    r.idle(kEp, "on a model of num_experts 1");
  }
}

bool normalises(const MoEConfig& moe) {
  return moe.norm_topk_prob.value_or(!moe.moe_router_pre_softmax);
}

bool has_softmax(const MoEConfig& moe) { return moe.moe_router_score_function == "softmax"; }

// Gates that are a softmax over the chosen logits alone.
bool softmax_of_the_chosen(const MoEConfig& moe) {
  return has_softmax(moe) && !moe.moe_router_pre_softmax && normalises(moe);
}

void check_gates(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  if (r.sound({kExperts, kTopk}) && moe.moe_router_topk > moe.num_experts) {
    r.error(kTopk, concat("is ", moe.moe_router_topk, ", more than num_experts ", moe.num_experts,
                          "; a token can go to each expert once"));
  }
  if (!r.sound({kScores, kPreSoftmax, kNorm, kTopk})) {
    return;
  }
  if (!has_softmax(moe) && moe.moe_router_pre_softmax) {
    r.error(kPreSoftmax,
            concat("True says where a softmax stands, but moe_router_score_function is ",
                   moe.moe_router_score_function, "; leave this key out"));
  } else if (moe.moe_router_topk == 1 && softmax_of_the_chosen(moe)) {
    r.error(kTopk,
            "1 with a softmax over the chosen expert gives a gate that is always 1, so that the "
            "router would learn nothing; set moe_router_pre_softmax: True, or "
            "moe_router_score_function: sigmoid, or a moe_router_topk above 1");
  }
}

void check_groups(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  if (!r.sound({kMethod, kGroups, kGroupTopk, kExperts, kTopk})) {
    return;
  }
  const auto& groups = moe.moe_router_num_groups;
  const auto& kept = moe.moe_router_group_topk;
  if (moe.topk_method == "greedy") {
    for (const auto& [key, value] : {std::pair{kGroups, groups}, std::pair{kGroupTopk, kept}}) {
      if (value.value_or(1) > 1) {
        r.error(key, concat("is ", *value,
                            ", but topk_method greedy has no groups; set "
                            "topk_method: group_limited_greedy or noaux_tc, or leave this key "
                            "out"));
      }
    }
    return;
  }
  for (const auto& [key, value] : {std::pair{kGroups, groups}, std::pair{kGroupTopk, kept}}) {
    if (!value) {
      r.error(kMethod, concat(moe.topk_method, " needs moe_config.", last_part(key),
                              "; set it, or topk_method: greedy"));
    }
  }
  if (!groups || !kept) {
    return;
  }
  const int64_t in_group = moe.num_experts / *groups;
  if (moe.num_experts % *groups != 0) {
    r.error(kGroups, concat(*groups, " does not divide num_experts ", moe.num_experts,
                            "; groups have the same number of experts"));
  } else if (*kept > *groups) {
    r.error(kGroupTopk, concat("is ", *kept, " of ", *groups,
                               " groups; lower it, or raise moe_router_num_groups"));
  } else if (moe.moe_router_topk > *kept * in_group) {
    r.error(kGroupTopk, concat(*kept, " groups of ", in_group,
                               " experts have fewer than "
                               "moe_router_topk ",
                               moe.moe_router_topk, "; raise it"));
  } else if (moe.topk_method == "noaux_tc" && in_group < 2) {
    r.error(kGroups, concat("leaves ", in_group,
                            " expert in a group, but topk_method noaux_tc "
                            "adds up the scores of two; lower it, or set topk_method: "
                            "group_limited_greedy"));
  }
}

std::string loss_type(const std::string& name) { return name == "expert" ? "aux_loss" : name; }

std::vector<MoEBalanceLoss> balance_losses(const MoEConfig& moe) {
  std::vector<MoEBalanceLoss> losses;
  const auto add = [&](const std::string& type, double coeff) {
    if (type != "none" && coeff > 0) {
      losses.push_back({loss_type(type), coeff});
    }
  };
  if (moe.aux_loss_types && moe.aux_loss_factors &&
      moe.aux_loss_types->size() == moe.aux_loss_factors->size()) {
    for (size_t i = 0; i < moe.aux_loss_types->size(); ++i) {
      add((*moe.aux_loss_types)[i], (*moe.aux_loss_factors)[i]);
    }
  } else {
    add(moe.moe_router_load_balancing_type, moe.moe_aux_loss_coeff);
  }
  return losses;
}

void check_loss_lists(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  const auto& types = moe.aux_loss_types;
  const auto& factors = moe.aux_loss_factors;
  if (!r.sound({kLossTypes, kLossFactors, kLossType}) || (!types && !factors)) {
    return;
  }
  const size_t of_types = types ? types->size() : 0;
  const size_t of_factors = factors ? factors->size() : 0;
  if (of_types != of_factors) {
    r.error(types ? kLossTypes : kLossFactors,
            concat("aux_loss_types has ", of_types, " entries and aux_loss_factors ", of_factors,
                   "; each loss needs one weight"));
    return;
  }
  if (moe.moe_router_load_balancing_type != "none") {
    r.error(kLossTypes, concat("given beside moe_router_load_balancing_type: ",
                               moe.moe_router_load_balancing_type, "; keep one of them"));
  }
  std::vector<std::string> seen;
  for (const std::string& name : *types) {
    const std::string type = loss_type(name);
    if (type == "comm") {
      r.error(kLossTypes,
              "comm pools the experts of a rank, so that the loss would depend on the layout; "
              "device pools them into expert_group_size groups whatever the layout");
    } else if (std::find(seen.begin(), seen.end(), type) != seen.end()) {
      r.error(kLossTypes, concat(name, " is named twice; add up its weights"));
    }
    seen.push_back(type);
  }
}

void check_balance(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  check_loss_lists(r);
  if (!r.sound({kLossType, kLossCoeff, kLossTypes, kLossFactors, kPools, kExperts})) {
    return;
  }
  if (moe.moe_router_load_balancing_type == "none" && moe.moe_aux_loss_coeff > 0) {
    r.idle(kLossCoeff, "with moe_router_load_balancing_type none");
  }
  const std::vector<MoEBalanceLoss> losses = balance_losses(moe);
  if (losses.empty() && moe.moe_aux_loss_choice != "routed") {
    r.idle("moe_config.moe_aux_loss_choice", "without a balance loss");
  }
  const bool pools = std::any_of(losses.begin(), losses.end(),
                                 [](const MoEBalanceLoss& loss) { return loss.type == "device"; });
  if (!pools && moe.expert_group_size) {
    r.idle(kPools, "without the balance loss device");
  } else if (pools && !moe.expert_group_size) {
    r.error(moe.aux_loss_types ? kLossTypes : kLossType,
            "device needs moe_config.expert_group_size, the number of groups of experts");
  } else if (pools && moe.num_experts % *moe.expert_group_size != 0) {
    r.error(kPools, concat(*moe.expert_group_size, " groups do not divide num_experts ",
                           moe.num_experts, "; groups have the same number of experts"));
  }
}

void check_capacity(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  if (!r.sound({kCapacity, kPad, kPolicy}) || moe.moe_expert_capacity_factor) {
    return;
  }
  if (moe.moe_pad_expert_input_to_capacity) {
    r.error(kPad,
            "True needs a capacity to fill up to; set moe_expert_capacity_factor, for "
            "example 1.25, or leave this key out");
  }
  if (moe.moe_token_drop_policy != "probs") {
    r.idle(kPolicy, "without moe_expert_capacity_factor: nothing is dropped");
  }
}

void check_layers(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  const int64_t layers = r.config().model_config.num_layers;
  if (!r.sound({kFreq, kFirstDense, kLayers})) {
    return;
  }
  const auto& freq = moe.moe_layer_freq;
  const bool is_list = freq.size() > 1;
  if (is_list && static_cast<int64_t>(freq.size()) != layers) {
    r.error(kFreq, concat("has ", freq.size(), " entries for ", layers,
                          " layers; give one 0 or 1 to each, or one number"));
  } else if (moe.first_k_dense_replace > 0 && (is_list || freq.front() > 1)) {
    r.error(kFirstDense, concat("is ", moe.first_k_dense_replace, " beside moe_layer_freq ",
                                to_yaml(detail::read(freq)),
                                "; both say which layers are dense, keep one of them"));
  } else if (moe.first_k_dense_replace >= layers) {
    r.error(kFirstDense, concat(moe.first_k_dense_replace, " dense layers of ", layers,
                                " leave none with experts; lower it, or set num_experts: 1"));
  } else if (is_list && std::count(freq.begin(), freq.end(), 0) == layers) {
    r.error(kFreq, "gives no layer experts; set a 1 where there are some, or num_experts: 1");
  }
}

void check_shared(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  if (!r.sound({kShared, kSharedNumber, kSharedGate}) || moe.moe_shared_expert_intermediate_size) {
    return;
  }
  if (moe.use_shared_expert_gating) {
    r.error(kSharedGate,
            "True, but there is no shared expert; set moe_shared_expert_intermediate_size, or "
            "leave this key out");
  }
  if (moe.moe_shared_expert_overlap) {
    r.idle("moe_config.moe_shared_expert_overlap", "without a shared expert");
  }
}

// Experts and a dense MLP in one layer.
void check_beside_dense(Resolution& r) {
  constexpr const char* kBeside = "moe_config.moe_beside_dense";
  const AllConfig& config = r.config();
  if (!r.sound({kBeside}) || !config.moe_config.moe_beside_dense) {
    return;
  }
  const auto needs = [&](const char* key, bool holds, const char* message) {
    if (r.sound({key}) && !holds) {
      r.error(kBeside, concat("is True, ", message));
    }
  };
  needs("model_config.norm_placement", config.model_config.norm_placement == "sandwich",
        "which needs norm_placement: sandwich: the branches have norms on both sides");
  needs("model_config.normalization", config.model_config.normalization == "RMSNorm",
        "which needs normalization: RMSNorm, as the router has");
  needs(
      kShared, !config.moe_config.moe_shared_expert_intermediate_size,
      "but moe_shared_expert_intermediate_size names a second MLP that every token sees; keep one");
  needs(kUpcycle, !config.moe_config.upcycle_from,
        "but upcycle_from makes experts in place of the dense MLP; keep one");
  needs("model_config.apply_residual_connection_post_norm",
        !config.model_config.apply_residual_connection_post_norm,
        "but apply_residual_connection_post_norm takes the residual from one norm, and there are "
        "two; leave it out");
}

void check_experts_layout(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  const ModelParallelConfig& parallel = r.config().parallel_config;
  const int64_t ep = parallel.expert_model_parallel_size;
  if (r.sound({kExperts, kEp}) && moe.num_experts % ep != 0) {
    r.error(kExperts, concat(moe.num_experts, " is not divisible by expert_model_parallel_size ",
                             ep, "; every rank has the same number of experts, set that to ",
                             std::gcd(moe.num_experts, ep), " or make this a multiple of it"));
  }
  if (r.sound({kTp, kEtp, kFfn, kDenseFfn})) {
    const int64_t etp = expert_tensor_parallel_size(parallel);
    const int64_t width = moe.moe_ffn_hidden_size.value_or(r.config().model_config.ffn_hidden_size);
    if (width % etp != 0) {
      r.error(moe.moe_ffn_hidden_size ? kFfn : kDenseFfn,
              concat(width, " is not divisible by ",
                     parallel.expert_tensor_parallel_size
                         ? ""
                         : "tensor_model_parallel_size, which is that of experts too: ",
                     "expert_tensor_parallel_size ", etp,
                     "; set parallel_config.expert_tensor_parallel_size to ", std::gcd(width, etp),
                     ", or another width"));
    }
  }
  const int64_t tp = parallel.tensor_model_parallel_size;
  if (r.sound({kTp, kShared, kSharedNumber}) &&
      moe.moe_shared_expert_intermediate_size.value_or(0) % tp != 0) {
    r.error(kShared, concat(*moe.moe_shared_expert_intermediate_size,
                            " is not divisible by tensor_model_parallel_size ", tp,
                            ", whose ranks share the shared expert; make it a multiple"));
  }
}

// A mixture that is made of a dense model. A run that goes on has weights of its own.
void check_start(Resolution& r) {
  const MoEConfig& moe = r.config().moe_config;
  const TrainingConfig& training = r.config().training_config;
  if (!moe.upcycle_from) {
    return;
  }
  if (!training.load_checkpoint.empty() && !training.resume_training.on) {
    r.error(kUpcycle,
            concat("given beside training_config.load_checkpoint ", training.load_checkpoint,
                   "; both give the weights to start from, keep one of them"));
  }
  const int64_t dense = r.config().model_config.ffn_hidden_size;
  if (r.sound({kFfn, kDenseFfn}) && moe.moe_ffn_hidden_size.value_or(dense) != dense) {
    r.error(kFfn,
            concat("is ", *moe.moe_ffn_hidden_size, ", but with upcycle_from experts are ",
                   "copies of a dense MLP of ffn_hidden_size ", dense, "; leave this key out"));
  }
  if (r.sound({kScores, kPreSoftmax, kNorm, kTopk, kScaling}) &&
      (!normalises(moe) || moe.moe_router_topk_scaling_factor != 1 ||
       (moe.moe_router_topk == 1 && !softmax_of_the_chosen(moe)))) {
    r.note(kUpcycle,
           "the gates of a token do not add up to 1, so that the mixture begins as another "
           "function than the dense model; norm_topk_prob: True with "
           "moe_router_topk_scaling_factor: 1 and moe_router_topk above 1 makes them equal");
  }
}

// What modules see: every value that follows from others is there, and nothing that has no effect.
MoEConfig resolved(const AllConfig& config) {
  MoEConfig moe = config.moe_config;
  moe.moe_ffn_hidden_size = moe.moe_ffn_hidden_size.value_or(config.model_config.ffn_hidden_size);
  moe.norm_topk_prob = normalises(config.moe_config);
  moe.moe_router_pre_softmax =
      has_softmax(moe) && (moe.moe_router_pre_softmax || !*moe.norm_topk_prob);
  moe.balance_losses = balance_losses(config.moe_config);
  if (moe.topk_method == "greedy") {
    moe.moe_router_num_groups.reset();
    moe.moe_router_group_topk.reset();
  }
  for (std::optional<double>* number : {&moe.moe_z_loss_coeff, &moe.moe_input_jitter_eps}) {
    if (number->value_or(0) == 0) {
      number->reset();
    }
  }
  moe.moe_grouped_gemm = false;
  moe.use_self_defined_alltoall = false;
  moe.compatibility = {};
  return moe;
}

}  // namespace
}  // namespace moe_rules

void resolve_moe(Resolution& r) {
  using namespace moe_rules;
  resolve_short_keys(r);
  note_what_has_no_effect(r);
  MoEConfig& moe = r.config().moe_config;
  if (moe.moe_expert_capacity_factor.value_or(1) <= 0) {
    moe.moe_expert_capacity_factor.reset();
  }
  r.config().model_config.moe = {};
  if (!r.sound({kExperts})) {
    return;
  }
  if (moe.num_experts == 1) {
    if (moe.upcycle_from) {
      r.error(kUpcycle,
              concat("makes experts of ", *moe.upcycle_from,
                     ", but num_experts is 1; set it, or load the dense model as it is with "
                     "training_config.load_checkpoint"));
    }
    note_without_experts(r);
    return;
  }
  check_gates(r);
  check_groups(r);
  check_balance(r);
  check_capacity(r);
  check_layers(r);
  check_shared(r);
  check_beside_dense(r);
  check_experts_layout(r);
  check_start(r);
  if (moe.moe_router_force_load_balancing) {
    r.note(kForced,
           "tokens go to random experts while training: the model does not learn to route, use it "
           "to measure speed alone");
  }
  r.config().model_config.moe = resolved(r.config());
}

}  // namespace tapestry::config
