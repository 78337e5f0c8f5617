#include "diagnosis/verify/layout_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "diagnosis/verify/zero_gradient.h"
#include "tests/message_of.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor row(const std::vector<float>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

TEST(LayoutFindings, Distances) {
  EXPECT_DOUBLE_EQ(element_distance(row({1, 2, -3}), row({1, 4, -3}), 8), 0.25);
  EXPECT_DOUBLE_EQ(norm_distance(row({3, 0}), row({0, 4}), 10), 0.5);
  EXPECT_EQ(element_distance(row({1, 2}), row({1, 2}), 0), 0);
  EXPECT_EQ(element_distance(row({1, 2}), row({1, 3}), 0), kInfinity);
  EXPECT_EQ(element_distance(row({1}), row({1, 1}), 1), kInfinity);
  EXPECT_EQ(norm_distance(row({1}), row({1, 1}), 1), kInfinity);
  for (const auto& distance : {element_distance, norm_distance}) {
    EXPECT_EQ(distance(row({1, NAN, 5}), row({1, 1, 5}), 1), kInfinity);
    EXPECT_EQ(distance(row({1, 1, 5}), row({1, NAN, 5}), 1), kInfinity);
    EXPECT_EQ(distance(row({1, NAN, 5}), row({1, NAN, 5}), 1), 0);
    EXPECT_EQ(distance(row({1, NAN, 5}), row({1, NAN, 7}), 4), 0.5);
    EXPECT_EQ(distance(row({INFINITY, 1}), row({INFINITY, 1}), 1), 0);
    EXPECT_EQ(distance(row({INFINITY, 1}), row({-INFINITY, 1}), 1), kInfinity);
    // In full width: these are one number in float32.
    EXPECT_GT(distance(full({1}, 1.0 + 1e-12, kFloat64), full({1}, 1.0, kFloat64), 1), 0);
  }
  EXPECT_EQ(element_distance(zeros({0}), zeros({0}), 0), 0);
  EXPECT_DOUBLE_EQ(largest_element(row({1, -5, 2})), 5);
  EXPECT_DOUBLE_EQ(euclidean_norm(row({3, -4})), 5);
}

TEST(LayoutFindings, TheFirstIsTheOneThatIsComputedFirst) {
  LayoutFindings findings;
  EXPECT_TRUE(findings.agree());
  findings.add({.what = Compared::kLoss, .step = 1, .name = "loss", .distance = 1, .bound = 2});
  EXPECT_TRUE(findings.agree());
  EXPECT_FALSE(findings.first());
  const auto add = [&](Compared what, int64_t step, size_t order, const char* name) {
    findings.add({.what = what, .step = step, .order = order, .name = name, .distance = 1});
    return findings.first()->name;
  };
  EXPECT_EQ(add(Compared::kActivation, 2, 0, "later step"), "later step");
  EXPECT_EQ(add(Compared::kWeights, 1, 3, "weights"), "weights");
  EXPECT_EQ(add(Compared::kGradient, 1, 3, "gradient"), "gradient");
  EXPECT_EQ(add(Compared::kGradient, 1, 4, "later gradient"), "gradient");
  EXPECT_EQ(add(Compared::kActivation, 1, 9, "activation"), "activation");
  EXPECT_FALSE(findings.agree());
  EXPECT_EQ(findings.worst(Compared::kGradient).compared, 2);
  EXPECT_EQ(findings.worst(Compared::kGradient).above, 2);
  EXPECT_EQ(findings.worst(Compared::kLoss).above, 0);
}

// What may be the tail of rounding: nothing whose bound is not measured, and nothing far beyond.
TEST(LayoutFindings, AgreeWithinAFactorOfMeasuredBounds) {
  const auto agree = [](double distance, bool measured) {
    LayoutFindings findings;
    findings.add({.what = Compared::kLoss, .distance = 2, .bound = 1, .bound_is_measured = true});
    findings.add({.what = Compared::kWeights,
                  .distance = distance,
                  .bound = 0.5,
                  .bound_is_measured = measured});
    EXPECT_FALSE(findings.agree());
    return findings.agree_within(4);
  };
  EXPECT_TRUE(agree(1.5, true));
  EXPECT_TRUE(agree(0.5, false));
  EXPECT_FALSE(agree(2.5, true));
  EXPECT_FALSE(agree(1.5, false));
  EXPECT_FALSE(agree(std::numeric_limits<double>::quiet_NaN(), true));
  EXPECT_FALSE(agree(std::numeric_limits<double>::infinity(), true));
}

// A choice is as old as what is made of it, and comes first there.
TEST(LayoutFindings, ChoicesHaveTheirPlaceAmongTheActivations) {
  LayoutFindings findings;
  const auto add = [&](Compared what, size_t order, const char* name) {
    findings.add({.what = what, .step = 1, .order = order, .name = name, .distance = 1});
    return findings.first()->name;
  };
  EXPECT_EQ(add(Compared::kExpertCounts, 0, "counts"), "counts");
  EXPECT_EQ(add(Compared::kActivation, 5, "gates"), "gates");
  EXPECT_EQ(add(Compared::kChoice, 6, "later choices"), "gates");
  EXPECT_EQ(add(Compared::kChoice, 5, "choices"), "choices");
  EXPECT_EQ(add(Compared::kActivation, 4, "logits"), "logits");
}

