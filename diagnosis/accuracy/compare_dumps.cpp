#include "diagnosis/accuracy/compare_dumps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/pair_distance.h"
#include "diagnosis/accuracy/tensor_pairs.h"
#include "diagnosis/dump/dump_reader.h"
#include "diagnosis/dump/rounding_file.h"
#include "text/util/numbers.h"

namespace tapestry::accuracy {
namespace {

using dump::DistanceUnit;
using dump::DumpReader;
using dump::DumpRow;
using dump::LogicalTensor;

constexpr std::string_view kUpdatePrefix = "Updates/";
constexpr std::string_view kGradientPrefix = "Gradients/";

bool is_update(const DumpRow& row) {
  return row.op_type == "Parameter" && row.op_name.starts_with(kUpdatePrefix);
}

/// The type that values were computed in: numbers of a step and what an update has changed are
/// float64 in a dump of ours so that nothing of them is lost, but come from float32.
std::string computed_type(const DumpRow& row) {
  return row.data_type == "float64" && (row.op_type == "Scalar" || is_update(row)) ? "float32"
                                                                                   : row.data_type;
}

/// Half an ulp at 1 of the type: below, a movement says only that the repetitions were few.
double half_ulp(const std::string& data_type) {
  return data_type == "float32"    ? 0x1p-24
         : data_type == "float16"  ? 0x1p-12
         : data_type == "bfloat16" ? 0x1p-9
         : data_type == "float64"  ? 0x1p-53
                                   : 0;
}

/// The movements that a dump's rounding.csv has.
class Movements {
 public:
  explicit Movements(const std::string& folder) {
    const std::string path = dump::rounding_path(folder);
    if (!std::filesystem::exists(path)) {
      return;
    }
    measured_ = true;
    for (const dump::RoundingRow& row : dump::read_rounding(path)) {
      const Key key = {row.op_name, row.input, row.slot, row.pass};
      raise(by_iteration_[{key, row.iteration}], row.distance);
      raise(largest_[key], row.distance);
    }
  }

  bool measured() const { return measured_; }

  /// Of the tensor in the iteration, or the largest in others.
  std::optional<double> find(const DumpRow& row, int64_t iteration) const {
    const Key key = {row.op_name, row.input, row.slot, row.pass};
    if (const auto found = by_iteration_.find({key, iteration}); found != by_iteration_.end()) {
      return found->second;
    }
    const auto any = largest_.find(key);
    return any == largest_.end() ? std::nullopt : std::optional(any->second);
  }

 private:
  using Key = std::tuple<std::string, bool, int64_t, std::string>;

  static void raise(double& value, double to) { value = std::max(value, to); }

  bool measured_ = false;
  std::map<std::pair<Key, int64_t>, double> by_iteration_;
  std::map<Key, double> largest_;
};

struct PairBound {
  std::optional<double> movement;
  DistanceUnit unit = DistanceUnit::kElement;
  double least = 0;  ///< half an ulp of the coarser type
};

/// A side of a coarser type has to have measured its own movement: that of the finer one says
/// nothing of what the coarser one rounds.
PairBound pair_bound(const TensorPair& pair,
                     int64_t iteration,
                     const Movements& ours,
                     const Movements& expected) {
  const DumpRow& a = pair.ours.tensor->row();
  const DumpRow& b = pair.expected.tensor->row();
  const std::string our_type = computed_type(a);
  const std::string their_type = computed_type(b);
  const double our_ulp = half_ulp(our_type);
  const double their_ulp = half_ulp(their_type);
  const bool use_ours = our_ulp >= their_ulp;
  const bool use_theirs = their_ulp >= our_ulp;
  PairBound bound;
  bound.unit = dump::distance_unit(our_ulp >= their_ulp ? our_type : their_type);
  bound.least = std::max(our_ulp, their_ulp);
  const auto take = [&](bool use, const std::optional<double>& movement) {
    if (use && movement.has_value()) {
      bound.movement = std::max(bound.movement.value_or(0), *movement);
    }
  };
  take(use_ours, ours.find(a, iteration));
  take(use_theirs, expected.find(b, iteration));
  return bound;
}

/// How large weights of a step are: an update is what is left of a weight when another one that is
/// almost equal is taken off, so that it moves by the unit in the last place of the weight.
class WeightSizes {
 public:
  WeightSizes(const std::vector<LogicalTensor>& ours, const std::vector<LogicalTensor>& expected)
      : ours_(sizes(ours)), expected_(sizes(expected)) {}

