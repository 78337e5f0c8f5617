#include "parallel_core/training/step/train_one_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "optim/grad_clip.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Gradients;
using testing::make_batch;
using testing::Overrides;
using testing::run_step;
using testing::State;
using testing::Trainer;

const std::string kTraining = "training_config.";
const std::string kOptimizer = "optimizer_config.";

// Two micro-batches with different numbers of tokens that count.
std::vector<data::Batch> uneven(const AllConfig& config) {
  std::vector<data::Batch> out = {make_batch(config, 2, 0, true), make_batch(config, 2, 2, true)};
  std::fill(out[1].loss_mask.begin(), out[1].loss_mask.begin() + 13, 0.0F);
  return out;
}

Gradients gradients_of(const std::vector<data::Batch>& batches, const Overrides& overrides = {}) {
  Trainer trainer(overrides);
  return run_step(trainer, batches);
}

State combined(double a, const State& x, double b, const State& y) {
  State out;
  for (const auto& [name, tensor] : x) {
    out[name] = tensor.to(kFloat64) * a + y.at(name).to(kFloat64) * b;
  }
  return out;
}

TEST(TrainOneStepCell, HowMicroBatchesAddUp) {
  const std::vector<data::Batch> batches = uneven(testing::small_config());
  const Gradients first = gradients_of({batches[0]});
  const Gradients second = gradients_of({batches[1]});
  struct Case {
    Overrides overrides;
    double a, b;
  };
  const std::vector<Case> cases = {
      {{}, 0.5, 0.5},
      {{kTraining + "calculate_per_token_loss=True"}, 16.0 / 19, 3.0 / 19},
      {{kTraining + "loss_reduction=sum"}, 1, 1}};
  for (const auto& [overrides, a, b] : cases) {
    const Gradients found = gradients_of(batches, overrides);
    EXPECT_NEAR(found.result.loss, a * first.result.loss + b * second.result.loss,
                1e-6 * found.result.loss);
    EXPECT_EQ(found.result.loss_tokens, 19);
    EXPECT_EQ(found.result.tokens, 32);
    const State expected = combined(a, first.tensors, b, second.tensors);
    testing::expect_states_close(found.tensors, expected, 2e-6);
    TensorList all;
    for (const auto& [name, tensor] : expected) {
      all.push_back(tensor);
    }
    EXPECT_NEAR(found.result.grad_norm, optim::global_norm(all), 2e-6 * found.result.grad_norm);
  }
}

// Only how the weights of tokens compare counts, also where they sum to less than 1.
TEST(TrainOneStepCell, AMeanDoesNotDependOnTheSizeOfTheWeights) {
  const std::vector<data::Batch> batches = uneven(testing::small_config());
  std::vector<data::Batch> light = batches;
  for (data::Batch& batch : light) {
    for (float& weight : batch.loss_mask) {
      weight /= 128;
    }
  }
  for (const std::string per_token : {"False", "True"}) {
    const Overrides overrides = {kTraining + "calculate_per_token_loss=" + per_token};
    const Gradients expected = gradients_of(batches, overrides);
    const Gradients found = gradients_of(light, overrides);
    EXPECT_NEAR(found.result.loss, expected.result.loss, 1e-6 * expected.result.loss);
    EXPECT_DOUBLE_EQ(found.result.loss_tokens, 19.0 / 128);
    testing::expect_states_close(found.tensors, expected.tensors, 2e-6);
  }
}

