// Trainings of adapters beside a base in blocks of 8 bits.
#include "parallel_core/lora/quantize_base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/rank_context.h"
#include "parallel_core/training/pretrain.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace quantize_base_test {
namespace {

using ::testing::HasSubstr;
using testing::joined;
using testing::kLlama;
using testing::make_batch;
using testing::Overrides;
using testing::run_parallel;
using testing::small_config;
using testing::State;
using testing::Trainer;

// Slices of two ranks are whole blocks.
const Overrides kModel =
    joined({kLlama,
            {"model_config.hidden_size=64", "model_config.ffn_hidden_size=128",
             "model_config.num_layers=4", "lora_config.use_lora=True", "lora_config.lora_rank=4",
             "lora_config.base_dtype=q8_0", "optimizer_config.learning_rate=0.01"}});

enum class Base : uint8_t { kFloating, kBlocks };

std::vector<double> losses_of(const AllConfig& config, const State& start, Base base) {
  Trainer trainer(config, start);
  if (base == Base::kBlocks) {
    quantize_base(*trainer.model);
    int64_t matrices = 0;
    for (const auto& entry : trainer.model->named_parameters()) {
      const nn::Parameter& parameter = *entry.parameter;
      const nn::ParameterFlags& flags = parameter.flags();
      EXPECT_EQ(parameter.is_quantized(), flags.matmul && !flags.head && !flags.adapter)
          << entry.name;
      matrices += parameter.is_quantized() ? 1 : 0;
    }
    EXPECT_GT(matrices, 0);
  }
  const bool split = model_parallel_is_initialized();
  const int rank = split ? get_data_parallel_rank() : 0;
  const int ranks = split ? get_data_parallel_world_size() : 1;
  std::vector<double> out;
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t i = rank; i < 4; i += ranks) {
      batches.push_back(make_batch(config, 2, 2 * (4 * step + i)));
    }
    out.push_back(trainer.cell(batches).loss);
  }
  return out;
}

struct BlockLayout {
  const char* name;
  int ranks;
  Overrides settings;
};
std::ostream& operator<<(std::ostream& out, const BlockLayout& layout) {
  return out << layout.name;
}

class BlocksInLayouts : public ::testing::TestWithParam<BlockLayout> {};

TEST_P(BlocksInLayouts, TrainLikeOneProcess) {
  const State start = testing::moved_weights(kModel);
  const std::vector<double> single = losses_of(small_config(kModel), start, Base::kBlocks);
  const AllConfig config = small_config(joined(kModel, GetParam().settings));
  run_parallel(GetParam().ranks, model_parallel_sizes(config.parallel_config), [&] {
    const std::vector<double> found = losses_of(config, start, Base::kBlocks);
    for (size_t i = 0; i < single.size(); ++i) {
      EXPECT_NEAR(found[i], single[i], 2e-5 * single[i]) << "step " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Blocks,
    BlocksInLayouts,
    ::testing::Values(BlockLayout{"tp2", 2, {"parallel_config.tensor_model_parallel_size=2"}},
                      BlockLayout{"tp2_sp",
                                  2,
                                  {"parallel_config.tensor_model_parallel_size=2",
                                   "parallel_config.sequence_parallel=True"}},
                      BlockLayout{"pp2", 2, {"parallel_config.pipeline_model_parallel_size=2"}},
                      BlockLayout{"cp2", 2, {"parallel_config.context_parallel_size=2"}},
                      BlockLayout{"z1", 2, {"parallel_config.zero_level=z1"}},
                      BlockLayout{"z3", 2, {"parallel_config.zero_level=z3"}},
                      BlockLayout{"recomputed", 1, {"parallel_config.recompute_config=True"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(QuantizeBase, KeepsTheLossWithinAPercent) {
  const State start = testing::moved_weights(kModel);
  for (const char* dtype : {"float32", "bfloat16"}) {
    const AllConfig config =
        small_config(joined(kModel, {concat("model_config.compute_dtype=", dtype)}));
    const std::vector<double> floating = losses_of(config, start, Base::kFloating);
    const std::vector<double> blocks = losses_of(config, start, Base::kBlocks);
    EXPECT_NE(floating, blocks);
    EXPECT_LT(blocks.back(), blocks.front());
    // Of the first loss, which is the base's; each update is made of gradients that differ as much.
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_NEAR(blocks[i], floating[i], 0.01 * static_cast<double>(i + 1) * floating[i])
          << dtype << ", step " << i;
    }
  }
}

TEST(QuantizeBase, TakesTheBytesOfItsBlocks) {
  const auto model = get_model(small_config(kModel));
  const auto of_parameters = [] {
    return memory_stats().current_by_kind.at(static_cast<size_t>(MemoryKind::kParameter));
  };
  int64_t elements = 0;
  for (const auto& entry : model->named_parameters()) {
    const nn::ParameterFlags& flags = entry.parameter->flags();
    if (flags.matmul && !flags.adapter) {  // the head too
      elements += entry.parameter->numel();
    }
  }
  const int64_t before = of_parameters();
  quantize_base(*model, {.head = true});
  // Small blocks are rounded up by at most an eighth.
  EXPECT_NEAR(static_cast<double>(before - of_parameters()),
              static_cast<double>(elements) * (4 - 34.0 / 32), static_cast<double>(elements) * 0.5);
}

TEST(QuantizeBase, RefusesSlicesThatAreNoBlocks) {
  const AllConfig config = small_config(joined(
      kModel, {"parallel_config.tensor_model_parallel_size=4", "model_config.num_query_groups=4"}));
  run_parallel(4, model_parallel_sizes(config.parallel_config), [&] {
    const auto model = get_model(config);
    EXPECT_THAT(message_of<ValueError>([&] { quantize_base(*model); }),
                HasSubstr("out_proj.weight: 16 numbers of a row on this rank cannot be blocks"));
  });
}

}  // namespace
}  // namespace quantize_base_test
}  // namespace tapestry
