// What is measured beside the loss, and what decides that a step or a checkpoint is bad.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/training/step/norm_spikes.h"
#include "parallel_core/training/step/trainer_state.h"
#include "parallel_core/training/watch/checkpoint_health.h"
#include "parallel_core/training/watch/max_logits_log.h"
#include "parallel_core/training/watch/norm_watch.h"
#include "parallel_core/training/watch/static_log.h"
#include "parallel_core/training/watch/step_monitor.h"
#include "parallel_core/training/watch/token_tables.h"
#include "tests/message_of.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::joined;
using testing::make_batch;
using testing::Overrides;
using testing::run_parallel;
using ::testing::StartsWith;
using testing::Trainer;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NormSpikes, AreCountedInARow) {
  NormSpikes spikes({.threshold = 3});
  std::vector<int64_t> counts;
  for (const double norm : {1.0, 3.0, 7.0, 2.999, kNan, kInfinity, 1.0}) {
    spikes.observe(norm);
    counts.push_back(spikes.count());
  }
  EXPECT_THAT(counts, ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(NormSpikes, RelativeToTheMedianOfTheLastNormsThatWereNone) {
  NormSpikes spikes({.threshold = kInfinity, .factor = 2, .window = 3});
  for (const double norm : {100.0, 1.0, 5.0}) {
    EXPECT_FALSE(spikes.is_spike(norm));
    spikes.observe(norm);
  }
  EXPECT_EQ(spikes.threshold(), 10);
  spikes.observe(11);  // a spike, which moves no median
  EXPECT_EQ(spikes.threshold(), 10);
  spikes.observe(2);
  EXPECT_EQ(spikes.threshold(), 4);  // of 1, 5, 2
  NormSpikes other({.threshold = kInfinity, .factor = 2, .window = 3});
  other.set_state(spikes.state());
  EXPECT_EQ(other.threshold(), 4);
  NormSpikes even({.threshold = 7, .factor = 3, .window = 2});
  EXPECT_EQ(even.threshold(), 7);
  even.observe(1);
  even.observe(4);
  EXPECT_EQ(even.threshold(), 7.5);
}

TEST(NormSpikes, AreSavedWithTheRun) {
  TrainerState state;
  state.schedule = "{}";
  state.position = {.applied = 5, .seen = 8, .skipped = 2};
  state.norm_spikes = {.count = 2, .norms = {0.1, 7}};
  const TrainerState read = parse_trainer_state(trainer_state_json(state), "x");
  EXPECT_EQ(read.position.skipped, 2);
  EXPECT_EQ(read.norm_spikes->count, 2);
  EXPECT_THAT(read.norm_spikes->norms, ElementsAre(0.1, 7));
  state.norm_spikes.reset();
  state.position.skipped = 0;
  const std::string plain = trainer_state_json(state);
  EXPECT_THAT(plain, ::testing::Not(HasSubstr("skipped")));
  EXPECT_FALSE(parse_trainer_state(plain, "x").norm_spikes);
  std::string broken = trainer_state_json(state);
  broken.insert(broken.size() - 1, R"(,"norm_spikes":{"count":1,"norms":["a"]})");
  EXPECT_THAT(message_of<IoError>([&] { parse_trainer_state(broken, "x"); }),
              HasSubstr("norm_spikes.norms is \"a\", expected a number"));
}

TEST(NormSpikes, AWindowIsOfNoUseWithoutAFactor) {
  NormSpikes spikes({.threshold = 5});
  spikes.set_state({.count = 1, .norms = {2, 4}});
  EXPECT_EQ(spikes.count(), 1);
  EXPECT_THAT(spikes.state().norms, ::testing::IsEmpty());
}

TEST(TrainerState, HoldsWhatTheLoopDecidesFrom) {
  TrainerState state;
  state.schedule = "{}";
  const TrainerState none = parse_trainer_state(trainer_state_json(state), "x");
  EXPECT_FALSE(none.autopsy || none.divergence || none.norm_spikes);
  state.autopsy = PastOfAutopsy{.losses = std::nullopt, .bad_in_a_row = 3, .last_bad_step = 41};
  state.divergence = PastOfDivergence{.in_a_row = 2, .last_finite_step = 39, .last_finite_lr = 0.1};
  EXPECT_FALSE(parse_trainer_state(trainer_state_json(state), "x").autopsy->losses);
  state.autopsy->losses = NormSpikes::State{.count = 1, .norms = {0.1, 1.0 / 3}};
  const TrainerState read = parse_trainer_state(trainer_state_json(state), "x");
  EXPECT_EQ(read.autopsy->bad_in_a_row, 3);
  EXPECT_EQ(read.autopsy->last_bad_step, 41);
  EXPECT_EQ(read.autopsy->losses->count, 1);
  EXPECT_THAT(read.autopsy->losses->norms, ElementsAre(0.1, 1.0 / 3));  // the same bits
  EXPECT_EQ(read.divergence->in_a_row, 2);
  EXPECT_EQ(read.divergence->last_finite_step, 39);
  EXPECT_EQ(read.divergence->last_finite_lr, 0.1);
  std::string broken = trainer_state_json(state);
  broken.replace(broken.find("\"in_a_row\":3"), 12, "\"in_a_row\":-3");
  EXPECT_THAT(message_of<IoError>([&] { parse_trainer_state(broken, "x"); }),
              Says("bad_steps.in_a_row ... -3, ... expected a number from ... 0"));
}

TEST(NormText, IsThatOfAnArrayOfOneFloat) {
  EXPECT_EQ(norm_text(44.31324768), "[44.313248]");
  EXPECT_EQ(norm_text(3), "[3.]");
  EXPECT_EQ(norm_text(1e10), "[1.e+10]");
  EXPECT_EQ(norm_text(-kNan), "[nan]");
  EXPECT_EQ(norm_text(kInfinity), "[inf]");
}

TEST(MonitorLogLine, IsThatOfTheGuide) {
  const RunLength two{.total = 13000, .epoch_ends = {6500, 13000}};
  EXPECT_EQ(monitor_log_line(place_of_step(1, two), "local_norm/x", 0.12345, "fixed"),
            "Epoch:[  1/  2], step:[    1/ 6500] local_norm/x: 0.1235");
  EXPECT_EQ(monitor_log_line(place_of_step(6507, two), "weight_norm", 1e-5, "scientific"),
            "Epoch:[  2/  2], step:[    7/ 6500] weight_norm: 1.000000e-05");
  EXPECT_EQ(embedding_norm_line(251.79117), "embedding_local_norm: 251.79117");
}

TEST(MaxLogitsLog, HasALineOfValuesAndOneOfMeanAndMax) {
  const HeadMaxima maxima = {{0, {1.23456F, -0.5F, 123.456F}},
                             {10, {-static_cast<float>(kInfinity), 1e6F}}};
  EXPECT_THAT(
      max_logit_lines(maxima, 7, 20),
      ElementsAre("step:[    7/   20] max_attention_logit/layers.0.attention: [1.235, -0.5, 123.5]",
                  "step:[    7/   20] max_attention_logit/layers.0.attention/mean: 41.4",
                  "step:[    7/   20] max_attention_logit/layers.0.attention/max: 123.5",
                  "step:[    7/   20] max_attention_logit/layers.10.attention: [-inf, 1e+06]",
                  "step:[    7/   20] max_attention_logit/layers.10.attention/mean: -inf",
                  "step:[    7/   20] max_attention_logit/layers.10.attention/max: 1e+06"));
  EXPECT_THAT(max_logit_lines({{2, {1}}}, 7, 0).front(), StartsWith("step:[    7/    7] "));
  StepRecord record;
  record.max_logits = maxima;
  const auto line = metrics_line(record, {});
  EXPECT_THAT(line, HasSubstr(R"("max_attention_logits":{"layers.0.attention":[1.23456)"));
  EXPECT_THAT(line, HasSubstr(R"("layers.10.attention":["-inf",1000000.0]})"));
  EXPECT_THAT(metrics_line({}, {}), ::testing::Not(HasSubstr("max_attention_logits")));
}

TEST(MaxLogitsLog, SpeaksInTheStepsOfItsInterval) {
  Trainer trainer({"monitor_config.max_logits_interval=3"});
  MaxLogitsLog log(trainer.config, 20);
  for (int64_t step = 1; step <= 6; ++step) {
    FinishedStep finished{.record = {.step = step}};
    finished.result = trainer.cell({make_batch(trainer.config, 2, 2 * step)});
    log.after(finished);
    const bool due = step % 3 == 0;
    EXPECT_EQ(finished.result.max_logits.size(), due ? 2U : 0U);
    EXPECT_EQ(finished.record.max_logits, finished.result.max_logits);
    EXPECT_EQ(finished.lines.size(), due ? 6U : 0U);
    EXPECT_EQ(finished.record.scalars.size(), due ? 4U : 0U);
    if (due) {
      const std::vector<float>& heads = finished.record.max_logits.at(1);
      ASSERT_EQ(heads.size(), 4U);
      EXPECT_EQ(finished.record.scalars.at("max_attention_logit/layers.1.attention/max"),
                *std::max_element(heads.begin(), heads.end()));
    }
  }
}

// Beside a factor a threshold that is not given is none, also where a run goes on with its resolved
// configuration, which has every key.
TEST(NormSpikes, OptionsAreThoseOfTheResolvedConfigurationToo) {
  const auto options = [](const std::string& monitor) {
    const AllConfig config = init_configs_from_text(
        "training_config: {training_iters: 5}\n"
        "model_config: {vocab_size: 32, num_layers: 1, num_attention_heads: 2, hidden_size: 16, "
        "ffn_hidden_size: 32, seq_length: 8}\n"
        "monitor_config: {monitor_on: True, use_skip_data_by_global_norm: True" +
            monitor + "}\n",
        "f.yaml");
    const AllConfig again = init_configs_from_text(resolved_yaml(config), "config.yaml");
    const NormSpikes::Options first = norm_spike_options(config);
    EXPECT_EQ(norm_spike_options(again).threshold, first.threshold) << monitor;
    EXPECT_EQ(norm_spike_options(again).factor, first.factor) << monitor;
    return first.threshold;
  };
  EXPECT_EQ(options(""), 3.0);
  EXPECT_EQ(options(", global_norm_spike_factor: 2"), kInfinity);
  EXPECT_EQ(options(", global_norm_spike_factor: 2, global_norm_spike_threshold: 3.0"), 3.0);
}

TEST(StaticLog, CountsStepsOfEpochs) {
  const auto place = [](int64_t step, int64_t total, const std::vector<int64_t>& ends) {
    const StaticLogPlace at = place_of_step(step, {.total = total, .epoch_ends = ends});
    return concat(at.epoch, "/", at.epochs, " ", at.step, "/", at.steps_per_epoch, " ", at.done,
                  "/", at.total);
  };
  EXPECT_EQ(place(1, 38, {19, 38}), "1/2 1/19 1/38");
  EXPECT_EQ(place(19, 38, {19, 38}), "1/2 19/19 19/38");
  EXPECT_EQ(place(20, 38, {19, 38}), "2/2 1/19 20/38");
  EXPECT_EQ(place(38, 38, {19, 38}), "2/2 19/19 38/38");
  // Four epochs of 18.25 batches.
  EXPECT_EQ(place(57, 73, {19, 37, 55, 73}), "4/4 2/18 57/73");
  EXPECT_EQ(place(73, 73, {19, 37, 55, 73}), "4/4 18/18 73/73");
  // Of five epochs that training_iters ends in the second.
  EXPECT_EQ(place(19, 30, {19, 38}), "1/2 19/19 19/30");
  EXPECT_EQ(place(30, 30, {19, 38}), "2/2 11/19 30/30");
  // Without epochs; and of a length that nobody knows.
  EXPECT_EQ(place(7, 10, {}), "1/1 7/10 7/10");
  EXPECT_EQ(place(7, 0, {}), "1/1 7/7 7/7");
}

TEST(StaticLog, IsThatOfTheGuide) {
  StaticLogPlace place{.epoch = 1,
                       .epochs = 2,
                       .step = 1,
                       .steps_per_epoch = 6500,
                       .done = 1,
                       .total = 13000,
                       .samples_per_second = 1 / 166.7565,
                       .teraflops = 2.849};
  const StepRecord record{.step = 1, .step_time_ms = 166756.5};
  StepResult result;
  result.grad_norm = 44.313248;
  result.lr = {0, 0};
  EXPECT_EQ(static_step_line(place, record, result),
            "{ Epoch:[  1/  2], step:[    1/ 6500], loss: 0.000, per_step_time: 166756ms, lr: 0.0, "
            "overflow cond: False, loss_scale: 1.0, global_norm: [44.313248], "
            "train_throughput_per_npu: 2.849T");
  EXPECT_EQ(static_progress_line(place, record),
            "   0.0% |                                                  | 0.00600 samples/s/p  "
            "25 days, 2:07:47 }");
  EXPECT_EQ(static_progress_line(place, {.step_time_ms = 166756.0}).substr(82),
            "25 days, 2:07:41 }");
  place.epoch = 2;
  place.step = 650;
  place.done = 7150;
  place.teraflops.reset();
  place.seconds_left = 107452;
  result.loss = 11.9051;
  result.lr = {2.5641025e-08};
  result.finite = false;
  result.loss_scale = 4096;
  EXPECT_EQ(static_step_line(place, {.step_time_ms = 7637.9}, result),
            "{ Epoch:[  2/  2], step:[  650/ 6500], loss: 11.905, per_step_time: 7637ms, lr: "
            "2.5641025e-08, overflow cond: True, loss_scale: 4096.0, global_norm: [44.313248]");
  std::string bar;
  for (int i = 0; i < 27; ++i) {
    bar += "\u2588";
  }
  EXPECT_EQ(static_progress_line(place, {}), concat("  55.0% |", bar, std::string(23, ' '),
                                                    "| 0.00600 samples/s/p  1 day, 5:50:52 }"));
  EXPECT_EQ(days_text(189.9), "0:03:09");
}

TEST(HealthRecord, IsTheFileOfTheGuide) {
  const TempDir dir;
  HealthRecord record;
  record.add("llama3_1_8b_rank_0-1_1.safetensors", true);
  record.add("llama3_1_8b_rank_0-2_1.safetensors", false);
  const std::string text = R"([
    {
        "is_health": 0,
        "ckpt_name": "llama3_1_8b_rank_0-1_1.safetensors"
    },
    {
        "is_health": 1,
        "ckpt_name": "llama3_1_8b_rank_0-2_1.safetensors"
    }
]
)";
  EXPECT_EQ(record.text(), text);
  dir.write("health_ckpts.json", text);
  EXPECT_EQ(HealthRecord::read(dir.file("health_ckpts.json")).text(), text);
  EXPECT_EQ(record.newest_healthy(), "llama3_1_8b_rank_0-1_1.safetensors");
  record.keep({"llama3_1_8b_rank_0-2_1.safetensors"});
  EXPECT_EQ(record.newest_healthy(), std::nullopt);
  EXPECT_EQ(record.is_healthy("llama3_1_8b_rank_0-1_1.safetensors"), std::nullopt);
}

