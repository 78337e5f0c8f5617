#include "parallel_core/verification/find_fault.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/accuracy/checklist.h"
#include "parallel_core/accuracy/checklist_side.h"
#include "parallel_core/accuracy/compare_curves.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/rounding_noise.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/verification/compared_training.h"
#include "parallel_core/verification/layout_comparison.h"
#include "parallel_core/verification/layout_text.h"
#include "parallel_core/verification/optimizer_check.h"
#include "parallel_core/verification/reference_run.h"
#include "parallel_core/verification/rounding_spread.h"

namespace tapestry {

namespace {

using accuracy::FirstDifference;
using accuracy::Outcome;
using accuracy::VerdictReport;

// What our training has done in a step.
struct OwnStep {
  StepResult result;
  std::map<std::string, Tensor> values;
  LogicalState gradients;
  ObservedUpdate update;
};

struct OwnRun {
  std::vector<OwnStep> steps;
  std::vector<std::string> tensors;            // in the order of their making
  std::map<std::string, std::string> makers;   // by logical tensor: type and path of the module
  std::map<std::string, int64_t> value_order;  // of a step
};

uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return false;
  }
  const Tensor x = dense(a);
  const Tensor y = dense(b);
  return std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

// One process with the data of all ranks of the configuration.
class Process {
 public:
  Process(const AllConfig& config, const VerifyOptions& options)
      : guard_(context_), config_(config), options_(options) {
    initialize_model_parallel();
  }
  ~Process() { destroy_model_parallel(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  LogicalState start_weights() {
    ComparedTraining training(config_, options_, true);
    load_start(training);
    return get_logical_state(*training.model);
  }

  std::vector<std::vector<data::Batch>> batches(int64_t steps) {
    const ComparedTraining training(config_, options_, true);
    std::vector<std::vector<data::Batch>> out;
    for (int64_t step = 0; step < steps; ++step) {
      out.push_back(training.batches(step));
    }
    return out;
  }

  // Trains; with `draw`, results of ops are moved by roundings.
  OwnRun train(int64_t steps, const std::optional<uint64_t>& draw) {
    ComparedTraining training(config_, options_, true);
    OwnRun run;
    for (const nn::Module::NamedModule& entry : training.model->named_modules()) {
      types_[entry.name] = entry.module->type_name();
    }
    std::map<std::string, bool> decays;
    std::map<std::string, std::string> owner;
    for (const nn::Module::NamedParameter& entry : training.model->named_parameters()) {
      const std::string module = entry.name.substr(0, entry.name.rfind('.'));
      for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
        run.tensors.push_back(logical.name);
        run.makers[logical.name] = types_[module] + " " + module;
        decays[logical.name] = entry.parameter->flags().decay;
        owner[logical.name] = entry.name;
      }
    }
    load_start(training);
    if (options_.parts.started) {
      options_.parts.started(*training.model);
    }
    training.start({});
    for (int64_t step = 1; step <= steps; ++step) {
      if (options_.parts.before_step) {
        options_.parts.before_step(*training.model, step);
      }
      run.steps.push_back(train_step(training, step, draw, decays, owner));
      if (step == 1) {
        int64_t order = 0;
        for (const std::string& name : value_order_) {
          run.value_order[name] = order++;
        }
      }
    }
    return run;
  }

 private:
  // Values as ActivationRecorder keeps them, and their order.
  class OrderedRecorder final : public ActivationRecorder {
   public:
    explicit OrderedRecorder(std::vector<std::string>& order) : order_(order) {}
    void value_made(const ObservedValue& value) override {
      const std::string name(value.name);
      if (!values().contains(name)) {
        order_.push_back(name);
      }
      ActivationRecorder::value_made(value);
    }

   private:
    std::vector<std::string>& order_;
  };

  void load_start(ComparedTraining& training) {
    if (const std::string& path = config_.training_config.load_checkpoint; !path.empty()) {
      load_weights(*training.model, config_.model_config, path);
    }
  }

  OwnStep train_step(ComparedTraining& training,
                     int64_t step,
                     const std::optional<uint64_t>& draw,
                     const std::map<std::string, bool>& decays,
                     const std::map<std::string, std::string>& owner) {
    OwnStep own;
    own.update.step = step;
    LogicalState before = get_logical_state(*training.model, training.optimizer.get());
    training.cell->set_gradient_observer(
        [&](int64_t /*step*/) { own.gradients = logical_gradients(*training.model); });
    const std::vector<data::Batch> batches = training.batches(step - 1);
    {
      std::optional<RoundingNoise> noise;
      std::optional<ObserverScope> noisy;
      if (draw) {
        noise.emplace(*draw * 1000003 + static_cast<uint64_t>(step));
        noisy.emplace(*noise);
      }
      const std::unique_ptr<Observer> observer =
          options_.parts.observer ? options_.parts.observer() : nullptr;
      std::optional<ObserverScope> observed;
      if (observer != nullptr) {
        observed.emplace(*observer);
      }
      value_order_.clear();
      const OrderedRecorder recorder(value_order_);
      own.result = (*training.cell)(batches);
      own.values = recorder.values();
    }
    training.cell->set_gradient_observer({});
    LogicalState after = get_logical_state(*training.model, training.optimizer.get());
    std::map<std::string, const optim::ParamGroup*> groups;
    for (const optim::ParamGroup& group : training.optimizer->param_groups()) {
      for (const std::string& name : group.names) {
        groups[name] = &group;
      }
    }
    for (const auto& [name, gradient] : own.gradients) {
      const auto group = groups.find(owner.at(name));
      const bool known = group != groups.end();
      // The decay that belongs to the step, whichever group the tensor was put into.
      double decay = 0;
      for (const optim::ParamGroup& each : training.optimizer->param_groups()) {
        decay = std::max(decay, each.weight_decay);
      }
      own.update.entries[name] = {.gradient = gradient,
                                  .before = before.at(name),
                                  .after = after.at(name),
                                  .lr = known ? group->second->lr : 0,
                                  .weight_decay = decay,
                                  .decays = decays.at(name)};
    }
    return own;
  }

  RankContext context_;
  RankContextGuard guard_;
  const AllConfig& config_;
  const VerifyOptions& options_;
  std::map<std::string, std::string> types_;
  std::vector<std::string> value_order_;
};

// One quantity on both sides.
struct Quantity {
  Finding finding;
  std::string stage;
  std::string pass;
  std::string module;
};

class Search {
 public:
  Search(const ConfigLoader& load, const std::string& folder, const FindFaultOptions& options)
      : reference_(folder), options_(options), load_(load) {
    config_ = load({});
    // A layout's data-parallel ranks are known by the sequences of the reference's steps alone.
    const int64_t theirs = global_batch_size(reference_.config(), 1);
    const int64_t ours = global_batch_size(config_, 1);
    const int64_t ranks = ours > 0 && theirs % ours == 0 ? std::max<int64_t>(1, theirs / ours) : 1;
    single_ = load(single_process_overrides(config_, ranks));
    require_supported(single_);
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

  bool config_stage() {
    const accuracy::SideOptions sides;
    const VerdictReport list =
        accuracy::run_checklist(accuracy::side_of(config_, options_.config_file, sides),
                                accuracy::read_other_side(reference_.config_file(), sides));
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

  bool weights_stage() {
    LogicalState theirs;
    {
      Process process(reference_.config(), plain_);
      theirs = process.start_weights();
    }
    Process process(single_, options_.training);
    const LogicalState ours = process.start_weights();
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
      if (!same_bits(value, expected)) {
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
               ". Begin with the reference's: training_config.load_checkpoint names them."));
  }

  bool data_stage() {
    const int64_t steps = compared_steps();
    std::vector<std::vector<data::Batch>> theirs;
    {
      Process process(reference_.config(), plain_);
      theirs = process.batches(steps);
    }
    Process process(single_, options_.training);
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
        if (const auto found = first_other(a[m], b[m])) {
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

  struct Other {
    std::string tensor;
    std::optional<int64_t> sample;
    std::string detail;
  };
  static std::optional<Other> first_other(const data::Batch& a, const data::Batch& b) {
    if (a.batch != b.batch || a.seq != b.seq) {
      return Other{
          "tokens", {}, concat(a.batch, " x ", a.seq, " tokens against ", b.batch, " x ", b.seq)};
    }
    const auto look = [&](const char* name, const auto& x, const auto& y) -> std::optional<Other> {
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
        if (x[i] != y[i]) {
          const auto row = static_cast<int64_t>(i) / a.seq;
          const auto at = static_cast<size_t>(row);
          return Other{name,
                       at < a.sample_ids.size() ? std::optional(a.sample_ids[at]) : std::nullopt,
                       concat(name, " of row ", row, ", position ", static_cast<int64_t>(i) % a.seq,
                              ": ", x[i], " against ", y[i])};
        }
      }
      if (x.size() != y.size()) {
        return Other{name, {}, concat(name, ": ", x.size(), " against ", y.size())};
      }
      return std::nullopt;
    };
    if (auto found = look("tokens", a.tokens, b.tokens)) {
      return found;
    }
    if (auto found = look("labels", a.labels, b.labels)) {
      return found;
    }
    return look("loss_mask", a.loss_mask, b.loss_mask);
  }

  int64_t compared_steps() const { return std::min(options_.steps, reference_.steps()); }

  // Forward to optimizer.
  bool numbers_stages() {
    const int64_t steps = compared_steps();
    {
      Process process(single_, options_.training);
      own_ = process.train(steps, std::nullopt);
    }
    for (int64_t k = 0; k < options_.rounding_runs; ++k) {
      Process process(single_, options_.training);
      measure(process.train(steps, static_cast<uint64_t>(k)));
    }
    std::vector<Quantity> all;
    for (int64_t step = 1; step <= steps; ++step) {
      compare_step(step, all);
    }
    const auto optimizer = optimizer_fault();
    std::map<std::string, std::vector<const Quantity*>> by_stage;
    const Quantity* first = nullptr;
    for (const Quantity& each : all) {
      by_stage[each.stage].push_back(&each);
      if (first == nullptr && !each.finding.agrees()) {
        first = &each;
      }
    }
    for (const char* stage :
         {"forward", "loss", "backward", "reduction", "schedule", "optimizer"}) {
      add_row(stage, by_stage[stage]);
    }
    // A wrong update shows in the next step's numbers, too: it comes first.
    if (optimizer && (first == nullptr || first->finding.step > optimizer->step ||
                      first->stage == "optimizer")) {
      return fail_optimizer(*optimizer);
    }
    if (first == nullptr) {
      return true;
    }
    return fail_number(*first);
  }

  void add_row(const std::string& stage, const std::vector<const Quantity*>& entries) {
    const Quantity* worst = nullptr;
    const auto share = [](const Quantity* c) {
      return c->finding.bound > 0  ? c->finding.distance / c->finding.bound
             : c->finding.agrees() ? 0.0
                                   : std::numeric_limits<double>::infinity();
    };
    bool agrees = true;
    for (const Quantity* each : entries) {
      agrees = agrees && each->finding.agrees();
      if (worst == nullptr || !(share(each) <= share(worst))) {
        worst = each;
      }
    }
    if (worst != nullptr) {
      row(stage, std::ssize(entries), worst->finding.distance, worst->finding.bound, agrees,
          concat(worst->finding.name, " of step ", worst->finding.step));
    } else {
      row(stage, 0, 0, 0, true, "the reference stores nothing of it");
    }
  }

  double distance_of(const Tensor& found, const Tensor& expected) const {
    return single_.model_config.compute_dtype != kFloat32
               ? norm_distance(found, expected, euclidean_norm(expected))
               : element_distance(found, expected, largest_element(expected));
  }

  static double relative(double found, double expected) {
    const double difference = std::abs(found - expected);
    return difference == 0 ? 0 : difference / std::max(std::abs(expected), 1e-300);
  }

  // How far a repetition with moved roundings is from our run.
  void measure(const OwnRun& moved) {
    for (size_t i = 0; i < own_.steps.size(); ++i) {
      const OwnStep& a = own_.steps[i];
      const OwnStep& b = moved.steps[i];
      const auto step = static_cast<int64_t>(i) + 1;
      const auto add = [&](Compared what, double distance,
                           ZeroGradient zero = ZeroGradient::kNone) {
        spread_.add({.what = what, .step = step, .distance = distance, .zero_gradient = zero});
      };
      for (const auto& [name, value] : a.values) {
        add(Compared::kActivation, distance_of(b.values.at(name), value));
      }
      for (const auto& [name, gradient] : a.gradients) {
        add(Compared::kGradient,
            gradient_distance(name, b.gradients.at(name), gradient, a.result.grad_norm),
            zero(name));
      }
      for (const auto& [name, entry] : a.update.entries) {
        add(Compared::kWeights,
            norm_distance(b.update.entries.at(name).after, entry.after,
                          euclidean_norm(entry.after)),
            zero(name));
      }
      add(Compared::kLoss, relative(b.result.loss, a.result.loss));
      add(Compared::kGradNorm, relative(b.result.grad_norm, a.result.grad_norm));
    }
  }

  ZeroGradient zero(const std::string& name) const {
    return has_zero_gradient(single_.model_config, name);
  }
  double gradient_distance(const std::string& name,
                           const Tensor& found,
                           const Tensor& expected,
                           double norm) const {
    return zero(name) == ZeroGradient::kAll ? norm_distance(found, expected, norm)
                                            : distance_of(found, expected);
  }

  void add(std::vector<Quantity>& all, Quantity entry, std::optional<double> bound = {}) {
    entry.finding.bound = bound ? *bound : spread_.bound_of(entry.finding);
    all.push_back(std::move(entry));
  }

  void compare_step(int64_t step, std::vector<Quantity>& all) {
    const OwnStep& own = own_.steps[static_cast<size_t>(step - 1)];
    const ReferenceStep& theirs = reference_.step(step);
    if (theirs.loss_tokens) {
      add(all,
          {.finding = {.what = Compared::kTokens,
                       .step = step,
                       .name = "loss_tokens",
                       .distance = std::abs(own.result.loss_tokens - *theirs.loss_tokens)},
           .stage = "loss"},
          0.0);
    }
    compare_values(step, own, all);
    if (theirs.loss) {
      // After an update the loss tells of it; where step 1 has no values, of the forward pass.
      const bool values_known = std::any_of(all.begin(), all.end(), [&](const Quantity& each) {
        return each.finding.what == Compared::kActivation && each.finding.step == step;
      });
      add(all, {.finding = {.what = Compared::kLoss,
                            .step = step,
                            .name = "loss",
                            .made_by = "VocabParallelCrossEntropy",
                            .distance = relative(own.result.loss, *theirs.loss),
                            .detail = concat(own.result.loss, " against ", *theirs.loss)},
                .stage = step > 1 ? "optimizer" : (values_known ? "loss" : "forward"),
                .pass = "forward",
                .module = "loss"});
    }
    compare_gradients(step, own, theirs, all);
    if (theirs.grad_norm) {
      add(all, {.finding = {.what = Compared::kGradNorm,
                            .step = step,
                            .name = "grad_norm",
                            .distance = relative(own.result.grad_norm, *theirs.grad_norm),
                            .detail = concat(own.result.grad_norm, " against ", *theirs.grad_norm)},
                .stage = step > 1 ? "optimizer" : "reduction",
                .pass = "backward"});
    }
    for (size_t i = 0; i < theirs.lr.size() && i < own.result.lr.size(); ++i) {
      add(all,
          {.finding = {.what = Compared::kSchedule,
                       .step = step,
                       .name = concat("learning rate of group ", i),
                       .distance = relative(own.result.lr[i], theirs.lr[i]),
                       .detail = concat(own.result.lr[i], " against ", theirs.lr[i])},
           .stage = "schedule"},
          1e-6);
    }
    if (const auto weights = reference_.weights(step)) {
      for (const std::string& name : own_.tensors) {
        const auto found = weights->find(name);
        if (found == weights->end() || zero(name) == ZeroGradient::kAll) {
          continue;
        }
        add(all,
            {.finding = {.what = Compared::kWeights,
                         .step = step,
                         .name = name,
                         .distance = norm_distance(own.update.entries.at(name).after, found->second,
                                                   euclidean_norm(found->second)),
                         .zero_gradient = zero(name)},
             .stage = "optimizer",
             .module = own_.makers.at(name)});
      }
    }
  }

  void compare_values(int64_t step, const OwnStep& own, std::vector<Quantity>& all) {
    const auto stored = reference_.activations(step);
    if (!stored) {
      return;
    }
    std::vector<std::string> names;
    for (const auto& [name, value] : own.values) {
      if (stored->contains(name)) {
        names.push_back(name);
      }
    }
    std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return own_.value_order.at(a) < own_.value_order.at(b);
    });
    for (const std::string& name : names) {
      const Tensor& value = own.values.at(name);
      const Tensor expected = stored->at(name);
      const bool same_size = expected.numel() == value.numel();
      add(all,
          {.finding = {.what = Compared::kActivation,
                       .step = step,
                       .name = name,
                       .made_by = maker_of_activation(name),
                       .distance = same_size ? distance_of(value, expected.reshape(value.shape()))
                                             : std::numeric_limits<double>::infinity()},
           .stage = step > 1 ? "optimizer" : "forward",
           .pass = "forward",
           .module = maker_of_activation(name)});
    }
  }