TEST(TrainOneStepCell, AccumulatedMicroBatchesAreOneBatch) {
  const AllConfig config = testing::small_config();
  data::Batch whole = make_batch(config, 4);
  // Rows of one token that counts and of all, which a mean of means would weigh alike.
  std::fill(whole.loss_mask.begin() + 1, whole.loss_mask.begin() + whole.seq, 0.0F);
  std::vector<data::Batch> rows;
  for (int row = 0; row < 4; ++row) {
    rows.push_back(make_batch(config, 1, row));
    std::copy_n(whole.loss_mask.begin() + row * whole.seq, whole.seq, rows[row].loss_mask.begin());
  }
  const Overrides per_token = {kTraining + "calculate_per_token_loss=True"};
  const Gradients one = gradients_of({whole}, per_token);
  const Gradients accumulated = gradients_of(rows, per_token);
  EXPECT_NEAR(accumulated.result.loss, one.result.loss, 1e-6 * one.result.loss);
  EXPECT_EQ(accumulated.result.loss_tokens, one.result.loss_tokens);
  EXPECT_NEAR(accumulated.result.grad_norm, one.result.grad_norm, 1e-6 * one.result.grad_norm);
  testing::expect_states_close(accumulated.tensors, one.tensors, 2e-6);
}

// Each depth has its own number of tokens that count.
TEST(TrainOneStepCell, FurtherPredictionsAreMeansOverTheirOwnTokens) {
  const Overrides ahead = {
      "model_config.position_embedding_type=rope", "model_config.mtp_num_layers=2",
      "model_config.mtp_loss_scaling_factor=2", kTraining + "calculate_per_token_loss=True"};
  const AllConfig config = testing::small_config(ahead);
  data::Batch whole = make_batch(config, 4);
  std::fill(whole.loss_mask.begin() + 1, whole.loss_mask.begin() + whole.seq, 0.0F);
  std::vector<data::Batch> rows;
  for (int row = 0; row < 4; ++row) {
    rows.push_back(make_batch(config, 1, row));
    std::copy_n(whole.loss_mask.begin() + row * whole.seq, whole.seq, rows[row].loss_mask.begin());
  }
  const Gradients one = gradients_of({whole}, ahead);
  const Gradients accumulated = gradients_of(rows, ahead);
  EXPECT_NEAR(accumulated.result.loss, one.result.loss, 1e-6 * one.result.loss);
  ASSERT_EQ(one.result.mtp_losses.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(one.result.mtp_losses[i], 1);
    EXPECT_NEAR(accumulated.result.mtp_losses[i], one.result.mtp_losses[i],
                1e-6 * one.result.mtp_losses[i]);
  }
  testing::expect_states_close(accumulated.tensors, one.tensors, 2e-6);
}

// They are for training: what is evaluated is the model without them.
TEST(TrainOneStepCell, NothingFurtherIsPredictedInAnEvaluation) {
  const Overrides rope = {"model_config.position_embedding_type=rope"};
  const Trainer plain(rope);
  Trainer ahead(testing::joined(rope, {"model_config.mtp_num_layers=1"}));
  const std::vector<data::Batch> batches = {make_batch(plain.config, 2)};
  const auto evaluated = [&](ParallelModel& model) {
    const NoGradGuard guard;
    model.eval();
    std::optional<ModelOutput> found;
    PipelineWork work = pipeline_work(model, batches, [&](int64_t, ModelOutput& output) {
      found = std::move(output);
      return StageOutput{};
    });
    work.forward_only = true;
    get_forward_backward_func()(work);
    return *found;
  };
  const ModelOutput found = evaluated(*ahead.model);
  EXPECT_TRUE(found.ahead.empty());
  EXPECT_EQ(found.loss.item(), evaluated(*plain.model).loss.item());
  EXPECT_EQ(ahead.cell(batches).mtp_losses.size(), 1U);
}