TEST(HealthRecord, TheLastEntryOfANameCounts) {
  const TempDir dir;
  const auto read = [&](const std::string& text) {
    dir.write("h.json", text);
    return HealthRecord::read(dir.file("h.json"));
  };
  const HealthRecord twice =
      read(R"([{"is_health": 0, "ckpt_name": "a"}, {"is_health": 1, "ckpt_name": "a"}])");
  EXPECT_EQ(twice.is_healthy("a"), false);
  EXPECT_FALSE(HealthRecord::read(dir.file("none.json")).newest_healthy());
  EXPECT_FALSE(read("").newest_healthy());
  for (const char* text :
       {"{}", "[1]", R"([{"is_health": "0", "ckpt_name": "a"}])", R"([{"is_health": 0}])", "[{"}) {
    EXPECT_THAT(message_of<IoError>([&] { read(text); }), HasSubstr("h.json")) << text;
  }
}

TEST(HealthRecord, LiesInTheFolderOfTheRun) {
  EXPECT_EQ(health_record_path({}, "out"), "out/health_ckpts.json");
  EXPECT_EQ(health_record_path({}, "out/checkpoint/"), "out/health_ckpts.json");
  EXPECT_EQ(health_record_path({.health_ckpts_record_dir = "here"}, "out"),
            "here/health_ckpts.json");
}

