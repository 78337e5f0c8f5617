// What mixtures leave to the next step is in checkpoints: selection biases among the weights,
// counts in the training state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using testing::mixture_config;
using testing::names_of;
using testing::Overrides;
using testing::Trainer;

AllConfig saved_config(const Overrides& overrides) {
  return mixture_config(
      testing::joined({"model_config.vocab_size=32", "model_config.position_embedding_type=rope"},
                      overrides),
      [](MoEConfig& moe) {
        moe.moe_router_score_function = "sigmoid";
        moe.moe_router_enable_expert_bias = true;
        moe.moe_router_bias_update_rate = 0.125;
        moe.balance_losses = {{"global_aux_loss", 0.1}};
      });
}

void run_one_step(Trainer& trainer, int64_t number) {
  const int64_t rank = model_parallel_is_initialized() ? get_data_parallel_rank() : 0;
  const int64_t ranks = model_parallel_is_initialized() ? get_data_parallel_world_size() : 1;
  std::vector<data::Batch> batches;
  for (int64_t i = rank; i < 4; i += ranks) {
    batches.push_back(testing::make_batch(trainer.config, 2, 2 * (4 * number + i)));
  }
  trainer.cell(batches);
}

std::string save(Trainer& trainer, int64_t number, const std::string& folder) {
  return write_checkpoint(*trainer.model, trainer.config.model_config, number,
                          {.directory = folder, .training_state = "{}"}, trainer.optimizer.get());
}

std::unique_ptr<Trainer> resumed_from(const AllConfig& config, const std::string& folder) {
  auto trainer = std::make_unique<Trainer>(config);
  if (trainer->data_parallel != nullptr && trainer->data_parallel->shards_optimizer()) {
    load_own_weights(*trainer->model, config.model_config, folder, *trainer->optimizer);
    trainer->data_parallel->parameters_changed();
  } else {
    load_weights(*trainer->model, config.model_config, folder);
  }
  load_optimizer_state(folder, *trainer->model, *trainer->optimizer);
  trainer->cell.set_position({.applied = 1, .seen = 1});
  return trainer;
}

struct SavedLayout {
  std::string name;
  int ranks;
  ModelParallelSizes sizes;
  Overrides overrides = {};
};

