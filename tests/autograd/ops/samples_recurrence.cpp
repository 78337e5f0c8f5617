// Samples of recurrent layers: state spaces, norms with a gate.
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/gated_norm.h"
#include "autograd/ops/transformer/state_space.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

DType state_dtype(const Tensor& xbc) { return xbc.dtype() == kFloat64 ? kFloat64 : kFloat32; }

// in: xbc, dt, a_log, d, dt_bias, and the state before the first token where there is one.
auto state_space_with(const StateSpaceOptions& options) {
  return [=](const TensorList& in) -> TensorList {
    StateSpaceOptions own = options;
    if (in.size() > 5 && in[5].defined() && in[0].defined()) {
      own.initial_state = in[5].to(state_dtype(in[0]));
    }
    const StateSpaceResult result = state_space(in[0], in[1], in[2], in[3], in[4], own);
    return own.want_final_state ? TensorList{result.y, result.final_state} : TensorList{result.y};
  };
}

int64_t channels_of(const StateSpaceOptions& o) {
  return o.heads * o.head_dim + 2 * o.groups * o.state_size;
}

}  // namespace

OP_SAMPLES(state_space) {
  // Through the final state, which is not rounded, a gradient is.
  rounds(1, 2);
  const auto inputs = [&](const StateSpaceOptions& o, int64_t batch, int64_t tokens) -> TensorList {
    return {randn({batch, tokens, channels_of(o)}), randn({batch, tokens, o.heads}),
            uniform({o.heads}, -0.5, 0.7), randn({o.heads}), randn({o.heads})};
  };
  const auto add_sizes = [&](const StateSpaceOptions& o, int64_t batch, int64_t tokens,
                             bool with_state) {
    TensorList in = inputs(o, batch, tokens);
    if (with_state) {
      in.push_back(randn({batch, o.heads, o.head_dim, o.state_size}));
    }
    add(state_space_with(o), in);
  };
  const auto starts = [](const std::vector<std::vector<int64_t>>& rows, int64_t length) {
    return document_starts(rows, length);
  };
  add_sizes({.heads = 1, .head_dim = 1, .state_size = 1}, 1, 1, false);
  add_sizes({.heads = 2, .head_dim = 3, .state_size = 2}, 2, 4, false);
  add_sizes({.heads = 4, .head_dim = 2, .groups = 2, .state_size = 3, .want_final_state = true}, 1,
            4, true);
  add_sizes({.heads = 2, .head_dim = 2, .state_size = 2, .want_final_state = true, .chunk_size = 2},
            2, 5, true);
  add_sizes({.heads = 2, .head_dim = 2, .state_size = 2, .step_min = 0.5, .step_max = 1.2}, 1, 5,
            true);
  add_sizes({.heads = 1,
             .head_dim = 2,
             .state_size = 2,
             .document_starts = starts({{2, 3}, {}}, 5),
             .want_final_state = true,
             .chunk_size = 4},
            2, 5, true);
  add_sizes({.heads = 2,
             .head_dim = 1,
             .groups = 2,
             .state_size = 2,
             .document_starts = starts({{1, 4}}, 7),
             .position_offset = 2,
             .want_final_state = true},
            2, 4, true);
  add_sizes({.heads = 2, .head_dim = 2, .state_size = 2, .want_final_state = true}, 0, 3, true);
  add_sizes({.heads = 2, .head_dim = 2, .state_size = 2, .want_final_state = true}, 2, 0, true);
  const StateSpaceOptions large = {
      .heads = 4, .head_dim = 16, .groups = 2, .state_size = 20, .chunk_size = 64};
  add_large(state_space_with(large), inputs(large, 2, 150));

  const StateSpaceOptions o = {.heads = 2, .head_dim = 2, .state_size = 3};
  const TensorList good = inputs(o, 2, 4);
  const auto wrong = [&](size_t which, const Tensor& other, const std::string& fragment) {
    TensorList in = good;
    in[which] = other;
    add_error<ValueError>(state_space_with(o), in, fragment);
  };
  wrong(0, randn({2, 4, 9}), "xbc [2, 4, 9] must be [2, 4, 10]");
  wrong(0, randn({4, 10}), "xbc must be [B, S, channels]");
  wrong(1, randn({2, 4, 3}), "dt [2, 4, 3] must be [2, 4, 2]");
  wrong(2, randn({3}), "a_log [3] must be [2]");
  wrong(3, randn({3}), "d [3] must be [2]");
  wrong(4, randn({1}), "dt_bias [1] must be [2]");
  const auto bad = [&](const std::function<void(StateSpaceOptions&)>& change,
                       const std::string& fragment) {
    StateSpaceOptions own = o;
    change(own);
    add_error<ValueError>(state_space_with(own), good, fragment);
  };
  bad([](auto& own) { own.heads = 0; }, "0 heads of 2 channels");
  bad([](auto& own) { own.groups = 3; }, "3 groups must divide the 2 heads");
  bad([](auto& own) { own.step_min = -1; }, "0 <= step_min <= step_max, got -1");
  bad([](auto& own) { own.step_min = 2, own.step_max = 1; }, "0 <= step_min <= step_max, got 2");
  bad([](auto& own) { own.chunk_size = 0; }, "chunk_size must lie in 1 .. 256, got 0");
  bad([](auto& own) { own.chunk_size = 257; }, "chunk_size must lie in 1 .. 256, got 257");
  bad([](auto& own) { own.position_offset = -1; }, "position_offset must not be negative");
  bad([&](auto& own) { own.document_starts = starts({{2}}, 3); }, "document_starts must be");
  bad(
      [](auto& own) {
        own.document_starts = tensor<int32_t>({0, 0, 1, 1}, {1, 4});
      },
      "change only where a document begins; got 1 at position 2 of row 0 after 0");
  bad(
      [](auto& own) {
        own.initial_state = zeros({2, 2, 3, 2}, kFloat64);
      },
      "initial_state [2, 2, 3, 2] must be [2, 2, 2, 3]");
  StateSpaceOptions typed = o;
  typed.initial_state = zeros({2, 2, 2, 3});
  add_error<TypeError>(state_space_with(typed), good, "initial_state must be float64");
  typed = o;
  typed.document_starts = zeros({1, 4}, kInt64);
  add_error<TypeError>(state_space_with(typed), good, "document_starts must be int32");
  TensorList mixed = good;
  mixed[0] = mixed[0].to(kBFloat16);
  add_error<TypeError>(state_space_with(o), mixed, "dt must be bfloat16 (xbc's dtype) or float32");
  mixed[1] = mixed[1].to(kFloat32);
  add_error<TypeError>(state_space_with(o), mixed, "a_log must be bfloat16");
}

