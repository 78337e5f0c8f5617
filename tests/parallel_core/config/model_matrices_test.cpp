#include "parallel_core/config/model_matrices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/parameter_count.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;

// A tensor of a model: where it is, its size, and a rank's part of it.
struct Place {
  std::string module;
  Shape shape;
  Shape own;

  bool operator==(const Place&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.module << " " << place.shape << ", of which a rank has " << place.own;
}

using Places = std::map<std::string, Place>;

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

// What the model itself says, made without memory for its values.
Places places_in_model(const AllConfig& config, int64_t& parameters) {
  const DeferInitialValues deferred(DeferInitialValues::Values::kZeros);
  const auto model = get_model(config);
  parameters = model->num_parameters();
  Places out;
  for (const auto& entry : model->named_parameters()) {
    for (const nn::LogicalTensor& tensor : entry.parameter->logical()) {
      out[tensor.name] = {parent_of(entry.name), tensor.shape, tensor.local_shape()};
    }
  }
  return out;
}

std::string name_of_expert(const ModelMatrix& matrix, int64_t expert) {
  constexpr std::string_view kFirst = ".experts.0.";
  std::string name = matrix.name;
  return expert == 0
             ? name
             : name.replace(name.find(kFirst), kFirst.size(), concat(".experts.", expert, "."));
}

// The same as the table has it.
Places places_in_table(const AllConfig& config, const ModelShares& shares) {
  Places out;
  for (const ModelMatrix& matrix : model_matrices(config.model_config)) {
    const Shape own = shape_on_rank(matrix, shares);
    for (int64_t expert = 0; expert < std::max<int64_t>(matrix.experts, 1); ++expert) {
      const std::string name = name_of_expert(matrix, expert);
      out[name + ".weight"] = {matrix.module, matrix.shape, own};
      if (matrix.has_bias) {
        out[name + ".bias"] = {matrix.module, {matrix.shape[0]}, {own[0]}};
      }
    }
  }
  return out;
}

void expect_table_of(const AllConfig& config, const ModelShares& shares = {}) {
  int64_t parameters = 0;
  const Places expected = places_in_model(config, parameters);
  const Places found = places_in_table(config, shares);
  for (const auto& [name, place] : expected) {
    const auto at = found.find(name);
    ASSERT_NE(at, found.end()) << name << " is not in the table";
    EXPECT_EQ(at->second, place) << name;
  }
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_EQ(parameter_count(config.model_config, shares), parameters);
}

// One of the texts, which may hold several overrides.
void choose(std::mt19937& random, const std::vector<Overrides>& among, Overrides& out) {
  const Overrides& chosen = among[random() % among.size()];
  out.insert(out.end(), chosen.begin(), chosen.end());
}

Overrides random_overrides(std::mt19937& random) {
  const std::string m = "model_config.";
  Overrides out;
  choose(random, {{}, {m + "kv_channels=12"}, {m + "hidden_size=40", m + "kv_channels=6"}}, out);
  choose(random,
         {{},
          {m + "group_query_attention=True", m + "num_query_groups=2"},
          {m + "group_query_attention=True", m + "num_query_groups=1"}},
         out);
  choose(random,
         {{m + "hidden_act=swiglu"},
          {m + "hidden_act=fused_swiglu"},
          {m + "hidden_act=gelu"},
          {m + "hidden_act=relu"}},
         out);
  choose(random, {{m + "normalization=LayerNorm"}, {m + "normalization=RMSNorm"}}, out);
  choose(random, {{}, {}, {m + "score_head=True"}}, out);
  choose(random,
         {{m + "position_embedding_type=rope"},
          {m + "position_embedding_type=learned_absolute"},
          {m + "position_embedding_type=none"},
          {m + "position_embedding_type=alibi"}},
         out);
  for (const char* key :
       {"qkv_has_bias", "out_proj_has_bias", "mlp_has_bias", "qk_layernorm", "use_sandwich_norm",
        "use_final_norm", "untie_embeddings_and_output_weights"}) {
    out.push_back(concat(m, key, random() % 2 == 0 ? "=True" : "=False"));
  }
  const bool learned = std::find(out.begin(), out.end(),
                                 m + "position_embedding_type=learned_absolute") != out.end();
  const bool scores = std::find(out.begin(), out.end(), m + "score_head=True") != out.end();
  const uint64_t ahead = random() % 3;
  out.push_back(concat(m, "mtp_num_layers=", learned || scores ? 0 : ahead));
  return out;
}

TEST(ModelMatrices, AreThoseOfEveryPreset) {
  int presets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("examples/gpt")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("pretrain_gpt_") || entry.path().extension() != ".yaml") {
      continue;
    }
    SCOPED_TRACE(name);
    ++presets;
    AllConfig config = init_configs_from_yaml(entry.path().string());
    config.parallel_config = {};
    expect_table_of(config);
  }
  EXPECT_GE(presets, 8);
}

TEST(ModelMatrices, AreThoseOfRandomConfigurations) {
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    const Overrides overrides = random_overrides(random);
    std::string all;
    for (const std::string& one : overrides) {
      all += one + " ";
    }
    SCOPED_TRACE(all);
    expect_table_of(small_config(overrides));
  }
}

