// What families say of mixtures of experts.
#include <algorithm>
#include <utility>

#include "interop/architectures/rules.h"

namespace tapestry::architectures {

namespace {

using hf::Fields;
using hf::Found;
using hf::Json;

class Experts final : public Rule {
 public:
  Experts(std::string member, std::string also, int64_t number, int64_t topk)
      : member_(std::move(member)), also_(std::move(also)), number_(number), topk_(topk) {}

  void read(Fields& file) const override {
    const std::string& name =
        file.find(member_) == nullptr && !also_.empty() && file.find(also_) != nullptr ? also_
                                                                                       : member_;
    const Found<int64_t> number = file.size(name, number_);
    const Found<int64_t> chosen = file.size("num_experts_per_tok", topk_);
    if (number.value < 2) {
      file.finding(name,
                   concat("a mixture of ", number.text, " expert; what is read has 2 or more"));
    } else if (chosen.value > number.value) {
      file.finding("num_experts_per_tok", concat(chosen.text, " of ", name, " ", number.text));
    }
    file.set_moe("num_experts", number, name);
    file.set_moe("moe_router_topk", chosen, "num_experts_per_tok");
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] = config.moe_config.num_experts;
    json["num_experts_per_tok"] = config.moe_config.moe_router_topk;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (config.moe_config.num_experts < 2) {
      out.push_back(
          {"moe_config.num_experts", concat(config.moe_config.num_experts), "use 2 or more"});
    }
  }

 private:
  std::string member_;
  std::string also_;
  int64_t number_;
  int64_t topk_;
};

// A softmax over all experts whose k largest are divided by their sum is a softmax over the k.
class Gates final : public Rule {
 public:
  explicit Gates(std::optional<bool> by_default) : default_(by_default) {}

  void read(Fields& file) const override {
    Found<bool> normalised{true, Json(file.out.model_type).dump(), true};
    std::string name = "model_type";
    if (default_) {
      name = "norm_topk_prob";
      normalised = file.boolean(name, *default_);
    }
    file.set_moe("norm_topk_prob", normalised, name);
    file.set_moe("moe_router_pre_softmax", Value(!normalised.value), name, normalised.text,
                 normalised.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    if (default_) {
      json["norm_topk_prob"] = config.moe_config.norm_topk_prob.value();
    }
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const MoEConfig& moe = config.moe_config;
    if (!default_) {
      object_unless(config, "moe_config.moe_router_pre_softmax", Value(false), out);
    }
    if (moe.moe_router_pre_softmax == moe.norm_topk_prob.value_or(!moe.moe_router_pre_softmax)) {
      object_unless(config, "moe_config.norm_topk_prob", Value(!moe.moe_router_pre_softmax), out);
    }
  }

 private:
  std::optional<bool> default_;  // none: always normalised
};

Rules gates(std::optional<bool> by_default) {
  return {std::make_shared<Gates>(by_default),
          fixed("moe_config.moe_router_score_function", "softmax"),
          fixed("moe_config.moe_router_topk_scaling_factor", 1.0),
          fixed("moe_config.topk_method", "greedy"),
          fixed("moe_config.moe_router_enable_expert_bias", false)};
}

class SigmoidGates final : public Rule {
 public:
  explicit SigmoidGates(std::string bias_member) : bias_member_(std::move(bias_member)) {}
  void read(Fields& file) const override {
    if (!bias_member_.empty()) {
      file.require(bias_member_, true, "experts that are chosen by their gates alone");
    }
    file.set_moe("norm_topk_prob", file.boolean("norm_topk_prob", true), "norm_topk_prob");
    file.set_moe("moe_router_topk_scaling_factor", file.number("routed_scaling_factor", 1.0),
                 "routed_scaling_factor");
    const Found<int64_t> groups = file.size("n_group", 1);
    const Found<int64_t> chosen = file.size("topk_group", 1);
    const bool grouped = groups.value > 1;
    file.set_moe("topk_method", Value(std::string(grouped ? "noaux_tc" : "greedy")), "n_group",
                 groups.text, groups.written);
    if (grouped) {
      file.set_moe("moe_router_num_groups", groups, "n_group");
      file.set_moe("moe_router_group_topk", chosen, "topk_group");
    }
    file.set_moe_by_type("moe_router_bias_update_rate", Value(0.0));
  }
  void write(const AllConfig& config, Json& json) const override {
    const MoEConfig& moe = config.moe_config;
    json["norm_topk_prob"] = moe.norm_topk_prob.value_or(true);
    json["routed_scaling_factor"] = moe.moe_router_topk_scaling_factor;
    if (!bias_member_.empty()) {
      json[bias_member_] = true;
      return;
    }
    json["n_group"] = is_grouped(moe) ? moe.moe_router_num_groups.value_or(1) : 1;
    json["topk_group"] = is_grouped(moe) ? moe.moe_router_group_topk.value_or(1) : 1;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (!bias_member_.empty()) {
      object_unless(config, "moe_config.topk_method", Value(std::string("greedy")), out);
    } else if (config.moe_config.topk_method == "group_limited_greedy") {
      object_unless(config, "moe_config.topk_method", Value(std::string("noaux_tc")), out);
    }
  }

