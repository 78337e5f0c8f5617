// Layers that predict further tokens in files: of families that have names for them, of others, and
// where a model is read without them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/read_hf_config.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/training/pretrain.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/rank_layouts.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using testing::small_config;
using testing::State;
using testing::Trainer;
using Json = nlohmann::json;

const std::string kAhead = "model_config.mtp_num_layers=";

Json family_json(const std::string& type) {
  Json json = {{"model_type", type},
               {"vocab_size", 31},
               {"hidden_size", 32},
               {"intermediate_size", 48},
               {"moe_intermediate_size", 16},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", type == "glm4_moe" ? 2 : 4},
               {"max_position_embeddings", 64},
               {"n_routed_experts", 4},
               {"num_experts_per_tok", 2},
               {"n_group", 1},
               {"topk_group", 1},
               {"first_k_dense_replace", 1},
               {"num_nextn_predict_layers", 2}};
  if (type == "deepseek_v3") {
    json.update({{"q_lora_rank", 16},
                 {"kv_lora_rank", 12},
                 {"qk_nope_head_dim", 6},
                 {"qk_rope_head_dim", 4},
                 {"v_head_dim", 8}});
  }
  return json;
}

AllConfig config_of(const std::string& folder, const Overrides& overrides = {}) {
  return init_configs_from_text(
      "training_config: {training_iters: 20, seed: 7}\nmodel_config: {from_hf: " + folder +
          ", seq_length: 8, init_method_std: 0.1}\noptimizer_config: {learning_rate: 0.01}\n",
      "f.yaml", {.overrides = overrides});
}

State moved_state(const AllConfig& config) {
  const auto model = get_model(config);
  testing::jitter(*model);
  return get_logical_state(*model);
}

class FamilyWithLayersAhead : public ::testing::TestWithParam<std::string> {
 protected:
  FamilyWithLayersAhead() { dir_.write("described/config.json", family_json(GetParam()).dump()); }
  // A checkpoint of the family's model with so many such layers.
  std::string saved(int64_t depths) {
    const AllConfig config = config_of(dir_.file("described"), {concat(kAhead, depths)});
    state_ = moved_state(config);
    const auto model = testing::model_with(config, state_);
    return save_checkpoint(*model, config.model_config, 1, {.directory = dir_.file("saved")});
  }
  static State loaded(const AllConfig& config, const std::string& path) {
    const auto model = get_model(config);
    load_weights(*model, config.model_config, path);
    return get_logical_state(*model);
  }

  TempDir dir_;
  State state_;
};

TEST_P(FamilyWithLayersAhead, CarriesItsNames) {
  const std::string folder = saved(2);
  const auto files = open_weights(folder);
  for (const std::string layer : {"model.layers.2.", "model.layers.3."}) {
    for (const char* name :
         {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
          "embed_tokens.weight", "shared_head.head.weight", "input_layernorm.weight",
          "mlp.gate.e_score_correction_bias", "mlp.experts.3.down_proj.weight",
          "mlp.shared_experts.up_proj.weight"}) {
      EXPECT_TRUE(files->contains(layer + name)) << layer << name;
    }
    EXPECT_EQ(files->shape(layer + "eh_proj.weight"), (Shape{32, 64}));
  }
  const State all = read_weights(folder);
  EXPECT_TRUE(testing::same_bits(all.at("model.layers.3.embed_tokens.weight"),
                                 state_.at("tok_embeddings.weight")));
  EXPECT_TRUE(testing::same_bits(all.at("model.layers.2.shared_head.head.weight"),
                                 state_.at("lm_head.weight")));
  for (const auto& [name, tensor] : all) {
    EXPECT_FALSE(name.starts_with("layers.")) << name;
  }
  EXPECT_EQ(
      Json::parse(dir_.read("saved/step_00000001/config.json")).at("num_nextn_predict_layers"), 2);
}

