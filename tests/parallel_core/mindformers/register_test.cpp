// Parts of a program's own that a configuration names: accepted, refused, and as good in every
// layout as those of the library.
#include "parallel_core/register.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/pretrain.h"
#include "tests/message_of.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/mindformers/own_parts.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using testing::small_config;
using testing::State;

// As a program does before it reads a configuration.
const bool registered = [] {
  testing::register_parts();
  return true;
}();

const Overrides kOptimizer = {"optimizer_config.optimizer_type=SoftSign",
                              "optimizer_config.weight_decay=0.1"};
const Overrides kSchedule = {"optimizer_config.lr_decay_style=hyperbola",
                             "optimizer_config.lr_schedule_kwargs={decay: 0.5}"};
const Overrides kData = {"dataset_config.data_source=counting"};

std::string error_of(const Overrides& overrides) {
  try {
    small_config(overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Register, OptionsAreCompletedAndShown) {
  const AllConfig config =
      small_config(joined(kOptimizer, {"optimizer_config.optimizer_kwargs.beta=1"}));
  const auto& options = config.optimizer_config.optimizer_kwargs;
  EXPECT_EQ(number_option(options, "beta"), 1.0);  // an integer where a number is meant
  EXPECT_EQ(number_option(options, "eps"), 1e-3);
  const std::string yaml = resolved_yaml(config);
  EXPECT_THAT(yaml, HasSubstr("optimizer_kwargs: {beta: 1.0, eps: 0.001}"));
  const AllConfig again = init_configs_from_text(yaml, "again.yaml");
  EXPECT_EQ(again.optimizer_config, config.optimizer_config);
  // A part of the mapping that an override changes leaves the rest as the file has it.
  const AllConfig two = init_configs_from_text(
      yaml, "two.yaml", {.overrides = {"optimizer_config.optimizer_kwargs.eps=0.5"}});
  EXPECT_EQ(number_option(two.optimizer_config.optimizer_kwargs, "beta"), 1.0);
  EXPECT_EQ(number_option(two.optimizer_config.optimizer_kwargs, "eps"), 0.5);
}

TEST(Register, WhatAConfigurationCannotSay) {
  EXPECT_THAT(error_of({"optimizer_config.optimizer_type=SoftSing"}),
              Says("unknown value 'SoftSing' ... AdamW ... (registered: SoftSign); the nearest is "
                   "'SoftSign'"));
  EXPECT_THAT(error_of({"model_config.hidden_act=softsine"}),
              Says("(registered: ... reglu, softsign); the nearest is 'softsign'"));
  EXPECT_THAT(error_of({"dataset_config.data_source=count"}),
              Says("(registered: counting ... the nearest is 'counting'"));
  EXPECT_THAT(error_of({"training_config.loss_func_kwargs.loss_func_type=smoth"}),
              Says("CrossEntropyLoss ... the nearest is 'smoothed'"));
  EXPECT_THAT(error_of(joined(kOptimizer, {"optimizer_config.optimizer_kwargs={bata: 0.5}"})),
              Says("optimizer_kwargs: 'bata' is no option of SoftSign, which has beta, eps; the "
                   "nearest is 'beta'"));
  EXPECT_THAT(error_of(joined(kOptimizer, {"optimizer_config.optimizer_kwargs={beta: high}"})),
              Says("beta: expected a number, got high; default: 0.9"));
  EXPECT_THAT(error_of(joined(kOptimizer, {"optimizer_config.optimizer_kwargs=3"})),
              Says("expected a mapping"));
  EXPECT_THAT(error_of({"optimizer_config.optimizer_kwargs={beta: 0.5}"}),
              Says("has no effect: optimizer_config.optimizer_type is AdamW"));
  EXPECT_THAT(error_of({"dataset_config.data_source_kwargs={first: 1}"}),
              Says("has no effect: dataset_config.data_source is not given"));
  EXPECT_THAT(error_of(joined(kSchedule, {"optimizer_config.min_lr=1e-5"})),
              Says("min_lr ... has no effect with lr_decay_style hyperbola"));
  EXPECT_THAT(error_of(joined(kData, {"dataset_config.text=a.txt"})), Says("given beside text"));
  EXPECT_THAT(error_of(joined(kData, {"dataset_config.split=1,1,1"})),
              Says("split ... has no effect on data_source counting"));
  // What the optimizers of the library read, this one does not.
  EXPECT_THAT(error_of(joined(kOptimizer, {"optimizer_config.momentum=0.5"})),
              Says("momentum ... no effect with optimizer_type SoftSign"));
}

TEST(Register, GradientsAreWhatTheProgramMakesOfThem) {
  constexpr double kValue = 2.0;
  const auto gradients_times = [&](const Overrides& more) {
    // SGD moves weights by the gradients that it gets.
    testing::Trainer trainer(joined({"optimizer_config.optimizer_type=SGD"}, more));
    testing::MadeUpSamples samples(trainer.config);
    const State before = get_logical_state(*trainer.model);
    const StepResult result = trainer.cell({samples.micro_batch({}, 0, 1, 2, 0, 1)});
    const State after = get_logical_state(*trainer.model);
    double squares = 0;
    for (const auto& [name, weight] : before) {
      for (const double moved : ((after.at(name) - weight) / 0.01).to_vector<double>()) {
        squares += moved * moved;
      }
    }
    return std::pair{result.grad_norm, std::sqrt(squares)};
  };
  const auto [norm, applied] = gradients_times({concat(
      "training_config.grad_clip_kwargs={grad_clip_type: soft_clip, clip_value: ", kValue, "}")});
  EXPECT_NEAR(applied / (norm * kValue / (kValue + norm)), 1, 1e-4);  // of rounded weights
  EXPECT_THAT(error_of({"training_config.grad_clip_kwargs={grad_clip_type: soft_clips, "
                        "clip_value: 1.0}"}),
              Says("the nearest is 'soft_clip'"));
  EXPECT_THAT(error_of({"training_config.grad_clip_kwargs={grad_clip_type: soft_clip, "
                        "clip_value: 1.0}",
                        "optimizer_config.optimizer_in_backward=True"}),
              Says("cannot stand beside clipping by norm"));
  ModuleRegistry::register_item<ModuleType::kGradProcessFunc>(
      "broken", [](double norm, double) { return optim::GradTransform{.scale = norm / 0.0}; });
  EXPECT_THAT(message_of<ValueError>([&] {
                gradients_times(
                    {"training_config.grad_clip_kwargs={grad_clip_type: broken, "
                     "clip_value: 1.0}"});
              }),
              Says("grad_clip_type broken: scale inf"));
}

TEST(Register, WhatCannotBeRegistered) {
  const ScheduleFactory make = [](const ScheduleSettings& settings) {
    return std::make_unique<testing::Hyperbola>(settings);
  };
  const auto enter = [&](const std::string& name, const ScheduleFactory& factory) {
    ModuleRegistry::register_item<ModuleType::kLrScheduler>(name, factory);
  };
  EXPECT_THAT(message_of<ValueError>([&] { enter("cosine", make); }), Says("is built in"));
  EXPECT_THAT(message_of<ValueError>([&] { enter("hyperbola", make); }), Says("already"));
  EXPECT_THAT(message_of<ValueError>([&] { enter("1e-3", make); }), Says("begins with a letter"));
  EXPECT_THAT(message_of<ValueError>([&] { enter("empty", {}); }), Says("is empty"));
  const auto again = [](const std::string& name, ModuleRegistry::Options options) {
    ModuleRegistry::register_item<ModuleType::kActivationFunc>(
        name, {.function = [](const Tensor& x) { return x; }}, std::move(options));
  };
  EXPECT_THAT(message_of<ValueError>([&] { again("fused_swiglu", {}); }), Says("is built in"));
  EXPECT_THAT(message_of<ValueError>([&] {
                again("scaled", {{"by", 2.0}});
              }),
              Says("have no options"));
  EXPECT_THAT(
      message_of<ValueError>([] { ModuleRegistry::get_item<ModuleType::kOptimizer>("Sign"); }),
      Says("'Sign' has not been registered; registered: SoftSign"));
  EXPECT_THAT(message_of<ValueError>([] { get_act_func("soft"); }),
              Says("'soft' is not known ... gelu ... softsign"));
  AllConfig config = small_config();
  config.optimizer_config.optimizer_type = "Sign";
  const auto model = get_model(config);
  EXPECT_THAT(message_of<ValueError>([&] { get_optimizer(config, *model); }),
              Says("'Sign' is not known ... AdamW ... SoftSign"));
  // A failed registration leaves no name.
  EXPECT_THAT(error_of({"optimizer_config.lr_decay_style=empty"}), Says("unknown value 'empty'"));
}

TEST(Register, EstimatesTakeNamesThatTheyDoNotKnow) {
  const AllConfig config =
      small_config(joined({kOptimizer, kSchedule, {"model_config.hidden_act=reglu"}}));
  EXPECT_GT(estimate_memory(config, 1).total(), 0);
}

struct Layout {
  const char* name;
  int ranks;
  Overrides overrides;
};
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"tp=2", 2, {"parallel_config.tensor_model_parallel_size=2"}},
      {"pp=2", 2, {"parallel_config.pipeline_model_parallel_size=2"}},
      {"z1", 2, {"parallel_config.zero_level=z1"}},
      {"z3", 2, {"parallel_config.zero_level=z3"}},
      {"tp=2,sp,dp=2,z2",
       4,
       {"parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=True",
        "parallel_config.zero_level=z2"}}};
  return all;
}

