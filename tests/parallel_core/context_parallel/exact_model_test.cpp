// A model's passes in exact mode: the sums that gradients of parameters are have the same bits at
// every CPU level, and on any number of ranks that divide the sequences.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/kernels/exact/exact_class.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/training/step/forward_step.h"
#include "tests/cpu_levels.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

namespace exact_model {

using testing::joined;
using testing::kModel;
using testing::llama;
using testing::Overrides;
using testing::small_config;
using testing::State;

constexpr int64_t kTokens = 64;

struct Family {
  std::string name;
  Overrides overrides;
};

std::vector<Family> families() {
  return {
      {"Gpt2", {}},
      {"Qwen3", llama({kModel + "qk_layernorm=True"})},
      {"Softcap", llama({kModel + "window_size=[20, 0]", kModel + "attention_softcap=2.0",
                         kModel + "logit_softcap=5.0", kModel + "norm_placement=sandwich"})},
      {"Sinks", llama({kModel + "window_size=[20, 0]", kModel + "attention_sinks=True"})},
      {"Alibi", {kModel + "position_embedding_type=alibi"}},
      {"Latent",
       llama({kModel + "group_query_attention=False", kModel + "multi_latent_attention=True",
              kModel + "kv_lora_rank=12", kModel + "q_lora_rank=10", kModel + "qk_head_dim=6",
              kModel + "qk_pos_emb_head_dim=4", kModel + "v_head_dim=8"})},
  };
}

/// Of each parameter, in units of kernels/exact_sums.h.
using Sums = std::map<std::string, std::vector<double>>;

/// Of one micro-batch of all ranks' tokens.
Sums sums_of(const AllConfig& config, const State& start) {
  constexpr int64_t kRows = 2;
  const ContextParallelLayout layout = context_parallel_layout();
  const ExactScope exact;
  const ExactTokensScope tokens({.samples = kRows,
                                 .length = kTokens / layout.size,
                                 .leaves = sequence_leaves(kTokens) / layout.size});
  const auto model = testing::model_with(config, start);
  model->train();
  for (const auto& entry : model->named_parameters()) {
    entry.parameter->set_main_grad(zeros(entry.parameter->shape(), kFloat64));
  }
  ModelInput input = to_model_input(testing::make_batch(config, kRows), model->sequence_unit());
  input.token_weight = 1.0F / 128;
  (*model)(input).loss.backward();
  Sums out;
  for (const auto& entry : model->named_parameters()) {
    const Tensor sums = entry.parameter->main_grad();
    if (layout.size > 1) {
      layout.group->all_reduce(sums);
    }
    out[entry.name] = sums.to_vector<double>();
  }
  return out;
}

void expect_same(const Sums& found, const Sums& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, sums] : expected) {
    EXPECT_TRUE(found.at(name) == sums) << name;
  }
}

class ExactModel : public ::testing::TestWithParam<std::string> {
 public:
  static Overrides in_dtype(const Family& family) {
    return joined(family.overrides,
                  {concat(kModel, "seq_length=", kTokens), kModel + "compute_dtype=" + GetParam()});
  }
  static State weights_of(const Overrides& overrides) {
    const auto model = get_model(small_config(overrides));
    testing::jitter(*model, 0.3);
    return get_logical_state(*model);
  }
};

TEST_P(ExactModel, HasTheSameGradientsAtEveryLevel) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const Overrides overrides = in_dtype(family);
    const State start = weights_of(overrides);
    std::map<std::string_view, Sums> of_class;
    for (const CpuLevel level : fused_cpu_levels()) {
      SCOPED_TRACE(name_of(level));
      const CpuLevelGuard guard(level);
      Sums found = sums_of(small_config(overrides), start);
      Sums& expected = of_class[exact_class(parse_dtype(GetParam()))];
      if (expected.empty()) {
        expected = found;
      }
      expect_same(found, expected);
    }
  }
}

TEST_P(ExactModel, HasTheSameGradientsOnAnyRanks) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const Overrides overrides = in_dtype(family);
    const State start = weights_of(overrides);
    const Sums expected = sums_of(small_config(overrides), start);
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(ranks);
      const AllConfig config = small_config(
          joined(overrides, {concat("parallel_config.context_parallel_size=", ranks)}));
      testing::run_parallel(ranks, {.context_parallel_size = ranks},
                            [&] { expect_same(sums_of(config, start), expected); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactModel, ::testing::Values("float32", "bfloat16"));

}  // namespace exact_model

}  // namespace
}  // namespace tapestry