TEST(TrainOneStepCell, StaticLossScaleChangesNothing) {
  const auto weights_after = [](Overrides overrides) {
    // With rotation no gradient is mere rounding, of which AdamW would make whole steps.
    overrides.emplace_back("model_config.position_embedding_type=rope");
    Trainer trainer(overrides);
    for (int step = 0; step < 3; ++step) {
      trainer.cell({make_batch(trainer.config, 2, 2 * step)});
    }
    return get_logical_state(*trainer.model);
  };
  const std::string clip = kOptimizer + "clip_grad=0.5";
  const State plain = weights_after({clip});
  testing::expect_states_equal(weights_after({clip, kTraining + "loss_scale=4096"}), plain);
  testing::expect_states_equal(weights_after({clip, kTraining + "loss_scale=0.125"}), plain);
  testing::expect_states_close(weights_after({clip, kTraining + "loss_scale=1000"}), plain, 1e-3);
  Trainer scaled({kTraining + "loss_scale=4096"});
  Trainer unscaled;
  const Gradients a = run_step(scaled, {make_batch(scaled.config, 2)});
  const Gradients b = run_step(unscaled, {make_batch(scaled.config, 2)});
  EXPECT_EQ(a.result.loss_scale, 4096);
  EXPECT_EQ(b.result.loss_scale, 1);
  EXPECT_EQ(a.result.loss, b.result.loss);
  EXPECT_EQ(a.result.grad_norm, b.result.grad_norm);
  testing::expect_states_equal(a.tensors, b.tensors);
}

TEST(TrainOneStepCell, AStepThatIsNotFiniteChangesNothing) {
  Trainer trainer({kOptimizer + "clip_grad=1", kOptimizer + "weight_decay=0.1"});
  data::Batch batch = make_batch(trainer.config, 2);
  trainer.cell({batch});
  const State weights = get_logical_state(*trainer.model);
  const nn::StateDict optimizer = trainer.optimizer->state_dict();
  State copies;
  for (const auto& [name, tensor] : optimizer) {
    copies[name] = tensor.clone();
  }
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    data::Batch poisoned = batch;
    poisoned.loss_mask[3] = bad;
    const StepResult result = trainer.cell({batch, poisoned});
    EXPECT_FALSE(result.finite);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    testing::expect_states_equal(get_logical_state(*trainer.model), weights);
    testing::expect_states_equal(trainer.optimizer->state_dict(), copies);
  }
  EXPECT_EQ(trainer.cell.position().applied, 1);
  EXPECT_EQ(trainer.cell.position().seen, 3);
  EXPECT_TRUE(trainer.cell({batch}).finite);
  EXPECT_EQ(trainer.cell.position().applied, 2);
}

// The rates of steps two and three of a warm-up of four, with an overflow between them.
TEST(TrainOneStepCell, AnOverflowHoldsTheSchedule) {
  const Overrides warm_up = {kTraining + "training_iters=10", kOptimizer + "learning_rate=4",
                             kOptimizer + "lr_warmup_iters=4"};
  const auto rates = [&](const Overrides& more) {
    Trainer trainer(testing::joined({warm_up, more}));
    data::Batch batch = make_batch(trainer.config, 2);
    data::Batch poisoned = batch;
    poisoned.loss_mask[3] = std::numeric_limits<float>::infinity();
    std::vector<double> lr;
    for (const data::Batch* next : {&batch, &poisoned, &batch}) {
      lr.push_back(trainer.cell({*next}).lr.front());
    }
    return lr;
  };
  EXPECT_EQ(rates({}), (std::vector<double>{1, 2, 2}));
  EXPECT_EQ(rates({kTraining + "schedule_counts_overflows=True"}), (std::vector<double>{1, 2, 3}));
}

TEST(TrainOneStepCell, AnOverflowOfTheScaledLossIsSkipped) {
  Trainer trainer({kTraining + "loss_scale=3e38"});
  const State before = get_logical_state(*trainer.model);
  data::Batch batch = make_batch(trainer.config, 2, 0, true);
  for (float& weight : batch.loss_mask) {
    weight = 1e3F;
  }
  batch.loss_mask[0] = -1.5e4F;  // The sum of the mask is 0, so that the loss is not divided.
  const StepResult result = trainer.cell({batch});
  EXPECT_FALSE(result.finite);
  testing::expect_states_equal(get_logical_state(*trainer.model), before);
}

