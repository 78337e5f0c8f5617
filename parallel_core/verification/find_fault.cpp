#include "parallel_core/verification/find_fault.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/accuracy/checklist.h"
#include "parallel_core/accuracy/checklist_side.h"
#include "parallel_core/accuracy/compare_curves.h"
#include "parallel_core/dist_checkpointing/named_state.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/verification/batch_difference.h"
#include "parallel_core/verification/layout_comparison.h"
#include "parallel_core/verification/layout_text.h"
#include "parallel_core/verification/optimizer_check.h"
#include "parallel_core/verification/own_training.h"
#include "parallel_core/verification/reference_run.h"
#include "parallel_core/verification/step_comparison.h"

namespace tapestry {

namespace {

using accuracy::FirstDifference;
using accuracy::Outcome;
using accuracy::VerdictReport;

uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

class Search {
 public:
  Search(const ConfigLoader& load, const std::string& folder, const FindFaultOptions& options)
      : reference_(folder, options.map),
        options_(options),
        load_(load),
        training_(options.training) {
    config_ = load({});
    // A layout's data-parallel ranks are known by the sequences of the reference's steps alone.
    const int64_t theirs = reference_.config() ? global_batch_size(*reference_.config(), 1)
                                               : reference_.rows_of_step();
    const int64_t ours = global_batch_size(config_, 1);
    ranks_ = ours > 0 && theirs % ours == 0 ? std::max<int64_t>(1, theirs / ours) : 1;
    std::vector<std::string> overrides = single_process_overrides(config_, ranks_);
    single_ = load(overrides);
    require_supported(single_);
    if (reference_.config()) {
      theirs_ = *reference_.config();
    } else {
      overrides.push_back(reference_.data_override());
      theirs_ = load(overrides);
    }
    if (options.start_weights) {
      training_.start_weights = [this](const ParallelModel& model) {
        return in_logical_names(options_.start_weights(), logical_shapes(model),
                                single_.model_config);
      };
    }
    report_.command = "find_fault";
    report_.title = concat("our training and ", folder);
  }

  VerdictReport run() {
    if (config_stage() && weights_stage() && data_stage() && numbers_stages() &&
        determinism_stage() && expand_stage() && long_run_stage()) {
      report_.stage = "none";
      report_.lines.emplace_back("No stage fails: what differs, if anything does, is rounding.");
    }
    return std::move(report_);
  }

 private:
  void row(const std::string& stage,
           int64_t compared,
           double worst,
           double bound,
           bool agrees,
           const std::string& detail) {
    report_.findings.push_back({{"stage", stage},
                                {"compared", compared},
                                {"worst", worst},
                                {"bound", bound},
                                {"status", agrees ? "agrees" : "differs"},
                                {"detail", detail}});
  }

  bool fail(const std::string& stage, FirstDifference first, const std::string& sentence) {
    report_.outcome = Outcome::kDiffers;
    report_.stage = stage;
    report_.first = std::move(first);
    report_.lines.push_back(sentence);
    return false;
  }

  void not_compared(const std::string& stage, const std::string& detail) {
    row(stage, 0, 0, 0, true, detail);
    report_.findings.back()["status"] = "not_compared";
  }

  bool config_stage() {
    if (!is_understood(reference_.config_file())) {
      not_compared("config", reference_.config_file().empty()
                                 ? "the reference has no config.json"
                                 : "the reference's config.json is of its own kind");
      report_.lines.push_back(
          concat("Configurations were not compared: ", reference_.folder(),
                 reference_.config_file().empty() ? " has no config.json"
                                                  : "/config.json is none that is understood",
                 ". What is said below takes it that both sides were meant to be ours."));
      return true;
    }
    const VerdictReport list = accuracy::run_checklist(
        accuracy::side_of(config_, options_.config_file, {.data_parallel_size = ranks_}),
        accuracy::read_other_side(reference_.config_file(), {}));
    int64_t differing = 0;
    std::string keys;
    for (const accuracy::Finding& finding : list.findings) {
      if (finding.value("status", "") == "differs") {
        ++differing;
        keys += (keys.empty() ? "" : ", ") + finding.value("key", "");
      }
    }
    row("config", std::ssize(list.findings), static_cast<double>(differing), 0, differing == 0,
        keys);
    if (differing == 0) {
      return true;
    }
    FirstDifference first;
    first.tensor = keys.substr(0, keys.find(','));
    return fail("config", first,
                concat("The configurations differ in ", keys,
                       "; `accuracy checklist` says what each means. Make them equal first."));
  }

