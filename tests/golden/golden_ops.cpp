#include "tests/golden/golden_ops.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <set>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::golden {

namespace {

constexpr double kFloat32Bound = 1e-5;
constexpr double kFloat64Bound = 1e-11;
constexpr double kEdgeBound = 1e-4;  // "generously"

std::string suffix(const std::string& name) { return name.empty() ? "" : "." + name; }

// One case: its files, its results, and the comparisons made so far.
class CaseRun {
 public:
  CaseRun(const CaseFile& file, const Case& what, const SafetensorsReader& reader, Report& report)
      : file_(file), case_(what), reader_(reader), report_(report) {
    for (const auto& [key, entry] : reader.entries()) {
      if (key.starts_with(case_.name + ".")) {
        unseen_.insert(key.substr(case_.name.size() + 1));
      }
    }
  }

  void run(const OpFunction& function, OpReport& op_report) {
    op_report_ = &op_report;
    ++op_report.cases;
    try {
      find_floor();
      first_order(function);
      if (case_.second_order) {
        second_order(function);
      }
      for (const std::string& key : unseen_) {
        fail(key, "is in the file, but nothing was compared with it");
      }
    } catch (const std::exception& e) {
      fail("", e.what());
    }
  }

 private:
  void fail(const std::string& key, const std::string& why) {
    report_.failures.push_back(concat(file_.op, " ", case_.name, " (", name_of(case_.dtype), ")",
                                      key.empty() ? "" : " ", key, ": ", why, "; attrs ",
                                      case_.attributes.dump()));
  }

  Tensor read(const std::string& key) {
    unseen_.erase(key);
    return read_tensor(reader_, case_.name + "." + key);
  }

  // 1 % of the largest finite number among the inputs and results: the least scale.
  void find_floor() {
    for (const std::string& key : unseen_) {
      const bool counts = key.starts_with("input.") || key.starts_with("output") ||
                          key.starts_with("grad.") || key.starts_with("grad2.");
      const std::string full = case_.name + "." + key;
      if (counts && reader_.entry(full).dtype && is_floating(*reader_.entry(full).dtype)) {
        floor_ = std::max(floor_, 0.01 * magnitude(read_tensor(reader_, full)));
      }
    }
  }

  double bound(const std::string& key) const {
    if (case_.dtype == kFloat64) {
      return case_.edge ? kEdgeBound : kFloat64Bound;
    }
    const double base = case_.edge ? kEdgeBound : kFloat32Bound;
    return std::max(base, 4 * case_.torch_float32_error.value(key, 0.0));
  }

  void expect(const std::string& quantity, const std::string& key, const Tensor& actual) {
    if (!reader_.contains(case_.name + "." + key)) {
      fail(key, "is a result that the file does not have");
      return;
    }
    const Tensor expected = read(key);
    if (case_.dtype == kBFloat16 || expected.dtype() == kBFloat16) {
      expect_bfloat16(quantity, key, actual, expected);
      return;
    }
    const double scale = std::max(magnitude(expected), floor_);
    const Distance distance = compare(actual, expected, scale, bound(key));
    note(quantity, distance.worst);
    if (const double share = distance.worst / bound(key); share > 0.25) {
      report_.close_calls.emplace_back(
          share, concat(file_.op, " ", case_.name, " (", name_of(case_.dtype), ") ", key));
    }
    if (!distance.problem.empty()) {
      fail(key, distance.problem);
    }
  }