TEST(LayoutFindings, WhatIsEqualIsCounted) {
  LayoutFindings findings;
  findings.add_equal(Compared::kChoice, 40);
  EXPECT_TRUE(findings.agree());
  EXPECT_EQ(findings.worst(Compared::kChoice).compared, 40);
  EXPECT_THAT(findings.table(), HasSubstr("expert choices          40      0         0.0e+00"));
  EXPECT_THAT(findings.table(), Not(HasSubstr("expert counts")));
  const Finding moved = {.what = Compared::kChoice,
                         .step = 1,
                         .name = "layers.1.moe.choices",
                         .distance = 0.5,
                         .bound = 1e-5};
  findings.add(moved);
  EXPECT_EQ(findings.worst(Compared::kChoice).compared, 41);
  EXPECT_THAT(LayoutFindings::sentence(moved), HasSubstr("differs: distance 5.0e-01, bound"));
}

// Whichever rank comes first, the report is the same.
TEST(LayoutFindings, OfEqualPlacesTheWorstRankIsNamed) {
  const Finding near = {.what = Compared::kLoss,
                        .step = 1,
                        .name = "loss",
                        .where = "rank 0",
                        .distance = 2,
                        .bound = 1};
  Finding far = near;
  far.where = "rank 3";
  far.distance = 5;
  Finding none = near;
  none.where = "rank 2";
  none.distance = kNaN;
  LayoutFindings up;
  LayoutFindings down;
  for (const Finding& f : {near, far, none}) {
    up.add(f);
  }
  for (const Finding& f : {none, far, near}) {
    down.add(f);
  }
  EXPECT_EQ(up.first()->where, "rank 2");
  EXPECT_EQ(down.first()->where, "rank 2");
  EXPECT_EQ(up.worst(Compared::kLoss).finding->where, "rank 2");
}

TEST(LayoutFindings, WordsForPeople) {
  LayoutFindings findings;
  const Finding finding = {.what = Compared::kGradient,
                           .step = 2,
                           .name = "layers.1.attention.wk.weight",
                           .made_by = "backward of ColumnParallelLinear x",
                           .where = "rank 1 (tp 1)",
                           .distance = 3.1e-2,
                           .bound = 1e-4};
  findings.add(finding);
  EXPECT_EQ(LayoutFindings::sentence(finding),
            "step 2: the gradient of layers.1.attention.wk.weight differs on rank 1 (tp 1): "
            "relative distance 3.1e-02, bound 1.0e-04; everything that is computed before it "
            "agrees; made by backward of ColumnParallelLinear x");
  EXPECT_THAT(findings.table(),
              HasSubstr("gradients                1      1         3.1e-02  1.0e-04  step 2: "
                        "layers.1.attention.wk.weight on rank 1 (tp 1)\n"));
}

TEST(LayoutFindings, GradientsThatAreZero) {
  const auto of = [](const testing::Overrides& overrides, const std::string& name) {
    return has_zero_gradient(testing::small_config(overrides).model_config, "layers.1." + name);
  };
  const std::string rope = "model_config.position_embedding_type=rope";
  const std::string half = "model_config.rotary_config.rotary_percent=0.5";
  const std::string norm = "model_config.qk_layernorm=True";
  EXPECT_EQ(of({}, "attention.wk.bias"), ZeroGradient::kAll);
  EXPECT_EQ(of({rope}, "attention.wk.bias"), ZeroGradient::kNone);
  EXPECT_EQ(of({rope, half}, "attention.wk.bias"), ZeroGradient::kPart);
  EXPECT_EQ(of({norm}, "attention.wk.bias"), ZeroGradient::kNone);
  EXPECT_EQ(of({norm}, "attention.k_norm.bias"), ZeroGradient::kAll);
  EXPECT_EQ(of({norm, rope}, "attention.k_norm.bias"), ZeroGradient::kNone);
  EXPECT_EQ(of({norm, rope, half}, "attention.k_norm.bias"), ZeroGradient::kPart);
  EXPECT_EQ(of({}, "attention.wv.bias"), ZeroGradient::kNone);
  EXPECT_EQ(of({}, "attention.wk.weight"), ZeroGradient::kNone);
}

TEST(CompareLayout, SaysWhatCannotBe) {
  EXPECT_THAT(message_of<ValueError>([] { testing::small_pair("pp=2,layers=3,1"); }),
              HasSubstr("num_layer_list"));
  EXPECT_THAT(message_of<ValueError>([] { testing::small_pair("tp=3"); }),
              HasSubstr("4 is not divisible by tensor_model_parallel_size 3"));
  EXPECT_THAT(message_of<ValueError>([] {
                compare_layout(testing::small_pair("tp=2"),
                               {.steps = 0, .parts = testing::made_up_data()});
              }),
              HasSubstr("0 steps"));
}

// A warm-up from zero would hide what the first updates do.
TEST(CompareLayout, StartsWhereUpdatesAreLargest) {
  const LayoutPair pair = testing::small_pair("dp=2", {"optimizer_config.lr_warmup_iters=5"});
  const LayoutReport report = compare_layout(pair, {.steps = 1, .parts = testing::made_up_data()});
  EXPECT_TRUE(report.agrees()) << report_text(report, pair);
  EXPECT_GT(report.findings->worst(Compared::kWeights).finding->distance, 0);
  EXPECT_THAT(report_text(report, pair), HasSubstr("no difference above its bound"));
}

TEST(CompareLayout, TakesNoMoreStepsThanTheRun) {
  const LayoutPair pair = testing::small_pair("dp=2", {"training_config.training_iters=2"});
  EXPECT_EQ(compare_layout(pair, {.steps = 7, .parts = testing::made_up_data()}).steps, 2);
}

}  // namespace
}  // namespace tapestry
