#include "parallel_core/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/rotary_pos_embedding.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;

const Overrides kBf16 = {"training_config.bf16=True"};

Overrides with(Overrides base, const Overrides& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

Precision precision(const Overrides& overrides) {
  return precision_of(small_config(overrides).model_config);
}

TEST(Precision, FollowsTheConfiguration) {
  const Precision plain = precision({});
  EXPECT_EQ(plain.compute, kFloat32);
  EXPECT_EQ(plain.activation, kFloat32);
  EXPECT_EQ(plain.residual, kFloat32);

  const Precision bf16 = precision(kBf16);
  EXPECT_EQ(bf16.compute, kBFloat16);
  EXPECT_EQ(bf16.activation, kBFloat16);
  EXPECT_EQ(bf16.residual, kBFloat16);
  EXPECT_EQ(bf16.softmax, kFloat32);

  EXPECT_EQ(precision(with(kBf16, {"model_config.fp32_residual_connection=True"})).residual,
            kFloat32);
  EXPECT_EQ(precision(with(kBf16, {"model_config.residual_dtype=float32"})).residual, kFloat32);
  const Precision elementary = precision(with(kBf16, {"model_config.use_fused_kernels=False"}));
  EXPECT_EQ(elementary.activation, kFloat32);
  EXPECT_EQ(elementary.compute, kBFloat16);
  EXPECT_EQ(precision({"model_config.softmax_compute_dtype=float16"}).softmax, kFloat32);
  EXPECT_EQ(precision({"model_config.softmax_compute_dtype=float16",
                       "model_config.attention_softmax_in_fp32=False"})
                .softmax,
            kFloat16);
}

TEST(ComputeCopy, IsMadeOncePerVersion) {
  nn::Parameter weight(tensor({1.001F, 2.002F}), {});
  EXPECT_TRUE(weight.compute_copy(kFloat32).is_same(weight));
  const Tensor first = weight.compute_copy(kBFloat16);
  EXPECT_EQ(first.dtype(), kBFloat16);
  EXPECT_FALSE(first.requires_grad());
  EXPECT_TRUE(weight.compute_copy(kBFloat16).is_same(first));
  {
    const NoGradGuard guard;
    copy_values(tensor({3.0F, 4.0F}), weight);
    weight.bump_version();
  }
  EXPECT_THAT(weight.compute_copy(kBFloat16).to_vector<float>(), ::testing::ElementsAre(3, 4));
}

// One step of a model in each precision from the same weights: what differs is rounding.
struct Outcome {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, Tensor> values;
};
Outcome outcome_of(const Overrides& overrides) {
  testing::Trainer trainer(small_config(overrides));
  testing::jitter(*trainer.model);
  ActivationRecorder recorder;
  const StepResult result = trainer.cell({testing::make_batch(trainer.config, 2)});
  return {result.loss, result.grad_norm, recorder.values()};
}

bool holds_only(const Tensor& x, DType dtype) {
  return testing::same_bits(x, x.to(dtype).to(kFloat32));
}

TEST(ReducedPrecision, EveryStructureTrainsCloseToFloat32) {
  const Overrides structures[] = {
      {},
      {"model_config.normalization=RMSNorm", "model_config.hidden_act=swiglu",
       "model_config.position_embedding_type=rope", "model_config.qk_layernorm=True"},
      {"model_config.untie_embeddings_and_output_weights=True",
       "model_config.use_sandwich_norm=True", "dataset_config.data_layout=SBH"},
      {"model_config.hidden_dropout=0.1", "model_config.attention_dropout=0.1"},
  };
  for (const Overrides& structure : structures) {
    SCOPED_TRACE(structure.empty() ? "" : structure[0]);
    const Outcome exact = outcome_of(structure);
    for (const char* dtype : {"bfloat16", "float16"}) {
      for (const char* fused : {"True", "False"}) {
        SCOPED_TRACE(std::string(dtype) + ", fused " + fused);
        const Outcome rounded =
            outcome_of(with(structure, {std::string("model_config.compute_dtype=") + dtype,
                                        std::string("model_config.use_fused_kernels=") + fused}));
        EXPECT_NEAR(rounded.loss, exact.loss, 5e-3 * exact.loss);
        EXPECT_NEAR(rounded.grad_norm, exact.grad_norm, 3e-2 * exact.grad_norm);
        EXPECT_NE(rounded.loss, exact.loss);
      }
    }
  }
}

TEST(ReducedPrecision, RoundsWhereItSays) {
  const Outcome fused = outcome_of(kBf16);
  for (const char* name : {"embedding", "layers.0.attention_norm", "layers.0.attention.q",
                           "layers.0.attention.context", "layers.1.output", "logits"}) {
    ASSERT_TRUE(fused.values.contains(name)) << name;
    EXPECT_TRUE(holds_only(fused.values.at(name), kBFloat16)) << name;
  }
  const Outcome wide = outcome_of(with(kBf16, {"model_config.fp32_residual_connection=True"}));
  EXPECT_FALSE(holds_only(wide.values.at("layers.1.output"), kBFloat16));
  EXPECT_TRUE(holds_only(wide.values.at("layers.1.attention_norm"), kBFloat16));
  const Outcome elementary = outcome_of(with(kBf16, {"model_config.use_fused_kernels=False"}));
  EXPECT_FALSE(holds_only(elementary.values.at("layers.0.attention_norm"), kBFloat16));
  EXPECT_TRUE(holds_only(elementary.values.at("logits"), kBFloat16));
}

TEST(ReducedPrecision, NarrowNormsAndRotationsAreSeen) {
  const Overrides rope = {"model_config.position_embedding_type=rope"};
  const double exact = outcome_of(rope).loss;
  for (const char* key : {"layernorm_compute_dtype", "rotary_dtype"}) {
    const double rounded =
        outcome_of(with(rope, {std::string("model_config.") + key + "=bfloat16"})).loss;
    EXPECT_NE(rounded, exact) << key;
    EXPECT_NEAR(rounded, exact, 1e-2 * exact) << key;
  }
  const double softmax = outcome_of(with(rope, {"model_config.softmax_compute_dtype=bfloat16",
                                                "model_config.attention_softmax_in_fp32=False"}))
                             .loss;
  EXPECT_NE(softmax, exact);
  EXPECT_NEAR(softmax, exact, 1e-2 * exact);
}

TEST(ReducedPrecision, AnOverflowSkipsTheStepAndLowersTheScale) {
  testing::Trainer trainer(small_config(
      {"training_config.fp16=True", "training_config.loss_scale_value=16777216",
       "training_config.loss_scale_factor=4096", "training_config.loss_scale_window=2"}));
  testing::jitter(*trainer.model);
  const data::Batch batch = testing::make_batch(trainer.config, 2);
  const auto weights = [&] { return get_logical_state(*trainer.model); };
  const auto before = weights();
  const StepResult overflow = trainer.cell({batch});
  EXPECT_FALSE(overflow.finite);
  EXPECT_EQ(overflow.loss_scale, 16777216);
  EXPECT_FALSE(std::isfinite(overflow.grad_norm));
  for (const auto& [name, tensor] : weights()) {
    EXPECT_EQ(tensor.to_vector<float>(), before.at(name).to_vector<float>()) << name;
  }
  EXPECT_EQ(trainer.cell.position().applied, 0);
  EXPECT_EQ(trainer.cell.position().seen, 1);

  const StepResult first = trainer.cell({batch});
  EXPECT_EQ(first.loss_scale, 4096);
  EXPECT_TRUE(first.finite);
  const StepResult second = trainer.cell({batch});
  EXPECT_EQ(second.loss_scale, 4096);
  EXPECT_LT(second.loss, first.loss);
  EXPECT_EQ(trainer.cell.grad_scaler().scale(), 16777216);  // two finite steps
  EXPECT_EQ(trainer.cell.position().applied, 2);
}

TEST(ReducedPrecision, SixteenBitParametersHaveFloat32Masters) {
  for (const std::string dtype : {"bfloat16", "float16"}) {
    testing::Trainer whole(small_config({"model_config.compute_dtype=" + dtype}));
    testing::Trainer half(small_config(
        {"model_config.compute_dtype=" + dtype, "model_config.params_dtype=" + dtype}));
    for (const auto& entry : half.model->named_parameters()) {
      EXPECT_EQ(name_of(entry.parameter->dtype()), dtype) << entry.name;
      EXPECT_EQ(half.optimizer->main_param(entry.name).dtype(), kFloat32) << entry.name;
    }
    for (int step = 0; step < 5; ++step) {
      const data::Batch batch = testing::make_batch(whole.config, 2);
      const double expected = whole.cell({batch}).loss;
      EXPECT_NEAR(half.cell({batch}).loss, expected, 1e-2 * expected) << dtype << " " << step;
    }
    // A parameter is its master rounded; the master has bits that 16 cannot hold.
    for (const auto& entry : half.model->named_parameters()) {
      const Tensor master = half.optimizer->main_param(entry.name);
      EXPECT_TRUE(testing::same_bits(master.to(entry.parameter->dtype()), *entry.parameter))
          << entry.name;
    }
    EXPECT_FALSE(holds_only(half.optimizer->main_param("language_model.embedding.word_embeddings."
                                                       "weight"),
                            half.config.model_config.params_dtype));
  }
}

TEST(Fusion, EveryKeyGivesTheSameNumbers) {
  const Overrides llama = {"model_config.normalization=RMSNorm", "model_config.hidden_act=swiglu",
                           "model_config.position_embedding_type=rope"};
  const Outcome fused = outcome_of(llama);
  for (const std::string key : {"use_fused_kernels", "use_fused_rope", "apply_rope_fusion",
                                "use_fused_swiglu", "apply_swiglu_fusion"}) {
    const Outcome apart = outcome_of(with(llama, {"model_config." + key + "=False"}));
    EXPECT_NEAR(apart.loss, fused.loss, 1e-6 * fused.loss) << key;
    EXPECT_NEAR(apart.grad_norm, fused.grad_norm, 1e-5 * fused.grad_norm) << key;
    for (const auto& [name, value] : fused.values) {
      EXPECT_LE(testing::distance(apart.values.at(name), value), 1e-5) << key << ", " << name;
    }
  }
}

TEST(FusedLinearCrossEntropy, GivesTheSameLossAndGradients) {
  const auto fused_is = [](const Overrides& base, const char* value) {
    return outcome_of(
        with(base, {std::string("model_config.fused_linear_cross_entropy=") + value}));
  };
  for (const Overrides& base :
       {Overrides{}, kBf16, Overrides{"model_config.untie_embeddings_and_output_weights=True"},
        Overrides{"training_config.fp16=True"}}) {
    const Outcome plain = fused_is(base, "False");
    const Outcome fused = fused_is(base, "True");
    const double bound = base.empty() || base[0].ends_with("weights=True") ? 1e-6 : 2e-3;
    EXPECT_NEAR(fused.loss, plain.loss, bound * plain.loss);
    EXPECT_NEAR(fused.grad_norm, plain.grad_norm, bound * plain.grad_norm);
    EXPECT_TRUE(testing::same_bits(fused.values.at("logits"), plain.values.at("logits")));
  }
}

TEST(FusedLinearCrossEntropy, IsForTrainingUnlessTheKeySaysOtherwise) {
  const auto has_logits = [](const Overrides& overrides, bool trains) {
    const testing::Trainer trainer(overrides);
    trainer.model->train(trains);
    const data::Batch batch = testing::make_batch(trainer.config, 2);
    return trainer.model->forward(to_model_input(batch)).logits.defined();
  };
  EXPECT_FALSE(has_logits({}, true));
  EXPECT_TRUE(has_logits({}, false));
  {
    const NoGradGuard guard;
    EXPECT_TRUE(has_logits({}, true));
  }
  EXPECT_TRUE(has_logits({"training_config.fp16=True"}, true));
  EXPECT_TRUE(has_logits({"model_config.use_fused_kernels=False"}, true));
  EXPECT_TRUE(has_logits({"model_config.fused_linear_cross_entropy=False"}, true));
  EXPECT_FALSE(has_logits({"model_config.fused_linear_cross_entropy=True"}, false));
}

}  // namespace
}  // namespace tapestry