// One token that counts has a larger gradient than the mean of many.
data::Batch bad_batch(const AllConfig& config, int64_t sample) {
  data::Batch batch = make_batch(config, 2, sample);
  std::fill(batch.loss_mask.begin(), batch.loss_mask.end(), 0.0F);
  batch.loss_mask[3] = 1;
  return batch;
}

const Overrides kSkip = {"monitor_config.monitor_on=True", "use_skip_data_by_global_norm=True"};

class SkippedSteps : public ::testing::Test {
 protected:
  SkippedSteps() { initialize_model_parallel(); }
  ~SkippedSteps() override { destroy_model_parallel(); }
};

// The data go on; weights, moments, schedule and loss scale are as if the step had not been.
TEST_F(SkippedSteps, LeaveEverythingAsItWas) {
  for (const Overrides& more :
       {Overrides{"optimizer_config.lr_decay_style=linear", "optimizer_config.lr_warmup_iters=3"},
        Overrides{"optimizer_config.learning_rate_scheduler_kwargs={warmup_steps: 2, decay_steps: "
                  "10}"},
        Overrides{"training_config.calculate_per_token_loss=True",
                  "optimizer_config.clip_grad=0.5"}}) {
    SCOPED_TRACE(more.front());
    Trainer clean(more);
    const AllConfig& config = clean.config;
    std::vector<double> norms;
    std::vector<std::vector<double>> rates;
    for (int64_t step = 0; step < 4; ++step) {
      const StepResult result = clean.cell({make_batch(config, 2, 2 * step, true)});
      norms.push_back(result.grad_norm);
      rates.push_back(result.lr);
    }
    const double highest = *std::max_element(norms.begin(), norms.end());
    Trainer trainer(joined(
        {more, kSkip, {concat("monitor_config.global_norm_spike_threshold=", 1.2 * highest)}}));
    for (int64_t step = 0; step < 4; ++step) {
      if (step % 2 == 1) {
        const StepResult bad = trainer.cell({bad_batch(config, 100 + step)});
        ASSERT_GT(bad.grad_norm, 1.3 * highest);
        EXPECT_TRUE(bad.skipped);
        EXPECT_TRUE(bad.finite);
        EXPECT_EQ(bad.lr, rates[static_cast<size_t>(step)]);
        EXPECT_EQ(trainer.cell.norm_spikes()->count(), 1);
      }
      const StepResult result = trainer.cell({make_batch(config, 2, 2 * step, true)});
      EXPECT_FALSE(result.skipped);
      EXPECT_EQ(result.lr, rates[static_cast<size_t>(step)]);
      EXPECT_EQ(result.grad_norm, norms[static_cast<size_t>(step)]);
      EXPECT_EQ(trainer.cell.norm_spikes()->count(), 0);
    }
    EXPECT_EQ(trainer.cell.position().applied, 4);
    EXPECT_EQ(trainer.cell.position().seen, 6);
    EXPECT_EQ(trainer.cell.position().skipped, 2);
    testing::expect_states_equal(get_logical_state(*trainer.model),
                                 get_logical_state(*clean.model));
    for (const std::string& name : {std::string("exp_avg"), std::string("exp_avg_sq")}) {
      const std::string parameter = clean.model->named_parameters().front().name;
      EXPECT_EQ(testing::distance(trainer.optimizer->state(parameter).at(name),
                                  clean.optimizer->state(parameter).at(name)),
                0);
    }
  }
}

