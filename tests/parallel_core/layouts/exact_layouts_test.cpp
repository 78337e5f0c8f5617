// Exact mode: layouts have the bits of one process, in losses, norms, activations, gradients and
// weights, whatever the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <ostream>
#include <string>
#include <vector>

#include "tests/parallel_core/layouts/layout_testing.h"
#include "tests/parallel_core/model_run.h"

namespace tapestry {
namespace exact_layouts_test {
namespace {

using testing::joined;
using testing::Overrides;

struct Row {
  std::string model;
  std::string layout;

  std::string joined_name() const {
    std::string out = model + "_" + layout;
    std::replace_if(
        out.begin(), out.end(),
        [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return out;
  }
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << row.model << " " << row.layout;
}

const std::string kModel = "model_config.";

Overrides overrides_of(const std::string& model) {
  const Overrides common = {"training_config.exact=True",     kModel + "vocab_size=32",
                            kModel + "num_layers=4",          kModel + "hidden_dropout=0.1",
                            kModel + "attention_dropout=0.1", kModel + "seq_length=16",
                            "dataset_config.batch_size=2"};
  const Overrides llama =
      joined(testing::kLlama, {kModel + "num_query_groups=4", kModel + "qk_layernorm=True"});
  const Overrides half = {kModel + "compute_dtype=bfloat16"};
  const Overrides experts =
      joined(llama, {"moe_config.num_experts=4", "moe_config.moe_router_topk=2",
                     "moe_config.moe_ffn_hidden_size=24",
                     "moe_config.moe_router_load_balancing_type=seq_aux_loss",
                     "moe_config.moe_aux_loss_coeff=0.01"});
  if (model == "gpt2") {
    return common;
  }
  if (model == "gpt2_recompute") {
    return joined(common, {"parallel_config.recompute_config.recompute=True"});
  }
  if (model == "llama") {
    return joined(common, llama);
  }
  if (model == "llama_bf16") {
    return joined(joined(common, llama), half);
  }
  if (model == "experts") {
    return joined(common, experts);
  }
  return joined(common, joined(experts, half));
}

class ExactLayouts : public ::testing::TestWithParam<Row> {};

TEST_P(ExactLayouts, HaveTheBitsOfOneProcess) {
  const LayoutPair pair = testing::small_pair(GetParam().layout, overrides_of(GetParam().model));
  const LayoutReport report = compare_layout(
      pair,
      {.steps = 3, .timeout_seconds = testing::kTestTimeout, .parts = testing::made_up_data()});
  EXPECT_TRUE(report.agrees()) << report_text(report, pair);
}

INSTANTIATE_TEST_SUITE_P(Rows,
                         ExactLayouts,
                         ::testing::Values(Row{"gpt2", "tp=4,sp"},
                                           Row{"gpt2", "pp=2,vpp=2,micro=4"},
                                           Row{"gpt2", "cp=4"},
                                           Row{"gpt2", "cp=8"},
                                           Row{"gpt2", "dp=4,zero=z2,overlap"},
                                           Row{"gpt2", "tp=2,sp,cp=2,micro=2"},
                                           Row{"gpt2_recompute", "pp=2,dp=2,micro=2"},
                                           Row{"llama", "tp=2,sp,pp=2,dp=2,zero=z3,micro=2"},
                                           Row{"llama", "dp=2,zero=z1,overlap,micro=3"},
                                           Row{"llama_bf16", "tp=4,sp"},
                                           Row{"llama_bf16", "cp=2,dp=2,zero=z2"},
                                           Row{"experts", "dp=4,ep=4"},
                                           Row{"experts", "tp=2,sp,dp=2,ep=2,etp=1"},
                                           Row{"experts", "cp=2,ep=2"},
                                           Row{"experts_bf16", "dp=2,ep=2,zero=z3"}),
                         [](const auto& row) { return row.param.joined_name(); });

}  // namespace
}  // namespace exact_layouts_test
}  // namespace tapestry