  // Whether a checklist can be made with it.
  static bool is_understood(const std::string& config_file) {
    if (config_file.empty()) {
      return false;
    }
    try {
      accuracy::read_other_side(config_file, {});
      return true;
    } catch (const IoError&) {
      return false;
    }
  }

  bool weights_stage() {
    LogicalState ours;
    {
      OwnTraining process(single_, training_);
      ours = process.start_weights();
    }
    LogicalShapes shapes;
    for (const auto& [name, value] : ours) {
      shapes.emplace(name, value.shape());
    }
    reference_.set_tensors(std::move(shapes), single_.model_config);
    LogicalState theirs;
    if (reference_.config() && options_.map.empty()) {
      OwnTraining process(theirs_, plain_);
      theirs = process.start_weights();
    } else {
      theirs = reference_.start_weights();
    }
    start_ = theirs;
    std::string differing;
    std::string detail;
    double distance = 0;
    for (const auto& [name, value] : ours) {
      const auto found = theirs.find(name);
      if (found == theirs.end()) {
        differing = name;
        detail = "the reference has no such tensor";
        distance = std::numeric_limits<double>::infinity();
        break;
      }
      const Tensor expected = found->second.to(value.dtype());
      if (!equal_bits(value, expected)) {
        differing = name;
        distance = element_distance(value.to(kFloat64), expected.to(kFloat64),
                                    largest_element(expected.to(kFloat64)));
        break;
      }
    }
    if (differing.empty() && theirs.size() > ours.size()) {
      for (const auto& [name, value] : theirs) {
        if (!ours.contains(name)) {
          differing = name;
          detail = "our model has no such tensor";
          distance = std::numeric_limits<double>::infinity();
        }
      }
    }
    row("weights", std::ssize(ours), distance, 0, differing.empty(), detail);
    if (differing.empty()) {
      return true;
    }
    FirstDifference first;
    first.tensor = differing;
    first.distance = distance;
    first.bound = 0;
    return fail(
        "weights", first,
        concat("Start weights differ, first in ", differing, detail.empty() ? "" : ": " + detail,
               ". Begin with the reference's: training_config.load_checkpoint names them, or "
               "--inject_weights."));
  }

  bool data_stage() {
    const int64_t steps = compared_steps();
    std::vector<std::vector<data::Batch>> theirs;
    {
      OwnTraining process(theirs_, plain_);
      theirs = process.batches(steps);
    }
    OwnTraining process(single_, training_);
    const auto ours = process.batches(steps);
    int64_t compared = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      const auto& a = ours[static_cast<size_t>(step - 1)];
      const auto& b = theirs[static_cast<size_t>(step - 1)];
      for (size_t m = 0; m < std::max(a.size(), b.size()); ++m) {
        FirstDifference first;
        first.step = step;
        first.micro_batch = static_cast<int64_t>(m);
        if (m >= a.size() || m >= b.size()) {
          row("data", compared, 1, 0, false, "numbers of micro-batches");
          return fail("data", first,
                      concat("Step ", step, " has ", a.size(), " micro-batches, ", b.size(),
                             " in the reference."));
        }
        compared += 3;
        if (const auto found = first_difference(a[m], b[m])) {
          first.tensor = found->tensor;
          first.sample = found->sample;
          row("data", compared, 1, 0, false, found->detail);
          return fail("data", first,
                      concat("The data of step ", step, ", micro-batch ", m,
                             " differ: ", found->detail, "."));
        }
      }
    }
    row("data", compared, 0, 0, true, concat(steps, " steps"));
    return true;
  }

