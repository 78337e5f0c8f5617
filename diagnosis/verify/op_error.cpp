#include "diagnosis/verify/op_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tape/recompute.h"
#include "autograd/tape/registry.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"
#include "diagnosis/dump/tensor_distance.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/training/step/step_observer.h"
#include "text/util/regular_expression.h"

namespace tapestry {

namespace {

constexpr int kDraws = 2;

/// Bits of the significand, the leading one among them; 0: not floating.
int significand_bits(DType dtype) {
  switch (dtype) {
    case kFloat64:
      return 53;
    case kFloat32:
      return 24;
    case kFloat16:
      return 11;
    case kBFloat16:
      return 8;
    default:
      return 0;
  }
}

/// Float64 copies; what is not floating as it is.
Tensor widened(const Tensor& x) {
  return x.defined() && is_floating(x.dtype()) ? dense_copy(x.detach().to(kFloat64)) : x;
}
TensorList widened(std::span<const Tensor> tensors) {
  TensorList out;
  for (const Tensor& x : tensors) {
    out.push_back(widened(x));
  }
  return out;
}

/// Float64 values that were of `dtype`, each half a unit in its last place away, up or down.
Tensor moved(const Tensor& x, DType dtype, const RandomKey& key) {
  const int bits = significand_bits(dtype);
  if (!x.defined() || bits == 0) {
    return x;
  }
  Tensor out = dense_copy(x);
  auto* values = out.data<double>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    int exponent = 0;
    std::frexp(values[i], &exponent);
    if (values[i] != 0 && std::isfinite(values[i])) {
      const double half_unit = std::ldexp(0.5, exponent - bits);
      const uint64_t chance = combine(key.stream, static_cast<uint64_t>(i) ^ key.seed);
      values[i] += ((chance >> 32U) & 1U) != 0 ? half_unit : -half_unit;
    }
  }
  return out;
}

/// The worst run of an op, and how many there were.
struct Measured {
  int64_t runs = 0;
  double error = 0;
  double half_ulp = 0;
  double ratio = -1;
  std::string module;
  int64_t step = 0;
  int64_t micro_batch = 0;
  std::string not_measured;  ///< why; of the last run that was not

  void add(const Measured& other) {
    runs += other.runs;
    if (other.ratio > ratio) {
      const int64_t sum = runs;
      const std::string reason = not_measured;
      *this = other;
      runs = sum;
      not_measured = reason;
    }
    if (!other.not_measured.empty()) {
      not_measured = other.not_measured;
    }
  }
};
using OpPassKey = std::pair<std::string, std::string>;
using Measurements = std::map<OpPassKey, Measured>;

/// What an op would give, exactly and from inputs that are off by half a unit.
struct Exact {
  TensorList values;
  std::vector<TensorList> of_moved;
};

class OpErrors final : public StepObserver, private Observer {
 public:
  OpErrors(RegularExpression names, std::shared_ptr<Measurements> found)
      : names_(std::move(names)), found_(std::move(found)) {}

  void before(int64_t step) override {
    step_ = step;
    micro_batch_ = -1;
    scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
  }
  void after(FinishedStep& /*step*/) override {
    scope_.reset();
    recorded_.clear();
  }

 private:
  /// An op that ran forward and may run backward.
  struct Recorded {
    TensorList inputs;  ///< float64
    std::vector<DType> dtypes;
    std::vector<Tensor> leaves;  ///< inputs that gather their gradients; else undefined
    OpAgain again;
  };
  /// A backward run under way.
  struct Running {
    TensorList gradients;  ///< float64
    std::vector<DType> dtypes;
    std::vector<bool> has_contribution;  ///< of the leaf that is this input
  };

  bool wants_ops_again() const override { return true; }

  void phase_begins(const PhaseRun& phase) override {
    micro_batch_ = phase.micro_batch >= 0 ? phase.micro_batch : micro_batch_;
    if (phase.name == "optimizer") {
      scope_.reset();  // nothing below is recorded; and an evaluation is not of the step
    }
  }

  bool matches(const OpRun& run) const {
    std::string name(run.module);
    std::replace(name.begin(), name.end(), '.', '/');
    name += (name.empty() ? "" : "/") + std::string(run.op);
    return names_.is_found_in(name);
  }