OP_SAMPLES(state_space_step) {
  // in: xbc, dt, a_log, d, dt_bias, states
  const auto step = [](const StateSpaceOptions& o, const std::vector<int64_t>& slots) {
    return [=](const TensorList& in) -> TensorList {
      const Tensor states = in[5].defined() && in[0].defined()
                                ? clone(in[5].to(state_dtype(in[0]))).contiguous()
                                : in[5];
      const Tensor y = state_space_step(in[0], in[1], in[2], in[3], in[4], o, states, slots);
      return {y, states};
    };
  };
  const auto inputs = [&](const StateSpaceOptions& o, int64_t texts, int64_t count) -> TensorList {
    return {randn({texts, channels_of(o)}),
            randn({texts, o.heads}),
            uniform({o.heads}, -0.5, 0.7),
            randn({o.heads}),
            randn({o.heads}),
            randn({count, o.heads, o.head_dim, o.state_size})};
  };
  const StateSpaceOptions o = {.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5};
  add(step(o, {1}), inputs(o, 1, 2)).differentiable({});
  add(step(o, {2, 0, 3}), inputs(o, 3, 4)).differentiable({});
  add(step(o, {}), inputs(o, 0, 2)).differentiable({});
  const StateSpaceOptions bounded = {
      .heads = 1, .head_dim = 2, .state_size = 600, .step_min = 0.3, .step_max = 1};
  add(step(bounded, {0, 1}), inputs(bounded, 2, 2)).differentiable({});
  const StateSpaceOptions large = {.heads = 8, .head_dim = 64, .state_size = 128};
  add_large(step(large, {0, 1}), inputs(large, 2, 2)).differentiable({});

  const TensorList good = inputs(o, 2, 3);
  add_error<ValueError>(step(o, {0}), good, "1 slots for 2 texts");
  add_error<ValueError>(step(o, {0, 3}), good, "slot 3 is not one of the 3 of states");
  add_error<ValueError>(step(o, {1, 1}), good, "slot 1 stands twice");
  TensorList other = good;
  other[5] = randn({3, 4, 5, 3});
  add_error<ValueError>(step(o, {0, 1}), other, "states must be contiguous [slots, 4, 3, 5]");
  add_error<ValueError>(step(o, {0, 1}),
                        {randn({2, 1, 5}), good[1], good[2], good[3], good[4], good[5]},
                        "xbc must be [texts, channels]");
  const auto narrow = [=](const TensorList& in) {
    return state_space_step(in[0], in[1], in[2], in[3], in[4], o, in[5].to(kFloat32), {0, 1});
  };
  add_error<TypeError>(narrow, good, "states must be float64");
  TensorList wanting = good;
  wanting[3] = clone(wanting[3]).set_requires_grad();
  add_error<RuntimeError>(step(o, {0, 1}), wanting, "has no gradient");
}