  // Casts match bit for bit; products may be one step of bfloat16 away where sums in float32 fall
  // on the other side of a rounding boundary. The report gives the share that is away.
  void expect_bfloat16(const std::string& quantity,
                       const std::string& key,
                       const Tensor& actual,
                       const Tensor& expected) {
    const bool exact = case_.differentiate.empty();
    if (!actual.defined() || actual.shape() != expected.shape() || actual.dtype() != kBFloat16) {
      fail(key, concat("is ", describe(actual), ", expected ", describe(expected)));
      return;
    }
    // Bits in the order of the numbers they stand for.
    const auto rank = [](float value) {
      const BFloat16 rounded(value);
      const int magnitude_bits = rounded.bits & 0x7fff;
      return (rounded.bits & 0x8000) != 0 ? -magnitude_bits : magnitude_bits;
    };
    const std::vector<float> a = actual.to_vector<float>();
    const std::vector<float> b = expected.to_vector<float>();
    // A sum that cancels is exact only to the rounding of its terms.
    const double rounding = 1e-6 * std::max(magnitude(expected), floor_);
    int64_t away = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(a[i]) && std::isnan(b[i])) {
        continue;
      }
      const bool same = a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i]);
      const bool near = std::abs(rank(a[i]) - rank(b[i])) <= 1 ||
                        std::abs(static_cast<double>(a[i]) - b[i]) <= rounding;
      away += same ? 0 : 1;
      if (!same && (exact || !near)) {
        fail(key, concat("element ", i, " of ", actual.shape(), " is ", a[i], ", expected ", b[i]));
        return;
      }
    }
    note(quantity, static_cast<double>(away) / std::max<double>(1, static_cast<double>(a.size())));
    if (away > 1 && static_cast<double>(away) > 0.05 * static_cast<double>(a.size())) {
      fail(key, concat(away, " of ", a.size(),
                       " elements are one step away; nearly all should be "
                       "equal"));
    }
  }

  void note(const std::string& quantity, double distance) {
    double& worst = op_report_->worst[concat(name_of(case_.dtype), " ", quantity)];
    worst = std::max(worst, distance);
  }

  NamedTensors inputs() {
    NamedTensors out;
    for (const std::string& name : case_.inputs) {
      const auto layout = case_.layout.find(name);
      out.emplace_back(name, present(read("input." + name),
                                     layout == case_.layout.end() ? nlohmann::json() : *layout));
    }
    for (const std::string& name : case_.differentiate) {
      input(out, name).set_requires_grad();
    }
    return out;
  }

  static Tensor input(const NamedTensors& inputs, const std::string& name) {
    for (const auto& [key, value] : inputs) {
      if (key == name) {
        return value;
      }
    }
    throw ValueError(concat("there is no input ", name));
  }

  // One evaluation: results, upstream gradients of those that have one, wanted inputs.
  struct Evaluation {
    NamedTensors outputs;
    TensorList roots;
    TensorList upstream;
    std::vector<std::string> upstream_keys;
    TensorList wanted;
  };

  Evaluation evaluate(const OpFunction& function) {
    Evaluation out;
    const NamedTensors arguments = inputs();
    const Attributes attributes(case_.attributes);
    out.outputs = function(arguments, attributes);
    for (const std::string& key : attributes.unread()) {
      throw ValueError(concat("attribute ", key, " was not used"));
    }
    for (const std::string& name : case_.differentiate) {
      out.wanted.push_back(input(arguments, name));
    }
    for (const auto& [name, value] : out.outputs) {
      const std::string key = "grad_output" + suffix(name);
      if (reader_.contains(case_.name + "." + key)) {
        check<ValueError>(value.requires_grad(), "result '", name, "' has no graph");
        out.roots.push_back(value);
        out.upstream.push_back(read(key));
        out.upstream_keys.push_back(key);
      }
    }
    return out;
  }

  // The gradient, or zeros where nothing arrived.
  static Tensor or_zeros(const Tensor& gradient, const Tensor& input) {
    return gradient.defined() ? gradient : zeros(input.shape(), input.dtype());
  }

  void first_order(const OpFunction& function) {
    const Evaluation result = evaluate(function);
    for (const auto& [name, value] : result.outputs) {
      expect("output", "output" + suffix(name), value);
    }
    if (result.wanted.empty()) {
      return;
    }
    const TensorList gradients = grad(result.roots, result.wanted, result.upstream, {}, true);
    for (size_t i = 0; i < gradients.size(); ++i) {
      expect("grad", "grad." + case_.differentiate[i], or_zeros(gradients[i], result.wanted[i]));
    }
  }

  void second_order(const OpFunction& function) {
    Evaluation result = evaluate(function);
    for (const Tensor& upstream : result.upstream) {
      upstream.set_requires_grad();
    }
    const TensorList gradients =
        grad(result.roots, result.wanted, result.upstream, {.create_graph = true}, true);
    TensorList roots;
    TensorList probes;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const std::string& name = case_.differentiate[i];
      const Tensor probe = read("probe." + name);
      // The recorded gradient is the same one.
      expect("grad", "grad." + name, or_zeros(gradients[i], result.wanted[i]));
      if (gradients[i].defined() && gradients[i].requires_grad()) {
        roots.push_back(gradients[i]);
        probes.push_back(probe);
      }
    }
    TensorList wanted = result.wanted;
    std::vector<std::string> keys;
    for (const std::string& name : case_.differentiate) {
      keys.push_back("grad2." + name);
    }
    for (size_t i = 0; i < result.upstream.size(); ++i) {
      wanted.push_back(result.upstream[i]);
      keys.push_back("grad2." + result.upstream_keys[i]);
    }
    const TensorList second =
        roots.empty() ? TensorList(wanted.size()) : grad(roots, wanted, probes, {}, true);
    for (size_t i = 0; i < second.size(); ++i) {
      expect("grad2", keys[i], or_zeros(second[i], wanted[i]));
    }
  }

  const CaseFile& file_;
  const Case& case_;
  const SafetensorsReader& reader_;
  Report& report_;
  OpReport* op_report_ = nullptr;
  std::set<std::string> unseen_;
  double floor_ = 0;
};

}  // namespace