  void compare_gradients(int64_t step,
                         const OwnStep& own,
                         const ReferenceStep& theirs,
                         std::vector<Quantity>& all) {
    const auto stored = reference_.gradients(step);
    const std::string stage = step > 1 ? "optimizer" : "backward";
    for (auto name = own_.tensors.rbegin(); name != own_.tensors.rend(); ++name) {
      const auto gradient = own.gradients.find(*name);
      if (gradient == own.gradients.end()) {
        continue;
      }
      Quantity entry{.finding = {.what = Compared::kGradient,
                                 .step = step,
                                 .name = *name,
                                 .made_by = "backward of " + own_.makers.at(*name),
                                 .zero_gradient = zero(*name)},
                     .stage = stage,
                     .pass = "backward",
                     .module = own_.makers.at(*name)};
      if (stored && stored->contains(*name)) {
        entry.finding.distance = gradient_distance(
            *name, gradient->second, stored->at(*name).reshape(gradient->second.shape()),
            own.result.grad_norm);
        add(all, std::move(entry));
      } else if (const auto norm = theirs.grad_norms.find(*name);
                 norm != theirs.grad_norms.end() && zero(*name) == ZeroGradient::kNone) {
        entry.finding.distance = relative(euclidean_norm(gradient->second), norm->second);
        add(all, std::move(entry));
      }
    }
  }