  /// A unit in the last place of the largest weight over the largest update, or the same of norms;
  /// 0 of what is no update, and where neither side has the weights.
  double unit_of_update(const TensorPair& pair, DistanceUnit unit) const {
    const DumpRow& row = pair.ours.tensor->row();
    const DumpRow& other = pair.expected.tensor->row();
    if (!is_update(row) || !is_update(other)) {
      return 0;
    }
    double share = 0;
    for (const auto& [sizes, name] :
         {std::pair{&ours_, &row.op_name}, std::pair{&expected_, &other.op_name}}) {
      const auto weight = sizes->find(name->substr(kUpdatePrefix.size()));
      const auto update = sizes->find(*name);
      if (weight != sizes->end() && update != sizes->end()) {
        const auto [largest, norm] = weight->second;
        const auto [largest_update, update_norm] = update->second;
        const double ratio =
            unit == DistanceUnit::kElement ? largest / largest_update : norm / update_norm;
        share = std::max(share, std::isfinite(ratio) ? ratio : 0);
      }
    }
    return 2 * half_ulp("float32") * share;
  }

 private:
  using Sizes = std::map<std::string, std::pair<double, double>>;  // largest element, norm

  static Sizes sizes(const std::vector<LogicalTensor>& tensors) {
    Sizes out;
    for (const LogicalTensor& tensor : tensors) {
      const DumpRow& row = tensor.row();
      if (row.op_type != "Parameter" || row.pass != "optimizer" || !tensor.problem().empty()) {
        continue;
      }
      if (tensor.has_values()) {
        for (const Tensor& value : tensor.load().values) {
          out[row.op_name] = dump::tensor_size(value);
        }
      } else {
        const dump::TensorStatistics& s = tensor.statistics().statistics;
        out[row.op_name] = {std::max(std::fabs(s.max), std::fabs(s.min)), s.l2norm};
      }
    }
    return out;
  }

  Sizes ours_;
  Sizes expected_;
};

/// A pair with what came of it.
struct JudgedPair {
  int64_t iteration = 0;
  TensorPair pair;
  PairDistance distance;
  std::optional<double> bound;