ModelParallelSizes sizes_of(const AllConfig& config) {
  return model_parallel_sizes(config.parallel_config);
}

// Weights after three steps of four sequences, on the ranks that gather them.
State train_steps(const AllConfig& config) {
  testing::Trainer trainer(config);
  testing::MadeUpSamples samples(config);
  const bool split = model_parallel_is_initialized();
  const int64_t rank = split ? get_data_parallel_rank() : 0;
  const int64_t ranks = split ? get_data_parallel_world_size() : 1;
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t m = 0; m < 2 / ranks; ++m) {
      batches.push_back(samples.micro_batch({step, 4 * step}, m, 2 / ranks, 2, rank, ranks));
    }
    trainer.cell(batches);
  }
  return gather_over_pipeline(get_logical_state(*trainer.model, trainer.optimizer.get()));
}

double largest_distance(const State& found, const State& expected) {
  double far = 0;
  for (const auto& [name, weight] : expected) {
    // Biases of keys, whose gradient is 0 but for rounding, stay near 0.
    far = std::max(far, testing::distance(found.at(name), weight, /*floor=*/0.1));
  }
  return far;
}

TEST(Register, OwnPartsTrainInEveryLayoutAsInOneProcess) {
  constexpr double kRounding = 1e-5;  // of three steps in float32
  const Overrides none;
  const Overrides experts = {"moe_config.num_experts=4"};
  for (const auto& [act, more] :
       {std::pair{"softsign", none}, {"reglu", none}, {"reglu", experts}}) {
    const Overrides parts = joined({kOptimizer,
                                    kSchedule,
                                    more,
                                    {concat("model_config.hidden_act=", act),
                                     "training_config.loss_func_kwargs.loss_func_type=smoothed",
                                     "training_config.grad_clip_kwargs={grad_clip_type: soft_clip, "
                                     "clip_value: 2.0}"}});
    const State expected = train_steps(small_config(parts));
    const State of_library =
        train_steps(small_config(joined(more, {concat("model_config.hidden_act=", act)})));
    EXPECT_GT(largest_distance(of_library, expected), 100 * kRounding);
    for (const Layout& layout : layouts()) {
      const AllConfig config = small_config(joined(parts, layout.overrides));
      testing::run_parallel(layout.ranks, sizes_of(config), [&] {
        const State found = train_steps(config);
        if (get_tensor_model_parallel_rank() == 0 && pipeline_place().rank == 0) {
          EXPECT_EQ(found.size(), expected.size()) << layout.name;
          EXPECT_LT(largest_distance(found, expected), kRounding) << layout.name << " " << act;
        }
      });
    }
  }
}