  int64_t compared_steps() const { return std::min(options_.steps, reference_.steps()); }

  // Forward to optimizer.
  bool numbers_stages() {
    const int64_t steps = compared_steps();
    {
      OwnTraining process(single_, training_);
      own_ = process.train(steps);
    }
    StepComparison comparison(single_, own_, reference_);
    for (int64_t k = 0; k < options_.rounding_runs; ++k) {
      OwnTraining process(single_, training_);
      comparison.measure(process.train(steps, static_cast<uint64_t>(k)));
    }
    std::vector<ComparedQuantity> all;
    for (int64_t step = 1; step <= steps; ++step) {
      for (ComparedQuantity& each : comparison.compare(step)) {
        all.push_back(std::move(each));
      }
    }
    std::map<std::string, std::vector<const ComparedQuantity*>> by_stage;
    const ComparedQuantity* first = nullptr;
    for (const ComparedQuantity& each : all) {
      by_stage[each.stage].push_back(&each);
      if (first == nullptr && !each.finding.agrees()) {
        first = &each;
      }
    }
    for (const char* stage :
         {"forward", "loss", "backward", "reduction", "schedule", "optimizer"}) {
      add_row(stage, by_stage[stage]);
    }
    // A wrong update shows in the next step's numbers, too: it comes first, and so does a weight
    // that is not what the update has left.
    const auto comes_first = [&](int64_t step) {
      return first == nullptr || first->finding.step > step ||
             (first->finding.step == step && first->stage == "optimizer");
    };
    const std::vector<ObservedUpdate> updates = recorded_updates();
    const auto rule = followed_rule();
    const auto optimizer =
        rule ? find_optimizer_fault(*rule, updates, rates()) : std::optional<OptimizerFault>();
    if (rule && !optimizer) {
      row("optimizer", std::ssize(own_.tensors) * steps, largest_update_share(*rule, updates), 1,
          true, "updates follow from their gradients");
    }
    const auto stale = stale_weight();
    if (stale && comes_first(stale->step - 1) && (!optimizer || optimizer->step >= stale->step)) {
      return fail_stale(*stale);
    }
    if (optimizer && comes_first(optimizer->step)) {
      return fail_optimizer(*optimizer, "Step ");
    }
    const std::vector<ObservedUpdate> others = reference_updates();
    const auto other = rule && !optimizer && !others.empty()
                           ? find_optimizer_fault(*rule, others, rates())
                           : std::optional<OptimizerFault>();
    if (other && comes_first(other->step)) {
      return fail_optimizer(*other, "Ours follows them. The reference's step ");
    }
    if (first == nullptr) {
      return true;
    }
    if (rule && is_behind_an_update(*first)) {
      return fail_update(*first, *rule, comparison);
    }
    // What comes after updates of which nothing is known may be their fault.
    const bool may_be_an_update = first->finding.step > 1 && !rule && first->stage != "schedule";
    return fail_number(*first, may_be_an_update ? "optimizer" : first->stage,
                       by_stage[first->stage]);
  }

  // A weight that changes between two steps, or whose copy for computing did not follow it.
  struct StaleWeight {
    int64_t step = 0;
    std::string tensor;
    std::string sentence;
  };
  std::optional<StaleWeight> stale_weight() const {
    for (size_t i = 0; i < own_.steps.size(); ++i) {
      const OwnStep& step = own_.steps[i];
      const auto number = static_cast<int64_t>(i) + 1;
      if (i > 0) {
        for (const auto& [name, entry] : step.update.entries) {
          if (!equal_bits(entry.before, own_.steps[i - 1].update.entries.at(name).after)) {
            return StaleWeight{number, name,
                               concat("Step ", number, " begins with another ", name, " than step ",
                                      number - 1, "'s update has left.")};
          }
        }
      }
      if (!step.stale_copy.empty()) {
        return StaleWeight{number, step.stale_copy,
                           concat("Step ", number, " computes with a ", step.stale_copy,
                                  " that is not its float32 master, rounded: the copy was not "
                                  "renewed after an update.")};
      }
    }
    return std::nullopt;
  }

