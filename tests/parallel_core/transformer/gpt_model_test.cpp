// Every structure against the same model in elementary float64 operations, and in both layouts.
#include "parallel_core/transformer/gpt_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "tests/parallel_core/small_model.h"
#include "tests/parallel_core/transformer/plain_model.h"
#include "tests/parallel_core/transformer/structures.h"

namespace tapestry {
namespace {

using testing::distance;
using testing::Gradients;
using testing::make_batch;
using testing::Overrides;
using testing::PlainResult;
using testing::run_plain_model;
using testing::run_step;
using testing::small_config;
using testing::State;
using testing::Structure;
using testing::Trainer;

Tensor logits_of(GPTModel& model, const data::Batch& batch) {
  ModelInput input = to_model_input(batch);
  input.labels = {};
  return model.forward(input).logits;
}

// Loss, logits and every gradient of the model on this batch equal those of the plain one.
void expect_like_plain_model(const Overrides& overrides, const data::Batch& batch) {
  Trainer trainer(overrides);
  testing::jitter(*trainer.model);
  const PlainResult expected =
      run_plain_model(trainer.config.model_config, get_logical_state(*trainer.model), batch);
  EXPECT_LE(distance(logits_of(*trainer.model, batch), expected.logits), 1e-5);
  const Gradients found = run_step(trainer, {batch});
  EXPECT_NEAR(found.result.loss, expected.loss, 1e-5 * expected.loss);
  ASSERT_EQ(found.result.mtp_losses.size(), expected.ahead.size());
  for (size_t i = 0; i < expected.ahead.size(); ++i) {
    EXPECT_NEAR(found.result.mtp_losses[i], expected.ahead[i], 1e-5 * expected.ahead[i]);
  }
  // What is rounded in each layer adds up.
  const auto layers = static_cast<double>(trainer.config.model_config.num_layers);
  testing::expect_states_close(found.tensors, expected.gradients, 1e-5 * std::max(2.0, layers));
}

class EveryStructure : public ::testing::TestWithParam<Structure> {
 protected:
  // What training leaves alone, and what softmax cannot see: with one key, all of q and k; without
  // rotation, a bias on k.
  static bool has_zero_gradient(const std::string& name) {
    const TransformerConfig c = small_config(GetParam().overrides).model_config;
    if (c.window_size && (*c.window_size)[0] == 0) {
      return name.find("attention.wq") != std::string::npos ||
             name.find("attention.wk") != std::string::npos;
    }
    if (name.ends_with("layer_scalar")) {
      return true;
    }
    return c.position_embedding_type != "rope" && name.ends_with("attention.wk.bias");
  }
};

TEST_P(EveryStructure, EqualsThePlainModel) {
  expect_like_plain_model(GetParam().overrides, make_batch(small_config(GetParam().overrides), 3));
}

TEST_P(EveryStructure, TrainsWithAGradientForEveryParameter) {
  Trainer trainer(GetParam().overrides);
  testing::jitter(*trainer.model);
  const State before = get_logical_state(*trainer.model);
  double first_loss = 0;
  for (int step = 0; step < 2; ++step) {
    const Gradients found = run_step(trainer, {make_batch(trainer.config, 2)});
    EXPECT_TRUE(found.result.finite);
    EXPECT_TRUE(std::isfinite(found.result.loss));
    const auto fixed = std::count_if(before.begin(), before.end(), [](const auto& one) {
      return one.first.ends_with("layer_scalar");
    });
    EXPECT_EQ(std::ssize(found.tensors) + fixed, std::ssize(before));
    for (const auto& [name, gradient] : found.tensors) {
      EXPECT_TRUE(std::isfinite(testing::largest(gradient))) << name;
      EXPECT_TRUE(testing::largest(gradient) > 0 || has_zero_gradient(name)) << name;
    }
    first_loss = step == 0 ? found.result.loss : first_loss;
    if (step == 1) {
      EXPECT_LT(found.result.loss, first_loss);
    }
  }
  for (const auto& [name, tensor] : get_logical_state(*trainer.model)) {
    EXPECT_TRUE(!testing::same_bits(tensor, before.at(name)) || has_zero_gradient(name)) << name;
  }
}

TEST_P(EveryStructure, SequenceFirstIsTheSame) {
  Trainer batch_first(GetParam().overrides);
  Overrides overrides = GetParam().overrides;
  overrides.emplace_back("dataset_config.data_layout=SBH");
  Trainer sequence_first(overrides);
  testing::jitter(*batch_first.model);
  testing::jitter(*sequence_first.model);
  const data::Batch batch = make_batch(batch_first.config, 3);
  // Products round otherwise; through more layers by as much as the plain model may be away.
  const auto layers = static_cast<double>(batch_first.config.model_config.num_layers);
  EXPECT_LE(distance(logits_of(*sequence_first.model, batch).transpose(0, 1),
                     logits_of(*batch_first.model, batch)),
            layers > 2 ? 1e-5 : 2e-6);
  const Gradients expected = run_step(batch_first, {batch});
  const Gradients found = run_step(sequence_first, {batch});
  EXPECT_NEAR(found.result.loss, expected.result.loss, 1e-6 * expected.result.loss);
  testing::expect_states_close(found.tensors, expected.tensors, 2.5e-6 * std::max(2.0, layers));
}

TEST_P(EveryStructure, LogicalTensorsCoverEachParameterOnce) {
  const Trainer trainer(GetParam().overrides);
  for (const auto& entry : trainer.model->named_parameters()) {
    const Tensor count = zeros(entry.parameter->shape());
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      const Tensor piece = logical.view_of(count);
      EXPECT_EQ(piece.numel(), logical.shape.numel()) << logical.name;
      copy_values(piece + 1.0, piece);
    }
    for (const float covered : count.to_vector<float>()) {
      ASSERT_EQ(covered, 1.0F) << entry.name;
    }
  }
}

TEST_P(EveryStructure, IsBuiltAndCounted) {
  const Trainer trainer(GetParam().overrides);
  EXPECT_NO_THROW(require_supported(trainer.config));
  EXPECT_EQ(trainer.model->num_parameters(), parameter_count(trainer.config.model_config));
}

TEST_P(EveryStructure, DecayFlagIsWhatTheNameSays) {
  const Trainer trainer(GetParam().overrides);
  for (const auto& entry : trainer.model->named_parameters()) {
    const auto has = [&](const char* part) { return entry.name.find(part) != std::string::npos; };
    const bool exempt = has("norm") || has("bias") || has("sinks") || has("alpha") ||
                        has("scale") || has("A_log") || entry.name.ends_with(".D");
    EXPECT_EQ(entry.parameter->flags().decay, !exempt) << entry.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Structures,
                         EveryStructure,
                         ::testing::ValuesIn(testing::structures()),
                         [](const auto& info) { return info.param.name; });

const std::string kRope = "model_config.position_embedding_type=rope";

TEST(GPTModel, HonoursTheMaskOfTheData) {
  const AllConfig config = small_config();
  data::Batch batch = make_batch(config, 2);
  const int64_t s = batch.seq;
  batch.attention_mask.assign(static_cast<size_t>(2 * s * s), 0);
  for (int64_t query = 3; query < s; ++query) {
    batch.attention_mask[static_cast<size_t>(query * s + 1)] = 1;
    batch.attention_mask[static_cast<size_t>((s + query) * s + 2)] = 1;
  }
  for (const Overrides& overrides :
       {Overrides{}, Overrides{kRope, "dataset_config.data_layout=BSH"},
        Overrides{kRope, "model_config.window_size=[4, 0]"}}) {
    expect_like_plain_model(overrides, batch);
  }
}

TEST(GPTModel, HonoursDocumentsAndPositions) {
  data::Batch batch = make_batch(small_config(), 2);
  batch.document_starts = {{0, 3, 6}, {5}};
  expect_like_plain_model({}, batch);
  expect_like_plain_model({kRope}, batch);
  for (int64_t i = 0; i < 2 * batch.seq; ++i) {
    batch.position_ids.push_back((i * 5 + 1) % 11);
  }
  expect_like_plain_model({"model_config.max_position_embeddings=11"}, batch);
  for (int64_t& position : batch.position_ids) {
    position %= 8;
  }
  expect_like_plain_model({kRope}, batch);
  expect_like_plain_model({kRope, "model_config.use_fused_kernels=False"}, batch);
}

// A number of each layer that files hold and training leaves alone.
TEST(GPTModel, MultipliesWhatLayersGiveByTheirNumbers) {
  for (const Overrides& overrides :
       {testing::gemma4(), testing::gemma4({"model_config.per_layer_embedding_size=0"}),
        Overrides{kRope, "model_config.layer_scalar=True"}}) {
    Trainer trainer(overrides);
    testing::jitter(*trainer.model);
    int64_t layer = 0;
    for (const auto& entry : trainer.model->named_buffers()) {
      ASSERT_TRUE(entry.name.ends_with("layer_scalar")) << entry.name;
      Tensor number = entry.buffer;
      number.data<float>()[0] = 0.5F + 0.2F * static_cast<float>(layer);
      ++layer;
    }
    EXPECT_EQ(layer, trainer.config.model_config.num_layers);
    const data::Batch batch = make_batch(trainer.config, 3);
    const PlainResult expected =
        run_plain_model(trainer.config.model_config, get_logical_state(*trainer.model), batch);
    EXPECT_LE(distance(logits_of(*trainer.model, batch), expected.logits), 1e-5);
    testing::expect_states_close(run_step(trainer, {batch}).tensors, expected.gradients, 4e-5);
    EXPECT_EQ(trainer.model->named_buffers().front().buffer.item(), 0.5);
  }
}

TEST(GPTModel, PredictsTokensAheadInDocumentsAndUnderMasks) {
  const Overrides two = {kRope, "model_config.mtp_num_layers=2",
                         "model_config.mtp_loss_scaling_factor=0.5"};
  data::Batch batch = make_batch(small_config(), 2);
  batch.document_starts = {{0, 3, 6}, {5}};
  expect_like_plain_model(two, batch);
  batch.loss_mask.assign(batch.loss_mask.size(), 1.0F);
  expect_like_plain_model(two, batch);
  batch.document_starts.clear();
  batch.loss_mask.assign(batch.loss_mask.size(), 0.0F);
  batch.loss_mask[0] = batch.loss_mask[1] = 1.0F;  // at depth 2 nothing counts
  expect_like_plain_model(two, batch);
  expect_like_plain_model(testing::joined(two, {"model_config.fused_linear_cross_entropy=False"}),
                          batch);
}

TEST(GPTModel, AMaskOfTheDataAloneMayShowLaterTokens) {
  // A prefix of three tokens sees itself whole.
  data::Batch batch = make_batch(small_config(), 2);
  for (int64_t i = 0; i < 2 * 8 * 8; ++i) {
    const int64_t query = i / 8 % 8;
    const int64_t key = i % 8;
    batch.attention_mask.push_back(key > query && (query >= 3 || key >= 3) ? 1 : 0);
  }
  expect_like_plain_model({"model_config.encoder_attn_mask_type=padding"}, batch);
  expect_like_plain_model({"model_config.encoder_attn_mask_type=causal"}, batch);
  batch.attention_mask.clear();
  expect_like_plain_model({"model_config.encoder_attn_mask_type=padding"}, batch);
}

// Two documents of four tokens in a row are two rows of four tokens.
TEST(GPTModel, DocumentsOfASampleAreSamples) {
  for (const Overrides& model :
       {Overrides{kRope}, Overrides{}, Overrides{"model_config.position_embedding_type=alibi"},
        Overrides{kRope, "model_config.use_fused_kernels=False"},
        Overrides{kRope, "model_config.window_size=[2, 0]"}}) {
    Trainer together(testing::joined(model, {"model_config.seq_length=8"}));
    Trainer apart(testing::joined(
        model, {"model_config.seq_length=4", "model_config.max_position_embeddings=8"}));
    data::Batch joined = make_batch(together.config, 2);
    data::Batch samples = joined;
    joined.document_starts = {{0, 4}, {0, 4}};
    joined.position_ids = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    samples.batch = 4;
    samples.seq = 4;
    samples.sample_ids = {0, 1, 2, 3};
    const testing::Gradients a = testing::run_step(together, {joined});
    const testing::Gradients b = testing::run_step(apart, {samples});
    EXPECT_NEAR(a.result.loss, b.result.loss, 1e-6 * b.result.loss);
    testing::expect_states_close(a.tensors, b.tensors, 1e-5);
    joined.document_starts = {{0, 4}, {0, 5}};  // another boundary is seen
    Trainer other(testing::joined(model, {"model_config.seq_length=8"}));
    EXPECT_GT(testing::largest_distance(testing::run_step(other, {joined}).tensors, b.tensors),
              1e-3);
  }
}

TEST(GPTModel, ATokenDoesNotDependOnHiddenOnes) {
  const Trainer trainer({kRope});
  testing::jitter(*trainer.model);
  const NoGradGuard guard;
  data::Batch batch = make_batch(trainer.config, 1);
  batch.document_starts = {{4}};
  const Tensor before = logits_of(*trainer.model, batch);
  batch.tokens[1] = (batch.tokens[1] + 1) % 31;
  const Tensor after = logits_of(*trainer.model, batch);
  EXPECT_FALSE(testing::same_bits(before.slice(1, 1, 4), after.slice(1, 1, 4)));
  EXPECT_TRUE(testing::same_bits(before.slice(1, 4, 8), after.slice(1, 4, 8)));
  // Nor on later ones.
  batch.tokens[6] = (batch.tokens[6] + 1) % 31;
  EXPECT_TRUE(
      testing::same_bits(after.slice(1, 0, 6), logits_of(*trainer.model, batch).slice(1, 0, 6)));
}

TEST(GPTModel, LossMaskAndItsCount) {
  const Trainer trainer;
  const NoGradGuard guard;
  data::Batch batch = make_batch(trainer.config, 2);
  double tokens = 0;
  for (const float weight : batch.loss_mask) {
    tokens += weight;
  }
  EXPECT_EQ(trainer.model->forward(to_model_input(batch)).token_count, tokens);
  batch.loss_mask.assign(batch.loss_mask.size(), 0.0F);
  const ModelOutput nothing = trainer.model->forward(to_model_input(batch));
  EXPECT_EQ(nothing.loss.item(), 0.0);
  EXPECT_EQ(nothing.token_count, 0.0);
  batch.loss_mask.clear();
  const ModelOutput all = trainer.model->forward(to_model_input(batch));
  EXPECT_EQ(all.token_count, 16.0);
  batch.labels.clear();
  EXPECT_FALSE(trainer.model->forward(to_model_input(batch)).loss.defined());
}

TEST(GPTModel, BadInputs) {
  const Trainer trainer({"model_config.max_position_embeddings=9"});
  const NoGradGuard guard;
  const auto forward = [&](const ModelInput& input) { trainer.model->forward(input); };
  EXPECT_THAT(
      [&] {
        forward({.tokens = zeros({1, 10}, kInt64)});
      },
      ::testing::ThrowsMessage<ValueError>(
          ::testing::AllOf(::testing::HasSubstr("10 tokens"), ::testing::HasSubstr("positions 9"),
                           ::testing::HasSubstr("max_position_embeddings"))));
  EXPECT_NO_THROW(forward({.tokens = zeros({1, 9}, kInt64)}));
  EXPECT_THROW(forward({.tokens = full({1, 4}, 31, kInt64)}), IndexError);
  EXPECT_THROW(forward({.tokens = full({1, 4}, -1, kInt64)}), IndexError);
  EXPECT_THROW(forward({.tokens = zeros({4}, kInt64)}), ValueError);
  const Tensor ids = zeros({1, 4}, kInt64);
  EXPECT_THROW(forward({.tokens = ids, .labels = zeros({1, 3}, kInt64)}), ValueError);
  EXPECT_THROW(forward({.tokens = ids, .labels = full({1, 4}, 31, kInt64)}), IndexError);
  EXPECT_THROW(forward({.tokens = ids, .labels = ids, .loss_mask = zeros({4})}), ValueError);
  EXPECT_THROW(forward({.tokens = ids, .position_ids = full({1, 4}, 9, kInt64)}), IndexError);
  EXPECT_THROW(GPTModel(trainer.config.model_config, "BNSD"), ValueError);
}

TEST(GPTModel, RotaryTablesGrowWithTheSequence) {
  // Generation asks for one position more each time; earlier positions must not change.
  const Trainer trainer({kRope});
  const NoGradGuard guard;
  for (const int64_t length : {3, 4, 7, 2, 20}) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back(i * 7 % 31);
    }
    const Tensor tokens = tensor(ids, {1, length});
    const Trainer other({kRope});
    EXPECT_TRUE(testing::same_bits(trainer.model->forward({.tokens = tokens}).logits,
                                   other.model->forward({.tokens = tokens}).logits))
        << length;
  }
}

}  // namespace
}  // namespace tapestry