// With SGD, learning rate 1 and no decay the weights move by the clipped gradient.
State movement(const Overrides& more, const data::Batch& batch, Gradients& gradients) {
  Overrides overrides = {kOptimizer + "optimizer_type=SGD", kOptimizer + "learning_rate=1"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  Trainer trainer(overrides);
  const State before = get_logical_state(*trainer.model);
  gradients = run_step(trainer, {batch});
  return combined(1, before, -1, get_logical_state(*trainer.model));
}

TEST(TrainOneStepCell, ClipsByNorm) {
  const data::Batch batch = make_batch(testing::small_config(), 2);
  Gradients gradients;
  const State free = movement({}, batch, gradients);
  testing::expect_states_close(free, gradients.tensors, 1e-4);
  const double norm = gradients.result.grad_norm;
  ASSERT_GT(norm, 0.2);
  const State clipped = movement({kOptimizer + "clip_grad=0.1"}, batch, gradients);
  EXPECT_EQ(gradients.result.grad_norm, norm);  // that before clipping
  testing::expect_states_close(
      clipped, combined(0.1 / (norm + 1e-6), gradients.tensors, 0, gradients.tensors), 1e-3);
  const State kwargs =
      movement({kTraining + "grad_clip_kwargs={grad_clip_type: ClipGlobalNorm, clip_value: 0.1}"},
               batch, gradients);
  testing::expect_states_equal(kwargs, clipped);
  testing::expect_states_equal(movement({kOptimizer + "clip_grad=1e3"}, batch, gradients), free);
}

TEST(TrainOneStepCell, ClipsByValue) {
  const data::Batch batch = make_batch(testing::small_config(), 2);
  Gradients gradients;
  const State clipped = movement(
      {kTraining + "grad_clip_kwargs={grad_clip_type: GradClipByValue, clip_value: 0.004}"}, batch,
      gradients);
  State expected;
  int64_t limited = 0;
  for (const auto& [name, tensor] : gradients.tensors) {
    expected[name] = clamp(tensor, -0.004, 0.004);
    for (const float value : tensor.to_vector<float>()) {
      limited += std::abs(value) > 0.004F ? 1 : 0;
    }
  }
  EXPECT_GT(limited, 100);
  testing::expect_states_close(clipped, expected, 1e-3);
}

TEST(TrainOneStepCell, ReportsTheLearningRateOfThisUpdate) {
  Trainer trainer({kOptimizer + "lr_warmup_iters=4", kOptimizer + "lr_decay_style=linear"});
  const State before = get_logical_state(*trainer.model);
  const std::vector<double> expected = {0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01 * 15 / 16};
  for (size_t step = 0; step < expected.size(); ++step) {
    const StepResult result = trainer.cell({make_batch(trainer.config, 1)});
    ASSERT_EQ(result.lr.size(), 2U);  // with decay, and without
    EXPECT_NEAR(result.lr[0], expected[step], 1e-15);
    EXPECT_EQ(result.lr[1], result.lr[0]);
    const State now = get_logical_state(*trainer.model);
    const bool moved =
        !testing::same_bits(now.at("tok_embeddings.weight"), before.at("tok_embeddings.weight"));
    EXPECT_TRUE(moved);
  }
}

TEST(TrainOneStepCell, NormsPerLogicalTensor) {
  Trainer trainer({kTraining + "log_param_grad_norms=True"});
  const Gradients found = run_step(trainer, {make_batch(trainer.config, 2)});
  double squares = 0;
  ASSERT_EQ(found.result.grad_norms.size(), found.tensors.size());
  for (const auto& [name, norm] : found.result.grad_norms) {
    EXPECT_EQ(norm, optim::global_norm({found.tensors.at(name)})) << name;
    squares += norm * norm;
  }
  EXPECT_NEAR(std::sqrt(squares), found.result.grad_norm, 1e-12);
  EXPECT_TRUE(Trainer().cell({make_batch(trainer.config, 2)}).grad_norms.empty());
}

TEST(TrainOneStepCell, RepeatsBitForBit) {
  const auto weights = [] {
    Trainer trainer({"model_config.hidden_dropout=0.1"});
    for (int step = 0; step < 3; ++step) {
      trainer.cell({make_batch(trainer.config, 3, 3 * step)});
    }
    return get_logical_state(*trainer.model);
  };
  testing::expect_states_equal(weights(), weights());
}

TEST(TrainOneStepCell, TurnsDropoutOnAgainAfterAnEvaluation) {
  Trainer trainer({"model_config.hidden_dropout=0.3"});
  trainer.model->eval();
  trainer.cell({make_batch(trainer.config, 1)});
  EXPECT_TRUE(trainer.model->is_training());
}

// Losses of 30 steps on batches that repeat, so that they can be learned.
std::vector<double> curve(const Overrides& overrides, int64_t micro_batches = 2) {
  Trainer trainer(overrides);
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t m = 0; m < micro_batches; ++m) {
      batches.push_back(make_batch(trainer.config, 4, 4 * m, true));
    }
    losses.push_back(trainer.cell(batches).loss);
  }
  return losses;
}