  bool fail_stale(const StaleWeight& stale) {
    FirstDifference first;
    first.step = stale.step;
    first.tensor = stale.tensor;
    first.module = own_.paths.at(stale.tensor);
    row("optimizer", std::ssize(own_.tensors), 1, 0, false, "weights between steps");
    return fail("optimizer", first, stale.sentence);
  }

  void add_row(const std::string& stage, const std::vector<const ComparedQuantity*>& entries) {
    const ComparedQuantity* worst = nullptr;
    const auto share = [](const ComparedQuantity* c) {
      return c->finding.bound > 0  ? c->finding.distance / c->finding.bound
             : c->finding.agrees() ? 0.0
                                   : std::numeric_limits<double>::infinity();
    };
    bool agrees = true;
    for (const ComparedQuantity* each : entries) {
      agrees = agrees && each->finding.agrees();
      if (worst == nullptr || !(share(each) <= share(worst))) {
        worst = each;
      }
    }
    if (worst != nullptr) {
      row(stage, std::ssize(entries), worst->finding.distance, worst->finding.bound, agrees,
          concat(worst->finding.name, " of step ", worst->finding.step));
    } else {
      not_compared(stage, "the reference stores nothing of it");
    }
  }

  // The rule that updates can be held against.
  std::optional<AdamRule> followed_rule() const {
    return single_.model_config.params_dtype == kFloat32 ? adam_rule(single_) : std::nullopt;
  }
  std::vector<ObservedUpdate> recorded_updates() const {
    std::vector<ObservedUpdate> updates;
    for (const OwnStep& step : own_.steps) {
      updates.push_back(step.update);
    }
    return updates;
  }

  // By the configuration; where the reference says another one the stage `schedule` has ended.
  RateOfStep rates() const {
    const std::shared_ptr<const optim::Schedule> schedule =
        get_optimizer_param_scheduler(single_, /*data_parallel_size=*/1);
    return [schedule](int64_t step) {
      return schedule->learning_rate({.applied = step - 1, .seen = step - 1});
    };
  }

  // Of the reference's first steps, as far as their gradients and weights are stored in float32.
  std::vector<ObservedUpdate> reference_updates() const {
    std::vector<ObservedUpdate> updates;
    LogicalState before = start_;
    for (int64_t step = 1; step <= compared_steps(); ++step) {
      const auto gradients = reference_.gradients(step);
      auto weights = reference_.weights(step);
      if (!gradients || !weights) {
        break;
      }
      const OwnStep& own = own_.steps[static_cast<size_t>(step - 1)];
      const std::vector<double>& said = reference_.step(step).lr;
      ObservedUpdate& update = updates.emplace_back();
      update.step = step;
      for (const auto& [name, entry] : own.update.entries) {
        const auto gradient = gradients->find(name);
        const auto weight = weights->find(name);
        if (gradient == gradients->end() || weight == weights->end() || !before.contains(name) ||
            weight->second.dtype() != kFloat32 || before.at(name).dtype() != kFloat32 ||
            weight->second.shape() != entry.before.shape() ||
            gradient->second.shape() != entry.before.shape()) {
          return {};  // a norm of part of the gradients says nothing of the clip
        }
        update.entries[name] = {.gradient = gradient->second,
                                .before = before.at(name),
                                .after = weight->second,
                                .lr = said.size() == 1 ? said.front() : entry.lr,
                                .weight_decay = entry.weight_decay,
                                .decays = entry.decays};
      }
      before = std::move(*weights);
    }
    return updates;
  }

  // Whether the first difference comes after updates of which the reference has stored nothing, so
  // that they may have made it.
  bool is_behind_an_update(const ComparedQuantity& first) const {
    return first.finding.step > 1 && first.stage != "schedule" && first.stage != "optimizer" &&
           first.finding.what != Compared::kTokens && !reference_.weights(first.finding.step - 1);
  }

