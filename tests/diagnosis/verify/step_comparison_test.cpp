#include "diagnosis/verify/faults/step_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

const std::string kLayer = "language_model.encoder.layers.1.";

// Gradients from the head back, by the module of their tensors; those that differ are marked.
class BackwardPlaces : public ::testing::Test {
 protected:
  void add(const std::string& module, bool agrees) {
    all_.push_back({.finding = {.what = Compared::kGradient,
                                .step = 1,
                                .name = "tensor of " + module,
                                .distance = agrees ? 0.0 : 1.0,
                                .bound = 0.5},
                    .stage = "backward",
                    .pass = "backward",
                    .module = module});
  }
  BackwardPlace place() const {
    std::vector<const ComparedQuantity*> gradients;
    for (const ComparedQuantity& each : all_) {
      gradients.push_back(&each);
    }
    size_t first = 0;
    while (gradients.at(first)->finding.agrees()) {
      ++first;
    }
    return place_in_backward(gradients, first);
  }

  std::vector<ComparedQuantity> all_;
};

TEST_F(BackwardPlaces, AreAModuleWhoseOwnGradientAloneIsWrong) {
  add("lm_head", true);
  add(kLayer + "mlp.mapping", false);
  add(kLayer + "mlp.mapping", false);
  add(kLayer + "attention.out_proj", true);
  EXPECT_EQ(place().module, kLayer + "mlp.mapping");
  EXPECT_THAT(place().detail, Says("no other ... module's gradients differ"));
}

TEST_F(BackwardPlaces, AreTheBlockBetweenTwoModules) {
  add(kLayer + "mlp.projection", true);
  add(kLayer + "mlp.mapping", false);
  add(kLayer + "post_attention_norm", false);
  EXPECT_EQ(place().module, kLayer + "mlp");
  EXPECT_THAT(place().detail, HasSubstr("between " + kLayer + "mlp.projection and " + kLayer +
                                        "mlp.mapping is wrong"));
}

// A whole layer says too little: the module that has handed the gradient on is meant.
TEST_F(BackwardPlaces, AreTheModuleBeforeWhereOnlyALayerHoldsBoth) {
  add(kLayer + "post_attention_norm", true);
  add(kLayer + "attention.out_proj", false);
  add(kLayer + "attention.qkv_proj", false);
  EXPECT_EQ(place().module, kLayer + "post_attention_norm");
  all_.clear();
  add(kLayer + "input_norm", true);
  add("language_model.encoder.layers.0.mlp.projection", false);
  add("language_model.encoder.layers.0.mlp.mapping", false);
  EXPECT_EQ(place().module, kLayer + "input_norm");
}

TEST_F(BackwardPlaces, AreTheLastModuleWhereNothingAgreesBefore) {
  add("lm_head", false);
  add("language_model.encoder.final_norm", false);
  EXPECT_EQ(place().module, "lm_head");
}

TEST(ModuleOfValue, IsThePathOfWhatMakesIt) {
  OwnRun run;
  for (const char* path : {"language_model.embedding", "language_model.encoder.layers.12",
                           "language_model.encoder.layers.12.post_attention_norm",
                           "language_model.encoder.layers.12.attention.qkv_proj"}) {
    run.types[path] = "Type";
  }
  EXPECT_EQ(module_of_value(run, "embedding"), "language_model.embedding");
  EXPECT_EQ(module_of_value(run, "layers.12.ffn_norm"),
            "language_model.encoder.layers.12.post_attention_norm");
  EXPECT_EQ(module_of_value(run, "layers.12.attention.v"),
            "language_model.encoder.layers.12.attention.qkv_proj");
  EXPECT_EQ(module_of_value(run, "layers.12.output"), "language_model.encoder.layers.12");
  // A model of one's own has no such modules.
  EXPECT_EQ(module_of_value({}, "layers.12.ffn_norm"), "ParallelNorm post_attention_norm");
  EXPECT_EQ(run.described("language_model.embedding"), "Type language_model.embedding");
  EXPECT_EQ(run.described("elsewhere"), "elsewhere");
}

}  // namespace
}  // namespace tapestry
