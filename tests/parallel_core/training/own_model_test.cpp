// Models that are not the library's: made, trained, saved and compared as its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/verify/verify_layout.h"
#include "nn/layers/linear.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/transformer/gpt_model.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using testing::Overrides;
using testing::small_config;

// The tutorial's GPTModel: the language model, a head that uses its embeddings, a loss.
class TutorialGPT final : public TransformerModel {
 public:
  explicit TutorialGPT(const AllConfig& config)
      : TransformerModel(config),
        language_model_(static_cast<TransformerLanguageModel&>(add_child(
            "language_model", get_language_model(config.model_config, sequence_first(), stage())))),
        parallel_lm_logits_(register_module<ParallelLMLogits>("parallel_lm_logits", config)),
        loss_(register_module<VocabParallelCrossEntropy>(
            "loss", config.model_config.vocab_size, tensor_layout())) {}
  std::string type_name() const override { return "TutorialGPT"; }

  ModelOutput forward(const ModelInput& in) override {
    const Tensor hidden = language_model_.forward({.ids = in.tokens,
                                                   .hidden = in.hidden,
                                                   .position_ids = in.position_ids,
                                                   .mask = in.attention_mask,
                                                   .document_starts = in.document_starts,
                                                   .chunk = in.chunk});
    if (!stage().is_last(in.chunk)) {
      return {.hidden = hidden};
    }
    const bool has_labels = in.labels.defined();
    const Tensor logits = parallel_lm_logits_.forward(hidden, language_model_.output_weight(),
                                                      /*parallel_output=*/has_labels);
    if (!has_labels) {
      return {.logits = logits};
    }
    return mean_loss(loss_.forward(logits, in_layout(in.labels)), in);
  }

 private:
  TransformerLanguageModel& language_model_;
  ParallelLMLogits& parallel_lm_logits_;
  VocabParallelCrossEntropy& loss_;
};

std::unique_ptr<ParallelModel> tutorial_gpt(const AllConfig& config) {
  return std::make_unique<TutorialGPT>(config);
}

ModelParallelSizes sizes_of(const AllConfig& config) {
  const ModelParallelConfig& p = config.parallel_config;
  return {.tensor_model_parallel_size = static_cast<int>(p.tensor_model_parallel_size),
          .pipeline_model_parallel_size = static_cast<int>(p.pipeline_model_parallel_size)};
}

const Overrides kPlainHead = {"model_config.fused_linear_cross_entropy=False",
                              "model_config.num_layers=4"};

TEST(OwnModel, TheTutorialsProgramTrainsAsTheLibrarysModel) {
  const AllConfig config = small_config(kPlainHead);
  testing::MadeUpSamples samples(config);
  const auto train_steps = [&](TrainOneStepCell& cell) {
    std::vector<double> losses;
    for (int64_t step = 0; step < 3; ++step) {
      losses.push_back(cell({samples.micro_batch({step, 2 * step}, 0, 1, 2, 0, 1)}).loss);
    }
    return losses;
  };

  const auto model = get_model(tutorial_gpt, config);
  const auto data_parallel = get_data_parallel(config, *model);
  const double decay = config.optimizer_config.weight_decay;
  const auto optimizer =
      get_optimizer(config, *model, get_param_groups(*model, decay), data_parallel.get());
  const auto schedule = get_optimizer_param_scheduler(config, 1);
  TrainOneStepCell cell(*model, *optimizer, *schedule, config, data_parallel.get());

  testing::Trainer same(config);
  EXPECT_EQ(train_steps(cell), train_steps(same.cell));  // bit for bit
  testing::expect_states_equal(get_logical_state(*model), get_logical_state(*same.model));
}

// The tutorial's set_weight_decay: two groups, of which one says 0.
std::vector<optim::ParamGroup> tutorial_groups(const nn::Module& model, double weight_decay) {
  optim::ParamGroup decay{.weight_decay = weight_decay};
  optim::ParamGroup other{.weight_decay = 0.0};
  for (const auto& [name, parameter] : model.named_parameters()) {
    const bool decays =
        name.find("norm") == std::string::npos && name.find("bias") == std::string::npos;
    (decays ? decay : other).params.push_back(*parameter);
  }
  return {decay, other};
}

