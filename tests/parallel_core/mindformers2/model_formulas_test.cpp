// Whole models of the settings that a file of MindFormers 2.0 means, against its formulas in
// float64: latent attention, yarn, router, balance losses, experts, a layer ahead and the loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel_core/mindformers2/golden.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Overrides;

constexpr int64_t kRows = 2;
constexpr int64_t kSeq = 6;
constexpr int64_t kVocabulary = 11;

const char* const kCommon = R"(
training_config: {training_iters: 1}
model_config:
  vocab_size: 11
  num_layers: 2
  num_attention_heads: 2
  hidden_size: 8
  ffn_hidden_size: 6
  seq_length: 6
  multi_latent_attention: True
  q_lora_rank: null
  kv_lora_rank: 5
  qk_head_dim: 4
  qk_pos_emb_head_dim: 4
  v_head_dim: 3
  normalization: RMSNorm
  norm_epsilon: 1.0e-6
  hidden_act: swiglu
  untie_embeddings_and_output_weights: True
  position_embedding_type: rope
  compute_dtype: float32
  qkv_has_bias: False
  out_proj_has_bias: False
  mlp_has_bias: False
  rotary_config:
    rotary_interleaved: True
    rope_type: yarn
    rotary_base: 100.0
    rope_scaling_factor: 4.0
    original_max_position_embeddings: 64
    mscale_on_angles: True
    mscale: 1.0
moe_config:
  num_experts: 6
  moe_router_topk: 2
  moe_ffn_hidden_size: 3
  first_k_dense_replace: 1
  moe_aux_loss_choice: scores
  moe_aux_loss_coeff: 0.05
optimizer_config: {learning_rate: 0.01}
)";

const std::map<std::string, Overrides>& settings_of_models() {
  const std::string model = "model_config.";
  const std::string moe = "moe_config.";
  static const std::map<std::string, Overrides> all = {
      {"grouped",
       {model + "q_lora_rank=6", model + "rotary_config.mscale_all_dim=1.0",
        model + "mtp_num_layers=1", model + "mtp_loss_scaling_factor=0.3",
        moe + "moe_router_score_function=sigmoid", moe + "moe_router_enable_expert_bias=True",
        moe + "topk_method=noaux_tc", moe + "moe_router_num_groups=3",
        moe + "moe_router_group_topk=2", moe + "norm_topk_prob=True",
        moe + "moe_router_topk_scaling_factor=2.5",
        moe + "moe_router_load_balancing_type=seq_aux_loss", moe + "shared_expert_num=1"}},
      {"plain",
       {model + "rotary_config.mscale_all_dim=0.707",
        moe + "moe_router_score_function=sqrtsoftplus", moe + "norm_topk_prob=False",
        moe + "moe_router_topk_scaling_factor=1.5", moe + "moe_router_load_balancing_type=aux_loss",
        moe + "moe_apply_probs_on_input=True"}},
  };
  return all;
}

AllConfig config_of(const std::string& name) {
  Overrides overrides = settings_of_models().at(name);
  const auto scale = testing::golden_formulas()["models"][name]["attention_scale"].get<double>();
  std::ostringstream text;
  text.precision(17);
  text << "model_config.attention_scale=" << scale;
  overrides.push_back(text.str());
  return init_configs_from_text(kCommon, "mindformers2.yaml", {.overrides = overrides});
}

testing::State weights_of(const std::string& name) {
  testing::State out;
  for (const auto& [tensor, sizes] : testing::golden_formulas()["models"][name]["shapes"].items()) {
    out[tensor] = testing::named_weight(tensor, Shape(sizes.get<std::vector<int64_t>>()));
  }
  return out;
}

// batch() of make_golden.py.
data::Batch batch_of_tokens() {
  constexpr int64_t kCount = kRows * kSeq;
  data::Batch out;
  out.batch = kRows;
  out.seq = kSeq;
  const std::vector<int64_t> ids = testing::named_integers("tokens", kCount + 1, kVocabulary);
  out.tokens.assign(ids.begin(), ids.end() - 1);
  for (int64_t i = 0; i < kCount; ++i) {
    out.labels.push_back(i % kSeq == kSeq - 1 ? 0 : ids[static_cast<size_t>(i + 1)]);
  }
  for (const int64_t number : testing::named_integers("mask", kCount, 5)) {
    out.loss_mask.push_back(number > 0 ? 1.0F : 0.0F);
  }
  out.sample_ids = {0, 1};
  return out;
}

