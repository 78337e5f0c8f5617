// Trainings of adapters beside a base in blocks.
#include "parallel_core/lora/quantize_base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/rank_context.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/frozen_parameters.h"
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
             "optimizer_config.learning_rate=0.01"}});
// With experts, whose slices of two ranks are whole blocks as well, and without adapters of theirs.
const Overrides kMixture = joined({kModel,
                                   {"moe_config.num_experts=4", "moe_config.moe_router_topk=2",
                                    "moe_config.moe_ffn_hidden_size=64"}});

Overrides with_blocks(const Overrides& model, BlockFormat format) {
  return joined({model, {concat("lora_config.base_dtype=", kernels::name_of(format))}});
}

enum class Base : uint8_t { kFloating, kBlocks };

// The format is that of the configuration.
std::vector<double> losses_of(const AllConfig& config, const State& start, Base base) {
  Trainer trainer(config, start);
  if (base == Base::kBlocks) {
    const BlockFormat format = *kernels::block_format(config.lora_config.base_dtype);
    quantize_base(*trainer.model, {.format = format});
    int64_t matrices = 0;
    int64_t of_experts = 0;
    for (const auto& entry : trainer.model->named_parameters()) {
      const nn::Parameter& parameter = *entry.parameter;
      const nn::ParameterFlags& flags = parameter.flags();
      const bool expected = flags.matmul && !flags.head && !flags.adapter &&
                            entry.name.find("router") == std::string::npos;
      EXPECT_EQ(parameter.is_quantized(), expected) << entry.name;
      if (parameter.is_quantized()) {
        EXPECT_EQ(parameter.quantized().format(), format);
        ++matrices;
        of_experts += flags.expert ? 1 : 0;
      }
    }
    EXPECT_GT(matrices, 0);
    EXPECT_EQ(of_experts > 0, config.model_config.moe.num_experts > 1);
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

void expect_losses_of_one_process(const Overrides& model, const BlockLayout& layout) {
  for (const BlockFormat format : kernels::kBlockFormats) {
    const Overrides overrides = with_blocks(model, format);
    const State start = testing::moved_weights(overrides);
    const std::vector<double> single = losses_of(small_config(overrides), start, Base::kBlocks);
    const AllConfig config = small_config(joined(overrides, layout.settings));
    run_parallel(layout.ranks, model_parallel_sizes(config.parallel_config), [&] {
      const std::vector<double> found = losses_of(config, start, Base::kBlocks);
      for (size_t i = 0; i < single.size(); ++i) {
        EXPECT_NEAR(found[i], single[i], 2e-5 * single[i])
            << kernels::name_of(format) << ", step " << i;
      }
    });
  }
}

class BlocksInLayouts : public ::testing::TestWithParam<BlockLayout> {};

TEST_P(BlocksInLayouts, TrainLikeOneProcess) { expect_losses_of_one_process(kModel, GetParam()); }

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

class ExpertBlocksInLayouts : public ::testing::TestWithParam<BlockLayout> {};

TEST_P(ExpertBlocksInLayouts, TrainLikeOneProcess) {
  expect_losses_of_one_process(kMixture, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Blocks,
    ExpertBlocksInLayouts,
    ::testing::Values(BlockLayout{"ep2", 2, {"parallel_config.expert_model_parallel_size=2"}},
                      BlockLayout{"tp2_sp_etp2",
                                  2,
                                  {"parallel_config.tensor_model_parallel_size=2",
                                   "parallel_config.sequence_parallel=True"}},
                      BlockLayout{"tp2_sp_ep2",
                                  2,
                                  {"parallel_config.tensor_model_parallel_size=2",
                                   "parallel_config.sequence_parallel=True",
                                   "parallel_config.expert_model_parallel_size=2",
                                   "parallel_config.expert_tensor_parallel_size=1"}},
                      BlockLayout{"pp2", 2, {"parallel_config.pipeline_model_parallel_size=2"}},
                      BlockLayout{"z3", 2, {"parallel_config.zero_level=z3"}},
                      BlockLayout{"recomputed", 1, {"parallel_config.recompute_config=True"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Of the base's loss: the share that its rounding moves it, and again with each update, made of
// gradients that differ as much.
void expect_losses_near(const Overrides& model, BlockFormat format, double share) {
  const State start = testing::moved_weights(model);
  for (const char* dtype : {"float32", "bfloat16"}) {
    const AllConfig config = small_config(
        joined({with_blocks(model, format), {concat("model_config.compute_dtype=", dtype)}}));
    const std::vector<double> floating = losses_of(config, start, Base::kFloating);
    const std::vector<double> blocks = losses_of(config, start, Base::kBlocks);
    EXPECT_NE(floating, blocks);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_NEAR(blocks[i], floating[i], share * static_cast<double>(i + 1) * floating[i])
          << dtype << ", step " << i;
    }
  }
}

TEST(QuantizeBase, KeepsTheLossWithinAPercent) {
  for (const Overrides& model : {kModel, kMixture}) {
    expect_losses_near(model, BlockFormat::kQ8_0, 0.01);
  }
}

// A step is 16 times as large.
TEST(QuantizeBase, OfFourBitsKeepsTheLossNear) {
  for (const Overrides& model : {kModel, kMixture}) {
    expect_losses_near(model, BlockFormat::kQ4_0, 0.1);
  }
}

TEST(QuantizeBase, TakesTheBytesOfItsBlocks) {
  for (const Overrides& overrides : {kModel, kMixture}) {
    for (const BlockFormat format : kernels::kBlockFormats) {
      const auto model = get_model(small_config(overrides));
      const auto of_parameters = [] {
        return memory_stats().current_by_kind.at(static_cast<size_t>(MemoryKind::kParameter));
      };
      int64_t elements = 0;
      for (const auto& entry : model->named_parameters()) {
        const nn::ParameterFlags& flags = entry.parameter->flags();
        if (flags.matmul && !flags.adapter &&  // the head too
            entry.name.find("router") == std::string::npos) {
          elements += entry.parameter->numel();
        }
      }
      const int64_t before = of_parameters();
      quantize_base(*model, {.format = format, .head = true});
      const double number = static_cast<double>(kernels::block_bytes(format)) / 32;
      // Small blocks are rounded up by at most an eighth.
      EXPECT_NEAR(static_cast<double>(before - of_parameters()),
                  static_cast<double>(elements) * (4 - number),
                  static_cast<double>(elements) * 0.5);
    }
  }
}

// What estimate_memory says of parameters is what they take.
TEST(QuantizeBase, TakesWhatIsEstimated) {
  for (const Overrides& overrides : {kModel, kMixture}) {
    for (const BlockFormat format : kernels::kBlockFormats) {
      for (const char* params : {"float32", "bfloat16"}) {
        const AllConfig config =
            small_config(joined({with_blocks(overrides, format),
                                 {concat("model_config.params_dtype=", params),
                                  concat("model_config.compute_dtype=", params)}}));
        const auto model = get_model(config);
        quantize_base(*model, {.format = format});
        store_frozen(*model, config.model_config.params_dtype);
        int64_t bytes = 0;
        for (const auto& entry : model->named_parameters()) {
          const nn::Parameter& parameter = *entry.parameter;
          bytes += parameter.is_quantized() ? parameter.quantized().bytes().numel()
                                            : parameter.numel() * size_of(parameter.dtype());
        }
        EXPECT_EQ(estimate_memory(config).parameters, bytes)
            << kernels::name_of(format) << ", " << params;
      }
    }
  }
}

TEST(QuantizeBase, RefusesSlicesThatAreNoBlocks) {
  const AllConfig config = small_config(joined(
      kModel, {"parallel_config.tensor_model_parallel_size=4", "model_config.num_query_groups=4"}));
  run_parallel(4, model_parallel_sizes(config.parallel_config), [&] {
    const auto model = get_model(config);
    EXPECT_THAT(
        message_of<ValueError>([&] { quantize_base(*model, {.format = BlockFormat::kQ4_0}); }),
        HasSubstr("out_proj.weight: 16 numbers of a row on this rank cannot be blocks of "
                  "32 (q4_0); choose another tensor_model_parallel_size"));
  });
}

TEST(QuantizeBase, RefusesSlicesOfExpertsThatAreNoBlocks) {
  const AllConfig config = small_config(joined(
      kMixture, {"parallel_config.tensor_model_parallel_size=2",
                 "moe_config.moe_ffn_hidden_size=32", "parallel_config.sequence_parallel=True"}));
  run_parallel(2, model_parallel_sizes(config.parallel_config), [&] {
    const auto model = get_model(config);
    EXPECT_THAT(message_of<ValueError>([&] { quantize_base(*model); }),
                HasSubstr("mlp.experts.w2: 16 numbers of a row on this rank cannot be blocks of 32 "
                          "(q8_0); choose another expert_tensor_parallel_size"));
  });
}

}  // namespace
}  // namespace quantize_base_test
}  // namespace tapestry
