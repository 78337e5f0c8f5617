#include "parallel_core/deferred_values.h"

#include <gtest/gtest.h>

#include "autograd/ops/map.h"
#include "autograd/tensor/factory.h"
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

// Matrices that lie one below the other, one of them a slice, as experts do; some rows are
// nobody's.
std::vector<LogicalInit> stacked_parts(int64_t rows, int64_t columns) {
  const auto part = [&](const char* name, int64_t place, InitMethod init) {
    nn::LogicalTensor logical{.name = name,
                              .shape = {rows, 2 * columns},
                              .view_shape = {4, rows, columns},
                              .begin = place,
                              .end = place + 1,
                              .offset = {0, columns},
                              .slice_shape = {rows, columns}};
    return LogicalInit{logical, init};
  };
  return {part("a", 0, InitMethod::normal(1)),
          part("b", 1, {InitMethod::Kind::kTruncatedNormal, 1}),
          part("c", 3, InitMethod::constant(2))};
}

TEST(DeferredValues, ComeInPiecesThatAreTheWhole) {
  // Pieces end inside of rows of the stack.
  constexpr int64_t kRows = 1100;
  constexpr int64_t kColumns = 4096;
  const Shape shape = {4 * kRows, kColumns};
  ASSERT_GT(shape.numel(), kStartPiece);
  const Tensor expected = initial_value(shape, stacked_parts(kRows, kColumns));
  const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
  const Tensor value = initial_value(shape, stacked_parts(kRows, kColumns));
  const Tensor found = full(shape, 7.0);
  int64_t pieces = 0;
  const auto take = [&](int64_t first, const Tensor& values) {
    EXPECT_EQ(first % (3 * 32), 0);
    EXPECT_LE(values.numel(), kStartPiece);
    copy_values(values, found.view({-1}).slice(0, first, first + values.numel()));
    ++pieces;
  };
  for_start_values(value, 3 * 32, take);
  EXPECT_EQ(pieces, 2);
  EXPECT_FALSE(value.storage()->is_open());
  EXPECT_TRUE(testing::same_bits(found, expected));
}

TEST(DeferredValues, AreOnePieceWhereSomebodyHasThem) {
  int64_t pieces = 0;
  const auto count = [&](int64_t first, const Tensor& values) {
    EXPECT_EQ(first, 0);
    EXPECT_EQ(values.shape(), (Shape{16 * 32}));
    ++pieces;
  };
  const Tensor now = normal_value("b");
  for_start_values(now, 32, count);
  const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
  const Tensor value = normal_value("b");
  value.data<float>()[5] = 77;
  value.bump_version();
  for_start_values(value, 32, [&](int64_t first, const Tensor& values) {
    count(first, values);
    EXPECT_EQ(values.data<float>()[5], 77);
  });
  EXPECT_EQ(pieces, 2);
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