TEST(OwnModel, TheTutorialsGroupsDecayAsTheLibrarysOwn) {
  for (const Overrides& layout :
       {Overrides{}, Overrides{"parallel_config.tensor_model_parallel_size=2"},
        Overrides{"parallel_config.pipeline_model_parallel_size=2"}}) {
    const AllConfig config = small_config(
        testing::joined(testing::joined(kPlainHead, {"optimizer_config.weight_decay=0.5",
                                                     "optimizer_config.learning_rate=0.125"}),
                        layout));
    testing::run_parallel(layout.empty() ? 1 : 2, sizes_of(config), [&] {
      const auto weights_after = [&](bool tutorial) {
        const auto model = get_model(tutorial_gpt, config);
        testing::jitter(*model);  // so that norms and biases have something to decay
        const auto data_parallel = get_data_parallel(config, *model);
        const double decay = config.optimizer_config.weight_decay;
        const auto optimizer = get_optimizer(
            config, *model,
            tutorial ? tutorial_groups(*model, decay) : get_param_groups(*model, decay),
            data_parallel.get());
        const auto schedule = get_optimizer_param_scheduler(config, 1);
        TrainOneStepCell cell(*model, *optimizer, *schedule, config, data_parallel.get());
        testing::MadeUpSamples samples(config);
        for (int64_t step = 0; step < 2; ++step) {
          cell({samples.micro_batch({step, 2 * step}, 0, 1, 2, 0, 1)});
        }
        if (tutorial) {
          EXPECT_EQ(optimizer->param_groups().at(0).weight_decay, 0.5);
          EXPECT_EQ(optimizer->param_groups().at(1).weight_decay, 0);
        }
        return get_logical_state(*model);
      };
      testing::expect_states_equal(weights_after(true), weights_after(false));
    });
  }
}

TEST(OwnModel, LayoutsTrainItAsOneProcessDoes) {
  for (const char* layout : {"tp=2,sp,micro=2", "pp=2,vpp=2,micro=2",
                             "tp=2,pp=2,dp=2,zero=z2,overlap,micro=2", "cp=2"}) {
    const LayoutPair pair = load_layout_pair(layout, [&](const Overrides& more) {
      return small_config(testing::joined({"model_config.num_layers=4"}, more));
    });
    VerifyOptions options{.model = tutorial_gpt, .timeout_seconds = testing::kTestTimeout};
    options.parts.data = [](const AllConfig& config) {
      return std::make_unique<testing::MadeUpSamples>(config);
    };
    const LayoutReport report = compare_layout(pair, options);
    EXPECT_TRUE(report.agrees()) << layout << "\n"
                                 << LayoutFindings::sentence(*report.findings->first());
  }
}

// The comparison sees the model that is given, not the library's: one whose loss on the second
// tensor-parallel rank differs is found.
TEST(OwnModel, TheComparisonFindsItsFaults) {
  const LayoutPair pair =
      load_layout_pair("tp=2", [](const Overrides& more) { return small_config(more); });
  class Faulty final : public TransformerModel {
   public:
    explicit Faulty(const AllConfig& config)
        : TransformerModel(config),
          inner_(static_cast<TutorialGPT&>(
              add_child("inner", std::make_unique<TutorialGPT>(config)))) {}
    std::string type_name() const override { return "Faulty"; }
    ModelOutput forward(const ModelInput& in) override {
      ModelOutput out = inner_.forward(in);
      out.loss = out.loss * (tensor_layout().size > 1 ? 1.01 : 1.0);
      return out;
    }

   private:
    TutorialGPT& inner_;
  };
  VerifyOptions options{
      .model = [](const AllConfig& config) { return std::make_unique<Faulty>(config); },
      .timeout_seconds = testing::kTestTimeout};
  options.parts.data = [](const AllConfig& config) {
    return std::make_unique<testing::MadeUpSamples>(config);
  };
  const LayoutReport report = compare_layout(pair, options);
  ASSERT_FALSE(report.agrees());
  EXPECT_EQ(report.findings->first()->what, Compared::kLoss);
}

TEST(OwnModel, Generates) {
  const AllConfig config = small_config(kPlainHead);
  const std::vector<int32_t> prompt = {3, 1, 4};
  const GenerationOptions options = {.max_new_tokens = 5, .seed = 3, .max_context = 8};
  const std::vector<int32_t> expected = generate(*get_model(config), prompt, options);
  const auto model = get_model(tutorial_gpt, config);
  EXPECT_EQ(generate(*model, prompt, options), expected);
  // Three to eight tokens on two pieces of the sequence.
  const AllConfig split =
      small_config(testing::joined(kPlainHead, {"parallel_config.tensor_model_parallel_size=2",
                                                "parallel_config.sequence_parallel=True"}));
  testing::run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    EXPECT_EQ(generate(*get_model(tutorial_gpt, split), prompt, options), expected);
  });
}