int64_t Report::cases() const {
  int64_t count = 0;
  for (const OpReport& op : ops) {
    count += op.cases;
  }
  return count;
}

std::ostream& operator<<(std::ostream& out, const Report& report) {
  const std::vector<std::string> columns = {"float32 output",  "float32 grad", "float32 grad2",
                                            "float64 output",  "float64 grad", "float64 grad2",
                                            "bfloat16 output", "bfloat16 grad"};
  std::map<std::string, double> overall;
  out << "worst distance as a part of the scale (bfloat16: share of elements one step away)\n"
      << std::left << std::setw(30) << "op" << std::right << std::setw(6) << "cases";
  for (const std::string& column : columns) {
    out << std::setw(16) << column;
  }
  const auto row = [&](const std::string& name, int64_t cases,
                       const std::map<std::string, double>& worst) {
    out << '\n' << std::left << std::setw(30) << name << std::right << std::setw(6) << cases;
    for (const std::string& column : columns) {
      const auto found = worst.find(column);
      if (found == worst.end()) {
        out << std::setw(16) << "-";
      } else {
        out << std::setw(16) << std::setprecision(2) << found->second;
      }
    }
  };
  for (const OpReport& op : report.ops) {
    row(op.op, op.cases, op.worst);
    for (const auto& [key, value] : op.worst) {
      overall[key] = std::max(overall[key], value);
    }
  }
  row("all", report.cases(), overall);
  out << '\n';
  for (const auto& [share, what] : report.close_calls) {
    out << "close: " << what << " used " << std::setprecision(2) << share << " of its bound\n";
  }
  for (const std::string& skipped : report.skipped) {
    out << "skipped: " << skipped << '\n';
  }
  for (const std::string& failure : report.failures) {
    out << "FAILED: " << failure << '\n';
  }
  out << report.cases() << " cases of " << report.ops.size() << " ops, " << report.failures.size()
      << " failures, " << report.skipped.size() << " skipped\n";
  return out;
}

Report run_golden_ops(const std::string& directory) {
  Report report;
  std::vector<CaseFile> files;
  try {
    files = read_case_files(directory);
  } catch (const std::exception& e) {
    report.failures.emplace_back(e.what());
    return report;
  }
  for (const CaseFile& file : files) {
    const auto found = op_table().find(file.op);
    if (found == op_table().end()) {
      if (file.op.starts_with("chain_")) {
        report.skipped.push_back(concat(file.op, " (", file.cases.size(),
                                        " cases): chains of operations have no name in "
                                        "the table"));
      } else {
        report.failures.push_back(concat(file.path, ": operation '", file.op, "' is not known"));
      }
      continue;
    }
    OpReport op_report{file.op, 0, {}};
    try {
      const SafetensorsReader reader(file.path);
      for (const Case& one : file.cases) {
        CaseRun(file, one, reader, report).run(found->second, op_report);
      }
    } catch (const std::exception& e) {
      report.failures.emplace_back(e.what());
    }
    report.ops.push_back(std::move(op_report));
  }
  if (report.cases() == 0 && report.skipped.empty()) {
    report.failures.push_back(concat(directory, ": there are no cases in it"));
  }
  return report;
}

}  // namespace tapestry::golden
