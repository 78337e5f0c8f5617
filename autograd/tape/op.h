// How a function becomes an operation of the tape.
//
// An op is a struct with a name, a forward and a backward; its fields are what it remembers:
//
//   struct Scale {
//     static constexpr OpName name = "scale";
//     double factor;
//     Tensor forward(const Tensor& x) { return x * factor; }
//     Tensor backward(const Tensor& dy) const { return dy * factor; }
//   };
//   Tensor scale(const Tensor& x, double factor) { return apply_op(Scale{factor}, x); }
//
// (The name is not `apply` because argument-dependent lookup would also find std::apply.)
// Inputs are the Tensor and TensorList arguments of apply_op, in order; an undefined Tensor is an
// input that was left out. forward runs with recording off and returns a Tensor, a
// std::array<Tensor, N> or a TensorList. backward is one of
//
//   backward(dy)                       one input
//   backward(dy, NeedsGrad needs)      several inputs, one output
//   backward(TensorList dys, needs)    several outputs; an entry is undefined if nothing used it
//
// and returns a Tensor (one input), a std::array<Tensor, N> or a TensorList in the order of the
// inputs; an undefined entry means zero. It is written in ops, so it can be differentiated again.
// An op whose results have no gradient says so, as one without backward does not compile:
//
//     static constexpr bool differentiable = false;
//
// Its results are cut off from the graph. Ops of the library and of users are made in the same way.
// The name may also be a std::string_view or a text; OpName notes where the op is written as well.
//
// An op that holds dtypes, or tensors of one, before forward has `void for_float64()`, which makes
// of a copy one for float64 inputs: observers may run it on such (OpRun::again).
//
// In a RecomputeScope a copy of the op, as it was before forward, may be run again: forward gives
// the same bits whenever it is called with the same inputs. `static constexpr bool communicates =
// true` marks ops that exchange messages, which may be told not to.
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <source_location>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "autograd/kernels/machine/team_state.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tape/recompute.h"
#include "autograd/tape/registry.h"
#include "autograd/tape/saved_tensor.h"
#include "autograd/tensor/error.h"

namespace tapestry {

template <class Op, class... Inputs>
auto apply_op(Op op, const Inputs&... inputs);

namespace detail {

template <class Op>
concept BackwardOfOne = requires(const Op& op, const Tensor& dy) {
  op.backward(dy);
};
template <class Op>
concept BackwardOfSeveral = requires(const Op& op, const Tensor& dy, NeedsGrad needs) {
  op.backward(dy, needs);
};
template <class Op>
concept BackwardOfList = requires(const Op& op, const TensorList& dys, NeedsGrad needs) {
  op.backward(dys, needs);
};

template <class Op>
inline constexpr bool kDifferentiable =
    BackwardOfOne<Op> || BackwardOfSeveral<Op> || BackwardOfList<Op>;

template <class Op>
concept HasName = requires {
  std::string_view(Op::name);
};

/// Whether the op says that it has no gradient.
template <class Op>
constexpr bool says_no_gradient() {
  if constexpr (requires { Op::differentiable; }) {
    return !Op::differentiable;
  }
  return false;
}

/// Compiles for an op that is complete.
template <class Op, class Result>
constexpr void check_op() {
  static_assert(HasName<Op>,
                "an op needs a name: static constexpr tapestry::OpName name = \"my_op\";");
  static_assert(kDifferentiable<Op> || says_no_gradient<Op>(),
                "an op needs a public, const `backward(const Tensor& dy)` for one input, "
                "`backward(const Tensor& dy, NeedsGrad needs)` for several, or `backward(const "
                "TensorList& dys, NeedsGrad needs)` for several outputs; one without gradient says "
                "`static constexpr bool differentiable = false;`");
  static_assert(!(kDifferentiable<Op> && says_no_gradient<Op>()),
                "the op has a backward and says differentiable = false: which is it?");
  static_assert(std::is_same_v<Result, Tensor> || BackwardOfList<Op> || says_no_gradient<Op>(),
                "the backward of an op with several outputs takes the gradients of all: "
                "`backward(const TensorList& dys, NeedsGrad needs) const`");
}

/// Where the op is written, if its name notes that.
template <class Op>
constexpr std::source_location place_of() {
  if constexpr (requires { Op::name.where; }) {
    return Op::name.where;
  }
  return {};
}

template <class Op>
struct Registration {
  inline static const bool done = register_op(
      {Op::name, kDifferentiable<Op>, place_of<Op>().file_name(), place_of<Op>().line()});
};

[[noreturn]] void throw_released(std::string_view name);
/// RuntimeError unless backward returned one gradient, defined or not, for each input.
void check_count(std::string_view name, size_t gradients, size_t inputs);

inline void store(std::string_view name, Tensor result, std::span<Tensor> out) {
  check_count(name, 1, out.size());
  out[0] = std::move(result);
}
template <class List>
void store(std::string_view name, List results, std::span<Tensor> out) {
  check_count(name, results.size(), out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::move(results[i]);
  }
}

/// The node of an op that is a struct.
template <class Op>
class OpNode final : public Node {
 public:
  explicit OpNode(Op op) : Node(NumberedLater{}), op_(std::move(op)) {}