// float32 rounds each number by up to 6e-8 of itself; sums of up to 16 products, of which a dozen
// follow one another, add up to some of these, and what a gradient lacks is measured against its
// parameter's largest element. The experts of a layer are one parameter.
constexpr double kBound = 1e-6;

std::string parameter_of(const std::string& name) {
  const size_t begin = name.find(".experts.");
  return begin == std::string::npos
             ? name
             : name.substr(0, begin) + name.substr(name.find('.', begin + 9));
}

// The largest error of a parameter's gradient, in units of its largest element, by its name.
std::map<std::string, double> errors_of(const testing::State& found,
                                        const nlohmann::json& expected) {
  std::map<std::string, double> differences;
  std::map<std::string, double> largest;
  for (const auto& [name, values] : expected.items()) {
    const auto gradient = values.get<std::vector<double>>();
    const auto tensor = found.find(name);
    double& difference = differences[parameter_of(name)];
    difference = std::max(difference, tensor == found.end()
                                          ? std::numeric_limits<double>::infinity()
                                          : testing::largest_error(tensor->second, gradient));
    for (const double value : gradient) {
      double& most = largest[parameter_of(name)];
      most = std::max(most, std::abs(value));
    }
  }
  for (auto& [name, difference] : differences) {
    difference /= largest.at(name);
  }
  return differences;
}

class ModelFormulas : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelFormulas, LossesAndGradientsAreThoseOfMindFormers) {
  const nlohmann::json& expected = testing::golden_formulas()["models"][GetParam()];
  testing::Trainer trainer(config_of(GetParam()), weights_of(GetParam()));
  const testing::Gradients found = testing::run_step(trainer, {batch_of_tokens()});
  const auto near = [&](double value, const char* name) {
    const auto wanted = expected[name].get<double>();
    EXPECT_NEAR(value, wanted, kBound * wanted) << name;
  };
  near(found.result.loss, "loss");
  if (trainer.config.model_config.mtp_num_layers > 0) {
    near(found.result.mtp_losses.at(0), "ahead");
  }
  near(found.result.moe.value().aux_loss, "balance");
  ASSERT_EQ(found.tensors.size(), expected["gradients"].size());
  for (const auto& [name, error] : errors_of(found.tensors, expected["gradients"])) {
    EXPECT_LE(error, kBound) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         ModelFormulas,
                         ::testing::Values("grouped", "plain"),
                         [](const auto& test) { return test.param; });

// Every setting that the models need: the loss or a gradient tells of each that is left out.
TEST(ModelFormulas, TellSettingsApart) {
  const auto distance_with = [](const std::string& name, const Overrides& more) {
    AllConfig config =
        init_configs_from_text(kCommon, "mindformers2.yaml",
                               {.overrides = testing::joined(settings_of_models().at(name), more)});
    testing::Trainer trainer(config, weights_of(name));
    const testing::Gradients found = testing::run_step(trainer, {batch_of_tokens()});
    double worst = 0;
    for (const auto& [parameter, error] :
         errors_of(found.tensors, testing::golden_formulas()["models"][name]["gradients"])) {
      worst = std::max(worst, error);
    }
    return worst;
  };
  const std::string scale = "model_config.attention_scale=" +
                            testing::golden_formulas()["models"]["plain"]["attention_scale"].dump();
  constexpr double kSeen = 1e-3;
  EXPECT_GT(distance_with("plain", {}), kSeen);  // the usual scale of attention
  EXPECT_GT(distance_with("plain", {scale, "moe_config.moe_apply_probs_on_input=False"}), kSeen);
  EXPECT_GT(distance_with("plain", {scale, "moe_config.moe_router_score_function=sigmoid"}), kSeen);
  EXPECT_GT(distance_with("plain", {scale, "model_config.rotary_config.mscale_on_angles=False"}),
            kSeen);
  EXPECT_GT(distance_with("plain", {scale, "model_config.rotary_config.rotary_interleaved=False"}),
            kSeen);
  EXPECT_GT(distance_with("grouped", {scale, "moe_config.moe_aux_loss_choice=routed"}), kSeen);
}

}  // namespace
}  // namespace tapestry