TEST_P(FamilyWithLayersAhead, IsReadWithTheLayersThatItsFilesHave) {
  const std::string folder = saved(2);
  const AllConfig config = config_of(folder);
  EXPECT_EQ(config.model_config.mtp_num_layers, 2);
  testing::expect_states_equal(loaded(config, folder), state_);
  // With fewer, and without any: the others are passed over.
  for (const int64_t depths : {1, 0}) {
    const AllConfig fewer = config_of(folder, {concat(kAhead, depths)});
    State expected = state_;
    std::erase_if(expected, [&](const auto& entry) {
      return entry.first.starts_with("layers.3.") ||
             (depths == 0 && entry.first.starts_with("layers.2."));
    });
    testing::expect_states_equal(loaded(fewer, folder), expected);
  }
  EXPECT_THAT(message_of<ValueError>([&] { loaded(config_of(folder, {kAhead + "3"}), folder); }),
              AllOf(HasSubstr("layers.4.mtp.eh_proj.weight"),
                    HasSubstr("fewer layers that predict further tokens")));
}

// Whoever reads and writes them: the tables that are there twice come from different stages.
TEST_P(FamilyWithLayersAhead, HasTheSameFilesInEveryLayout) {
  const std::string folder = saved(2);
  const std::string expected = dir_.read("saved/step_00000001/model.safetensors");
  int number = 0;
  for (const Overrides& layout : {testing::tp(2), testing::pp(2), testing::ep(2),
                                  joined(testing::pp(2), testing::zero("z3"))}) {
    const std::string name = concat("again_", ++number);
    run_thread_ranks(number == 4 ? 4 : 2, [&](const std::shared_ptr<ProcessGroup>& world) {
      const AllConfig config = config_of(folder, layout);
      initialize_ranks(config, world);
      const auto model = get_model(config);
      load_weights(*model, config.model_config, folder);
      const auto data_parallel = get_data_parallel(config, *model);
      const auto optimizer = get_optimizer(config, *model, data_parallel.get());
      CheckpointOptions options;
      options.directory = dir_.file(name);
      options.training_state = "{}";
      write_checkpoint(*model, config.model_config, 1, options, optimizer.get());
    });
    EXPECT_TRUE(dir_.read(name + "/step_00000001/model.safetensors") == expected)
        << ::testing::PrintToString(layout);
  }
}

TEST_P(FamilyWithLayersAhead, HasNoneWhereTheWeightsHaveNone) {
  const HfConfig described = read_hf_config(dir_.file("described"));
  EXPECT_THAT(described.remark, HasSubstr("num_nextn_predict_layers is 2, of which the weights "
                                          "have 0"));
  EXPECT_EQ(config_of(dir_.file("described")).model_config.mtp_num_layers, 0);
  const std::string folder = saved(1);
  Json json = Json::parse(dir_.read("saved/step_00000001/config.json"));
  json["num_nextn_predict_layers"] = 4;
  dir_.write("saved/step_00000001/config.json", json.dump());
  EXPECT_EQ(config_of(folder).model_config.mtp_num_layers, 1);
  json["num_nextn_predict_layers"] = -1;
  dir_.write("saved/step_00000001/config.json", json.dump());
  EXPECT_THAT(message_of<ConfigError>([&] { config_of(folder); }),
              HasSubstr("num_nextn_predict_layers: expected an integer from 0 to 64, got -1"));
}

TEST_P(FamilyWithLayersAhead, LeavesThemOutBesideAdapters) {
  const std::string folder = saved(1);
  const AllConfig config = config_of(folder, {"lora_config.use_lora=True"});
  EXPECT_EQ(config.model_config.mtp_num_layers, 0);
  EXPECT_THAT(config.notes, ::testing::Contains(HasSubstr("left out beside adapters")));
  const State base = loaded(config, folder);
  EXPECT_TRUE(testing::same_bits(base.at("layers.1.attention.wo.weight"),
                                 state_.at("layers.1.attention.wo.weight")));
  EXPECT_THAT(message_of<ConfigError>([&] {
                config_of(folder, {"lora_config.use_lora=True", kAhead + "1"});
              }),
              HasSubstr("adapters are trained for the next token alone"));
}