TEST(Register, TheActivationIsWhatTheModelComputes) {
  const AllConfig config = small_config({"model_config.hidden_act=reglu"});
  EXPECT_TRUE(config.model_config.gated_linear_unit);
  EXPECT_TRUE(has_gated_mlp(config.model_config));
  const Activation act = get_act_func(config);
  const Tensor x = tensor({1, -2, 3, 4, 5, 6}).view({1, 6});
  const Tensor bias = tensor({0, 0, 0, 1, 0, 0});
  EXPECT_THAT(act(x, bias).to_vector<double>(), ElementsAre(5, 0, 18));
  // Of a gate alone, times up, where it is not gated itself.
  const Activation gate = get_act_func(
      small_config({"model_config.hidden_act=softsign", "model_config.gated_linear_unit=True"}));
  EXPECT_THAT(gate(tensor({1, -3, 2, 4}).view({1, 4}), {}).to_vector<double>(), ElementsAre(1, -3));
  // What makes another shape says so.
  ModuleRegistry::register_item<ModuleType::kActivationFunc>(
      "halved", {.function = [](const Tensor& v) { return v.slice(1, 0, v.size(1) / 2); }});
  EXPECT_THAT(message_of<ValueError>([&] { get_act_func("halved")(x, {}); }),
              Says("hidden_act halved ... expected shape [1, 6]"));
}

