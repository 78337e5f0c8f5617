#include "diagnosis/verify/faults/explain_updates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/fit_value.h"

namespace tapestry {

namespace {

class Explaining {
 public:
  Explaining(const UpdateRule& meant, const ExplainOptions& options, const TryRule& try_rule)
      : meant_(meant), options_(options), try_(try_rule) {}

  std::vector<Explanation> run() {
    // What differs by little may have many reasons: none of them is left out then.
    constexpr double kLittle = 20;
    const bool try_more =
        try_(meant_, options_.updates, /*whole=*/true).share < kLittle && !options_.first_only;
    const auto goes_on = [&] { return found_.empty() || try_more; };
    try_all(known_rules(meant_, options_.micro_batches));
    if (goes_on()) {
      try_rates();
    }
    if (goes_on()) {
      fit_all(rule_families(meant_));
    }
    if (goes_on() && !options_.tensors.empty()) {
      try_all(rules_without_a_part(meant_, options_.tensors));
    }
    if (found_.empty() && !options_.tensors.empty()) {
      fit_all(part_families(meant_, options_.tensors));
    }
    // Schedules stand in the order of what is simple.
    std::stable_sort(found_.begin(), found_.end(), [](const Explanation& a, const Explanation& b) {
      const bool ranked = !a.known.is_learning_rate || !b.known.is_learning_rate;
      return ranked && a.share < b.share;
    });
    return std::move(found_);
  }

 private:
  bool agrees(const KnownRule& known) {
    const Trial trial = try_(known.rule, options_.updates, /*whole=*/false);
    if (!(trial.share <= 1)) {
      return false;
    }
    // Two rules may be one for this model: where only norms do not decay, say. Schedules go on
    // behind what was measured.
    if (trial.end == 0 || known.is_learning_rate ||
        std::count(ends_.begin(), ends_.end(), trial.end) == 0) {
      ends_.push_back(trial.end);
      found_.push_back({known, trial.share});
    }
    return true;
  }

  void try_all(const std::vector<KnownRule>& rules) {
    for (const KnownRule& known : rules) {
      if (options_.first_only && !found_.empty()) {
        return;
      }
      agrees(known);
    }
  }

  // Rates of the updates that agree with what was measured, one after the other; nothing if one has
  // none.
  std::optional<std::vector<double>> fitted_rates() {
    UpdateRule rule = meant_;
    double largest = 0;
    for (const double rate : options_.rates) {
      largest = std::max(largest, rate);
    }
    for (int64_t update = 1; update <= options_.updates; ++update) {
      const auto at = static_cast<size_t>(update) - 1;
      const auto trial_with = [&](double rate) {
        rule.rates.resize(at);
        rule.rates.push_back(rate);
        return try_(rule, update, /*whole=*/true);
      };
      const double meant = at < options_.rates.size() ? options_.rates[at] : largest;
      if (trial_with(meant).share <= 1 || trial_with(0).share <= 1) {
        continue;
      }
      std::optional<double> rate;
      for (const double start : {meant, largest, 0.1 * largest}) {
        if (start <= 0 || rate) {
          continue;
        }
        rate = fit_value([&](double value) { return trial_with(value).residuals; }, start);
        if (rate && !(trial_with(*rate).share <= 1)) {
          rate.reset();
        }
      }
      if (!rate) {
        return std::nullopt;
      }
    }
    return rule.rates;
  }

  KnownRule with_rates(std::string text, const RateOfStep& rate) const {
    KnownRule known{std::move(text), meant_, false, true};
    for (int64_t step = 1; step <= options_.updates; ++step) {
      known.rule.rates.push_back(rate(step));
    }
    return known;
  }

  void try_rates() {
    if (options_.updates < 1 || options_.rates.empty()) {
      return;
    }
    const std::optional<std::vector<double>> rates = fitted_rates();
    if (!rates) {
      return;
    }
    try_common_factor(*rates);
    if (options_.schedules) {
      for (const KnownSchedule& schedule : options_.schedules(*rates)) {
        agrees(with_rates(schedule.text, schedule.rate));
      }
    }
    if (found_.empty()) {
      std::string text = "as if learning rates were";
      for (size_t i = 0; i < rates->size(); ++i) {
        text += concat(i == 0 ? " " : ", ", short_text((*rates)[i]));
      }
      text += concat(" in step", rates->size() > 1 ? concat("s 1 to ", rates->size()) : " 1",
                     ", in place of ");
      for (size_t i = 0; i < rates->size(); ++i) {
        text += concat(i == 0 ? "" : ", ", short_text(options_.rates.at(i)));
      }
      KnownRule known{text, meant_, false, true};
      known.rule.rates = *rates;
      agrees(known);
    }
  }

