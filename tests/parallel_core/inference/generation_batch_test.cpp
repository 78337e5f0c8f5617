// Many texts at once, with keys and values kept: what comes out is what each text gets alone and
// without a cache, for every kind of model and layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <tuple>

#include "autograd/tensor/error.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/log_likelihood.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::kModel;
using testing::kMoe;
using testing::llama;
using testing::Overrides;
using testing::run_parallel;
using testing::small_config;
using testing::State;
using Ids = std::vector<int32_t>;

const std::string kLong = kModel + "seq_length=64";

struct Family {
  std::string name;
  Overrides overrides;
};

std::vector<Family> families() {
  const std::string window = kModel + "window_size=[5, 0]";
  const std::string streams = kModel + "enable_hyper_connections=True";
  return {
      {"Gpt2", {}},
      {"Llama", llama()},
      {"LlamaSbh", llama({"dataset_config.data_layout=SBH"})},
      {"OneGroup", llama({kModel + "num_query_groups=1"})},
      {"Window", llama({window})},
      {"WindowOfOne", llama({kModel + "window_size=[0, 0]"})},
      {"LearnedWindow", {window}},
      {"Alibi", {kModel + "position_embedding_type=alibi"}},
      {"AlibiWindow", {kModel + "position_embedding_type=alibi", window}},
      {"NoPositions", {kModel + "position_embedding_type=none"}},
      {"QkNorm", llama({kModel + "qk_layernorm=True"})},
      {"SandwichNorm", llama({kModel + "use_sandwich_norm=True"})},
      {"PartRotation", llama({kModel + "rotary_config.rotary_percent=0.5"})},
      {"Interleaved", llama({kModel + "rotary_config.rotary_interleaved=True"})},
      {"LongRotation", llama({kModel + "rotary_config.seq_len_interpolation_factor=4.0"})},
      {"LayerScaling", llama({kModel + "apply_query_key_layer_scaling=True"})},
      {"Composed", llama({kModel + "use_fused_kernels=False"})},
      {"Mixtral", testing::mixtral()},
      {"Qwen2Moe", testing::qwen2_moe()},
      {"Gemma4", testing::gemma4()},
      {"Gemma4Moe", testing::gemma4_moe()},
      {"Streams", llama({streams})},
      {"StreamsComposed", llama({streams, kModel + "use_fused_kernels=False"})},
      {"StreamsSandwichSbh",
       llama({streams, kModel + "num_residual_streams=3", kModel + "use_sandwich_norm=True",
              "dataset_config.data_layout=SBH"})},
      {"StreamsMixtral", testing::mixtral({streams})},
      {"Capacity", testing::mixtral({kMoe + "moe_expert_capacity_factor=1.0"})},
  };
}

State weights_of(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  testing::jitter(*model, 0.3);
  return get_logical_state(*model);
}

// Prompts of lengths from 1 to beyond the longest of the small models' windows.
std::vector<GenerationRequest> requests(double temperature = 0.9, int64_t max_context = 0) {
  std::vector<GenerationRequest> out;
  const std::array<int64_t, 7> lengths = {3, 1, 17, 2, 9, 30, 5};
  for (size_t i = 0; i < lengths.size(); ++i) {
    GenerationRequest request;
    for (int64_t t = 0; t < lengths[i]; ++t) {
      request.prompt.push_back(static_cast<int32_t>((7 * i + 5 * t * t + t) % 31));
    }
    request.options = {.max_new_tokens = 5 + 3 * static_cast<int64_t>(i % 3),
                       .temperature = i % 2 == 0 ? 0 : temperature,
                       .seed = 11 + i,
                       .max_context = max_context};
    out.push_back(request);
  }
  return out;
}

std::vector<Ids> texts(ParallelModel& model,
                       const std::vector<GenerationRequest>& wanted,
                       const GenerationBatch& batch) {
  std::vector<Ids> out;
  for (const GenerationResult& result : generate_batch(model, wanted, batch)) {
    out.push_back(result.ids());
  }
  return out;
}

// Each text alone, the whole of it for each token.
std::vector<Ids> recomputed(ParallelModel& model, const std::vector<GenerationRequest>& wanted) {
  return texts(model, wanted, {.batch_size = 1, .use_cache = false});
}

class EveryFamily : public ::testing::TestWithParam<Family> {
 protected:
  Overrides overrides() const { return joined(GetParam().overrides, {kLong}); }
};