  static bool shares_memory(const OpRun& run) {
    return std::any_of(run.outputs.begin(), run.outputs.end(), [&](const Tensor& result) {
      return std::any_of(run.inputs.begin(), run.inputs.end(), [&](const Tensor& input) {
        return result.defined() && input.defined() && result.storage() == input.storage();
      });
    });
  }

  static std::vector<DType> dtypes_of(std::span<const Tensor> tensors) {
    std::vector<DType> out;
    for (const Tensor& x : tensors) {
      out.push_back(x.defined() ? x.dtype() : kBool);
    }
    return out;
  }

  void op_begins(const OpRun& run) override {
    if (run.pass != OpPass::kBackward) {
      return;
    }
    const auto recorded = recorded_.find(run.number);
    if (recorded == recorded_.end()) {
      return;
    }
    const NoGradGuard guard;
    const UnobservedScope unobserved;
    Running& running = running_[run.number];
    running = {.gradients = widened(run.inputs), .dtypes = dtypes_of(run.inputs)};
    for (const Tensor& leaf : recorded->second.leaves) {
      const Tensor sum = leaf.defined() ? leaf.main_grad() : Tensor();
      running.has_contribution.push_back(sum.defined() && has_values(sum));
    }
  }

  static bool has_values(const Tensor& x) {
    const std::vector<double> values = x.to_vector<double>();
    return std::any_of(values.begin(), values.end(), [](double value) { return value != 0; });
  }

  void op_ended(const OpRun& run) override {
    if (run.pass == OpPass::kBackward) {
      measure_backward(run);
      return;
    }
    if ((run.pass == OpPass::kAgain && run.node == nullptr) || !matches(run)) {
      return;
    }
    if (shares_memory(run)) {
      return;  // a view: it computes nothing, and its strides are those of its input
    }
    const NoGradGuard guard;
    const UnobservedScope unobserved;
    const RecomputeScope none(nullptr);
    const TensorList inputs = widened(run.inputs);
    const std::vector<DType> dtypes = dtypes_of(run.inputs);
    if (run.pass == OpPass::kForward) {
      if (run.again == nullptr) {
        not_measured(run, "it communicates, or cannot be run again");
        return;
      }
      measure(run, [&] {
        Exact exact{.values = (*run.again)(inputs)};
        for (int draw = 0; draw < kDraws; ++draw) {
          exact.of_moved.push_back((*run.again)(all_moved(inputs, dtypes, draw)));
        }
        return exact;
      });
    }
    if (run.number != 0 && run.again != nullptr) {
      Recorded& recorded = recorded_[run.number];
      recorded = {.inputs = inputs, .dtypes = dtypes, .again = *run.again};
      for (const Tensor& input : run.inputs) {
        const bool gathers = input.defined() && input.requires_grad() && input.is_leaf();
        recorded.leaves.push_back(gathers ? input : Tensor());
      }
    }
  }

  static TensorList all_moved(const TensorList& tensors,
                              const std::vector<DType>& dtypes,
                              int draw) {
    TensorList out;
    for (size_t i = 0; i < tensors.size(); ++i) {
      out.push_back(moved(tensors[i], dtypes[i],
                          RandomKey{static_cast<uint64_t>(draw) + 1, combine(i, 17), 0}));
    }
    return out;
  }

  // Gradients of the floating inputs, in the places of all.
  static TensorList gradients_of(const OpAgain& again,
                                 const TensorList& inputs,
                                 const TensorList& gradients) {
    TensorList own;
    TensorList wanted;
    for (const Tensor& input : inputs) {
      own.push_back(input.defined() ? input.detach() : input);
      if (input.defined() && is_floating(input.dtype())) {
        own.back().set_requires_grad();
        wanted.push_back(own.back());
      }
    }
    TensorList results;
    {
      const EnableGradGuard recording;
      results = again(own);
    }
    TensorList roots;
    TensorList of_roots;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined() && results[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(results[i]);
        of_roots.push_back(gradients[i]);
      }
    }
    const TensorList found = grad(roots, wanted, of_roots, {}, /*allow_unused=*/true);
    TensorList out;
    size_t next = 0;
    for (const Tensor& input : own) {
      const bool is_wanted = input.defined() && input.requires_grad();
      out.push_back(is_wanted ? found[next++] : Tensor());
    }
    return out;
  }