  std::string_view name() const override { return Op::name; }
  Op& op() { return *op_; }

  void run(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (!op_) [[unlikely]] {
      throw_released(name());
    }
    const NeedsGrad needs(edges());
    if constexpr (BackwardOfOne<Op>) {
      store(name(), op_->backward(grad_outputs[0]), grad_inputs);
    } else if constexpr (BackwardOfSeveral<Op>) {
      store(name(), op_->backward(std::as_const(grad_outputs[0]), needs), grad_inputs);
    } else {
      store(name(), op_->backward(TensorList(grad_outputs.begin(), grad_outputs.end()), needs),
            grad_inputs);
    }
  }

  void release_saved() override { op_.reset(); }

  bool has_hidden_edges() const override {
    if constexpr (requires { Op::has_hidden_edges; }) {
      return Op::has_hidden_edges;
    }
    return false;
  }

 private:
  std::optional<Op> op_;
};

/// Whether an op runs functions of others, which are observed in its place.
template <class Op>
constexpr bool is_transparent() {
  if constexpr (requires { Op::has_hidden_edges; }) {
    return Op::has_hidden_edges;
  }
  return false;
}

/// Recording is off while an op's forward runs; what it saves belongs to the given node. Observers
/// are not told of what the op runs, unless it is transparent.
class ForwardScope {
 public:
  ForwardScope(std::string_view op, Node* node, bool transparent = false)
      : previous_mode_(thread_state().grad_enabled),
        previous_node_(thread_state().recording_node),
        previous_observers_(thread_state().op_observers),
        previous_op_(kernels::team_state().op) {
    ThreadState& state = thread_state();
    state.grad_enabled = false;
    state.recording_node = node;
    if (!transparent) {
      state.op_observers = nullptr;
    }
    kernels::team_state().op = op;
  }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope() {
    ThreadState& state = thread_state();
    state.grad_enabled = previous_mode_;
    state.recording_node = previous_node_;
    state.op_observers = previous_observers_;
    kernels::team_state().op = previous_op_;
  }