  // A rule by which the reference's numbers can be had.
  struct Fitting {
    KnownRule known;
    double share = 0;  // of the bounds, the largest
    LogicalState end;
  };

  std::vector<Fitting> fitting_rules(const AdamRule& rule, const StepComparison& measured) {
    std::vector<Fitting> fitting;
    const int64_t steps = compared_steps();
    for (const KnownRule& known : known_rules(rule, rates(), steps)) {
      double share = 0;
      bool fits = true;
      const auto goes_on = [&](const OwnRun& run) {
        const StepComparison comparison(measured, run);
        for (const ComparedQuantity& each : comparison.compare(std::ssize(run.steps))) {
          if (each.finding.what == Compared::kSchedule) {
            continue;  // what it says, not what it does
          }
          fits = fits && each.finding.agrees();
          if (each.finding.bound > 0) {
            share = std::max(share, each.finding.distance / each.finding.bound);
          }
        }
        return fits;
      };
      OwnTraining process(single_, training_);
      const OwnRun run = process.train_by_rule(steps, known.rule, goes_on);
      if (!fits) {
        continue;
      }
      // Two rules may be one for this model: where only norms do not decay, say.
      LogicalState end;
      for (const auto& [name, entry] : run.steps.back().update.entries) {
        end.emplace(name, entry.after);
      }
      const bool is_known = std::any_of(fitting.begin(), fitting.end(), [&](const Fitting& other) {
        return std::all_of(end.begin(), end.end(), [&](const auto& entry) {
          return equal_bits(entry.second, other.end.at(entry.first));
        });
      });
      if (!is_known) {
        fitting.push_back({known, share, std::move(end)});
      }
    }
    std::stable_sort(fitting.begin(), fitting.end(),
                     [](const Fitting& a, const Fitting& b) { return a.share < b.share; });
    return fitting;
  }

  // All agrees until an update, of which nothing is stored, and no more after it.
  bool fail_update(const ComparedQuantity& found,
                   const AdamRule& rule,
                   const StepComparison& comparison) {
    const int64_t step = found.finding.step - 1;
    const std::vector<Fitting> fitting = fitting_rules(rule, comparison);
    const bool gradients =
        reference_.gradients(step).has_value() || !reference_.step(step).grad_norms.empty();
    const std::string compared =
        concat("Steps up to ", step, " agree in what the reference has stored of them, ",
               gradients                         ? "their gradients included"
               : reference_.step(step).grad_norm ? "of gradients the norm of all alone"
                                                 : "gradients not among it",
               ", and our updates follow the settings. ");
    const std::string differs =
        concat("Step ", found.finding.step, "'s ", found.finding.name, " differs (",
               found.finding.detail.empty() ? concat("distance ", found.finding.distance)
                                            : found.finding.detail,
               "). ");
    FirstDifference first;
    first.step = step;
    first.op = single_.optimizer_config.optimizer_type;
    first.distance = found.finding.distance;
    first.bound = found.finding.bound;
    if (fitting.empty()) {
      // A rate of 0 on both sides moves nothing.
      if (!an_update_has_moved(step) && !reference_.step(step).lr.empty()) {
        return fail_number(found, found.stage, {&found});
      }
      const std::string unknown =
          concat(gradients ? "" : "gradients or ", "the update of step ", step,
                 ": the reference has no weights of it, and no known rule makes the later numbers");
      row("optimizer", 0, found.finding.distance, found.finding.bound, false, unknown);
      return fail(
          "optimizer", first,
          concat(compared, differs, "What lies between is ", unknown, "; store weights_step_", step,
                 ".safetensors there to see which tensor moves otherwise. If it moves as "
                 "ours, the forward pass on the data of step ",
                 found.finding.step, " is left."));
    }
    std::string texts = fitting.front().known.text;
    constexpr size_t kShown = 3;
    for (size_t i = 1; i < std::min(fitting.size(), kShown); ++i) {
      texts += ", or " + fitting[i].known.text;
    }
    const KnownRule& best = fitting.front().known;
    const std::string stage = best.is_clipping        ? "clip"
                              : best.is_learning_rate ? "schedule"
                                                      : "optimizer";
    row(stage, compared_steps(), found.finding.distance, found.finding.bound, false, texts);
    return fail(
        stage, first,
        concat(compared, differs, "The reference is updated ", texts,
               ": trained so, all that it has stored of steps 1 to ", compared_steps(), " agrees",
               fitting.size() > 1 ? "; what is stored does not tell these apart." : "."));
  }

