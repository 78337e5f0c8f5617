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
  Experts(std::string member, int64_t number, int64_t topk)
      : member_(std::move(member)), number_(number), topk_(topk) {}

  void read(Fields& file) const override {
    const Found<int64_t> number = file.size(member_, number_);
    const Found<int64_t> chosen = file.size("num_experts_per_tok", topk_);
    if (number.value < 2) {
      file.finding(member_,
                   concat("a mixture of ", number.text, " expert; what is read has 2 or more"));
    } else if (chosen.value > number.value) {
      file.finding("num_experts_per_tok", concat(chosen.text, " of ", member_, " ", number.text));
    }
    file.set_moe("num_experts", number, member_);
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

}  // namespace

RulePtr dense() { return fixed("moe_config.num_experts", int64_t{1}); }
RulePtr experts(const std::string& member, int64_t number, int64_t topk) {
  return std::make_shared<Experts>(member, number, topk);
}
Rules gates_by_norm_topk_prob(bool by_default) { return gates(by_default); }
Rules normalised_gates() { return gates(std::nullopt); }
RulePtr expert_width(const std::string& member, int64_t by_default) {
  return std::make_shared<ExpertWidth>(member, by_default);
}
RulePtr shared_expert(const std::string& member, int64_t by_default) {
  return std::make_shared<SharedExpert>(member, by_default);
}
RulePtr no_shared_expert() { return std::make_shared<NoSharedExpert>(); }
RulePtr experts_everywhere() { return std::make_shared<ExpertsEverywhere>(); }
RulePtr sparse_layers() { return std::make_shared<SparseLayers>(); }
RulePtr balance_loss() { return std::make_shared<BalanceLoss>(); }

}  // namespace tapestry::architectures