 private:
  bool previous_mode_;
  void* previous_node_;
  void* previous_observers_;
  std::string_view previous_op_;
  LeaseScope leases_;
};

/// While the backward of a node runs: names it, for messages, and its module. As in ForwardScope,
/// observers are not told of what it runs, unless the node has hidden edges.
class BackwardScope {
 public:
  explicit BackwardScope(const Node& node)
      : state_(kernels::team_state()),
        previous_op_(state_.op),
        previous_backward_of_(state_.backward_of),
        previous_module_(thread_state().module),
        previous_observers_(thread_state().op_observers) {
    state_.op = {};
    state_.backward_of = node.name();
    thread_state().module = node.module();
    if (previous_observers_ != nullptr && !node.has_hidden_edges()) [[unlikely]] {
      thread_state().op_observers = nullptr;
    }
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;
  ~BackwardScope() {
    state_.op = previous_op_;
    state_.backward_of = previous_backward_of_;
    thread_state().module = previous_module_;
    thread_state().op_observers = previous_observers_;
  }

 private:
  kernels::TeamState& state_;
  std::string_view previous_op_;
  std::string_view previous_backward_of_;
  const std::string* previous_module_;
  void* previous_observers_;
  LeaseScope leases_;
};

inline bool wants_grad(const Tensor& t) { return t.defined() && t.requires_grad(); }
inline bool wants_grad(const TensorList& list) {
  for (const Tensor& t : list) {
    if (wants_grad(t)) {
      return true;
    }
  }
  return false;
}

inline void collect_edges(Node& node, const Tensor& t) {
  node.add_edge(t.defined() ? gradient_edge(t) : Edge{});
}
inline void collect_edges(Node& node, const TensorList& list) {
  for (const Tensor& t : list) {
    collect_edges(node, t);
  }
}

/// A handle of its own for every result, also where forward returned an input.
inline void make_fresh(Tensor& result) {
  if (result.defined() && result.impl()->use_count() > 1) {
    result = alias(result);
  }
}
template <class List>
void make_fresh(List& results) {
  for (Tensor& result : results) {
    make_fresh(result);
  }
}

inline void attach(Tensor& result, const Ref<Node>& node, uint32_t index = 0) {
  if (result.defined() && is_floating(result.dtype())) {
    node->set_output(index, result);
    set_gradient_edge(result, node, index);
    result.impl()->outside_graph = false;  // whatever forward has made it of
  }
}
template <class List>
void attach(List& results, const Ref<Node>& node) {
  uint32_t index = 0;
  for (Tensor& result : results) {
    attach(result, node, index++);
  }
}

/// Whether the op's results follow from its inputs whenever it is run.
template <class Op>
constexpr bool can_run_again() {
  if constexpr (requires { Op::has_hidden_edges; }) {
    return false;  // runs a function of others, which checkpoint() does by itself
  } else {
    return std::is_copy_constructible_v<Op>;
  }
}

/// Notes how the results of an op, in storages of which `made` are new, follow from its inputs.
template <class Op, class Result, class... Inputs>
void note_op(const Op& op,
             const Result& result,
             const std::vector<Storage*>& made,
             const Inputs&... inputs) {
  RecomputedValues* values = noted_values();
  if constexpr (requires { Op::communicates; }) {
    if (!values->repeats_communication()) {
      return;
    }
  }
  auto again = std::tuple(input_again(inputs)...);
  TensorList all;
  std::apply([&](const auto&... each) { (append_tensors(all, each), ...); }, again);
  note_again(
      *values, listed(result), made,
      [op, again = std::move(again), module = current_module()] {
        Op own = op;
        const ForwardScope scope(Op::name, nullptr);
        AgainReport report(Op::name, module);
        TensorList made_again =
            listed(std::apply([&](const auto&... each) { return own.forward(each...); }, again));
        report.end(made_again);
        return made_again;
      },
      all);
}

inline std::span<const Tensor> as_span(const Tensor& t) { return {&t, 1}; }
template <class List>
std::span<const Tensor> as_span(const List& list) {
  return {list.data(), list.size()};
}

template <class Op>
constexpr bool communicates() {
  return requires { Op::communicates; };
}

template <class Input>
inline constexpr bool kIsTensor = std::is_convertible_v<const Input&, const Tensor&>;

template <class Input>
size_t tensors_in(const Input& input) {
  if constexpr (kIsTensor<Input>) {
    return 1;
  } else {
    return input.size();
  }
}

inline bool has_float64(const Tensor& t) { return t.defined() && t.dtype() == kFloat64; }
template <class List>
bool has_float64(const List& list) {
  for (const Tensor& t : list) {
    if (has_float64(t)) {
      return true;
    }
  }
  return false;
}

/// Tensors as the argument that they are given for.
template <class Input>
auto as_argument(std::span<const Tensor> tensors) {
  if constexpr (kIsTensor<Input>) {
    return tensors.front();
  } else {
    return TensorList(tensors.begin(), tensors.end());
  }
}

template <class... Inputs, class Op, size_t... I>
TensorList apply_to(const Op& op,
                    [[maybe_unused]] std::span<const Tensor> tensors,
                    [[maybe_unused]] const std::array<size_t, sizeof...(I) + 1>& begins,
                    std::index_sequence<I...> /*arguments*/) {
  return listed(
      apply_op(op, as_argument<Inputs>(tensors.subspan(begins[I], begins[I + 1] - begins[I]))...));
}

/// The op on other inputs, for observers. Not inlined: only who looks for faults runs it.
template <class Op, class... Inputs>
[[gnu::noinline]] OpAgain op_again(const Op& op, const Inputs&... inputs) {
  std::array<size_t, sizeof...(Inputs) + 1> begins = {};
  size_t next = 0;
  ((begins[next + 1] = begins[next] + tensors_in(inputs), ++next), ...);
  const bool was_wide = (has_float64(inputs) || ...);
  return [op, begins, was_wide](std::span<const Tensor> tensors) {
    Op own = op;
    if constexpr (requires { own.for_float64(); }) {
      if (!was_wide && has_float64(tensors)) {
        own.for_float64();
      }
    }
    return apply_to<Inputs...>(own, tensors, begins, std::index_sequence_for<Inputs...>());
  };
}

/// op.forward(inputs...), which observers are told of.
template <class Op, class... Inputs>
auto run_forward(Op& op, Node* node, const Inputs&... inputs) {
  const ObserverList* observers = op_observers();
  const ForwardScope scope(Op::name, node, is_transparent<Op>());
  if constexpr (!is_transparent<Op>()) {
    if (observers != nullptr) [[unlikely]] {
      TensorList all;
      (append_tensors(all, inputs), ...);
      OpAgain again;
      if constexpr (can_run_again<Op>() && !communicates<Op>()) {
        if (wants_ops_again(*observers)) {
          again = op_again(op, inputs...);
        }
      }
      ForwardReport report(Op::name, node, std::move(all), std::move(again));
      report.begin(*observers);
      auto result = op.forward(inputs...);
      report.end(as_span(result));
      return result;
    }
  }
  return op.forward(inputs...);
}

}  // namespace detail

/// Runs op.forward(inputs...) and, if grad mode is on and some input wants a gradient, records it.
/// Tensor and TensorList arguments are the op's inputs.
template <class Op, class... Inputs>
auto apply_op(Op op, const Inputs&... inputs) {
  using Result = decltype(op.forward(inputs...));
  detail::check_op<Op, Result>();
  (void)detail::Registration<Op>::done;
  const ThreadState& state = thread_state();

  if constexpr (detail::kDifferentiable<Op>) {
    if (state.grad_enabled && (detail::wants_grad(inputs) || ...)) {
      std::optional<Op> as_given;
      std::vector<Storage*> made;
      if constexpr (detail::can_run_again<Op>()) {
        if (state.recomputed_values != nullptr) [[unlikely]] {
          as_given.emplace(op);
        }
      }
      auto node = make_ref<detail::OpNode<Op>>(std::move(op));
      (detail::collect_edges(*node, inputs), ...);
      node->renumber();
      Result result = [&] {
        if (as_given) [[unlikely]] {
          const detail::NewStorages listing(made);
          return detail::run_forward(node->op(), node.get(), inputs...);
        }
        return detail::run_forward(node->op(), node.get(), inputs...);
      }();
      if constexpr (detail::can_run_again<Op>()) {
        if (as_given) [[unlikely]] {
          detail::note_op(*as_given, result, made, inputs...);
        }
      }
      detail::make_fresh(result);
      detail::attach(result, Ref<Node>(node));
      return result;
    }
  }
  Result result = detail::run_forward(op, nullptr, inputs...);
  detail::make_fresh(result);
  return result;
}

}  // namespace tapestry
