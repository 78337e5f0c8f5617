// Mixtures that begin as a dense model compute what it does.
#include "parallel_core/dist_checkpointing/upcycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/training/step/forward_step.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using testing::mixture_config;
using testing::Overrides;
using testing::Trainer;

class Upcycled : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto dense = get_model(testing::small_config(base_));
    testing::jitter(*dense, 0.05);
    dense->eval();
    state_ = get_logical_state(*dense);
    write_state(path_, state_);
    logits_ = pipeline_logits(*dense, testing::make_batch(testing::small_config(base_), 2));
  }
  AllConfig config(const Overrides& more, int64_t width = 48) const {
    return mixture_config(testing::joined(base_, more), [width](MoEConfig& moe) {
      moe.moe_ffn_hidden_size = width;
      moe.moe_layer_freq = {0, 1};
      moe.moe_shared_expert_intermediate_size = 16;
      moe.use_shared_expert_gating = true;
    });
  }

  TempDir dir_;
  std::string path_ = dir_.file("dense.safetensors");
  Overrides base_ = {"model_config.hidden_act=swiglu", "model_config.vocab_size=32"};
  testing::State state_;
  Tensor logits_;
};

TEST_F(Upcycled, LogitsAreTheDenseOnes) {
  const AllConfig one = config({});
  const auto model = get_model(one);
  load_upcycled(*model, one.model_config, path_);
  model->eval();
  EXPECT_LE(testing::distance(pipeline_logits(*model, testing::make_batch(one, 2)), logits_), 1e-5);
  const testing::State state = get_logical_state(*model);
  for (const char* expert : {"0", "3"}) {
    EXPECT_TRUE(
        testing::same_bits(state.at(concat("layers.1.moe.experts.", expert, ".w_up.weight")),
                           state_.at("layers.1.feed_forward.w_up.weight")));
  }
  EXPECT_EQ(testing::largest(state.at("layers.1.moe.shared_expert.w_down.weight")), 0);
  EXPECT_GT(testing::largest(state.at("layers.1.moe.router.weight")), 0);
}

TEST_F(Upcycled, OnRanksToo) {
  const ModelParallelSizes sizes = {.tensor_model_parallel_size = 2,
                                    .expert_model_parallel_size = 2};
  const AllConfig layout = config({"parallel_config.tensor_model_parallel_size=2"});
  testing::run_parallel(4, sizes, [&] {
    const auto model = get_model(layout);
    load_upcycled(*model, layout.model_config, path_);
    model->eval();
    const Tensor logits = gather_vocabulary(pipeline_logits(*model, testing::make_batch(layout, 2)),
                                            32, tensor_parallel_layout(layout));
    EXPECT_LE(testing::distance(logits, logits_), 1e-5);
  });
  const AllConfig pieces = config({"parallel_config.zero_level=z3"});
  testing::run_parallel(2, {.expert_model_parallel_size = 2}, [&] {
    Trainer trainer(pieces);
    load_upcycled(*trainer.model, pieces.model_config, path_, trainer.optimizer.get());
    trainer.data_parallel->parameters_changed();
    trainer.model->eval();
    EXPECT_LE(
        testing::distance(pipeline_logits(*trainer.model, testing::make_batch(pieces, 2)), logits_),
        1e-5);
  });
}

// In every layout the checkpoint of what was made is that of one process.
TEST_F(Upcycled, TheSameInEveryLayout) {
  struct Layout {
    int ranks;
    ModelParallelSizes sizes;
    Overrides overrides = {};
  };
  const std::string tensor = "parallel_config.tensor_model_parallel_size=2";
  const std::vector<Layout> layouts = {
      {1, {}},
      {2, {.pipeline_model_parallel_size = 2}, {"parallel_config.pipeline_model_parallel_size=2"}},
      {2, {.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1}, {tensor}},
      {4,
       {.tensor_model_parallel_size = 2,
        .expert_model_parallel_size = 4,
        .expert_tensor_parallel_size = 1},
       {tensor}},
      {4, {.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2}},
      {4, {.context_parallel_size = 2, .expert_model_parallel_size = 4}},
      {4, {.expert_model_parallel_size = 2}, {"parallel_config.zero_level=z3"}},
      {4,
       {.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2},
       {"parallel_config.zero_level=z3"}},
      {4, {.expert_model_parallel_size = 2}, {"parallel_config.zero_level=z2"}}};
  std::vector<testing::State> made(layouts.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Layout& layout = layouts[i];
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      const AllConfig own = config(layout.overrides);
      Trainer trainer(own);
      const bool shards =
          trainer.data_parallel != nullptr && trainer.data_parallel->shards_optimizer();
      load_upcycled(*trainer.model, own.model_config, path_,
                    shards ? trainer.optimizer.get() : nullptr);
      const std::string saved =
          write_checkpoint(*trainer.model, own.model_config, 1,
                           {.directory = dir_.file(std::to_string(i))}, trainer.optimizer.get());
      if (get_world_group().rank() == 0) {
        made[i] = read_weights(saved + "/model.safetensors");
      }
    });
    SCOPED_TRACE(i);
    testing::expect_states_equal(made[i], made[0]);
  }
}

// Files may hold tied embeddings twice, but nothing that the mixture has no place for.
TEST_F(Upcycled, RepeatedEmbeddings) {
  const AllConfig one = config({"model_config.untie_embeddings_and_output_weights=False"});
  state_["lm_head.weight"] = state_.at("tok_embeddings.weight");
  write_state(path_, state_);
  const auto model = get_model(one);
  load_upcycled(*model, one.model_config, path_);
  state_["lm_head.weight"] = zeros(state_.at("tok_embeddings.weight").shape());
  write_state(path_, state_);
  EXPECT_THAT([&] { load_upcycled(*model, one.model_config, path_); },
              ::testing::ThrowsMessage<ValueError>(::testing::HasSubstr("lm_head.weight")));
}

TEST_F(Upcycled, AMixtureIsNoDenseModel) {
  const AllConfig one = config({});
  const auto model = get_model(one);
  write_state(path_, get_logical_state(*model));
  EXPECT_THAT([&] { load_upcycled(*model, one.model_config, path_); },
              ::testing::ThrowsMessage<ValueError>(
                  ::testing::HasSubstr("this is a mixture of experts already, with the tensor "
                                       "layers.1.moe.experts.0.w_down.bias")));
}

TEST_F(Upcycled, WhatDoesNotFitIsNamed) {
  const AllConfig narrow = config({}, 24);
  const auto model = get_model(narrow);
  EXPECT_THAT(
      [&] { load_upcycled(*model, narrow.model_config, path_); },
      ::testing::ThrowsMessage<ValueError>(::testing::AllOf(
          ::testing::HasSubstr(path_), ::testing::HasSubstr("layers.1.feed_forward.w_up.weight"))));
  state_.erase("layers.1.feed_forward.w_down.bias");
  write_state(path_, state_);
  const AllConfig fitting = config({});
  const auto other = get_model(fitting);
  EXPECT_THAT([&] { load_upcycled(*other, fitting.model_config, path_); },
              ::testing::ThrowsMessage<ValueError>(
                  ::testing::HasSubstr("layers.1.feed_forward.w_down.bias")));
}

}  // namespace
}  // namespace tapestry