  // Whether weights have changed by then.
  bool an_update_has_moved(int64_t step) const {
    for (int64_t before = 1; before <= step; ++before) {
      for (const auto& [name, entry] : own_.steps[static_cast<size_t>(before - 1)].update.entries) {
        if (!equal_bits(entry.before, entry.after)) {
          return true;
        }
      }
    }
    return false;
  }

  bool fail_optimizer(const OptimizerFault& fault, const std::string& whose) {
    const std::string stage = fault.is_clipping        ? "clip"
                              : fault.is_learning_rate ? "schedule"
                                                       : "optimizer";
    FirstDifference first;
    first.step = fault.step;
    first.tensor = fault.tensor;
    first.op = single_.optimizer_config.optimizer_type;
    first.module = own_.paths.at(fault.tensor);
    first.distance = fault.share;
    first.bound = 1;
    row(stage, std::ssize(own_.tensors), fault.share, 1, false, fault.explanation);
    return fail(stage, first,
                concat(whose, fault.step, " does not move ", fault.tensor,
                       " as its gradient, the learning rate and the settings say",
                       fault.explanation.empty() ? "" : ": it is " + fault.explanation, "."));
  }

  bool fail_number(const ComparedQuantity& found,
                   const std::string& stage,
                   const std::vector<const ComparedQuantity*>& of_stage) {
    FirstDifference first;
    first.step = found.finding.step;
    first.tensor = found.finding.name;
    if (!found.pass.empty()) {
      first.pass = found.pass;
    }
    if (!found.module.empty()) {
      first.module = found.module;
    }
    first.distance = found.finding.distance;
    first.bound = found.finding.bound;
    if (found.finding.what != Compared::kGradient) {
      return fail(stage, first, LayoutFindings::sentence(found.finding));
    }
    std::vector<const ComparedQuantity*> gradients;
    for (const ComparedQuantity* each : of_stage) {
      if (each->finding.what == Compared::kGradient && each->finding.step == found.finding.step) {
        gradients.push_back(each);
      }
    }
    const auto at = std::find(gradients.begin(), gradients.end(), &found);
    const BackwardPlace place =
        place_in_backward(gradients, static_cast<size_t>(at - gradients.begin()));
    first.module = place.module;
    Finding finding = found.finding;
    finding.made_by = "backward of " + own_.described(place.module);
    finding.detail = place.detail;
    return fail(stage, first, LayoutFindings::sentence(finding));
  }

  bool determinism_stage() {
    OwnTraining process(single_, training_);
    const OwnRun again = process.train(std::ssize(own_.steps));
    for (size_t i = 0; i < own_.steps.size(); ++i) {
      const OwnStep& a = own_.steps[i];
      const OwnStep& b = again.steps[i];
      FirstDifference first;
      first.step = static_cast<int64_t>(i) + 1;
      first.distance = 0;
      std::string what;
      for (const auto& [name, order] : own_.value_order) {
        if (what.empty() && a.values.contains(name) &&
            !equal_bits(a.values.at(name), b.values.at(name))) {
          what = name;
          first.module = module_of_value(own_, name);
        }
      }
      for (const auto& [name, gradient] : a.gradients) {
        if (what.empty() && !equal_bits(gradient, b.gradients.at(name))) {
          what = "the gradient of " + name;
          first.module = own_.paths.at(name);
        }
      }
      if (what.empty() && bits_of(a.result.loss) != bits_of(b.result.loss)) {
        what = "loss";
      }
      if (!what.empty()) {
        first.tensor = what;
        row("determinism", 2, 1, 0, false, what);
        return fail("determinism", first,
                    concat("The same steps again do not have the same bits: ", what, " of step ",
                           i + 1, "."));
      }
    }
    row("determinism", std::ssize(own_.steps), 0, 0, true, "the same bits twice");
    return true;
  }