  std::optional<OptimizerFault> optimizer_fault() const {
    const auto rule = adam_rule(single_);
    if (!rule || single_.model_config.params_dtype != kFloat32) {
      return std::nullopt;
    }
    std::vector<ObservedUpdate> updates;
    for (const OwnStep& step : own_.steps) {
      updates.push_back(step.update);
    }
    return find_optimizer_fault(*rule, updates);
  }

  bool fail_optimizer(const OptimizerFault& fault) {
    const std::string stage = fault.is_clipping        ? "clip"
                              : fault.is_learning_rate ? "schedule"
                                                       : "optimizer";
    FirstDifference first;
    first.step = fault.step;
    first.tensor = fault.tensor;
    first.op = single_.optimizer_config.optimizer_type;
    first.module = own_.makers.at(fault.tensor);
    first.distance = fault.distance;
    first.bound = 1e-4;
    row(stage, std::ssize(own_.tensors), fault.distance, 1e-4, false, fault.explanation);
    return fail(stage, first,
                concat("Step ", fault.step, " does not move ", fault.tensor,
                       " as its gradient, the learning rate and the settings say",
                       fault.explanation.empty() ? "" : ": it is " + fault.explanation, "."));
  }

  bool fail_number(const Quantity& found) {
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
    return fail(found.stage, first, LayoutFindings::sentence(found.finding));
  }

