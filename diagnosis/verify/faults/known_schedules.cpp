#include "diagnosis/verify/faults/known_schedules.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/known_rules.h"
#include "parallel_core/optimizer/get_optimizer.h"

namespace tapestry {

namespace {

// What a rate that was fitted to losses may be off by.
constexpr double kNear = 2e-3;
constexpr size_t kMost = 4;

class Candidates {
 public:
  explicit Candidates(const std::vector<double>& rates) : rates_(rates) {}

  bool add(std::string text, RateOfStep rate) {
    for (size_t i = 0; i < rates_.size(); ++i) {
      const double given = rate(static_cast<int64_t>(i) + 1);
      if (!(std::abs(given - rates_[i]) <= kNear * std::abs(rates_[i]))) {
        return false;
      }
    }
    if (all.size() < kMost) {
      all.push_back({std::move(text), std::move(rate)});
    }
    return true;
  }

  std::vector<KnownSchedule> all;

 private:
  const std::vector<double>& rates_;
};

// A configuration whose schedule was changed, and what was changed.
struct Change {
  std::string text;
  AllConfig config;
};

bool try_change(Change change, Candidates& found) {
  try {
    return found.add("as if " + change.text, rate_of_step(change.config));
  } catch (const Error&) {  // no schedule has these lengths
    return false;
  }
}

// Lengths of a warm-up that the rates may have.
std::set<int64_t> warmups(const OptimizerConfig& o, const std::vector<double>& rates) {
  std::set<int64_t> lengths = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 20, 32, 50, 64, 100};
  const auto add = [&](double length) {
    if (length >= 1 && length < 1e7) {
      lengths.insert(std::llround(length));
    }
  };
  for (size_t i = 0; i < rates.size(); ++i) {
    add(o.learning_rate * static_cast<double>(i + 1) / rates[i]);
    add(o.learning_rate * static_cast<double>(i) / rates[i]);
    if (i > 0) {
      add(o.learning_rate / (rates[i] - rates[i - 1]));
    }
  }
  lengths.erase(o.lr_warmup_iters);
  return lengths;
}

std::vector<Change> warmup_changes(const AllConfig& meant, const std::vector<double>& rates) {
  std::vector<Change> all;
  for (const int64_t length : warmups(meant.optimizer_config, rates)) {
    Change change{
        length == 0 ? "there were no warm-up" : concat("the warm-up took ", length, " steps"),
        meant};
    change.config.optimizer_config.lr_warmup_iters = length;
    change.config.optimizer_config.lr_warmup_fraction.reset();
    all.push_back(change);
    if (length > 0) {
      change.text += " and began at a rate of 0";
      change.config.optimizer_config.lr_warmup_init = 0.0;
      all.push_back(std::move(change));
    }
  }
  return all;
}

// Courses of the decay, apart from its length.
std::vector<Change> style_changes(const AllConfig& meant) {
  std::vector<Change> all;
  for (const std::string style : {"constant", "linear", "cosine", "inverse-square-root"}) {
    if (style != meant.optimizer_config.lr_decay_style.value_or("constant")) {
      Change change{concat("lr_decay_style were ", style), meant};
      change.config.optimizer_config.lr_decay_style = style;
      all.push_back(std::move(change));
    }
  }
  const double peak = meant.optimizer_config.learning_rate;
  for (const double least : {0.0, 0.01 * peak, 0.1 * peak, 0.5 * peak}) {
    if (least != meant.optimizer_config.min_lr) {
      Change change{concat("min_lr were ", short_text(least)), meant};
      change.config.optimizer_config.min_lr = least;
      all.push_back(std::move(change));
    }
  }
  return all;
}

// Another peak, with everything else as it is: the end of the decay, say.
void add_peaks(const AllConfig& meant, const std::vector<double>& rates, Candidates& found) {
  const RateOfStep own = rate_of_step(meant);
  if (rates.empty() || !(own(1) > 0) || !(rates.front() > 0)) {
    return;
  }
  const double peak = meant.optimizer_config.learning_rate * rates.front() / own(1);
  for (int digits = 1; digits <= 4; ++digits) {
    Change change{{}, meant};
    double& rounded = change.config.optimizer_config.learning_rate;
    rounded = rounded_to(peak, digits);
    change.text = concat("learning_rate were ", short_text(rounded));
    if (try_change(std::move(change), found)) {
      return;
    }
  }
}

// Ends of the decay: near ones one by one, then round ones, then in steps of a percent.
std::set<int64_t> decay_lengths() {
  std::set<int64_t> lengths;
  for (int64_t length = 1; length <= 200; ++length) {
    lengths.insert(length);
  }
  for (const int64_t power : {100, 1000, 10'000, 100'000}) {
    for (int64_t k = 1; k <= 100; ++k) {
      lengths.insert(power * k / 10);
    }
  }
  return lengths;
}

void add_moved(const RateOfStep& meant, Candidates& found) {
  found.add("as if the schedule were one step ahead",
            [meant](int64_t step) { return meant(step + 1); });
  found.add("as if the schedule were one step behind, the first step with a rate of 0",
            [meant](int64_t step) { return step > 1 ? meant(step - 1) : 0.0; });
  found.add("as if the schedule were one step behind",
            [meant](int64_t step) { return meant(std::max<int64_t>(step - 1, 1)); });
}

// Of rates that grow to the meant peak, whatever they begin at.
void add_beginnings(const AllConfig& meant, const std::vector<double>& rates, Candidates& found) {
  const OptimizerConfig& o = meant.optimizer_config;
  const int64_t length = o.lr_warmup_iters;
  if (length < 1 || rates.empty()) {
    return;
  }
  const RateOfStep own = rate_of_step(meant);
  const double peak = o.learning_rate;
  const double first = rates.front();
  const auto steps = static_cast<double>(length);
  if (length > 1) {  // begin + (peak - begin) s / W
    const double begin = std::max(0.0, (first - peak / steps) / (1 - 1 / steps));
    found.add(concat("as if the warm-up began at ", short_text(begin), " before its first step"),
              [=](int64_t step) {
                return step <= length ? begin + (peak - begin) * static_cast<double>(step) / steps
                                      : own(step);
              });
  }
  found.add(concat("as if the warm-up began at ", short_text(first), " in its first step"),
            [=](int64_t step) {
              return step <= length ? first + (peak - first) * static_cast<double>(step - 1) / steps
                                    : own(step);
            });
  found.add(concat("as if the learning rate were that of the peak, ", short_text(peak),
                   ", in every step"),
            [=](int64_t /*step*/) { return peak; });
}

void add_ends(const AllConfig& meant, const std::string& more, Candidates& found) {
  for (const int64_t length : decay_lengths()) {
    if (length != meant.optimizer_config.lr_decay_iters) {
      Change change{concat("lr_decay_iters were ", length, more), meant};
      change.config.optimizer_config.lr_decay_iters = length;
      try_change(std::move(change), found);
    }
  }
}

}  // namespace