  static std::string stage_of(Compared what, const std::string& layout) {
    switch (what) {
      case Compared::kInitialWeights:
        return "weights";
      case Compared::kTokens:
        return "data";
      case Compared::kChoice:
      case Compared::kActivation:
      case Compared::kExpertCounts:
        return "forward";
      case Compared::kLoss:
        return "loss";
      case Compared::kGradient:
        return layout.find("dp=") != std::string::npos ? "reduction" : "backward";
      case Compared::kGradNorm:
        return "reduction";
      case Compared::kSchedule:
        return "schedule";
      case Compared::kWeights:
        return "optimizer";
    }
    return "none";
  }

  bool expand_stage() {
    for (const std::string& layout : options_.expand) {
      const LayoutPair pair = load_layout_pair(layout, load_);
      VerifyOptions verify = training_;
      verify.steps = compared_steps();
      const LayoutReport found = compare_layout(pair, verify);
      const auto first = found.findings->first();
      row("layout " + layout, found.steps, first ? first->distance : 0, first ? first->bound : 0,
          !first, first ? first->name : "agrees with one process");
      if (first) {
        FirstDifference difference;
        difference.step = first->step;
        difference.tensor = first->name;
        difference.module = first->made_by;
        difference.pass = first->what == Compared::kGradient ? "backward" : "forward";
        difference.distance = first->distance;
        difference.bound = first->bound;
        return fail(stage_of(first->what, layout), difference,
                    concat("In the layout ", layout, ", ", LayoutFindings::sentence(*first)));
      }
    }
    return true;
  }

  bool long_run_stage() {
    const int64_t steps = reference_.steps();
    if (steps <= compared_steps()) {
      return true;
    }
    OwnRun all;
    {
      OwnTraining process(single_, training_);
      all = process.train(steps);
    }
    const auto add_point = [](accuracy::CurveRun& curve, int64_t at, double loss, double norm) {
      curve.steps.push_back(at);
      curve.loss.push_back(loss);
      curve.grad_norm.push_back(norm);
    };
    accuracy::CurveRun ours{.name = "ours"};
    accuracy::CurveRun theirs{.name = reference_.folder()};
    for (int64_t step = 1; step <= steps; ++step) {
      const StepResult& result = all.steps[static_cast<size_t>(step - 1)].result;
      add_point(ours, step, result.loss, result.grad_norm);
      const ReferenceStep& other = reference_.step(step);
      if (other.loss) {
        add_point(theirs, step, *other.loss,
                  other.grad_norm.value_or(std::numeric_limits<double>::quiet_NaN()));
      }
    }
    const accuracy::CurveComparison curves = accuracy::compare_curves(ours, {theirs}, {});
    const bool agrees = curves.report.outcome == Outcome::kAgrees;
    row("long_run", steps, 0, 0, agrees, curves.report.verdict_name());
    if (agrees) {
      return true;
    }
    return fail(
        "long_run", curves.report.first.value_or(FirstDifference{}),
        curves.report.lines.empty() ? curves.report.verdict_name() : curves.report.lines.front());
  }

  ReferenceRun reference_;
  const FindFaultOptions& options_;
  const ConfigLoader& load_;
  VerifyOptions training_;
  AllConfig config_;
  AllConfig single_;
  AllConfig theirs_;
  LogicalState start_;  // the reference's
  VerifyOptions plain_;
  int64_t ranks_ = 1;
  OwnRun own_;
  VerdictReport report_;
};

}  // namespace

VerdictReport find_fault(const ConfigLoader& load,
                         const std::string& reference_folder,
                         const FindFaultOptions& options) {
  return Search(load, reference_folder, options).run();
}

}  // namespace tapestry