  void measure_backward(const OpRun& run) {
    const auto recorded = recorded_.find(run.number);
    const auto running = running_.find(run.number);
    if (recorded == recorded_.end() || running == running_.end()) {
      return;
    }
    const NoGradGuard guard;
    const UnobservedScope unobserved;
    const RecomputeScope none(nullptr);
    const Recorded& op = recorded->second;
    const Running& given = running->second;
    measure(run, [&] {
      Exact exact{.values = gradients_of(op.again, op.inputs, given.gradients)};
      for (int draw = 0; draw < kDraws; ++draw) {
        exact.of_moved.push_back(gradients_of(op.again, all_moved(op.inputs, op.dtypes, draw),
                                              all_moved(given.gradients, given.dtypes, draw + 7)));
      }
      for (size_t i = 0; i < exact.values.size(); ++i) {
        if (given.has_contribution[i]) {
          exact.values[i] = {};  // what the run shows is a sum with others
        }
      }
      return exact;
    });
    recorded_.erase(recorded);
    running_.erase(running);
  }

  template <class MakeExact>
  void measure(const OpRun& run, const MakeExact& make_exact) {
    Exact exact;
    try {
      exact = make_exact();
    } catch (const Error& error) {
      not_measured(run, error.what());
      return;
    }
    Measured found = described(run);
    bool any = false;
    for (size_t i = 0; i < std::min(exact.values.size(), run.outputs.size()); ++i) {
      const Tensor& result = run.outputs[i];
      if (!result.defined() || !exact.values[i].defined() || !is_floating(result.dtype()) ||
          result.numel() == 0 || exact.values[i].shape() != result.shape()) {
        continue;
      }
      any = true;
      const dump::DistanceUnit unit = dump::distance_unit(name_of(result.dtype()));
      const double error = dump::tensor_distance(result.detach(), exact.values[i], unit);
      double by_inputs = 0;
      for (const TensorList& of_moved : exact.of_moved) {
        by_inputs = std::max(by_inputs, dump::tensor_distance(of_moved[i], exact.values[i], unit));
      }
      const double half_ulp = by_inputs + dump::tensor_distance(exact.values[i].to(result.dtype()),
                                                                exact.values[i], unit);
      const double ratio = error == 0     ? 0
                           : half_ulp > 0 ? error / half_ulp
                                          : std::numeric_limits<double>::infinity();
      if (ratio > found.ratio) {
        found.error = error;
        found.half_ulp = half_ulp;
        found.ratio = ratio;
      }
    }
    if (any) {
      (*found_)[key_of(run)].add(found);
    }
  }

  Measured described(const OpRun& run) const {
    return {.runs = 1,
            .module = std::string(run.module),
            .step = step_,
            .micro_batch = std::max<int64_t>(0, micro_batch_)};
  }
  static OpPassKey key_of(const OpRun& run) {
    return {std::string(run.op), std::string(name_of(run.pass))};
  }
  void not_measured(const OpRun& run, const std::string& reason) {
    Measured found = described(run);
    found.not_measured = reason;
    (*found_)[key_of(run)].add(found);
  }

  RegularExpression names_;
  std::shared_ptr<Measurements> found_;
  std::unique_ptr<ObserverScope> scope_;
  std::map<uint64_t, Recorded> recorded_;
  std::map<uint64_t, Running> running_;
  int64_t step_ = 0;
  int64_t micro_batch_ = -1;
};

nlohmann::json json_number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json("inf");
}
double number_or_infinity(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
}

std::string measurements_to_text(const Measurements& found) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [key, m] : found) {
    rows.push_back({key.first, key.second, m.runs, json_number(m.error), json_number(m.half_ulp),
                    json_number(m.ratio), m.module, m.step, m.micro_batch, m.not_measured});
  }
  return rows.dump();
}

struct RankMeasured {
  Measured measured;
  int64_t rank = 0;
};