 private:
  std::string bias_member_;  // empty: there is none, but groups
  static bool is_grouped(const MoEConfig& moe) { return moe.topk_method != "greedy"; }
};

// Of the best groups of experts, each as good as its best one.
class GroupedSoftmaxGates final : public Rule {
 public:
  void read(Fields& file) const override {
    const Found<std::string> method = file.text("topk_method", "greedy");
    if (method.value != "greedy" && method.value != kGrouped) {
      file.finding("topk_method", concat("expected greedy or ", kGrouped, ", got ", method.text));
    }
    file.set_moe("topk_method", method, "topk_method");
    file.set_moe("moe_router_topk_scaling_factor", file.number("routed_scaling_factor", 1.0),
                 "routed_scaling_factor");
    if (method.value == kGrouped) {
      file.set_moe("moe_router_num_groups", file.size("n_group", 1), "n_group");
      file.set_moe("moe_router_group_topk", file.size("topk_group", 1), "topk_group");
    }
  }
  void write(const AllConfig& config, Json& json) const override {
    const MoEConfig& moe = config.moe_config;
    const bool grouped = moe.topk_method == kGrouped;
    json["topk_method"] = moe.topk_method;
    json["norm_topk_prob"] = false;
    json["routed_scaling_factor"] = moe.moe_router_topk_scaling_factor;
    json["n_group"] = grouped ? moe.moe_router_num_groups.value_or(1) : 1;
    json["topk_group"] = grouped ? moe.moe_router_group_topk.value_or(1) : 1;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (config.moe_config.topk_method == "noaux_tc") {
      object_unless(config, "moe_config.topk_method", Value(std::string(kGrouped)), out);
    }
  }

 private:
  static constexpr const char* kGrouped = "group_limited_greedy";
};

class ExpertWidth final : public Rule {
 public:
  ExpertWidth(std::string member, int64_t by_default)
      : member_(std::move(member)), default_(by_default) {}
  void read(Fields& file) const override {
    file.set_moe("moe_ffn_hidden_size", file.size(member_, default_), member_);
  }
  void write(const AllConfig& config, Json& json) const override {
    TransformerConfig model = config.model_config;
    model.moe = config.moe_config;
    json[member_] = moe_ffn_hidden_size(model);
  }

 private:
  std::string member_;
  int64_t default_;
};

class SharedExpert final : public Rule {
 public:
  SharedExpert(std::string member, int64_t by_default)
      : member_(std::move(member)), default_(by_default) {}
  void read(Fields& file) const override {
    file.set_moe("moe_shared_expert_intermediate_size", file.size(member_, default_), member_);
    file.set_moe_by_type("use_shared_expert_gating", Value(true));
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] = config.moe_config.moe_shared_expert_intermediate_size.value();
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (!config.moe_config.moe_shared_expert_intermediate_size) {
      out.push_back(
          {"moe_config.moe_shared_expert_intermediate_size", "null", "use the width of one"});
    }
    object_unless(config, "moe_config.use_shared_expert_gating", Value(true), out);
  }

 private:
  std::string member_;
  int64_t default_;
};

class NoSharedExpert final : public Rule {
 public:
  void read(Fields& file) const override {
    file.set_moe_by_type("moe_shared_expert_intermediate_size", Value());
    file.set_moe_by_type("use_shared_expert_gating", Value(false));
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    object_unless(config, "moe_config.moe_shared_expert_intermediate_size", Value(), out);
  }
};

class SharedExperts final : public Rule {
 public:
  SharedExperts(std::string member, int64_t by_default)
      : member_(std::move(member)), default_(by_default) {}
  void read(Fields& file) const override {
    const Found<int64_t> found =
        file.take<int64_t>(member_, default_, &Json::is_number_integer, "an integer from 0");
    const auto width =
        std::find_if(file.out.settings.begin(), file.out.settings.end(),
                     [](const HfSetting& setting) { return setting.key == "moe_ffn_hidden_size"; });
    if (found.value < 0 || found.value > kMostShared || width == file.out.settings.end()) {
      file.finding(member_,
                   concat("expected an integer from 0 to ", kMostShared, ", got ", found.text));
      return;
    }
    file.set_moe("moe_shared_expert_intermediate_size",
                 found.value == 0 ? Value() : Value(found.value * width->value.as<int64_t>()),
                 member_, found.text, found.written);
    file.set_moe_by_type("use_shared_expert_gating", Value(false));
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] =
        config.moe_config.moe_shared_expert_intermediate_size.value_or(0) / width_of_one(config);
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const int64_t width = config.moe_config.moe_shared_expert_intermediate_size.value_or(0);
    if (width % width_of_one(config) != 0) {
      out.push_back({"moe_config.moe_shared_expert_intermediate_size", concat(width),
                     concat("use a multiple of moe_ffn_hidden_size ", width_of_one(config))});
    }
    if (width > 0) {
      object_unless(config, "moe_config.use_shared_expert_gating", Value(false), out);
    }
  }