TEST_F(SkippedSteps, AlsoForNormsThatAreNotFinite) {
  Trainer trainer(
      joined(kSkip, {"monitor_config.global_norm_spike_threshold=1000",
                     "training_config.loss_scale_value=4096", "training_config.loss_scale_factor=2",
                     "training_config.loss_scale_window=3", "model_config.compute_dtype=float16"}));
  trainer.cell({make_batch(trainer.config, 2)});
  const float scale = trainer.cell.grad_scaler().scale();
  const int64_t good = trainer.cell.grad_scaler().good_steps();
  {
    const NoGradGuard guard;
    nn::Parameter& parameter = *trainer.model->named_parameters().front().parameter;
    parameter.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    parameter.bump_version();
  }
  data::Batch batch = make_batch(trainer.config, 2);
  batch.tokens.front() = 0;
  const StepResult result = trainer.cell({batch});
  EXPECT_FALSE(result.finite);
  EXPECT_TRUE(result.skipped);
  EXPECT_LT(trainer.cell.grad_scaler().scale(), scale);
  EXPECT_LE(trainer.cell.grad_scaler().good_steps(), good);
  EXPECT_EQ(trainer.cell.norm_spikes()->count(), 1);
}

// All ranks leave out the same step, and none has changed anything.
TEST(SkippedStepsOnRanks, AreSkippedByAll) {
  struct Layout {
    int ranks;
    ModelParallelSizes sizes;
    Overrides keys;
  };
  const std::vector<Layout> layouts = {
      {2, {.tensor_model_parallel_size = 2}, {"parallel_config.tensor_model_parallel_size=2"}},
      {2, {.pipeline_model_parallel_size = 2}, {"parallel_config.pipeline_model_parallel_size=2"}},
      {2, {.context_parallel_size = 2}, {"parallel_config.context_parallel_size=2"}},
      {2, {}, {"parallel_config.zero_level=z3"}},
      {2,
       {},
       {"training_config.use_distributed_optimizer=True",
        "training_config.overlap_grad_reduce=True", "optimizer_config.overlap_param_gather=True"}}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.keys.front());
    double highest = 0;  // norm of the good steps
    const auto train = [&](const Overrides& more, bool with_bad_step) {
      testing::State weights;
      run_parallel(layout.ranks, layout.sizes, [&] {
        Trainer trainer(joined({{"model_config.vocab_size=32"}, layout.keys, more}));
        const int64_t rank = get_data_parallel_rank();
        const StepResult first = trainer.cell({make_batch(trainer.config, 2, 2 * rank, true)});
        EXPECT_FALSE(first.skipped) << first.grad_norm;
        if (with_bad_step) {
          const StepResult bad = trainer.cell({bad_batch(trainer.config, 10 + rank)});
          EXPECT_TRUE(bad.skipped) << bad.grad_norm;
        }
        const StepResult last = trainer.cell({make_batch(trainer.config, 2, 4 + 2 * rank, true)});
        EXPECT_FALSE(last.skipped) << last.grad_norm;
        if (const auto all = get_logical_state(*trainer.model, trainer.optimizer.get());
            get_world_group().rank() == 0) {
          highest = std::max({highest, first.grad_norm, last.grad_norm});
          for (const auto& [name, tensor] : all) {
            weights[name] = tensor.clone();
          }
        }
      });
      return weights;
    };
    const testing::State clean = train({}, false);
    const testing::State skipped =
        train(joined(kSkip, {concat("monitor_config.global_norm_spike_threshold=", 1.1 * highest)}),
              true);
    EXPECT_FALSE(clean.empty());
    testing::expect_states_equal(skipped, clean);
  }
}