AllConfig mixture(const Overrides& more) {
  Overrides overrides = {"model_config.num_layers=3"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  AllConfig config = small_config(overrides);
  MoEConfig& moe = config.model_config.moe;
  moe.num_experts = 4;
  moe.moe_router_topk = 2;
  moe.moe_ffn_hidden_size = 24;
  moe.moe_layer_freq = {2};
  config.moe_config = moe;
  return config;
}

TEST(ModelMatrices, AreThoseOfMixtures) {
  AllConfig config = mixture({});
  expect_table_of(config);
  config = mixture({"model_config.hidden_act=swiglu", "model_config.add_bias_linear=False"});
  config.model_config.moe.moe_shared_expert_intermediate_size = 20;
  expect_table_of(config);
  config.model_config.moe.use_shared_expert_gating = true;
  expect_table_of(config);
  config = mixture({"model_config.position_embedding_type=rope", "model_config.mtp_num_layers=2"});
  expect_table_of(config);
  config.model_config.moe.moe_layer_freq = {0, 1, 0};  // the last layer, and so those ahead, dense
  expect_table_of(config);
}

TEST(ModelMatrices, AreThoseOfLayersThatDiffer) {
  for (const Overrides& more :
       {Overrides{}, Overrides{"model_config.num_layers=6", "model_config.num_kv_shared_layers=3"},
        Overrides{"model_config.full_attention_value_is_key=True"},
        Overrides{"model_config.norm_has_gain=False"}}) {
    expect_table_of(small_config(testing::gemma4(more)));
  }
  expect_table_of(small_config(testing::gemma4_moe()));
  const std::vector<AlikeLayers> some =
      alike_layers(small_config(testing::gemma4({"model_config.num_layers=8",
                                                 "model_config.num_kv_shared_layers=3"}))
                       .model_config);
  std::vector<int64_t> counts;
  for (const AlikeLayers& layers : some) {
    counts.push_back(layers.count);
  }
  // Sliding, full, and of both those with another's keys: layers 0, 2, 4; 1, 3; 5, 7; 6.
  EXPECT_EQ(counts, (std::vector<int64_t>{3, 2, 2, 1}));
}

TEST(ModelMatrices, AreThoseOfSeveralStreams) {
  const Overrides streams = {"model_config.enable_hyper_connections=True"};
  expect_table_of(small_config(streams));
  Overrides three = streams;
  three.insert(three.end(),
               {"model_config.num_residual_streams=3", "model_config.mtp_num_layers=1",
                "model_config.position_embedding_type=rope", "model_config.norm_placement=post"});
  expect_table_of(small_config(three));
  expect_table_of(mixture(streams));
}

// Also where there are more ranks than groups of keys and values, and rows of padding.
TEST(ModelMatrices, KnowWhatARankHas) {
  const std::string m = "model_config.";
  for (const Overrides& overrides :
       {Overrides{}, Overrides{m + "hidden_act=swiglu", m + "vocab_size=33"},
        Overrides{m + "group_query_attention=True", m + "num_query_groups=1",
                  m + "untie_embeddings_and_output_weights=True"},
        testing::gemma4(), testing::gemma4({m + "full_attention_num_query_groups=1"}),
        Overrides{m + "enable_hyper_connections=True"}}) {
    run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
      Overrides two = overrides;
      two.emplace_back("parallel_config.tensor_model_parallel_size=2");
      const AllConfig config = small_config(two);
      initialize_ranks(config, world);
      int64_t parameters = 0;
      const Places expected = places_in_model(config, parameters);
      const ModelShares shares = {.tensor = 2};
      for (const ModelMatrix& matrix : model_matrices(config.model_config)) {
        const std::string name = matrix.name + ".weight";
        const Shape own = shape_on_rank(matrix, shares);
        const Shape& in_model = expected.at(name).own;
        // The last rank of a vocabulary has rows beyond it, which are no part of the tensor.
        for (int64_t axis = 0; axis < own.size(); ++axis) {
          EXPECT_LE(in_model[axis], own[axis]) << name;
          EXPECT_LE(own[axis] - in_model[axis], matrix.layer < 0 ? 1 : 0) << name;
        }
      }
      EXPECT_EQ(parameter_count(config.model_config, shares), parameters);
    });
  }
}

TEST(ModelMatrices, SayWhatAnAdapterAndBlocksCanHold) {
  std::set<std::string> adapted;
  for (const ModelMatrix& matrix : model_matrices(mixture({}).model_config)) {
    EXPECT_EQ(matrix.quantizable, matrix.takes_adapter || matrix.experts > 0) << matrix.name;
    if (matrix.takes_adapter) {
      adapted.insert(matrix.name);
    }
  }
  EXPECT_TRUE(adapted.contains("layers.0.attention.wq"));
  EXPECT_TRUE(adapted.contains("layers.1.feed_forward.w_down"));
  EXPECT_FALSE(adapted.contains("layers.0.moe.experts.0.w_up"));
  EXPECT_FALSE(adapted.contains("layers.0.moe.router"));
  EXPECT_FALSE(adapted.contains("tok_embeddings"));
}

TEST(ModelMatrices, AbsurdWidthsAreAnError) {
  TransformerConfig config = small_config().model_config;
  config.num_attention_heads = config.num_query_groups = int64_t{1} << 40;
  config.kv_channels = int64_t{1} << 40;
  EXPECT_THROW(layer_widths(config, 0), ValueError);
}

}  // namespace
}  // namespace tapestry