  bool determinism_stage() {
    Process process(single_, options_.training);
    const OwnRun again = process.train(std::ssize(own_.steps), std::nullopt);
    for (size_t i = 0; i < own_.steps.size(); ++i) {
      const OwnStep& a = own_.steps[i];
      const OwnStep& b = again.steps[i];
      FirstDifference first;
      first.step = static_cast<int64_t>(i) + 1;
      first.distance = 0;
      std::string what;
      for (const auto& [name, order] : own_.value_order) {
        if (what.empty() && a.values.contains(name) &&
            !same_bits(a.values.at(name), b.values.at(name))) {
          what = name;
          first.module = maker_of_activation(name);
        }
      }
      for (const auto& [name, gradient] : a.gradients) {
        if (what.empty() && !same_bits(gradient, b.gradients.at(name))) {
          what = "the gradient of " + name;
          first.module = own_.makers.at(name);
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
      VerifyOptions verify = options_.training;
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
      Process process(single_, options_.training);
      all = process.train(steps, std::nullopt);
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
  AllConfig config_;
  AllConfig single_;
  VerifyOptions plain_;
  OwnRun own_;
  RoundingSpread spread_;
  VerdictReport report_;
};

}  // namespace

VerdictReport find_fault(const ConfigLoader& load,
                         const std::string& reference_folder,
                         const FindFaultOptions& options) {
  return Search(load, reference_folder, options).run();
}

}  // namespace tapestry