  const DumpRow& row() const { return pair.ours.tensor->row(); }
  bool differs() const { return bound.has_value() && !(distance.distance <= *bound); }
  /// Of the bound; of a bound of 0 infinite, unless nothing differs.
  double share() const {
    return distance.distance == 0 ? 0
           : *bound > 0           ? distance.distance / *bound
                                  : std::numeric_limits<double>::infinity();
  }
};

/// An optimizer that divides by the size of a gradient (Adam, Lion) moves an element by the whole
/// rate in the direction of its gradient, however small that is: where rounding decides on its
/// sign, it decides on the direction. Of a parameter's update, or of the parameter behind it, the
/// distance of the elements whose gradients are equal, or larger than `bound`, what the gradient
/// may be off by as a share of its largest element; nothing where the values of the four are not
/// there, one to one. Equal gradients, such as the zeros of tokens that do not occur, leave no
/// choice.
std::optional<double> distance_of_decided(const TensorPair& pair,
                                          const TensorPair& gradients,
                                          double bound,
                                          DistanceUnit unit) {
  std::array<std::vector<double>, 4> values;
  const std::array<const TensorSide*, 4> sides = {&pair.ours, &pair.expected, &gradients.ours,
                                                  &gradients.expected};
  for (size_t i = 0; i < sides.size(); ++i) {
    const LogicalTensor& tensor = *sides[i]->tensor;
    if (sides[i]->cut != Cut::kNone || sides[i]->place.has_value() || !tensor.has_values() ||
        !tensor.problem().empty()) {
      return std::nullopt;
    }
    const auto joined = tensor.load();
    if (joined.values.size() != 1) {
      return std::nullopt;
    }
    values[i] = joined.values.front().to_vector<double>();
    if (values[i].size() != values[0].size()) {
      return std::nullopt;
    }
  }
  const auto& [ours, expected, our_gradient, their_gradient] = values;
  double largest_gradient = 0;
  for (const double g : their_gradient) {
    largest_gradient = std::max(largest_gradient, std::abs(g));
  }
  double largest = 0;
  double largest_difference = 0;
  double squares = 0;
  double squares_of_difference = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    squares += expected[i] * expected[i];
    const double decided = bound * largest_gradient;
    const bool is_undecided =
        our_gradient[i] != their_gradient[i] &&
        std::min(std::abs(our_gradient[i]), std::abs(their_gradient[i])) <= decided;
    if (!is_undecided) {
      const double difference = ours[i] - expected[i];
      largest_difference = std::max(largest_difference, std::abs(difference));
      squares_of_difference += difference * difference;
    }
  }
  const double distance = unit == DistanceUnit::kElement
                              ? largest_difference / largest
                              : std::sqrt(squares_of_difference / squares);
  return std::isfinite(distance) ? std::optional(distance) : std::nullopt;
}

std::string tensor_name(const DumpRow& row) {
  const bool is_value = row.op_type == "Value" || row.op_type == "Parameter";
  return is_value && !row.input && row.slot == 0
             ? row.op_name
             : concat(row.op_name, row.input ? " input " : " output ", row.slot);
}

template <class T>
std::optional<T> text_or_none(const T& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

FirstDifference first_pair_difference(const JudgedPair& judged) {
  const DumpRow& row = judged.row();
  const DumpRow& other = judged.pair.expected.tensor->row();
  FirstDifference first;
  first.step = judged.iteration + 1;
  first.micro_batch = judged.distance.micro_batch;
  first.sample = judged.distance.sample;
  first.rank = judged.distance.rank;
  first.pass = text_or_none(row.pass);
  first.module = text_or_none(row.module.empty() ? other.module : row.module);
  if (row.op_type != "Value" && row.op_type != "Parameter") {
    first.op = row.op_name;
  } else if (other.op_type != "Value" && other.op_type != "Parameter") {
    first.op = other.op_name;
  }
  first.tensor = tensor_name(row);
  first.source = text_or_none(row.source.empty() ? other.source : row.source);
  first.distance = judged.distance.distance;
  first.bound = judged.bound;
  return first;
}

Finding pair_finding(const JudgedPair& judged) {
  const DumpRow& row = judged.row();
  Finding finding;
  finding["tensor"] = tensor_name(row);
  finding["status"] = !judged.distance.problem.empty() ? "not_compared"
                      : !judged.bound.has_value()      ? "not_measured"
                      : judged.differs()               ? "differs"
                                                       : "agrees";
  finding["distance"] =
      judged.distance.problem.empty() ? Finding(judged.distance.distance) : Finding();
  finding["bound"] = judged.bound.has_value() ? Finding(*judged.bound) : Finding();
  finding["share"] = judged.bound.has_value() && judged.distance.problem.empty()
                         ? Finding(judged.share())
                         : Finding();
  finding["step"] = judged.iteration + 1;
  finding["pass"] = row.pass;
  finding["module"] = row.module;
  finding["op"] = row.op_type;
  const DumpRow& other = judged.pair.expected.tensor->row();
  finding["other"] = tensor_name(other);
  finding["sample"] =
      judged.distance.sample.has_value() ? Finding(*judged.distance.sample) : Finding();
  finding["rank"] = judged.distance.rank.has_value() ? Finding(*judged.distance.rank) : Finding();
  finding["source"] = row.source;
  finding["detail"] =
      judged.distance.problem.empty() ? judged.distance.detail : judged.distance.problem;
  return finding;
}

/// "3 tensors only in X: a, b, c".
void add_tensor_list(std::vector<std::string>& lines,
                     const std::string& what,
                     const std::vector<std::string>& names) {
  if (names.empty()) {
    return;
  }
  constexpr size_t kExamples = 3;
  const std::set<std::string> distinct(names.begin(), names.end());
  std::string line = concat(names.size(), names.size() == 1 ? " tensor " : " tensors ", what);
  size_t shown = 0;
  for (const std::string& name : distinct) {
    line += (shown == 0 ? ": " : ", ") + name;
    if (++shown == kExamples) {
      line += distinct.size() > kExamples ? ", ..." : "";
      break;
    }
  }
  lines.push_back(line + ".");
}

/// Everything that two dumps have in common, and what not.
class DumpComparison {
 public:
  DumpComparison(const std::string& ours_folder,
                 const std::string& expected_folder,
                 const CompareOptions& options)
      : ours_(ours_folder),
        expected_(expected_folder),
        our_movements_(ours_folder),
        their_movements_(expected_folder),
        options_(options) {}

  VerdictReport run() {
    const auto theirs = expected_.iterations();
    for (const int64_t iteration : ours_.iterations()) {
      if (std::find(theirs.begin(), theirs.end(), iteration) != theirs.end()) {
        compare(iteration);
        ++iterations_;
      }
    }
    return report();
  }

 private:
  void compare(int64_t iteration) {
    const auto ours = dump::logical_tensors(ours_.tensors(iteration));
    const auto expected = dump::logical_tensors(expected_.tensors(iteration));
    TensorPairs found =
        pair_tensors(ours, expected, options_.map, ours_.chose_ops() || expected_.chose_ops());
    const WeightSizes weights(ours, expected);
    // By parameter, and what they may be off by.
    std::map<std::string, std::pair<const TensorPair*, double>> gradients;
    for (const TensorPair& pair : found.pairs) {
      PairBound bound = pair_bound(pair, iteration, our_movements_, their_movements_);
      bound.least = std::max(bound.least, weights.unit_of_update(pair, bound.unit));
      JudgedPair judged{iteration, pair, pair_distance(pair, bound.unit), std::nullopt};
      if (bound.movement.has_value()) {
        judged.bound = options_.multiple * std::max(*bound.movement, bound.least);
      }
      const std::string& name = pair.ours.tensor->row().op_name;
      if (judged.bound && name.starts_with(kGradientPrefix)) {
        gradients[name.substr(kGradientPrefix.size())] = {&pair, *judged.bound};
      }
      const bool is_weight = pair.ours.tensor->row().op_type == "Parameter" &&
                             pair.ours.tensor->row().pass == "optimizer";
      const auto gradient = gradients.find(
          name.starts_with(kUpdatePrefix) ? name.substr(kUpdatePrefix.size()) : name);
      if (is_weight && judged.differs() && gradient != gradients.end()) {
        if (const auto decided = distance_of_decided(pair, *gradient->second.first,
                                                     gradient->second.second, bound.unit);
            decided && *decided <= *judged.bound) {
          judged.distance.distance = *decided;
          judged.distance.detail = "but for elements of whose gradients rounding decides the sign";
        }
      }
      keep(judged);
    }
    append(only_ours_, found.only_ours);
    append(only_expected_, found.only_expected);
    append(other_ops_, found.other_ops);
    append(other_split_, found.other_split);
  }

  void keep(const JudgedPair& judged) {
    const std::string name = tensor_name(judged.row());
    if (!judged.distance.problem.empty()) {
      not_compared_.push_back(name + " (" + judged.distance.problem + ")");
    } else if (!judged.bound.has_value()) {
      not_measured_.push_back(name);
      unbounded_.emplace(judged.distance.distance, pair_finding(judged));
    } else {
      ++compared_;
      by_statistics_ += judged.distance.by_statistics ? 1 : 0;
      if (judged.differs()) {
        ++differing_;
        if (!first_.has_value()) {
          first_ = first_pair_difference(judged);
          first_detail_ = judged.distance.detail;
        }
      }
      largest_share_ = std::max(largest_share_, judged.share());
      worst_.emplace(judged.share(), pair_finding(judged));
    }
  }

  VerdictReport report() const {
    VerdictReport out;
    out.command = "compare";
    out.title = concat(ours_.folder(), " and ", expected_.folder());
    out.outcome = compared_ == 0   ? Outcome::kNotComparable
                  : differing_ > 0 ? Outcome::kDiffers
                                   : Outcome::kAgrees;
    out.first = first_;
    add_lines(out.lines);
    const auto& rows = compared_ > 0 ? worst_ : unbounded_;
    for (auto row = rows.rbegin(); row != rows.rend() && out.findings.size() < options_.rows;
         ++row) {
      out.findings.push_back(row->second);
    }
    return out;
  }

  void add_lines(std::vector<std::string>& lines) const {
    if (iterations_ == 0) {
      lines.push_back(concat("No iteration is in both dumps: ", ours_.folder(), " has ",
                             ranges_text(ours_.iterations(), 5), ", ", expected_.folder(), " has ",
                             ranges_text(expected_.iterations(), 5), "."));
      return;
    }
    if (!our_movements_.measured() && !their_movements_.measured()) {
      lines.push_back(concat(
          "There are no bounds: neither ", ours_.folder(), " nor ", expected_.folder(),
          " has rounding.csv. Measure how far rounding moves the dumped tensors, with the same "
          "configuration and dump: pretrain_gpt --config_path RUN.yaml --dump DUMP.json "
          "--measure_rounding 5"));
    } else if (compared_ == 0) {
      lines.push_back(not_measured_.empty()
                          ? "No tensor of one dump has a counterpart in the other that it can be "
                            "compared with; --map FILE says which names mean the same."
                          : "rounding.csv has no tensor that both dumps have, or only of the side "
                            "with the finer type: measure the run with the coarser one.");
    } else {
      std::string line = concat(compared_, compared_ == 1 ? " tensor of " : " tensors of ",
                                iterations_, iterations_ == 1 ? " step" : " steps", " compared");
      if (by_statistics_ > 0) {
        line += concat(", ", by_statistics_, " by their statistics");
      }
      line += concat("; ", differing_, " beyond ", number_text(options_.multiple),
                     " times what rounding moves them; the largest share of a bound is ",
                     number_text(largest_share_, 3), ".");
      lines.push_back(line);
    }
    if (first_.has_value() && !first_detail_.empty()) {
      lines.push_back(concat("First: ", *first_->tensor, ": ", first_detail_,
                             "; everything before it in the step agrees."));
    }
    if (compared_ > 0) {
      add_tensor_list(lines, "without a measured movement, not judged", not_measured_);
    }
    add_tensor_list(lines, "in both dumps, but not comparable", not_compared_);
    add_tensor_list(lines, "left out, as other ops run in their module", other_ops_);
    add_tensor_list(lines, "left out, as they are of no sample and micro-batches are cut otherwise",
                    other_split_);
    add_tensor_list(lines, "only in " + ours_.folder(), only_ours_);
    add_tensor_list(lines, "only in " + expected_.folder(), only_expected_);
    for (const DumpReader* side : {&ours_, &expected_}) {
      if (!side->unfinished().empty()) {
        lines.push_back(side->unfinished().front() + " was cut short and is left out.");
      }
    }
  }

  static void append(std::vector<std::string>& into, const std::vector<std::string>& more) {
    into.insert(into.end(), more.begin(), more.end());
  }

  DumpReader ours_;
  DumpReader expected_;
  Movements our_movements_;
  Movements their_movements_;
  const CompareOptions& options_;

  int64_t iterations_ = 0;
  int64_t compared_ = 0;
  int64_t by_statistics_ = 0;
  int64_t differing_ = 0;
  double largest_share_ = 0;
  std::optional<FirstDifference> first_;
  std::string first_detail_;
  std::multimap<double, Finding> worst_;
  std::multimap<double, Finding> unbounded_;
  std::vector<std::string> not_measured_;
  std::vector<std::string> not_compared_;
  std::vector<std::string> only_ours_;
  std::vector<std::string> only_expected_;
  std::vector<std::string> other_ops_;
  std::vector<std::string> other_split_;
};

}  // namespace

VerdictReport compare_dumps(const std::string& ours_folder,
                            const std::string& expected_folder,
                            const CompareOptions& options) {
  return DumpComparison(ours_folder, expected_folder, options).run();
}

}  // namespace tapestry::accuracy