std::map<OpPassKey, RankMeasured> of_all_ranks(const std::vector<std::string>& texts) {
  std::map<OpPassKey, RankMeasured> all;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    for (const nlohmann::json& row : nlohmann::json::parse(texts[rank])) {
      const Measured own{.runs = row[2].get<int64_t>(),
                         .error = number_or_infinity(row[3]),
                         .half_ulp = number_or_infinity(row[4]),
                         .ratio = number_or_infinity(row[5]),
                         .module = row[6].get<std::string>(),
                         .step = row[7].get<int64_t>(),
                         .micro_batch = row[8].get<int64_t>(),
                         .not_measured = row[9].get<std::string>()};
      RankMeasured& sum = all[{row[0].get<std::string>(), row[1].get<std::string>()}];
      if (sum.measured.runs == 0 || own.ratio > sum.measured.ratio) {
        sum.rank = static_cast<int64_t>(rank);
      }
      sum.measured.add(own);
    }
  }
  return all;
}

}  // namespace

accuracy::VerdictReport measure_op_errors(const AllConfig& config,
                                          const PretrainOptions& options,
                                          const OpErrorOptions& measured) {
  check<ValueError>(measured.steps >= 1, "op_error: ", measured.steps,
                    " steps; at least one is needed");
  check<ValueError>(std::isfinite(measured.multiple) && measured.multiple >= 1,
                    "op_error: the allowed multiple is ", measured.multiple,
                    "; expected a number from 1 on");
  const RegularExpression names(measured.names, "op_error");
  auto found = std::make_shared<Measurements>();
  PretrainOptions own = options;
  own.rehearsed_steps = measured.steps;
  own.observers.emplace_back(
      [names, found](TrainOneStepCell& /*cell*/) -> std::unique_ptr<StepObserver> {
        return std::make_unique<OpErrors>(names, found);
      });
  pretrain(config, own);

  const std::map<OpPassKey, RankMeasured> all =
      of_all_ranks(all_gather_text(*options.world, measurements_to_text(*found)));
  std::vector<std::pair<OpPassKey, RankMeasured>> rows(all.begin(), all.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.measured.ratio > b.second.measured.ratio;
  });
  accuracy::VerdictReport report{.command = "op_error"};
  report.title = concat("ops '", measured.names, "' against float64");
  bool any = false;
  for (const auto& [key, row] : rows) {
    const Measured& m = row.measured;
    const bool is_measured = m.ratio >= 0;
    const bool exceeds = m.ratio > measured.multiple;
    any = any || is_measured;
    accuracy::Finding finding = {{"op", key.first}, {"pass", key.second}, {"runs", m.runs}};
    finding["error"] = is_measured ? nlohmann::ordered_json(m.error) : nlohmann::ordered_json();
    finding["half_ulp"] =
        is_measured ? nlohmann::ordered_json(m.half_ulp) : nlohmann::ordered_json();
    finding["ratio"] = is_measured ? nlohmann::ordered_json(m.ratio) : nlohmann::ordered_json();
    finding["module"] = m.module;
    finding["step"] = m.step;
    finding["micro_batch"] = m.micro_batch;
    finding["rank"] = row.rank;
    finding["status"] = !is_measured ? "not_measured" : exceeds ? "differs" : "agrees";
    finding["detail"] = m.not_measured;
    report.findings.push_back(std::move(finding));
    if (exceeds && !report.first) {
      accuracy::FirstDifference first;
      first.step = m.step;
      first.micro_batch = m.micro_batch;
      first.rank = row.rank;
      first.pass = key.second;
      first.module = m.module;
      first.op = key.first;
      if (const OpInfo* info = find_op(key.first); info != nullptr) {
        first.source = concat(info->file, ":", info->line);
      }
      first.distance = m.error;
      first.bound = measured.multiple * m.half_ulp;
      report.first = std::move(first);
    }
  }
  report.outcome = report.first ? accuracy::Outcome::kDiffers
                   : any        ? accuracy::Outcome::kAgrees
                                : accuracy::Outcome::kNotComparable;
  report.lines.push_back(
      rows.empty()
          ? concat("No op that ran has a name that '", measured.names, "' is found in.")
          : concat("ratio: error against float64 over what half a unit in the last place of the "
                   "inputs, and rounding the result once, do; up to ",
                   measured.multiple, " is allowed."));
  return report;
}

}  // namespace tapestry
