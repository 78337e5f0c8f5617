#include "parallel_core/optimizer/optimizer_param_scheduler.h"

#include <cmath>
#include <functional>
#include <limits>

#include "tests/nn/nn_test_util.h"

namespace tapestry {
namespace {

constexpr double kBound = 1e-12;

double at(const optim::Schedule& schedule, int64_t step) {
  return schedule.learning_rate({.applied = step, .seen = step});
}
double decay_at(const optim::Schedule& schedule, int64_t step) {
  return schedule.weight_decay({.applied = step, .seen = step}).value();
}

// Warm-up of 2 and decay until 10 iterations of 4 samples, from 4 to 1.
OptimizerParamSchedulerOptions iterations(const std::string& style) {
  return {.learning_rate = 4,
          .min_lr = 1,
          .lr_decay_style = style,
          .global_batch_size = 4,
          .training_iters = 20,
          .lr_warmup_iters = 2,
          .lr_decay_iters = 10};
}

TEST(OptimizerParamScheduler, WarmsUpFromItsStart) {
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root"}) {
    OptimizerParamSchedulerOptions o = iterations(style);
    o.lr_warmup_init = 1;
    const OptimizerParamScheduler s(o);
    EXPECT_EQ(at(s, 0), 1) << style;
    EXPECT_EQ(at(s, 1), 2.5) << style;
    EXPECT_EQ(at(s, 2), 4) << style;
    // Steps that were skipped count.
    EXPECT_EQ(s.learning_rate({.applied = 0, .seen = 1}), 2.5) << style;
  }
}

// Unset is not 0: the first update has its share of the rate.
TEST(OptimizerParamScheduler, AWarmUpBeginsWithAStepsShare) {
  OptimizerParamSchedulerOptions o = iterations("constant");
  o.lr_warmup_iters = 4;
  const OptimizerParamScheduler s(o);
  EXPECT_EQ(at(s, 0), 1);
  EXPECT_EQ(at(s, 1), 2);
  EXPECT_EQ(at(s, 3), 4);
  EXPECT_EQ(at(s, 4), 4);
  o.lr_warmup_init = 0;
  EXPECT_EQ(at(OptimizerParamScheduler(o), 0), 0);
  o.lr_warmup_init.reset();
  o.lr_warmup_fraction = 0.05;  // half a step of the ten
  EXPECT_EQ(at(OptimizerParamScheduler(o), 0), 4);
}

TEST(OptimizerParamScheduler, DecaysInEachStyle) {
  const OptimizerParamScheduler constant(iterations("constant"));
  EXPECT_EQ(at(constant, 3), 4);
  EXPECT_EQ(at(constant, 1000), 4);

  const OptimizerParamScheduler linear(iterations("linear"));
  EXPECT_NEAR(at(linear, 6), 2.5, kBound);
  EXPECT_NEAR(at(linear, 8), 1.75, kBound);
  EXPECT_NEAR(at(linear, 10), 1, kBound);
  EXPECT_EQ(at(linear, 11), 1);

  const OptimizerParamScheduler cosine(iterations("cosine"));
  EXPECT_NEAR(at(cosine, 6), 2.5, kBound);
  EXPECT_NEAR(at(cosine, 4), 1 + 3 * (std::cos(M_PI / 4) + 1) / 2, kBound);
  EXPECT_NEAR(at(cosine, 10), 1, kBound);
  EXPECT_EQ(at(cosine, 11), 1);

  const OptimizerParamScheduler root(iterations("inverse-square-root"));
  EXPECT_NEAR(at(root, 8), 4 * std::sqrt(2.0 / 8), kBound);
  EXPECT_NEAR(at(root, 10), 4 * std::sqrt(2.0 / 10), kBound);
  EXPECT_EQ(at(root, 11), 1);
}

TEST(OptimizerParamScheduler, StaysThenDecaysInWsd) {
  OptimizerParamSchedulerOptions o = iterations("WSD");
  o.lr_wsd_decay_iters = 4;
  for (const char* style : {"linear", "cosine", "exponential"}) {
    o.lr_wsd_decay_style = style;
    const OptimizerParamScheduler s(o);
    EXPECT_EQ(at(s, 3), 4) << style;
    EXPECT_EQ(at(s, 6), 4) << style;
    EXPECT_NEAR(at(s, 10), 1, kBound) << style;
    EXPECT_EQ(at(s, 11), 1) << style;
    const double quarter = std::string(style) == "linear"   ? 0.75
                           : std::string(style) == "cosine" ? (std::cos(M_PI / 4) + 1) / 2
                                                            : 2 * std::pow(0.5, 0.25) - 1;
    EXPECT_NEAR(at(s, 7), 1 + 3 * quarter, kBound) << style;
  }
}

// The formulas of MindFormers' schedules at t = updates done, in double precision.
struct MindFormersRate {
  double lr = 4;
  double end = 1;
  double init = 0.5;
  int64_t w = 3;
  int64_t total = 30;