 private:
  static constexpr int64_t kMostShared = 1 << 10;
  static int64_t width_of_one(const AllConfig& config) {
    TransformerConfig model = config.model_config;
    model.moe = config.moe_config;
    return std::max<int64_t>(1, moe_ffn_hidden_size(model));
  }

  std::string member_;
  int64_t default_;
};

std::vector<int64_t> dense_layers(const AllConfig& config) {
  TransformerConfig model = config.model_config;
  model.moe = config.moe_config;
  std::vector<int64_t> out;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (!is_moe_layer(model, layer)) {
      out.push_back(layer);
    }
  }
  return out;
}

class ExpertsEverywhere final : public Rule {
 public:
  void read(Fields& file) const override {
    file.set_moe_by_type("moe_layer_freq", Value(Value::List{Value(int64_t{1})}));
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (!dense_layers(config).empty()) {
      object_unless(config, "moe_config.moe_layer_freq", Value(Value::List{Value(int64_t{1})}), out,
                    "use [1], and no first_k_dense_replace");
    }
  }
};

class ExpertsAfter final : public Rule {
 public:
  ExpertsAfter(int64_t by_default, std::string member)
      : default_(by_default), member_(std::move(member)) {}
  void read(Fields& file) const override {
    const Found<int64_t> first =
        file.take<int64_t>(member_, default_, &Json::is_number_integer, "an integer from 0");
    const int64_t layers = file.size_of("num_hidden_layers");
    if (first.value < 0 || first.value >= layers) {
      file.finding(member_, concat("expected an integer from 0 to ", layers - 1, ", got ",
                                   first.text, "; a model without experts is dense"));
    }
    file.set_moe("first_k_dense_replace", first, member_);
    file.set_moe_by_type("moe_layer_freq", Value(Value::List{Value(int64_t{1})}));
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] = config.moe_config.first_k_dense_replace;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    object_unless(config, "moe_config.moe_layer_freq", Value(Value::List{Value(int64_t{1})}), out,
                  "use [1], and first_k_dense_replace");
  }

 private:
  int64_t default_;
  std::string member_;
};

// Layer i, from 0, has experts if (i + 1) is divisible by decoder_sparse_step and i is not among
// mlp_only_layers.
class SparseLayers final : public Rule {
 public:
  void read(Fields& file) const override {
    constexpr int64_t kMaxLayers = 1 << 16;
    const int64_t layers = file.size_of("num_hidden_layers");
    const Found<int64_t> step = file.size("decoder_sparse_step", 1);
    std::vector<int64_t> dense;
    if (const Json* list = file.find("mlp_only_layers")) {
      if (!list->is_array() || !std::all_of(list->begin(), list->end(), [](const Json& item) {
            return item.is_number_integer();
          })) {
        file.finding("mlp_only_layers", concat("expected a list of layers, got ", list->dump()));
      } else {
        dense = list->get<std::vector<int64_t>>();
      }
    }
    const std::string name = dense.empty() ? "decoder_sparse_step" : "mlp_only_layers";
    if (layers > kMaxLayers) {
      file.finding("num_hidden_layers", concat("expected at most ", kMaxLayers, ", got ", layers));
      return;
    }
    std::vector<bool> sparse(static_cast<size_t>(layers));
    for (int64_t layer = 0; layer < layers; ++layer) {
      sparse[static_cast<size_t>(layer)] = (layer + 1) % step.value == 0;
    }
    for (const int64_t layer : dense) {
      if (layer >= 0 && layer < layers) {
        sparse[static_cast<size_t>(layer)] = false;
      }
    }
    if (std::count(sparse.begin(), sparse.end(), true) == 0) {
      file.finding(name, concat("no layer of ", layers, " has experts; a model without is dense"));
    }
    Value::List freq;
    if (std::count(sparse.begin(), sparse.end(), false) == 0) {
      freq.push_back(Value(int64_t{1}));
    } else {
      for (const bool has_experts : sparse) {
        freq.push_back(Value(int64_t{has_experts ? 1 : 0}));
      }
    }
    const Json* shown = file.find(name);
    file.set_moe("moe_layer_freq", Value(std::move(freq)), name,
                 shown != nullptr ? shown->dump() : step.text, !dense.empty() || step.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = dense_layers(config);
  }
};

class BalanceLoss final : public Rule {
 public:
  // The coefficient with which transformers has the loss of here: there the shares of the k choices
  // add up to k, and layers are averaged.
  void write(const AllConfig& config, Json& json) const override {
    const auto layers = static_cast<double>(config.model_config.num_layers) -
                        static_cast<double>(dense_layers(config).size());
    double coeff = 0;
    for (const MoEBalanceLoss& loss : config.moe_config.balance_losses) {
      coeff += loss.type == "aux_loss" ? loss.coeff : 0;
    }
    json["output_router_logits"] = false;
    json["router_aux_loss_coef"] =
        coeff * layers / static_cast<double>(config.moe_config.moe_router_topk);
  }
};

// No layer has a dense MLP, so its width is nothing that the weights could contradict.
class NoDenseWidth final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    for (HfSetting& setting : file.out.settings) {
      setting.compared = setting.compared && setting.key != "ffn_hidden_size";
    }
  }
};