// Steps of metrics.jsonl without what differs between equal runs.
std::vector<std::string> steps_of(const data::TempDir& dir, const std::string& folder) {
  std::istringstream lines(dir.read(folder + "/metrics.jsonl"));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json step = nlohmann::json::parse(line);
    step.erase("step_time_ms");
    step.erase("peak_bytes");
    step.erase("memory");
    all.push_back(step.dump());
  }
  return all;
}

// A run on so many ranks, which are threads.
void run_on(int ranks, const AllConfig& config) {
  run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    pretrain(config, {.world = world, .ranks_on_host = ranks});
  });
}

TEST(Register, ARunGoesOnBitForBit) {
  const Overrides resume = {"training_config.resume_training=True"};
  for (const int ranks : {1, 2}) {
    const data::TempDir dir;
    const auto config = [&](const char* folder, int64_t steps, const Overrides& more = {}) {
      return small_config(
          joined({kOptimizer,
                  kSchedule,
                  kData,
                  more,
                  ranks == 2 ? Overrides{"parallel_config.zero_level=z1"} : Overrides(),
                  {"model_config.hidden_act=softsign", "dataset_config.batch_size=2",
                   "training_config.eval_interval=2", "training_config.eval_iters=1",
                   "training_config.save_interval=3", "training_config.log_interval=1",
                   concat("training_config.training_iters=", steps),
                   concat("training_config.output_dir=", dir.file(folder))}}));
    };
    const Overrides rows = {"dataset_config.data_source_kwargs={first: 3}"};
    run_on(ranks, config("whole", 6, rows));
    run_on(ranks, config("parts", 3, rows));
    if (ranks == 1) {
      const Overrides others = {"dataset_config.data_source_kwargs={first: 4}"};
      EXPECT_THAT(
          message_of<ValueError>([&] { pretrain(config("parts", 6, joined(resume, others))); }),
          Says("counting {first: 4} ... counting {first: 3}"));
    }
    run_on(ranks, config("parts", 6, joined(resume, rows)));
    const auto whole = steps_of(dir, "whole");
    ASSERT_EQ(whole.size(), 6U);
    EXPECT_EQ(steps_of(dir, "parts"), whole);
    // The schedule is the program's: lr / (1 + updates / 2).
    EXPECT_THAT(whole[2], HasSubstr("\"lr\":[0.005,0.005]"));
    EXPECT_THAT(dir.read("parts/config.yaml"), HasSubstr("data_source: counting"));
  }
}

// The model computes with 16-bit values of the masters that an optimizer of one's own updates.
TEST(Register, AnOwnOptimizerHasMasters) {
  testing::Trainer trainer(
      joined(kOptimizer, {"training_config.bf16=True", "model_config.params_dtype=bfloat16"}));
  testing::MadeUpSamples samples(trainer.config);
  for (int64_t step = 0; step < 2; ++step) {
    trainer.cell({samples.micro_batch({step, 2 * step}, 0, 1, 2, 0, 1)});
  }
  int64_t rounded = 0;
  for (const nn::Module::NamedParameter& entry : trainer.model->named_parameters()) {
    const Tensor master = trainer.optimizer->main_param(entry.name);
    EXPECT_EQ(entry.parameter->to_vector<double>(),
              master.to(entry.parameter->dtype()).to_vector<double>())
        << entry.name;
    rounded += entry.parameter->dtype() == kBFloat16 ? 1 : 0;
  }
  EXPECT_GT(rounded, 0);
}

TEST(Register, DataThatDoNotFitAreRefused) {
  const data::TempDir dir;
  ModuleRegistry::register_item<ModuleType::kDataset>(
      "nothing", [](const AllConfig&, const DataRank&) { return OwnData{}; });
  ModuleRegistry::register_item<ModuleType::kDataset>(
      "long_rows", [](const AllConfig& config, const DataRank&) {
        AllConfig other = config;
        other.model_config.seq_length += 1;
        return OwnData{.train = std::make_unique<testing::CountingRows>(other, 0)};
      });
  const auto run = [&](const std::string& name) {
    pretrain(small_config({concat("dataset_config.data_source=", name),
                           concat("training_config.output_dir=", dir.file(name))}));
  };
  EXPECT_THAT(message_of<ValueError>([&] { run("nothing"); }), Says("no part for training"));
  EXPECT_THAT(message_of<ValueError>([&] { run("long_rows"); }),
              Says("rows of 9 tokens, model_config.seq_length is 8"));
}

}  // namespace
}  // namespace tapestry