RateOfStep rate_of_step(const AllConfig& config) {
  const std::shared_ptr<const optim::Schedule> schedule =
      get_optimizer_param_scheduler(config, /*data_parallel_size=*/1);
  return [schedule](int64_t step) {
    return schedule->learning_rate({.applied = step - 1, .seen = step - 1});
  };
}

std::vector<KnownSchedule> schedules_near(const AllConfig& meant,
                                          const std::vector<double>& rates) {
  Candidates found(rates);
  add_moved(rate_of_step(meant), found);
  const std::vector<Change> warmups = warmup_changes(meant, rates);
  for (const Change& change : warmups) {
    try_change(change, found);
  }
  const std::vector<Change> styles = style_changes(meant);
  for (const Change& change : styles) {
    try_change(change, found);
  }
  add_peaks(meant, rates, found);
  add_beginnings(meant, rates, found);
  const double first = meant.optimizer_config.learning_rate;
  found.add("as if the learning rate stayed that of the first step",
            [first = rates.empty() ? first : rates.front()](int64_t /*step*/) { return first; });
  add_ends(meant, "", found);
  if (!found.all.empty()) {
    return found.all;
  }
  for (const Change& warmup : warmups) {
    for (Change& style : style_changes(warmup.config)) {
      style.text = concat(warmup.text, " and ", style.text);
      try_change(std::move(style), found);
    }
  }
  for (const Change& style : styles) {
    add_ends(style.config, concat(" and ", style.text), found);
  }
  return found.all;
}

}  // namespace tapestry
