#include "tests/random_programs/interpreter.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/random_programs/operations.h"

namespace tapestry::random_programs {

namespace {

Tensor make_leaf(const Leaf& leaf) {
  const Tensor values = tensor(leaf.values, leaf.shape).to(leaf.dtype);
  Tensor made = values;
  if (leaf.strides) {
    int64_t extent = 0;
    for (int64_t i = 0; i < leaf.shape.size() && values.numel() > 0; ++i) {
      extent += (leaf.shape[i] - 1) * (*leaf.strides)[i];
    }
    const Tensor memory = full({leaf.offset + extent + 1}, 7, leaf.dtype);
    made = alias(memory, leaf.shape, *leaf.strides, leaf.offset);
    copy_(made, values);
  }
  if (leaf.grad) {
    made.set_requires_grad();
  }
  return made;
}

// What is wrong with a tensor; empty: nothing. `ratio` becomes its distance as a share of the
// bound.
std::string difference(const Tensor& got, const Expectation& expected, double& ratio) {
  std::ostringstream out;
  if (!expected.defined) {
    if (got.defined()) {
      out << "is " << describe(got) << ", expected none";
    }
    return out.str();
  }
  if (!got.defined()) {
    return "is undefined, expected a value";
  }
  if (got.shape() != expected.shape || short_name(got.dtype()) != expected.dtype) {
    out << "is " << describe(got) << ", expected " << expected.dtype << " " << expected.shape;
    return out.str();
  }
  const std::vector<double> values = got.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    const double distance = std::fabs(values[i] - expected.values[i]);
    if (!(distance <= expected.bound)) {
      out << "element " << i << " is " << values[i] << ", expected " << expected.values[i]
          << " within " << expected.bound;
      return out.str();
    }
    ratio = std::max(ratio, expected.bound > 0 ? distance / expected.bound : 0);
  }
  return {};
}

bool is_zero(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return v == 0; });
}

std::string flag_difference(const Tensor& got, const std::string& expected) {
  if (!got.defined() || expected == "?") {
    return {};
  }
  const bool requires_grad = expected.find('r') != std::string::npos;
  const bool is_leaf = expected.find('l') != std::string::npos;
  std::string reason;
  if (got.requires_grad() != requires_grad) {
    reason = "requires_grad";
  } else if (got.is_leaf() != is_leaf) {
    reason = "is_leaf";
  }
  return reason.empty() ? reason : reason + " is not as expected, " + expected;
}

// A pass from a root without a graph, where PyTorch's graph leads nowhere: its formulas give zeros
// with a graph for some gradients that have none here.
bool leads_nowhere(const Statement& s, const std::string& message) {
  return message.find("has no graph") != std::string::npos &&
         std::all_of(s.expectations.begin(), s.expectations.end(),
                     [](const Expectation& e) { return !e.defined || is_zero(e.values); });
}

// Refusals that the headers state and PyTorch does not have, by what their messages say.
std::string stated_refusal(const std::string& message) {
  static const std::map<std::string, std::string> kStated{
      {"shares its memory with another tensor", "in place: memory is shared (ops/inplace.h)"},
      {"released what it had saved", "the graph is released (tape/engine.h)"},
      {"that backward needs was changed in place", "a saved tensor changed (tape/saved_tensor.h)"},
      {"gradients of gradients are not available through", "second order (tape/checkpoint.h)"},
      {"without a copy; use reshape", "another layout in memory (ops/shape_ops.h)"}};
  for (const auto& [text, reason] : kStated) {
    if (message.find(text) != std::string::npos) {
      return reason;
    }
  }
  return {};
}

class Machine {
 public:
  explicit Machine(const Program& program) {
    for (const Leaf& leaf : program.leaves) {
      tensors_[leaf.name] = make_leaf(leaf);
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
    while (!modes_.empty()) {
      modes_.pop_back();  // newest first
    }
  }

  void execute(const Statement& s);
  void leave_undefined(const Statement& s) { bind(s, TensorList(s.results.size())); }
  std::string compare(const Expectation& expected, Totals& totals);

 private:
  struct Roots {
    TensorList roots;
    TensorList gradients;
    TensorList inputs;
    BackwardOptions options;
  };

  Tensor get(const std::string& name) const { return name == "-" ? Tensor() : tensors_.at(name); }
  Roots roots_of(const Statement& s) const;
  bool execute_control(const Statement& s);
  void add_hook(const Statement& s);
  void bind(const Statement& s, const TensorList& results);

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::shared_ptr<bool>> hooks_;
  std::list<GradModeGuard> modes_;
};

void Machine::bind(const Statement& s, const TensorList& results) {
  if (results.size() != s.results.size()) {
    throw std::logic_error("gives " + std::to_string(results.size()) + " results");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    tensors_[s.results[i]] = results[i];
  }
}

Machine::Roots Machine::roots_of(const Statement& s) const {
  const auto count = static_cast<size_t>(s.attributes.integer("roots"));
  Roots out;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const Tensor x = get(s.inputs[i]);
    if (i < count) {
      out.roots.push_back(x);
    } else if (i < 2 * count) {
      // a gradient that is given may not be the memory of what is accumulated
      out.gradients.push_back(x.defined() ? x.clone() : x);
    } else {
      out.inputs.push_back(x);
    }
  }
  out.options = {s.attributes.flag("retain"), s.attributes.flag("create")};
  return out;
}