  void try_common_factor(const std::vector<double>& rates) {
    double factor = 0;
    for (size_t i = 0; i < rates.size() && i < options_.rates.size(); ++i) {
      if (options_.rates[i] > 0) {
        factor = rates[i] / options_.rates[i];
        break;
      }
    }
    if (factor <= 0) {
      return;
    }
    try_rounded(
        [&](double value) {
          KnownRule known{
              concat("as if the learning rate were ", short_text(value), " times what it says"),
              meant_, false, true};
          known.rule.lr_factor = value;
          return known;
        },
        factor, /*is_below_one=*/false);
  }

  // With as few digits as agree.
  bool try_rounded(const std::function<KnownRule(double)>& with, double value, bool is_below_one) {
    constexpr int kMostDigits = 6;
    for (int digits = 1; digits <= kMostDigits; ++digits) {
      double rounded = rounded_to(value, digits);
      if (is_below_one) {  // places behind the point
        const double unit = std::pow(10.0, digits);
        rounded = std::round(value * unit) / unit;
      }
      // Whether it agrees is what counts; far off it would be by chance.
      const bool near = is_below_one ? std::abs(rounded - value) <= 0.3 * (1 - value)
                                     : std::abs(rounded - value) <= 0.3 * value;
      if (near && rounded > 0 && !(is_below_one && rounded >= 1) && agrees(with(rounded))) {
        return true;
      }
    }
    return agrees(with(value));
  }

  void fit_all(const std::vector<RuleFamily>& families) {
    for (const RuleFamily& family : families) {
      const auto value_of = [&](double fitted) {
        return family.is_below_one ? 1 - fitted : fitted;
      };
      const Residuals residuals = [&](double fitted) {
        if (family.is_below_one && fitted > 1) {
          return std::vector<double>();
        }
        return try_(family.with(value_of(fitted)).rule, options_.updates, /*whole=*/true).residuals;
      };
      double start = 0;
      double least = std::numeric_limits<double>::infinity();
      for (const double each : family.starts) {
        const double from = family.is_below_one ? 1 - each : each;
        const double distance = distance_of_most(residuals(from));
        if (distance < least) {
          least = distance;
          start = from;
        }
      }
      if (start > 0 && !try_near(family, fit_value(residuals, start)) && family.has_kinks) {
        try_near(family, fit_by_sections(residuals, start));
      }
    }
  }

  // Whether the fitted value, or one with few digits beside it, agrees.
  bool try_near(const RuleFamily& family, const std::optional<double>& fitted) {
    if (!fitted) {
      return false;
    }
    // The sum of squares is least near where all agree, not always there.
    constexpr double kNearlyAgrees = 4;
    const double value = family.is_below_one ? 1 - *fitted : *fitted;
    return try_(family.with(value).rule, options_.updates, /*whole=*/true).share <= kNearlyAgrees &&
           try_rounded(family.with, value, family.is_below_one);
  }

  const UpdateRule& meant_;
  const ExplainOptions& options_;
  const TryRule& try_;
  std::vector<Explanation> found_;
  std::vector<uint64_t> ends_;
};

}  // namespace

std::string explanations_text(const std::vector<Explanation>& explanations) {
  constexpr size_t kShown = 4;
  std::string texts;
  for (size_t i = 0; i < std::min(explanations.size(), kShown); ++i) {
    texts += (i == 0 ? "" : ", or ") + explanations[i].known.text;
  }
  return texts;
}

std::vector<Explanation> explain_updates(const UpdateRule& meant,
                                         const ExplainOptions& options,
                                         const TryRule& try_rule) {
  return Explaining(meant, options, try_rule).run();
}

}  // namespace tapestry