// A learned scale beside the library's layers, and a plain layer without logical tensors.
class ScaledModel final : public TransformerModel {
 public:
  explicit ScaledModel(const AllConfig& config, bool unlike_on_ranks = false)
      : TransformerModel(config) {
    const TransformerConfig& m = config.model_config;
    if (stage().pre_process()) {
      table_ = &register_module<VocabParallelEmbedding>("table", "model.table", m.vocab_size,
                                                        m.hidden_size, config);
    }
    layers_ = make_layers([&](int64_t i) {
      return &register_module<nn::Linear>("layer" + std::to_string(i), m.hidden_size,
                                          m.hidden_size);
    });
    if (unlike_on_ranks && tensor_layout().rank == 1) {
      const NoGradGuard guard;
      layers_[0][0]->named_parameters()[0].parameter->data<float>()[3] += 1;
    }
    if (stage().post_process()) {
      head_ = &register_module<ColumnParallelLinear>("head", "model.head", m.hidden_size,
                                                     m.vocab_size, config);
    }
    loss_.emplace(m.vocab_size, tensor_layout());
  }
  std::string type_name() const override { return "ScaledModel"; }
  ModelOutput forward(const ModelInput& in) override {
    Tensor x = stage().is_first(in.chunk) ? table_->forward(in_layout(in.tokens)) : in.hidden;
    for (nn::Linear* layer : layers_[static_cast<size_t>(in.chunk)]) {
      x = tanh((*layer)(x));
    }
    if (!stage().is_last(in.chunk)) {
      return {.hidden = x};
    }
    return mean_loss(loss_->forward(head_->forward(x).output, in_layout(in.labels)), in);
  }

 private:
  VocabParallelEmbedding* table_ = nullptr;
  std::vector<std::vector<nn::Linear*>> layers_;
  ColumnParallelLinear* head_ = nullptr;
  std::optional<VocabParallelCrossEntropy> loss_;
};

std::unique_ptr<ParallelModel> scaled_model(const AllConfig& config) {
  return std::make_unique<ScaledModel>(config);
}

AllConfig scaled_config(const Overrides& more = {}) {
  return small_config(testing::joined({"model_config.vocab_size=32"}, more));
}

TEST(GetModel, PlainLayersHaveTheirPathsAsLogicalNames) {
  const auto model = get_model(scaled_model, scaled_config());
  const auto state = get_logical_state(*model);
  EXPECT_EQ(state.size(), 7U);
  EXPECT_EQ(state.at("layer1.weight").shape(), (Shape{32, 32}));
  EXPECT_TRUE(state.contains("layer0.bias"));
  EXPECT_TRUE(state.contains("model.head.weight"));
  // The same start values every time.
  testing::expect_states_equal(get_logical_state(*get_model(scaled_model, scaled_config())), state);
}

// One layout saves, another loads; names and shapes say nothing of either.
TEST(OwnModel, CheckpointsHaveLogicalNames) {
  const data::TempDir dir;
  const AllConfig config = scaled_config();
  const auto model = get_model(scaled_model, config);
  testing::jitter(*model);
  const auto expected = get_logical_state(*model);
  const std::string saved =
      save_checkpoint(*model, config.model_config, 3, {.directory = dir.file("one")});
  const auto file = read_weights(saved);
  testing::expect_states_equal(file, expected);
  EXPECT_EQ(nlohmann::json::parse(dir.read("one/step_00000003/config.json")).at("model_type"),
            "tapestry");
  const AllConfig split = scaled_config({"parallel_config.tensor_model_parallel_size=2",
                                         "parallel_config.pipeline_model_parallel_size=2"});
  testing::run_parallel(4, sizes_of(split), [&] {
    const auto own = get_model(scaled_model, split);
    load_weights(*own, split.model_config, dir.file("one"));
    save_checkpoint(*own, split.model_config, 4, {.directory = dir.file("four")});
  });
  testing::expect_states_equal(read_weights(dir.file("four/step_00000004")), expected);
}