TEST_P(EveryFamily, CachedAndBatchedAreRecomputed) {
  const auto model = testing::model_with(small_config(overrides()), weights_of(overrides()));
  const std::vector<GenerationRequest> wanted = requests();
  const std::vector<Ids> expected = recomputed(*model, wanted);
  std::set<Ids> different(expected.begin(), expected.end());
  EXPECT_EQ(different.size(), expected.size());  // or the test would see nothing
  EXPECT_TRUE(GetParam().name == "Composed" || model->takes_cache());
  for (const GenerationBatch& batch :
       {GenerationBatch{.batch_size = 1}, GenerationBatch{.batch_size = 3, .prefill_tokens = 4},
        GenerationBatch{.batch_size = 3, .prefill_tokens = 1},
        GenerationBatch{.batch_size = 7, .prefill_tokens = 20}, GenerationBatch{}}) {
    EXPECT_EQ(texts(*model, wanted, batch), expected)
        << batch.batch_size << " texts, " << batch.prefill_tokens << " tokens of prompts";
  }
}

TEST_P(EveryFamily, ForgetsWhatTheContextHasNoRoomFor) {
  const auto model = testing::model_with(small_config(overrides()), weights_of(overrides()));
  const std::vector<GenerationRequest> wanted = requests(0.9, 8);
  const std::vector<Ids> expected = recomputed(*model, wanted);
  EXPECT_EQ(texts(*model, wanted, {.batch_size = 4, .prefill_tokens = 6}), expected);
  EXPECT_EQ(texts(*model, wanted, {.batch_size = 1}), expected);
}

INSTANTIATE_TEST_SUITE_P(Generation,
                         EveryFamily,
                         ::testing::ValuesIn(families()),
                         [](const ::testing::TestParamInfo<Family>& info) {
                           return info.param.name;
                         });

struct Layout {
  std::string name;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  Overrides more = {};
};

class EveryLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, TextsAndScoresOfOneProcess) {
  const std::string parallel = "parallel_config.";
  for (const Family& family :
       {Family{"llama", llama()}, Family{"gpt2", {}},
        Family{"window", llama({kModel + "window_size=[5, 0]"})},
        Family{"gemma4", testing::gemma4_moe()}, Family{"mixtral", testing::mixtral()}}) {
    SCOPED_TRACE(family.name);
    const Overrides alone = joined(family.overrides, {kLong, kModel + "num_layers=4"});
    const State start = weights_of(alone);
    const std::vector<GenerationRequest> wanted = requests();
    const std::vector<ScoredRow> rows = {{wanted[2].prompt, 1}, {wanted[4].prompt, 5}};
    std::vector<Ids> expected;
    std::vector<RowScores> scores;
    {
      const auto model = testing::model_with(small_config(alone), start);
      expected = recomputed(*model, wanted);
      scores = log_likelihood(*model, rows);
    }
    const Layout& layout = GetParam();
    const AllConfig config =
        small_config(joined({alone,
                             {concat(parallel, "tensor_model_parallel_size=", layout.tensor),
                              concat(parallel, "pipeline_model_parallel_size=", layout.pipeline)},
                             layout.more}));
    ModelParallelSizes sizes;
    sizes.tensor_model_parallel_size = static_cast<int>(layout.tensor);
    sizes.pipeline_model_parallel_size = static_cast<int>(layout.pipeline);
    run_parallel(static_cast<int>(layout.tensor * layout.pipeline), sizes, [&] {
      const auto model = testing::model_with(config, start);
      EXPECT_EQ(texts(*model, wanted, {.batch_size = 3, .prefill_tokens = 7}), expected);
      const std::vector<RowScores> found = log_likelihood(*model, rows);
      ASSERT_EQ(found.size(), scores.size());
      for (size_t r = 0; r < scores.size(); ++r) {
        EXPECT_EQ(found[r].is_likeliest, scores[r].is_likeliest);
        EXPECT_NEAR(found[r].sum(), scores[r].sum(), 1e-4);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Generation,
    EveryLayout,
    ::testing::Values(
        Layout{"Tp2", 2},
        Layout{"Tp4", 4},  // more ranks than groups
        Layout{"Tp2Sp", 2, 1, {"parallel_config.sequence_parallel=True"}},
        Layout{"Tp2SpSbh",
               2,
               1,
               {"parallel_config.sequence_parallel=True", "dataset_config.data_layout=SBH"}},
        Layout{"Pp2", 1, 2},
        Layout{"Pp4", 1, 4},
        Layout{"Pp2Vpp2", 1, 2, {"parallel_config.virtual_pipeline_model_parallel_size=2"}},
        Layout{"Tp2Pp2", 2, 2}),
    [](const ::testing::TestParamInfo<Layout>& info) { return info.param.name; });

class Batch : public ::testing::Test {
 protected:
  Batch() : model_(testing::model_with(small_config(llama({kLong})), weights_of(llama({kLong})))) {}
  GenerationResult one(const Ids& prompt, const GenerationOptions& options) {
    const GenerationRequest request = {prompt, options};
    return generate_batch(*model_, {&request, 1}).front();
  }
  std::unique_ptr<GPTModel> model_;
};

TEST_F(Batch, StopsAtAnyOfTheIds) {
  const Ids all = one({3, 1, 4}, {.max_new_tokens = 8, .temperature = 0}).ids();
  const auto end = std::find(all.begin(), all.end(), all[4]);
  const GenerationResult found =
      one({3, 1, 4}, {.max_new_tokens = 8, .temperature = 0, .stop_ids = {99, all[4]}});
  EXPECT_EQ(found.ids(), Ids(all.begin(), end));
  EXPECT_EQ(found.finish, FinishReason::kStopId);
  EXPECT_EQ(found.stop_id, all[4]);
  EXPECT_EQ(name_of(found.finish), "stop_id");
}

TEST_F(Batch, StopsWhereTheContextIsFull) {
  const GenerationResult found =
      one({3, 1, 4},
          {.max_new_tokens = 20, .temperature = 0, .max_context = 8, .stops_at_context = true});
  EXPECT_EQ(found.finish, FinishReason::kContext);
  EXPECT_EQ(found.tokens.size(), 5U);
  Ids beginning = one({3, 1, 4}, {.max_new_tokens = 20, .temperature = 0}).ids();
  beginning.resize(5);
  EXPECT_EQ(found.ids(), beginning);
}

TEST_F(Batch, TheCallbackEndsItsTextAlone) {
  std::vector<GenerationRequest> wanted = requests(0);
  std::vector<size_t> calls(wanted.size());
  const std::vector<Ids> expected = texts(*model_, wanted, {});
  const std::vector<GenerationResult> found = generate_batch(
      *model_, wanted, {.batch_size = 4}, [&](size_t request, const GeneratedToken& token) {
        EXPECT_EQ(token.id, expected[request][calls[request]]);
        ++calls[request];
        return request != 2 || calls[request] < 3;
      });
  for (size_t i = 0; i < wanted.size(); ++i) {
    Ids ids = expected[i];
    ids.resize(i == 2 ? 3 : ids.size());
    EXPECT_EQ(found[i].ids(), ids);
    EXPECT_EQ(found[i].finish, i == 2 ? FinishReason::kStopped : FinishReason::kLength);
  }
}

TEST_F(Batch, LogProbabilitiesAreThoseOfTheModel) {
  const Ids prompt = {3, 1, 4};
  const GenerationOptions options = {.max_new_tokens = 6,
                                     .temperature = 0.7,
                                     .top_k = 4,
                                     .seed = 5,
                                     .repetition_penalty = 1.3,
                                     .top_log_probs = 3};
  const GenerationResult found = one(prompt, options);
  ScoredRow row = {prompt, 3};
  const Ids added = found.ids();
  row.tokens.insert(row.tokens.end(), added.begin(), added.end());
  const RowScores scores = log_likelihood(*model_, {&row, 1}).front();
  ASSERT_EQ(scores.log_probs.size(), added.size());
  for (size_t i = 0; i < added.size(); ++i) {
    const GeneratedToken& token = found.tokens[i];
    EXPECT_NEAR(token.log_prob, scores.log_probs[i], 1e-5);
    ASSERT_EQ(token.likeliest.size(), 3U);
    EXPECT_GE(token.likeliest[0].log_prob, token.likeliest[1].log_prob);
    EXPECT_GE(token.likeliest[1].log_prob, token.likeliest[2].log_prob);
    EXPECT_GE(token.likeliest[0].log_prob, token.log_prob);
    EXPECT_EQ(scores.is_likeliest[i] != 0, token.likeliest[0].id == token.id);
    // All probabilities together are 1.
    const Ids before(row.tokens.begin(), row.tokens.begin() + 3 + static_cast<std::ptrdiff_t>(i));
    const GenerationResult whole =
        one(before, {.max_new_tokens = 1, .temperature = 0, .top_log_probs = 40});
    ASSERT_EQ(whole.tokens[0].likeliest.size(), 31U);
    double total = 0;
    for (const TokenLogProb& other : whole.tokens[0].likeliest) {
      total += std::exp(other.log_prob);
    }
    EXPECT_NEAR(total, 1, 1e-5);
  }
}

TEST_F(Batch, ThePenaltyMakesRepetitionsRarer) {
  const auto repeats = [&](double penalty) {
    const Ids ids =
        one({3, 1, 4}, {.max_new_tokens = 24, .temperature = 0, .repetition_penalty = penalty})
            .ids();
    return ids.size() - std::set<int32_t>(ids.begin(), ids.end()).size();
  };
  EXPECT_EQ(repeats(1e6), 0U);  // there are 31 ids, 3 of which the prompt has
  EXPECT_GT(repeats(1), 0U);
}

TEST_F(Batch, TurnsOfAChatAreNotComputedAgain) {
  for (const Overrides& more : {Overrides{}, Overrides{kModel + "window_size=[5, 0]"}}) {
    const Overrides overrides = joined(llama({kLong}), more);
    const auto model = testing::model_with(small_config(overrides), weights_of(overrides));
    const GenerationOptions options = {.max_new_tokens = 6, .temperature = 0};
    TextGenerator generator(*model, {.batch_size = 1, .prefill_tokens = 4});
    GenerationRequest request = {{1, 2, 3, 4, 5, 6, 7}, options};
    Ids text = request.prompt;
    const Ids first = generator.generate({&request, 1}).front().ids();
    EXPECT_EQ(generator.prefilled_tokens(), 7);
    EXPECT_EQ(generator.decoded_tokens(), 5);
    text.insert(text.end(), first.begin(), first.end());
    text.insert(text.end(), {8, 9, 10});
    request.prompt = text;
    const Ids second = generator.generate({&request, 1}).front().ids();
    // The last token of the first answer has not been through the model.
    EXPECT_EQ(generator.prefilled_tokens(), 7 + 1 + 3);
    EXPECT_EQ(second, generate(*model, text, options));
    // A turn that is another one from some token on.
    request.prompt.resize(5);
    request.prompt.insert(request.prompt.end(), {20, 21});
    EXPECT_EQ(generator.generate({&request, 1}).front().ids(),
              generate(*model, request.prompt, options));
    // Any prompt later, also of more texts than there were.
    const std::vector<GenerationRequest> wanted = requests();
    std::vector<Ids> found;
    for (const GenerationResult& result : generator.generate(wanted)) {
      found.push_back(result.ids());
    }
    EXPECT_EQ(found, recomputed(*model, wanted));
  }
}

TEST_F(Batch, NothingToDo) {
  EXPECT_TRUE(generate_batch(*model_, {}).empty());
  EXPECT_TRUE(one({1}, {.max_new_tokens = 0}).tokens.empty());
}

TEST_F(Batch, BadInputs) {
  EXPECT_THROW(one({}, {}), ValueError);
  EXPECT_THROW(one({1}, {.min_p = 1.5}), ValueError);
  EXPECT_THROW(one({1}, {.repetition_penalty = 0}), ValueError);
  EXPECT_THROW(one({1, 31}, {}), IndexError);
  EXPECT_THROW(one({-1}, {}), IndexError);
  EXPECT_THROW(TextGenerator(*model_, {.batch_size = 0}), ValueError);
  EXPECT_THROW(TextGenerator(*model_, {.prefill_tokens = 0}), ValueError);
  EXPECT_THROW(one({1}, {.stop_ids = {1}, .top_log_probs = -2}), ValueError);
}

TEST_F(Batch, ScoresDoNotDependOnTheRowsBeside) {
  std::vector<ScoredRow> rows;
  for (const GenerationRequest& request : requests()) {
    rows.push_back({request.prompt, 1});
  }
  rows[2].first = 9;
  const std::vector<RowScores> together = log_likelihood(*model_, rows, {.tokens_per_pass = 40});
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowScores alone = log_likelihood(*model_, {&rows[i], 1}).front();
    ASSERT_EQ(together[i].log_probs.size(),
              rows[i].tokens.size() - static_cast<size_t>(rows[i].first));
    for (size_t t = 0; t < alone.log_probs.size(); ++t) {
      EXPECT_NEAR(together[i].log_probs[t], alone.log_probs[t], 1e-5);
    }
    EXPECT_EQ(together[i].is_likeliest, alone.is_likeliest);
  }
  EXPECT_FALSE(together[5].all_likeliest());
}

TEST_F(Batch, BadRows) {
  const auto score = [&](const ScoredRow& row) { return log_likelihood(*model_, {&row, 1}); };
  EXPECT_THROW(score({{1, 2}, 0}), ValueError);
  EXPECT_THROW(score({{1, 2}, 3}), ValueError);
  EXPECT_THROW(score({{1, 31}, 1}), IndexError);
  EXPECT_THROW(score({{31, 1}, 1}), IndexError);
  EXPECT_TRUE(score({{1, 2}, 2}).front().log_probs.empty());
}

}  // namespace
}  // namespace tapestry