// Each rank's own gradients, whatever becomes of them afterwards.
TEST(LocalNorms, AreThoseOfTheRankAlone) {
  const Overrides base = {"dataset_config.micro_batch_num=2",
                          "model_config.position_embedding_type=rope"};
  for (const Overrides& loss :
       {Overrides{}, Overrides{"training_config.calculate_per_token_loss=True"},
        Overrides{"training_config.loss_reduction=sum"}}) {
    std::map<std::string, double> alone[2];
    for (int rank = 0; rank < 2; ++rank) {
      run_parallel(1, {}, [&] {
        Trainer trainer(joined(base, loss));
        std::set<std::string> all;
        for (const auto& entry : trainer.model->named_parameters()) {
          all.insert(entry.name);
        }
        trainer.cell.measure_local(all);
        alone[rank] = trainer
                          .cell({make_batch(trainer.config, 2, 10 * rank),
                                 make_batch(trainer.config, 2, 10 * rank + 2)})
                          .local_squares;
        EXPECT_EQ(alone[rank].size(), all.size());
      });
    }
    for (const Overrides& level :
         {Overrides{}, Overrides{"training_config.use_distributed_optimizer=True"},
          Overrides{"training_config.wrap_with_ddp=True",
                    "training_config.overlap_grad_reduce=True", "training_config.bucket_size=500"},
          Overrides{"parallel_config.zero_level=z2"}, Overrides{"parallel_config.zero_level=z3"}}) {
      SCOPED_TRACE(::testing::PrintToString(joined(loss, level)));
      run_parallel(2, {}, [&] {
        Trainer trainer(joined({base, loss, level}));
        std::set<std::string> all;
        for (const auto& entry : trainer.model->named_parameters()) {
          all.insert(entry.name);
        }
        trainer.cell.measure_local(all);
        const int rank = get_data_parallel_rank();
        const std::vector<data::Batch> batches = {make_batch(trainer.config, 2, 10 * rank),
                                                  make_batch(trainer.config, 2, 10 * rank + 2)};
        const auto own = trainer.cell(batches).local_squares;
        const auto& expected = alone[rank];
        ASSERT_EQ(own.size(), expected.size());
        double largest = 0;
        for (const auto& [name, squares] : expected) {
          largest = std::max(largest, squares);
        }
        for (const auto& [name, squares] : expected) {
          // Sums of the same products: they differ by the rounding of the shares.
          EXPECT_NEAR(own.at(name), squares, 1e-5 * squares + 1e-10 * largest) << name;
        }
        trainer.cell.measure_local({});
        EXPECT_TRUE(trainer.cell(batches).local_squares.empty());
      });
    }
  }
}

