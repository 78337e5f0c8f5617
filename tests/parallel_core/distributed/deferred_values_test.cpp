#include "parallel_core/deferred_values.h"

#include <gtest/gtest.h>

#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/storage.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;

Tensor normal_value(const std::string& name) {
  const Shape shape = {16, 32};
  return initial_value(shape, {whole(name, shape, InitMethod::normal(1))});
}

TEST(DeferredValues, ComeWhenTouchedAndGoAgain) {
  const Tensor now = normal_value("b");
  const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
  const Tensor a = normal_value("a");
  const Tensor b = normal_value("b");
  const Tensor c = normal_value("c");
  EXPECT_FALSE(b.storage()->is_open());
  EXPECT_TRUE(testing::same_bits(b, now));
  EXPECT_TRUE(b.storage()->is_open());
  a.data<float>();
  c.data<float>();
  EXPECT_FALSE(b.storage()->is_open());
  EXPECT_TRUE(testing::same_bits(b, now));
}

TEST(DeferredValues, WhatWasChangedStays) {
  const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
  const Tensor a = normal_value("a");
  a.data<float>()[5] = 77;
  a.bump_version();
  const Tensor b = normal_value("b");
  const Tensor c = normal_value("c");
  b.data<float>();
  c.data<float>();
  EXPECT_EQ(a.data<float>()[5], 77);
}

TEST(DeferredValues, AreZerosWhereTheyWillBeLoaded) {
  const DeferInitialValues deferred(DeferInitialValues::Values::kZeros);
  EXPECT_TRUE(testing::same_bits(normal_value("a"), zeros({16, 32})));
}

const Overrides kDeep = {"model_config.num_layers=12", "parallel_config.zero_level=z3"};

// Bytes that a rank has at the most while `body` runs, beyond those that it had before.
int64_t peak_of(const std::function<void()>& body) {
  const int64_t before = memory_stats().current_bytes;
  RankContext::current().allocator().reset_peak();
  body();
  return memory_stats().peak_bytes - before;
}

TEST(DeferredValues, NoRankEverHoldsTheWholeModel) {
  const data::TempDir dir;
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    const AllConfig config = small_config(kDeep);
    initialize_ranks(config, world);
    const testing::State expected = get_logical_state(*get_model(config));
    const int64_t whole_bytes = 4 * get_model(config)->num_parameters();
    RankContext::current().allocator().release_cache();
    std::unique_ptr<GPTModel> model;
    std::unique_ptr<DistributedDataParallel> data_parallel;
    const auto make = [&](DeferInitialValues::Values values) {
      const DeferInitialValues deferred(values);
      model = get_model(config);
      data_parallel = get_data_parallel(config, *model);
    };
    // Half of the parameters and, from the start, of the gradients, and what is in hand.
    const auto half = static_cast<double>(whole_bytes) / 2;
    EXPECT_LT(peak_of([&] { make(DeferInitialValues::Values::kInitial); }), 2.5 * half);
    auto optimizer = get_optimizer(config, *model, data_parallel.get());
    testing::expect_states_equal(get_logical_state(*model, optimizer.get()), expected);

    std::string saved;
    EXPECT_LT(peak_of([&] {
                CheckpointOptions options;
                options.directory = dir.file("checkpoint");
                options.training_state = "{}";
                saved = write_checkpoint(*model, config.model_config, 1, options, optimizer.get());
              }),
              0.25 * half);

    optimizer.reset();
    data_parallel.reset();
    model.reset();
    EXPECT_LT(peak_of([&] {
                make(DeferInitialValues::Values::kZeros);
                optimizer = get_optimizer(config, *model, data_parallel.get());
                load_own_weights(*model, config.model_config, saved, *optimizer);
                data_parallel->parameters_changed();
              }),
              2.5 * half);
    testing::expect_states_equal(get_logical_state(*model, optimizer.get()), expected);
  });
}

}  // namespace
}  // namespace tapestry