void Machine::add_hook(const Statement& s) {
  const std::string kind = s.attributes.text("kind");
  const double value = s.attributes.real("value", 1);
  const Tensor other = s.inputs.size() > 1 ? get(s.inputs[1]) : Tensor();
  const auto active = std::make_shared<bool>(true);
  get(s.inputs[0]).register_hook([=](const Tensor& g) -> Tensor {
    if (!*active || kind == "look") {
      return {};
    }
    return kind == "scale"    ? mul(g, value)
           : kind == "clamp"  ? clamp(g, -value, value)
           : kind == "square" ? mul(g, g)
           : kind == "zero"   ? zeros_like(g)
                              : mul(g, other);
  });
  hooks_[s.results[0]] = active;
}

bool Machine::execute_control(const Statement& s) {
  if (s.op == "backward") {
    const Roots r = roots_of(s);
    backward(r.roots, r.gradients, r.options);
  } else if (s.op == "grad") {
    const Roots r = roots_of(s);
    bind(s, grad(r.roots, r.inputs, r.gradients, r.options, true));
  } else if (s.op == "hook") {
    add_hook(s);
  } else if (s.op == "unhook") {
    *hooks_.at(s.inputs[0]) = false;
  } else if (s.op == "retain_grad") {
    get(s.inputs[0]).retain_grad();
  } else if (s.op == "no_grad" || s.op == "enable_grad") {
    modes_.emplace_back(s.op == "enable_grad");
  } else if (s.op == "end_mode") {
    modes_.pop_back();
  } else if (s.op == "requires_grad") {
    get(s.inputs[0]).set_requires_grad(s.attributes.flag("value"));
  } else if (s.op == "clear_grad") {
    for (const std::string& name : s.inputs) {
      get(name).set_grad({});
    }
  } else if (s.op == "get_grad") {
    const Tensor g = get(s.inputs[0]).grad();
    bind(s, {g.defined() ? g.clone() : g});
  } else if (s.op == "set_grad") {
    get(s.inputs[0]).set_grad(get(s.inputs[1]).detach().clone());
  } else {
    return false;
  }
  return true;
}

void Machine::execute(const Statement& s) {
  if (execute_control(s)) {
    return;
  }
  TensorList inputs;
  for (const std::string& name : s.inputs) {
    inputs.push_back(get(name));
  }
  const TensorList results = run_operation(s.op, inputs, s.attributes);
  if (!s.op.ends_with("_")) {
    bind(s, results);
  } else if (!results[0].is_same(inputs[0])) {
    throw std::logic_error("returns another tensor than the one that it changes");
  }
}

std::string Machine::compare(const Expectation& expected, Totals& totals) {
  const bool is_gradient = expected.key.ends_with(".grad");
  Tensor& x = tensors_.at(expected.key.substr(0, expected.key.find('.')));
  const Tensor got = is_gradient ? x.grad() : x;
  ++totals.tensors;
  // Formulas of gradients differ in whether they give a zero or nothing.
  if (!got.defined() && expected.defined && is_zero(expected.values)) {
    ++totals.zeros;
    if (!is_gradient) {
      x = zeros(expected.shape, dtype_from(expected.dtype));
    }
    return {};
  }
  if (got.defined() && !expected.defined && is_zero(got.to_vector<double>())) {
    ++totals.zeros;
    return {};
  }
  std::string reason =
      difference(got, expected, totals.worst[expected.defined ? expected.dtype : "none"]);
  if (reason.empty()) {
    reason = flag_difference(got, expected.flags);
  }
  return reason.empty() ? reason : expected.key + " " + reason;
}

}  // namespace

Report run_program(const Program& program, Totals& totals) {
  Machine machine(program);
  std::map<std::string, const Expectation*> present;  // what has been expected last
  Report report;
  bool half_done = false;
  for (const Statement& statement : program.statements) {
    report.statement = static_cast<size_t>(&statement - program.statements.data());
    ++totals.statements;
    std::optional<std::string> refusal;
    try {
      machine.execute(statement);
    } catch (const Error& error) {
      refusal = error.what();
    } catch (const std::logic_error& error) {
      return {Outcome::kDiffers, report.statement, error.what()};
    }
    if (refusal && !statement.refusal.empty()) {
      ++totals.refusals;
      half_done = statement.op == "backward";
      break;
    }
    if (refusal && leads_nowhere(statement, *refusal)) {
      machine.leave_undefined(statement);
      refusal.reset();
    }
    if (refusal) {
      const std::string stated = stated_refusal(*refusal);
      if (stated.empty()) {
        return {Outcome::kDiffers, report.statement, "is refused: " + *refusal};
      }
      ++totals.stricter[stated];
      return {Outcome::kStricter, report.statement, *refusal};
    }
    if (!statement.refusal.empty()) {
      return {Outcome::kDiffers, report.statement,
              "is accepted, PyTorch refuses it: " + statement.refusal};
    }
    for (const Expectation& expected : statement.expectations) {
      present[expected.key] = &expected;
      if (const std::string reason = machine.compare(expected, totals); !reason.empty()) {
        return {Outcome::kDiffers, report.statement, reason};
      }
    }
  }
  for (const auto& [key, expected] : present) {
    if (half_done && key.ends_with(".grad")) {
      continue;  // which gradients a pass has added before it stops hangs on its order
    }
    if (const std::string reason = machine.compare(*expected, totals); !reason.empty()) {
      return {Outcome::kDiffers, report.statement, "at the end, " + reason};
    }
  }
  return report;
}

}  // namespace tapestry::random_programs