class LayersAhead final : public Rule {
 public:
  explicit LayersAhead(std::string member) : member_(std::move(member)) {}

  void read(hf::Fields& file) const override {
    const auto found =
        file.take<int64_t>(member_, 0, &Json::is_number_integer, "an integer from 0");
    if (found.value < 0 || found.value > kMost) {
      file.finding(member_, concat("expected an integer from 0 to ", kMost, ", got ", found.text));
      return;
    }
    file.set(kKey, found, member_);
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] = config.model_config.mtp_num_layers;
  }
  std::vector<std::string> keys() const override { return {kKey}; }
  RuleText text() const override {
    return {.read = concat("`", member_, "`, where the files have these layers")};
  }

 private:
  static constexpr const char* kKey = "mtp_num_layers";
  static constexpr int64_t kMost = 64;
  std::string member_;
};

}  // namespace

RulePtr layers_ahead(const std::string& member) { return std::make_shared<LayersAhead>(member); }

RulePtr dense() { return fixed("moe_config.num_experts", int64_t{1}); }
RulePtr experts(const std::string& member, int64_t number, int64_t topk, const std::string& also) {
  return std::make_shared<Experts>(member, also, number, topk);
}
Rules gates_by_norm_topk_prob(bool by_default) { return gates(by_default); }
Rules normalised_gates() { return gates(std::nullopt); }
Rules sigmoid_gates(const std::string& bias_member) {
  return {fixed("moe_config.moe_router_score_function", "sigmoid"),
          fixed("moe_config.moe_router_pre_softmax", false),
          fixed("moe_config.moe_router_enable_expert_bias", true),
          std::make_shared<SigmoidGates>(bias_member)};
}
RulePtr expert_width(const std::string& member, int64_t by_default) {
  return std::make_shared<ExpertWidth>(member, by_default);
}
RulePtr shared_expert(const std::string& member, int64_t by_default) {
  return std::make_shared<SharedExpert>(member, by_default);
}
RulePtr no_shared_expert() { return std::make_shared<NoSharedExpert>(); }
RulePtr shared_experts(const std::string& member, int64_t by_default) {
  return std::make_shared<SharedExperts>(member, by_default);
}
RulePtr experts_after(int64_t first_dense, const std::string& member) {
  return std::make_shared<ExpertsAfter>(first_dense, member);
}
RulePtr experts_everywhere() { return std::make_shared<ExpertsEverywhere>(); }
RulePtr sparse_layers() { return std::make_shared<SparseLayers>(); }
RulePtr balance_loss() { return std::make_shared<BalanceLoss>(); }

Rules grouped_softmax_gates() {
  return {std::make_shared<GroupedSoftmaxGates>(),
          fixed("moe_config.moe_router_score_function", "softmax"),
          fixed("moe_config.moe_router_pre_softmax", true),
          fixed("moe_config.norm_topk_prob", false),
          fixed("moe_config.moe_router_enable_expert_bias", false)};
}

RulePtr no_dense_width() { return std::make_shared<NoDenseWidth>(); }

}  // namespace tapestry::architectures