TEST(TrainOneStepCell, MomentsAndGradientsInBFloat16KeepTheCurve) {
  const std::vector<double> plain = curve({kOptimizer + "clip_grad=1"});
  const std::vector<double> lean =
      curve({kOptimizer + "clip_grad=1", kOptimizer + "exp_avg_dtype=bfloat16",
             kOptimizer + "exp_avg_sq_dtype=bfloat16", kOptimizer + "main_grads_dtype=bfloat16"});
  ASSERT_LT(plain.back(), 0.7 * plain.front());
  EXPECT_EQ(lean[0], plain[0]);
  EXPECT_NE(lean, plain);
  for (size_t step = 0; step < plain.size(); ++step) {
    EXPECT_NEAR(lean[step], plain[step], 0.01 * plain[step]) << step;
  }
}

TEST(TrainOneStepCell, BFloat16StatesRepeatBitForBitOnAnyTeam) {
  const Overrides lean = {kOptimizer + "exp_avg_dtype=bfloat16",
                          kOptimizer + "exp_avg_sq_dtype=bfloat16",
                          kOptimizer + "main_grads_dtype=bfloat16"};
  EXPECT_EQ(curve(lean), curve(lean));
}

// A weight in two halves is the float32 weight whose bfloat16 copy computes, whatever else is set.
TEST(TrainOneStepCell, RemaindersTrainBitForBitAsFloat32Weights) {
  for (const Overrides& more : {Overrides{}, Overrides{kOptimizer + "exp_avg_dtype=bfloat16",
                                                       kOptimizer + "exp_avg_sq_dtype=bfloat16",
                                                       kOptimizer + "main_grads_dtype=bfloat16"}}) {
    Overrides plain = {kTraining + "bf16=True", kOptimizer + "clip_grad=1",
                       "model_config.untie_embeddings_and_output_weights=True"};
    plain.insert(plain.end(), more.begin(), more.end());
    Overrides split = plain;
    split.push_back(kOptimizer + "store_param_remainders=True");
    Trainer a(plain);
    Trainer b(split);
    int64_t narrow = 0;
    for (const auto& entry : b.model->named_parameters()) {
      narrow += entry.parameter->dtype() == kBFloat16 ? 1 : 0;
    }
    EXPECT_EQ(narrow, 2 * 4 + 1);  // qkv, out, two of the MLP; the output matrix
    testing::expect_states_equal(get_logical_state(*b.model, b.optimizer.get()),
                                 get_logical_state(*a.model));
    for (int step = 0; step < 5; ++step) {
      const std::vector<data::Batch> batches = {make_batch(a.config, 4, 8 * step),
                                                make_batch(a.config, 4, 8 * step + 4)};
      const StepResult from_a = a.cell(batches);
      const StepResult from_b = b.cell(batches);
      EXPECT_EQ(from_b.loss, from_a.loss) << step;
      EXPECT_EQ(from_b.grad_norm, from_a.grad_norm) << step;
    }
    testing::expect_states_equal(get_logical_state(*b.model, b.optimizer.get()),
                                 get_logical_state(*a.model));
  }
}