class MixtureOnDisk : public ::testing::TestWithParam<SavedLayout> {};
INSTANTIATE_TEST_SUITE_P(
    All,
    MixtureOnDisk,
    ::testing::Values(
        SavedLayout{"one", 1, {}},
        SavedLayout{"tp2_dp2_ep2",
                    4,
                    {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2},
                    {"parallel_config.tensor_model_parallel_size=2"}},
        SavedLayout{
            "dp4_ep2_z3", 4, {.expert_model_parallel_size = 2}, {"parallel_config.zero_level=z3"}},
        SavedLayout{"pp2_dp2_ep2",
                    4,
                    {.pipeline_model_parallel_size = 2, .expert_model_parallel_size = 2},
                    {"parallel_config.pipeline_model_parallel_size=2"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(MixtureOnDisk, GoesOnBitForBit) {
  const TempDir dir;
  const SavedLayout& layout = GetParam();
  std::string further;
  std::string again;
  testing::run_parallel(layout.ranks, layout.sizes, [&] {
    const AllConfig config = saved_config(layout.overrides);
    Trainer trainer(config);
    run_one_step(trainer, 0);
    const std::string saved = save(trainer, 1, dir.file("saved"));
    run_one_step(trainer, 1);
    const std::string one = save(trainer, 2, dir.file("further"));
    const auto other = resumed_from(config, saved);
    run_one_step(*other, 1);
    const std::string two = save(*other, 2, dir.file("again"));
    if (get_world_group().rank() == 0) {
      further = one;
      again = two;
    }
  });
  for (const char* name : {"/model.safetensors", "/training_state.safetensors"}) {
    const testing::State a = read_weights(further + name);
    testing::expect_states_equal(read_weights(again + name), a);
  }
  const testing::State weights = read_weights(further + "/model.safetensors");
  const std::vector<double> bias =
      weights.at("layers.1.moe.router.expert_bias").to_vector<double>();
  EXPECT_THAT(bias, ::testing::Contains(::testing::Ne(0)));
  for (const double b : bias) {
    EXPECT_EQ(b, std::round(b / 0.125) * 0.125);
  }
}

TEST(MixtureOnDisk, AnotherLayoutGoesOn) {
  const TempDir dir;
  std::string saved;
  std::string expected;
  testing::run_parallel(4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}, [&] {
    Trainer trainer(
        saved_config({"parallel_config.tensor_model_parallel_size=2",
                      "optimizer_config.optimizer_type=SGD", "optimizer_config.momentum=0.9"}));
    run_one_step(trainer, 0);
    const std::string first = save(trainer, 1, dir.file("first"));
    run_one_step(trainer, 1);
    const std::string second = save(trainer, 2, dir.file("second"));
    if (get_world_group().rank() == 0) {
      saved = first;
      expected = second;
    }
  });
  std::string found;
  testing::run_parallel(2, {.pipeline_model_parallel_size = 2}, [&] {
    const auto trainer = resumed_from(
        saved_config({"parallel_config.pipeline_model_parallel_size=2",
                      "optimizer_config.optimizer_type=SGD", "optimizer_config.momentum=0.9"}),
        saved);
    run_one_step(*trainer, 1);
    const std::string own = save(*trainer, 2, dir.file("found"));
    if (get_world_group().rank() == 0) {
      found = own;
    }
  });
  const testing::State a = read_weights(found + "/model.safetensors");
  const testing::State b = read_weights(expected + "/model.safetensors");
  testing::expect_states_close(a, b, 1e-4);
  for (const char* name : {"layers.0.moe.router.expert_bias", "layers.1.moe.router.expert_bias"}) {
    EXPECT_TRUE(testing::same_bits(a.at(name), b.at(name))) << name;
  }
}

// Weights under Hugging Face's names, and back, bit for bit; written by ranks, read by one process.
TEST(MixtureOnDisk, FoldersOfOtherProgramsComeBack) {
  const Overrides llama = {"model_config.vocab_size=32",
                           "model_config.position_embedding_type=rope",
                           "model_config.normalization=RMSNorm",
                           "model_config.hidden_act=swiglu",
                           "model_config.add_bias_linear=False",
                           "model_config.untie_embeddings_and_output_weights=True"};
  struct Family {
    std::string name;
    Overrides overrides;
    std::function<void(MoEConfig&)> change;
    std::string tensor;  // as its files call one
  };
  for (const Family& family :
       {Family{"mixtral", {}, nullptr, "model.layers.1.block_sparse_moe.experts.3.w2.weight"},
        Family{"qwen2_moe",
               {"model_config.qkv_has_bias=True"},
               [](MoEConfig& moe) {
                 moe.moe_shared_expert_intermediate_size = 20;
                 moe.use_shared_expert_gating = true;
               },
               "model.layers.1.mlp.shared_expert.gate_proj.weight"}}) {
    SCOPED_TRACE(family.name);
    const Overrides overrides = testing::joined(llama, family.overrides);
    const AllConfig one = mixture_config(overrides, family.change);
    const auto start = get_model(one);
    testing::jitter(*start);
    const testing::State expected = get_logical_state(*start);
    const TempDir dir;
    std::string folder;
    testing::run_parallel(
        4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}, [&] {
          const AllConfig config = mixture_config(
              testing::joined(overrides, {"parallel_config.tensor_model_parallel_size=2"}),
              family.change);
          Trainer trainer(config, expected);
          const std::string own = save(trainer, 1, dir.file("hf"));
          if (get_world_group().rank() == 0) {
            folder = own;
          }
        });
    EXPECT_THAT(names_of(read_weights(folder + "/model.safetensors")),
                ::testing::Contains(family.tensor));
    EXPECT_EQ(file_model_type(one.model_config), family.name);
    const auto found = get_model(one);
    load_weights(*found, one.model_config, folder);
    testing::expect_states_equal(get_logical_state(*found), expected);
  }
}

TEST(MixtureOnDisk, ABiasThatIsMissingIsNamed) {
  Trainer trainer(saved_config({}));
  testing::State state = get_logical_state(*trainer.model);
  ASSERT_EQ(state.erase("layers.0.moe.router.expert_bias"), 1U);
  EXPECT_THAT([&] { set_logical_state(*trainer.model, state, "test"); },
              ::testing::ThrowsMessage<ValueError>(
                  ::testing::HasSubstr("layers.0.moe.router.expert_bias")));
}

}  // namespace
}  // namespace tapestry