TEST(OwnModel, AConfigurationOfLlamaDoesNotRenameIt) {
  const data::TempDir dir;
  const AllConfig config = scaled_config(
      {"model_config.position_embedding_type=rope", "model_config.normalization=RMSNorm",
       "model_config.hidden_act=swiglu", "model_config.add_bias_linear=False"});
  const auto model = get_model(scaled_model, config);
  testing::jitter(*model);
  save_checkpoint(*model, config.model_config, 1, {.directory = dir.path()});
  // "model.table.weight" is not taken for one of Hugging Face's names either.
  const auto other = get_model(scaled_model, config);
  load_weights(*other, config.model_config, dir.path());
  testing::expect_states_equal(get_logical_state(*other), get_logical_state(*model));
}

TEST(GetModel, RefusesWhatCannotBeRight) {
  const auto refused = [](const ModelProvider& provider, const AllConfig& config) -> std::string {
    try {
      get_model(provider, config);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(refused([](const AllConfig&) { return nullptr; }, scaled_config()),
              HasSubstr("gave no model"));
  testing::run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    const AllConfig split = scaled_config({"parallel_config.tensor_model_parallel_size=2"});
    EXPECT_EQ(refused(scaled_model, split), "none");
    EXPECT_THAT(
        refused([](const AllConfig& c) { return std::make_unique<ScaledModel>(c, true); }, split),
        Says("'layer0.weight' ... not sharded, but ... tensor-parallel ... 0 ... 1"));
    EXPECT_THAT(refused(scaled_model, scaled_config({"parallel_config.tensor_model_parallel_size=2",
                                                     "parallel_config.sequence_parallel=True"})),
                HasSubstr("'layer0.weight' has no logical tensors, so with sequence_parallel"));
  });
  class Twice final : public TransformerModel {
   public:
    explicit Twice(const AllConfig& config) : TransformerModel(config) {
      register_module<ColumnParallelLinear>("a", "same", 4, 4, config);
      register_module<ColumnParallelLinear>("b", "same", 4, 4, config);
    }
    std::string type_name() const override { return "Twice"; }
    ModelOutput forward(const ModelInput& /*input*/) override { return {}; }
  };
  EXPECT_THAT(
      refused([](const AllConfig& c) { return std::make_unique<Twice>(c); }, scaled_config()),
      Says("'same.weight' ... two parameters ... 'a.weight' ... 'b.weight'"));
  AllConfig incomplete = scaled_config();
  incomplete.origins.clear();
  EXPECT_THAT(refused(scaled_model, incomplete), HasSubstr("call resolve(config)"));
}

TEST(GetModel, TwoStagesWithOneNameAreRefused) {
  class Doubled final : public TransformerModel {
   public:
    explicit Doubled(const AllConfig& config) : TransformerModel(config) {
      register_module<nn::Linear>("norm", 4, 4);
    }
    std::string type_name() const override { return "Doubled"; }
    ModelOutput forward(const ModelInput& /*input*/) override { return {}; }
  };
  const AllConfig config = scaled_config({"parallel_config.pipeline_model_parallel_size=2"});
  try {
    testing::run_parallel(2, {.pipeline_model_parallel_size = 2}, [&] {
      get_model([](const AllConfig& c) { return std::make_unique<Doubled>(c); }, config);
    });
    FAIL() << "was accepted";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'norm.bias'"));
  }
}

TEST(GetModel, TakesALoss) {
  const AllConfig config = small_config();
  const TokenLoss squared = [&](const Tensor& logits, const Tensor& labels) {
    return square(cross_entropy(logits, labels, {.reduction = Reduction::kNone}));
  };
  const auto model = get_model(config, squared);
  const auto plain = get_model(config);
  const ModelInput input = to_model_input(testing::make_batch(config, 2));
  const ModelOutput own = model->forward(input);
  const NoGradGuard guard;
  const Tensor losses = cross_entropy(plain->forward({.tokens = input.tokens}).logits, input.labels,
                                      {.reduction = Reduction::kNone});
  const double expected = (sum(square(losses) * input.loss_mask) / sum(input.loss_mask)).item();
  EXPECT_NEAR(own.loss.item(), expected, 1e-5 * expected);
  EXPECT_EQ(own.token_count, sum(input.loss_mask).item());
  testing::expect_states_equal(get_logical_state(*model), get_logical_state(*plain));
  EXPECT_THROW(get_model(small_config({"model_config.fused_linear_cross_entropy=True"}), squared),
               ValueError);
}

}  // namespace
}  // namespace tapestry