INSTANTIATE_TEST_SUITE_P(Families,
                         FamilyWithLayersAhead,
                         ::testing::Values("deepseek_v3", "glm4_moe"),
                         [](const auto& info) { return info.param; });

// A model of no family, in safetensors under logical names and in MindSpore's files.
class OwnModelWithLayersAhead : public ::testing::TestWithParam<std::string> {
 protected:
  std::string save(const Trainer& trainer, int64_t step, const optim::Optimizer* optimizer) {
    CheckpointOptions options;
    options.directory = dir_.file("saved");
    options.training_state = "{}";
    options.ckpt_prefix = GetParam();
    return write_checkpoint(*trainer.model, trainer.config.model_config, step, options, optimizer);
  }
  TempDir dir_;
  Overrides model_ = testing::llama({testing::kUntied, kAhead + "2"});
};

TEST_P(OwnModelWithLayersAhead, IsReadWithThemAndWithout) {
  Trainer trainer(model_);
  testing::jitter(*trainer.model);
  const std::string folder = save(trainer, 1, nullptr);
  State expected = get_logical_state(*trainer.model);
  const auto read = [&](const std::string& depths) {
    const AllConfig config = small_config(joined(model_, {kAhead + depths}));
    const auto model = get_model(config);
    load_weights(*model, config.model_config, folder);
    return get_logical_state(*model);
  };
  testing::expect_states_equal(read("2"), expected);
  std::erase_if(expected, [](const auto& entry) {
    return entry.first.starts_with("layers.2.") || entry.first.starts_with("layers.3.");
  });
  testing::expect_states_equal(read("0"), expected);
}

TEST_P(OwnModelWithLayersAhead, GoesOnBitForBit) {
  const auto step = [](Trainer& trainer, int64_t number) {
    return trainer.cell({testing::make_batch(trainer.config, 2, 2 * number)});
  };
  Trainer first(model_);
  step(first, 0);
  step(first, 1);
  const std::string folder = save(first, 2, first.optimizer.get());
  const StepResult expected = step(first, 2);
  Trainer second(joined(model_, {"training_config.seed=8"}));
  load_weights(*second.model, second.config.model_config, folder);
  load_optimizer_state(folder, *second.model, *second.optimizer);
  second.cell.set_position({.applied = 2, .seen = 2});
  const StepResult found = step(second, 2);
  EXPECT_EQ(found.loss, expected.loss);
  ASSERT_EQ(found.mtp_losses.size(), 2U);
  EXPECT_EQ(found.mtp_losses, expected.mtp_losses);
  EXPECT_EQ(found.grad_norm, expected.grad_norm);
  testing::expect_states_equal(get_logical_state(*second.model), get_logical_state(*first.model));
}

INSTANTIATE_TEST_SUITE_P(Files,
                         OwnModelWithLayersAhead,
                         ::testing::Values("", "mine"),
                         [](const auto& info) {
                           return info.param.empty() ? "safetensors" : "mindspore";
                         });

// Another model's layers are no layers ahead.
TEST(LayersAheadInFiles, AreToldFromTooManyLayers) {
  const FileNames names({"tok_embeddings.weight", "layers.2.attention.wq.weight"},
                        small_config().model_config);
  EXPECT_FALSE(is_constant(names, "layers.2.attention.wq.weight"));
  const FileNames ahead({"tok_embeddings.weight", "layers.2.mtp.eh_proj.weight"},
                        small_config().model_config);
  EXPECT_TRUE(is_constant(ahead, "layers.2.attention.wq.weight"));
  EXPECT_FALSE(is_constant(ahead, "layers.1.attention.wq.weight"));
}

}  // namespace
}  // namespace tapestry