OP_SAMPLES(gated_rms_norm) {
  // in: x, z, gain and, where they are given, the mean squares
  const auto with = [](const GatedNormOptions& options) {
    return [=](const TensorList& in) -> Tensor {
      GatedNormOptions own = options;
      if (in.size() > 3 && in[3].defined() && in[0].defined()) {
        own.mean_squares = in[3].to(state_dtype(in[0]));
      }
      return gated_rms_norm(in[0], in[1], in[2], own);
    };
  };
  for (const GatedNormOrder order :
       {GatedNormOrder::kNormThenGate, GatedNormOrder::kGateThenNorm}) {
    const GatedNormOptions whole = {.eps = 0.1, .order = order};
    const GatedNormOptions groups = {.eps = 0.1, .group_size = 3, .order = order};
    add(with(whole), {randn({6}), randn({6}), randn({6})});
    add(with(whole), {randn({2, 3, 5}), randn({2, 3, 5}), Tensor()}).differentiable({0, 1});
    add(with(groups), {randn({4, 6}), randn({4, 6}), randn({6})});
    add(with(groups), {randn({2, 2, 6}), randn({2, 2, 6}), randn({3})});
    add(with(groups), {randn({0, 6}), randn({0, 6}), randn({3})});
    add(with(whole), {randn({2, 0}), randn({2, 0}), randn({0})});
    add(with(groups), {randn({2, 6}), randn({2, 6}), randn({3}), positive({2, 2})});
    add(with(whole), {randn({3, 4}), randn({3, 4}), randn({4}), positive({3, 1})});
    const GatedNormOptions large = {.eps = 0.1, .group_size = 250, .order = order};
    add_large(with(large), {randn(kLarge), randn(kLarge), randn({250})});
    add_large(with(large), {randn(kLarge), randn(kLarge), randn({1000}), positive({40, 4})});
  }
  const TensorList good = {randn({2, 6}), randn({2, 6}), randn({6})};
  const GatedNormOptions plain = {};
  add_error<ValueError>(with(plain), {randn({}), randn({}), Tensor()}, "got a scalar");
  add_error<ValueError>(with(plain), {randn({2, 6}), randn({2, 5}), Tensor()},
                        "the shapes of x [2, 6] and z [2, 5] differ");
  add_error<ValueError>(with(plain), {randn({2, 6}), randn({2, 6}), randn({5})},
                        "gain [5] must be [6] or, for all groups, [6]");
  add_error<ValueError>(with({.group_size = 4}), good, "group_size 4 must divide");
  add_error<ValueError>(with({.group_size = -1}), good, "group_size -1 must divide");
  add_error<ValueError>(with({.eps = -1}), good, "eps must not be negative");
  add_error<ValueError>(with({.group_size = 3}), {good[0], good[1], good[2], positive({2, 1})},
                        "mean_squares [2, 1] must be [2, 2]");
  add_error<TypeError>(with({.dtype = kFloat32}), good, "float64 goes with float64 only");
  add_error<TypeError>(with(plain), {good[0], good[1].to(kFloat32), good[2]},
                       "x of float64 with z of float32");
  add_error<TypeError>(with(plain), {good[0].to(kBFloat16), good[1].to(kBFloat16), good[2]},
                       "gain must be bfloat16 (the result's dtype) or float32, got float64");
  GatedNormOptions typed = plain;
  typed.mean_squares = ones({2, 1});
  add_error<TypeError>(with(typed), good, "mean_squares must be float64, got float32");
}

OP_SAMPLES(gated_sum_of_squares) {
  const auto with = [](const GatedNormOptions& options) {
    return [=](const Tensor& x, const Tensor& z) { return gated_sum_of_squares(x, z, options); };
  };
  const GatedNormOptions plain = {};
  const GatedNormOptions gated = {.group_size = 3, .order = GatedNormOrder::kGateThenNorm};
  add(with(gated), {randn({4, 6}), randn({4, 6})});
  add(with(gated), {randn({2, 2, 3}), randn({2, 2, 3})});
  add(with(gated), {randn({0, 6}), randn({0, 6})});
  add(with(plain), {randn({2, 5}), randn({2, 5})}).differentiable({0});
  add(with(plain), {randn({2, 5}), Tensor()}).differentiable({0});
  GatedNormOptions large = gated;
  large.group_size = 250;
  add_large(with(large), {randn(kLarge), randn(kLarge)});
  add_error<ValueError>(with(gated), {randn({2, 5}), randn({2, 5})}, "group_size 3 must divide");
  add_error<ValueError>(with(gated), {randn({2, 6}), randn({1, 6})}, "differ");
  add_error<RuntimeError>(with(gated), {randn({2, 6}), Tensor()}, "argument z is undefined");
}

}  // namespace tapestry