void expect_same_training_in_backward(const Overrides& value_clip) {
  Overrides in_backward = value_clip;
  in_backward.push_back(kOptimizer + "optimizer_in_backward=True");
  Trainer plain(value_clip);
  Trainer early(in_backward);
  for (int step = 0; step < 5; ++step) {
    const data::Batch batch = make_batch(plain.config, 4, 4 * step);
    const StepResult a = plain.cell({batch});
    const StepResult b = early.cell({batch});
    EXPECT_NEAR(b.loss, a.loss, 1e-5 * a.loss);
    EXPECT_NEAR(b.grad_norm, a.grad_norm, 1e-4 * a.grad_norm);
    EXPECT_EQ(b.lr, a.lr);
    EXPECT_TRUE(b.finite);
    ASSERT_EQ(b.grad_norms.size(), a.grad_norms.size());
    for (const auto& [name, norm] : a.grad_norms) {
      EXPECT_NEAR(b.grad_norms.at(name), norm, 1e-4 * a.grad_norm) << name;
    }
    for (const auto& entry : early.model->named_parameters()) {
      EXPECT_FALSE(entry.parameter->grad().defined()) << entry.name;
    }
  }
  testing::expect_states_close(get_logical_state(*early.model), get_logical_state(*plain.model),
                               1e-3);
  EXPECT_EQ(early.cell.position().applied, 5);
}

TEST(TrainOneStepCell, UpdatingInBackwardIsTheSameTraining) {
  const Overrides value_clip = {
      kTraining + "grad_clip_kwargs={grad_clip_type: GradClipByValue, clip_value: 0.01}",
      kTraining + "loss_scale=8", kTraining + "log_param_grad_norms=True",
      // With rotation no gradient is mere rounding, of which AdamW would make whole steps.
      "model_config.position_embedding_type=rope"};
  for (const char* further : {"0", "2"}) {
    SCOPED_TRACE(further);
    expect_same_training_in_backward(
        testing::joined(value_clip, {std::string("model_config.mtp_num_layers=") + further}));
  }
}

TEST(TrainOneStepCell, UpdatingInBackwardHoldsNoBufferOfGradients) {
  const auto gradient_bytes = [](const Overrides& overrides) {
    const int64_t before =
        memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kGradient)];
    Trainer trainer(overrides);
    trainer.cell({make_batch(trainer.config, 2)});
    return memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kGradient)] - before;
  };
  EXPECT_GT(gradient_bytes({}), 0);
  EXPECT_EQ(gradient_bytes({kOptimizer + "optimizer_in_backward=True"}), 0);
}

TEST(TrainOneStepCell, UpdatingInBackwardCannotSkipAStep) {
  Trainer trainer({kOptimizer + "optimizer_in_backward=True"});
  data::Batch batch = make_batch(trainer.config, 2);
  EXPECT_THROW(trainer.cell({batch, batch}), ValueError);
  batch.loss_mask[3] = std::numeric_limits<float>::infinity();
  try {
    trainer.cell({batch});
    FAIL() << "no error";
  } catch (const RuntimeError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("is not finite"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("optimizer_in_backward"));
  }
}

TEST(TrainOneStepCell, NeedsAMicroBatch) {
  Trainer trainer;
  EXPECT_THROW(trainer.cell({}), ValueError);
  EXPECT_EQ(trainer.cell.position().seen, 0);
}

TEST(ToModelInput, LeavesOutWhatTheDataLeaveOut) {
  data::Batch batch = make_batch(testing::small_config(), 2);
  ModelInput input = to_model_input(batch);
  EXPECT_FALSE(input.attention_mask.defined());
  EXPECT_FALSE(input.position_ids.defined());
  EXPECT_EQ(input.tokens.shape(), Shape({2, 8}));
  batch.document_starts = {{}, {2, 5}};
  input = to_model_input(batch);
  EXPECT_FALSE(input.attention_mask.defined());
  EXPECT_EQ(input.document_starts.to_vector<int64_t>(),
            (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 5, 5, 5}));
}

}  // namespace
}  // namespace tapestry