  double warm(int64_t t) const {
    return init + (lr - init) * static_cast<double>(t) / static_cast<double>(w);
  }
  double p(int64_t t) const { return static_cast<double>(t - w) / static_cast<double>(total - w); }
  double between(double percent) const { return end + (lr - end) * std::max(0.0, percent); }
};

OptimizerParamSchedulerOptions options_of(const MindFormersRate& m, const std::string& style) {
  return {.learning_rate = m.lr,
          .min_lr = m.end,
          .lr_warmup_init = m.init,
          .lr_decay_style = style,
          .global_batch_size = 6,
          .training_iters = m.total + 20,
          .lr_warmup_iters = m.w,
          .lr_decay_iters = m.total};
}

// A few roundings of numbers of the largest rate's size.
constexpr double kFormulaBound = 4 * 8 * std::numeric_limits<double>::epsilon();

template <class Formula>
void expect_formula(const OptimizerParamSchedulerOptions& options,
                    const MindFormersRate& m,
                    const Formula& formula) {
  SCOPED_TRACE(options.lr_decay_style);
  const OptimizerParamScheduler schedule(options);
  // The same, counted in samples.
  OptimizerParamSchedulerOptions samples = options;
  samples.training_iters = 0;
  samples.train_samples = options.training_iters * 6;
  samples.lr_warmup_samples = m.w * 6;
  samples.lr_decay_samples = m.total * 6;
  const OptimizerParamScheduler by_samples(samples);
  for (int64_t t = 0; t < m.total + 15; ++t) {
    const double expected = t < m.w ? m.warm(t) : formula(t);
    EXPECT_NEAR(at(schedule, t), expected, kFormulaBound) << t;
    EXPECT_EQ(at(by_samples, t), at(schedule, t)) << t;
  }
}

TEST(OptimizerParamScheduler, TheFormulasOfMindFormers) {
  const MindFormersRate m;
  const auto end_from = [&](int64_t t, double percent) {
    return t >= m.total ? m.end : m.between(percent);
  };
  for (const double cycles : {0.5, 1.5, 2.0}) {
    OptimizerParamSchedulerOptions o = options_of(m, "cosine");
    if (cycles != 0.5) {
      o.lr_num_cycles = cycles;
    }
    expect_formula(o, m, [&](int64_t t) {
      return end_from(t, (1 + std::cos(2 * M_PI * cycles * m.p(t))) / 2);
    });
  }
  for (const double cycles : {1.0, 3.0, 2.5}) {
    OptimizerParamSchedulerOptions o = options_of(m, "cosine_restarts");
    if (cycles != 1) {
      o.lr_num_cycles = cycles;
    }
    expect_formula(o, m, [&](int64_t t) {
      return end_from(t, (1 + std::cos(M_PI * std::fmod(cycles * m.p(t), 1.0))) / 2);
    });
  }
  for (const double power : {1.0, 2.0, 0.5}) {
    OptimizerParamSchedulerOptions o = options_of(m, "polynomial");
    o.lr_decay_power = power;
    expect_formula(o, m, [&](int64_t t) { return end_from(t, std::pow(1 - m.p(t), power)); });
  }
  expect_formula(options_of(m, "cosine_annealing"), m,
                 [&](int64_t t) { return m.between((1 + std::cos(M_PI * m.p(t))) / 2); });
  expect_formula(options_of(m, "linear"), m, [&](int64_t t) { return end_from(t, 1 - m.p(t)); });
}

TEST(OptimizerParamScheduler, CoolsDownInParts) {
  const MindFormersRate m;
  OptimizerParamSchedulerOptions o = options_of(m, "cooldown");
  o.lr_keep_iters = 7;
  o.lr_final_iters = 4;
  o.final_lr = 0.25;
  const int64_t begin = m.w + 7;
  const auto rate = [&](double cycles, double last) {
    return [&m, begin, cycles, last](int64_t t) {
      const double p = static_cast<double>(t - begin) / static_cast<double>(m.total - begin);
      return t < begin         ? m.lr
             : t < m.total     ? m.between((1 + std::cos(2 * M_PI * cycles * p)) / 2)
             : t < m.total + 4 ? m.end
                               : last;
    };
  };
  expect_formula(o, m, rate(0.5, 0.25));
  o.lr_num_cycles = 1.5;
  expect_formula(o, m, rate(1.5, 0.25));
  o.final_lr.reset();  // unset is not 0
  expect_formula(o, m, rate(1.5, m.end));
  o.final_lr = 0;
  expect_formula(o, m, rate(1.5, 0));
}

TEST(OptimizerParamScheduler, RestartsWarm) {
  const MindFormersRate m;
  OptimizerParamSchedulerOptions o = options_of(m, "warm_restarts");
  o.lr_restart_iters = 5;
  expect_formula(o, m, [&](int64_t t) {
    return m.between((1 + std::cos(M_PI * static_cast<double>((t - m.w) % 5) / 5)) / 2);
  });
  o.lr_restart_mult = 2;  // cycles begin at 0, 5, 15 and 35
  expect_formula(o, m, [&](int64_t t) {
    const int64_t after = t - m.w;
    const int64_t begin = after >= 35 ? 35 : after >= 15 ? 15 : after >= 5 ? 5 : 0;
    const auto length = static_cast<double>(5 + begin);
    return m.between((1 + std::cos(M_PI * static_cast<double>(after - begin) / length)) / 2);
  });
}

TEST(OptimizerParamScheduler, WrongNumbersOfAStyle) {
  const MindFormersRate m;
  const auto refused = [&](const char* style, const char* words,
                           const std::function<void(OptimizerParamSchedulerOptions&)>& change) {
    OptimizerParamSchedulerOptions o = options_of(m, style);
    change(o);
    expect_throws<ValueError>([&] { OptimizerParamScheduler{o}; }, {words});
  };
  refused("cosine", "lr_num_cycles must be above 0", [](auto& o) { o.lr_num_cycles = 0; });
  refused("polynomial", "lr_decay_power must be above 0", [](auto& o) { o.lr_decay_power = 0; });
  refused("cooldown", "lr_keep_iters", [](auto& o) { o.lr_keep_iters = -1; });
  refused("cooldown", "lr_keep_iters (162 samples)", [](auto& o) { o.lr_keep_iters = 27; });
  refused("cooldown", "lr_final_iters", [](auto& o) { o.lr_final_iters = -1; });
  refused("cooldown", "final_lr", [](auto& o) { o.final_lr = -1; });
  refused("warm_restarts", "lr_restart_iters must be above 0", [](auto& /*o*/) {});
  refused("warm_restarts", "lr_restart_mult", [](auto& o) {
    o.lr_restart_iters = 2;
    o.lr_restart_mult = 0;
  });
  refused("cosine_restart", "choose one of constant", [](auto& /*o*/) {});
}

TEST(OptimizerParamScheduler, CountsInSamplesOrByAFraction) {
  OptimizerParamSchedulerOptions o{.learning_rate = 4,
                                   .lr_warmup_init = 0,
                                   .lr_decay_style = "linear",
                                   .global_batch_size = 2,
                                   .train_samples = 20,
                                   .lr_warmup_samples = 4};
  EXPECT_EQ(at(OptimizerParamScheduler(o), 1), 2);            // 2 of 4 samples
  EXPECT_NEAR(at(OptimizerParamScheduler(o), 6), 2, kBound);  // (12 - 4) of (20 - 4)
  o.lr_decay_samples = 12;
  EXPECT_NEAR(at(OptimizerParamScheduler(o), 4), 2, kBound);
  o.lr_warmup_fraction = 0.125;  // 1.5 samples, not rounded
  EXPECT_EQ(at(OptimizerParamScheduler(o), 0), 0);
  EXPECT_NEAR(at(OptimizerParamScheduler(o), 1), 4 * (1 - 0.5 / 10.5), kBound);
  EXPECT_EQ(at(OptimizerParamScheduler(o), 7), 0);
}

TEST(OptimizerParamScheduler, RaisesWeightDecayOverTheRun) {
  OptimizerParamSchedulerOptions o = iterations("constant");
  o.weight_decay = 0.25;
  EXPECT_EQ(decay_at(OptimizerParamScheduler(o), 0), 0.25);
  EXPECT_EQ(decay_at(OptimizerParamScheduler(o), 50), 0.25);
  o.start_weight_decay = 0.1;
  o.end_weight_decay = 0.5;
  o.weight_decay_incr_style = "linear";
  EXPECT_NEAR(decay_at(OptimizerParamScheduler(o), 0), 0.1, kBound);
  EXPECT_NEAR(decay_at(OptimizerParamScheduler(o), 5), 0.2, kBound);
  EXPECT_NEAR(decay_at(OptimizerParamScheduler(o), 20), 0.5, kBound);
  EXPECT_EQ(decay_at(OptimizerParamScheduler(o), 21), 0.5);
  o.weight_decay_incr_style = "cosine";
  EXPECT_NEAR(decay_at(OptimizerParamScheduler(o), 0), 0.1, kBound);
  EXPECT_NEAR(decay_at(OptimizerParamScheduler(o), 5), 0.1 + 0.4 * (1 + std::cos(M_PI * 0.75)) / 2,
              kBound);
  EXPECT_NEAR(decay_at(OptimizerParamScheduler(o), 20), 0.5, kBound);
}

TEST(OptimizerParamScheduler, NamesTheKeysThatDoNotFit) {
  const auto bad = [](const auto& change, const std::string& key) {
    OptimizerParamSchedulerOptions o = iterations("linear");
    change(o);
    expect_throws<ValueError>([&] { OptimizerParamScheduler{o}; }, {key});
  };
  bad([](auto& o) { o.global_batch_size = 0; }, "global batch size");
  bad([](auto& o) { o.training_iters = 0; }, "train_samples");
  bad([](auto& o) { o.min_lr = -1; }, "min_lr");
  bad([](auto& o) { o.min_lr = 5; }, "min_lr 5");
  bad([](auto& o) { o.learning_rate = std::nan(""); }, "learning_rate");
  bad([](auto& o) { o.lr_warmup_init = 5; }, "lr_warmup_init 5");
  bad([](auto& o) { o.lr_warmup_init = -1; }, "lr_warmup_init");
  bad([](auto& o) { o.lr_decay_iters = 0; }, "lr_decay_iters");
  bad([](auto& o) { o.lr_warmup_iters = 10; }, "lr_warmup_iters");
  bad([](auto& o) { o.lr_warmup_iters = -1; }, "lr_warmup_iters");
  bad([](auto& o) { o.lr_warmup_fraction = 1; }, "lr_warmup_fraction");
  bad([](auto& o) { o.lr_warmup_fraction = -0.1; }, "lr_warmup_fraction");
  bad([](auto& o) { o.lr_decay_style = "wavy"; }, "lr_decay_style 'wavy'");
  bad([](auto& o) { o.lr_decay_style = "WSD"; }, "lr_wsd_decay_iters");
  const auto wsd = [](auto& o) {
    o.lr_decay_style = "WSD";
    o.lr_wsd_decay_iters = 2;
  };
  bad([&](auto& o) { wsd(o), o.lr_wsd_decay_style = "wavy"; }, "lr_wsd_decay_style 'wavy'");
  bad([&](auto& o) { wsd(o), o.lr_wsd_decay_iters = -1; }, "lr_wsd_decay_iters");
  bad([](auto& o) { o.weight_decay_incr_style = "wavy"; }, "weight_decay_incr_style 'wavy'");
  bad([](auto& o) { o.start_weight_decay = -1; }, "start_weight_decay");
  bad([](auto& o) { o.start_weight_decay = 1; }, "end_weight_decay");
  bad([](auto& o) { o.end_weight_decay = 1; }, "weight_decay_incr_style constant");
}

}  // namespace
}  // namespace tapestry