// The token table as a whole, however the ranks have divided it, and whether or not it is tied.
TEST(EmbeddingNorm, IsTheSameInEveryLayout) {
  struct Layout {
    int ranks;
    ModelParallelSizes sizes;
    Overrides keys;
  };
  const std::vector<Layout> layouts = {
      {2, {.tensor_model_parallel_size = 2}, {"parallel_config.tensor_model_parallel_size=2"}},
      {2, {.pipeline_model_parallel_size = 2}, {"parallel_config.pipeline_model_parallel_size=2"}},
      {4,
       {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2},
       {"parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=True",
        "parallel_config.pipeline_model_parallel_size=2"}}};
  for (const char* untied : {"True", "False"}) {
    const Overrides base = {"dataset_config.micro_batch_num=2", "model_config.vocab_size=32",
                            concat("model_config.untie_embeddings_and_output_weights=", untied),
                            "model_config.fused_linear_cross_entropy=False"};
    const auto norm_of = [&](const Overrides& keys) {
      Trainer trainer(joined(base, keys));
      EmbeddingNorm norm(trainer.cell);
      const std::vector<std::string> tables = token_tables(*trainer.model);
      EXPECT_EQ(tables.size(), is_pipeline_first_stage() ? 1U : 0U);
      trainer.cell.measure_local({tables.begin(), tables.end()});
      FinishedStep step;
      step.result = trainer.cell({make_batch(trainer.config, 2), make_batch(trainer.config, 2, 2)});
      norm.after(step);
      EXPECT_THAT(step.lines, ElementsAre(StartsWith("embedding_local_norm: ")));
      return *step.record.embedding_local_norm;
    };
    double alone = 0;
    run_parallel(1, {}, [&] { alone = norm_of({}); });
    EXPECT_GT(alone, 0);
    for (const Layout& layout : layouts) {
      run_parallel(layout.ranks, layout.sizes,
                   [&] { EXPECT_NEAR(norm_of(layout.keys), alone, 1e-5 * alone); });
    }
    // The rank with the largest one decides.
    double of_rank[2] = {};
    run_parallel(2, {}, [&] {
      Trainer trainer(base);
      EmbeddingNorm norm(trainer.cell);
      const std::vector<std::string> tables = token_tables(*trainer.model);
      trainer.cell.measure_local({tables.begin(), tables.end()});
      const int rank = get_data_parallel_rank();
      FinishedStep step;
      step.result =
          trainer.cell({rank == 1 ? bad_batch(trainer.config, 5) : make_batch(trainer.config, 2),
                        make_batch(trainer.config, 2, 2)});
      of_rank[rank] = step.result.local_squares.begin()->second;
      norm.after(step);
      get_world_group().barrier();
      EXPECT_EQ(*step.record.embedding_local_norm, std::max(of_rank[0], of_rank[1]));
    });
    EXPECT_GT(of_rank[1], of_rank[0]);
  }
}

}  // namespace
}  // namespace tapestry
