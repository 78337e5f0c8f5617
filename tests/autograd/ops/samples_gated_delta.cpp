// Samples of the gated delta rule and the short convolution.
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/gated_delta_rule.h"
#include "autograd/ops/transformer/short_convolution.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

OP_SAMPLES(gated_delta_rule) {
  const auto sizes = [](int64_t hk, int64_t hv, int64_t dk, int64_t dv) {
    return GatedDeltaOptions{.key_heads = hk, .value_heads = hv, .key_dim = dk, .value_dim = dv};
  };
  const auto rule = [](const GatedDeltaOptions& options) {
    return [=](const TensorList& in) {
      GatedDeltaOptions own = options;
      if (in.size() > 3) {
        own.initial_state = in[3];
        own.wants_final_state = in[3].defined();
      }
      const GatedDeltaResult result = gated_delta_rule(in[0], in[1], in[2], own);
      return own.wants_final_state ? TensorList{result.out, result.final_state}
                                   : TensorList{result.out};
    };
  };
  const auto add_case = [&](GatedDeltaOptions o, int64_t batch, int64_t tokens,
                            bool has_state) -> OpSample& {
    TensorList inputs = {
        randn({batch, tokens, 2 * o.key_heads * o.key_dim + o.value_heads * o.value_dim}),
        uniform({batch, tokens, o.value_heads}, -1, 0),
        uniform({batch, tokens, o.value_heads}, 0, 1)};
    if (has_state) {
      inputs.push_back(randn({batch, o.value_heads, o.key_dim, o.value_dim}));
    }
    return batch * tokens > 100 ? add_large(rule(o), inputs) : add(rule(o), inputs);
  };
  // Sums over tokens of products of four rounded numbers: g and beta are rounded in the samples.
  add_case(sizes(1, 1, 2, 3), 1, 3, false);
  add_case(sizes(1, 2, 3, 2), 2, 4, true);
  add_case(sizes(2, 2, 2, 2), 1, 2, true);
  GatedDeltaOptions final_only = sizes(1, 1, 2, 2);
  final_only.wants_final_state = true;
  add_case(final_only, 1, 3, false);
  GatedDeltaOptions documents = sizes(1, 1, 2, 2);
  documents.document_starts = document_starts(std::vector<std::vector<int64_t>>{{2, 3}, {}}, 5);
  add_case(documents, 2, 5, true);
  documents.document_starts = document_starts(std::vector<std::vector<int64_t>>{{1, 4}}, 6);
  documents.first_position = 1;
  add_case(documents, 2, 4, true);
  add_case(sizes(1, 2, 3, 2), 0, 4, true);
  add_case(sizes(1, 2, 3, 2), 1, 0, true);
  add_case(sizes(2, 4, 24, 40), 2, 150, true);
  add_case(sizes(1, 1, 32, 16), 1, 1200, false);

  const auto wrong = [&](const GatedDeltaOptions& o, const Shape& qkv, const Shape& gates,
                         const char* fragment) {
    add_error<ValueError>(rule(o), {randn(qkv), randn(gates), randn(gates)}, fragment);
  };
  wrong(sizes(2, 3, 2, 2), {1, 2, 14}, {1, 2, 3}, "the 2 key heads must divide the 3 value heads");
  wrong(sizes(1, 1, 0, 2), {1, 2, 2}, {1, 2, 1}, "must be at least 1, got 1, 1, 0 and 2");
  wrong(sizes(1, 2, 2, 2), {1, 2, 7}, {1, 2, 2}, "qkv must be [B, S, 8]");
  wrong(sizes(1, 2, 2, 2), {2, 8}, {2, 2}, "qkv must be [B, S, 8]");
  wrong(sizes(1, 2, 2, 2), {1, 2, 8}, {1, 2, 1}, "g and beta must be [1, 2, 2], got [1, 2, 1]");
  GatedDeltaOptions bad = sizes(1, 1, 2, 2);
  bad.eps = -1;
  wrong(bad, {1, 2, 6}, {1, 2, 1}, "eps must be a finite number of at least 0, got -1");
  bad = sizes(1, 1, 2, 2);
  bad.first_position = -1;
  wrong(bad, {1, 2, 6}, {1, 2, 1}, "first_position must not be negative, got -1");
  bad = sizes(1, 1, 2, 2);
  bad.document_starts = document_starts(std::vector<std::vector<int64_t>>{{}}, 2);
  bad.first_position = 1;
  wrong(bad, {1, 2, 6}, {1, 2, 1}, "document_starts must be contiguous [1 or 1, at least 3]");
  bad.document_starts = tensor<int32_t>({0, 2}, {1, 2});
  bad.first_position = 0;
  wrong(bad, {1, 2, 6}, {1, 2, 1}, "got 2 at position 1 of row 0");
  bad.document_starts = tensor<int64_t>({0, 0}, {1, 2});
  add_error<TypeError>(rule(bad), {randn({1, 2, 6}), randn({1, 2, 1}), randn({1, 2, 1})},
                       "document_starts must be int32");
  add_error<ValueError>(rule(sizes(1, 1, 2, 2)),
                        {randn({1, 2, 6}), randn({1, 2, 1}), randn({1, 2, 1}), randn({1, 1, 2, 3})},
                        "initial_state must be [1, 1, 2, 2], got [1, 1, 2, 3]");
  add_error<TypeError>(rule(sizes(1, 1, 2, 2)),
                       {integers({1, 2, 6}, 3), randn({1, 2, 1}), randn({1, 2, 1})}, "floating");
}

OP_SAMPLES(gated_delta_step) {
  const auto step = [](std::vector<int64_t> slots, const GatedDeltaOptions& options) {
    return [=](const TensorList& in) -> TensorList {
      const Tensor wide = in[3].to(in[0].dtype() == kFloat64 ? kFloat64 : kFloat32).contiguous();
      const Tensor state = wide.storage() == in[3].storage() ? wide.clone() : wide;
      return {gated_delta_step(in[0], in[1], in[2], state, slots, options), state};
    };
  };
  const auto sizes = [](int64_t hk, int64_t hv, int64_t dk, int64_t dv) {
    return GatedDeltaOptions{.key_heads = hk, .value_heads = hv, .key_dim = dk, .value_dim = dv};
  };
  const auto inputs = [&](const GatedDeltaOptions& o, int64_t texts, int64_t slots) -> TensorList {
    return {randn({texts, 2 * o.key_heads * o.key_dim + o.value_heads * o.value_dim}),
            uniform({texts, o.value_heads}, -1, 0), uniform({texts, o.value_heads}, 0, 1),
            randn({slots, o.value_heads, o.key_dim, o.value_dim})};
  };
  const GatedDeltaOptions small = sizes(1, 2, 3, 5);
  add(step({2, 0}, small), inputs(small, 2, 3)).differentiable({});
  add(step({}, small), inputs(small, 0, 2)).differentiable({});
  const GatedDeltaOptions wide = sizes(2, 4, 24, 40);
  add(step({0, 1, 2}, wide), inputs(wide, 3, 3)).differentiable({});
  const GatedDeltaOptions large = sizes(4, 4, 64, 64);
  add_large(step({3, 1, 2}, large), inputs(large, 3, 5)).differentiable({});

  const auto wrong = [&](std::vector<int64_t> slots, const GatedDeltaOptions& o,
                         const TensorList& in, const char* fragment) {
    add_error<ValueError>(step(slots, o), in, fragment);
  };
  wrong({0}, small, inputs(small, 2, 3), "1 slots for 2 texts");
  wrong({0, 3}, small, inputs(small, 2, 3), "slot 3 of a state with 3 slots");
  wrong({0, -1}, small, inputs(small, 2, 3), "slot -1");
  wrong({1, 1}, small, inputs(small, 2, 3), "two texts in slot 1");
  TensorList in = inputs(small, 2, 3);
  in[3] = randn({3, 2, 3, 4});
  wrong({0, 1}, small, in, "the state must be contiguous [slots, 2, 3, 5]");
  in = inputs(small, 2, 3);
  in[0] = randn({2, 4});
  wrong({0, 1}, small, in, "qkv must be [M, 16]");
  GatedDeltaOptions more = small;
  more.wants_final_state = true;
  wrong({0, 1}, more, inputs(small, 2, 3), "takes sizes and eps only");
  add_error<TypeError>(
      [=](const TensorList& x) {
        return gated_delta_step(x[0], x[1], x[2], x[3].to(kBFloat16), std::vector<int64_t>{0, 1},
                                small);
      },
      inputs(small, 2, 3), "must be float64, got bfloat16");
  add_error<RuntimeError>(
      [=](const TensorList& x) {
        const Tensor qkv = x[0].clone().set_requires_grad();
        return gated_delta_step(qkv, x[1], x[2], x[3].clone(), std::vector<int64_t>{0, 1}, small);
      },
      inputs(small, 2, 3), "has no gradient");
}

OP_SAMPLES(short_convolution) {
  const auto convolve = [](const ShortConvolutionOptions& options) {
    return [=](const TensorList& in) {
      ShortConvolutionOptions own = options;
      own.bias = in.size() > 2 ? in[2] : Tensor();
      own.previous = in.size() > 3 ? in[3] : Tensor();
      return short_convolution(in[0], in[1], own);
    };
  };
  const auto inputs = [&](const Shape& x, int64_t taps, bool has_more) -> TensorList {
    TensorList out = {randn(x), randn({x[2], taps})};
    if (has_more) {
      out.push_back(randn({x[2]}));
      out.push_back(randn({x[0], taps - 1, x[2]}));
    }
    return out;
  };
  for (const bool silu : {false, true}) {
    const ShortConvolutionOptions plain = {.silu = silu};
    add(convolve(plain), inputs({2, 5, 3}, 4, false));
    add(convolve(plain), inputs({2, 5, 3}, 3, true));
    add(convolve(plain), inputs({1, 2, 3}, 4, true));  // fewer tokens than taps
    add(convolve(plain), inputs({1, 3, 2}, 1, true));
    add(convolve(plain), inputs({2, 7, 2}, 6, true));
    add(convolve(plain), inputs({0, 5, 3}, 4, true));
    add(convolve(plain), inputs({1, 0, 3}, 4, true));
    add(convolve(plain), inputs({1, 3, 0}, 4, true));
    ShortConvolutionOptions documents = plain;
    documents.document_starts = document_starts(std::vector<std::vector<int64_t>>{{2, 3}, {}}, 6);
    add(convolve(documents), inputs({2, 6, 2}, 4, true));
    documents.document_starts = document_starts(std::vector<std::vector<int64_t>>{{1, 5}}, 7);
    documents.first_position = 2;
    add(convolve(documents), inputs({2, 5, 2}, 4, true));
    add_large(convolve(documents), inputs({2, 5, 300}, 4, true));
    add_large(convolve(plain), inputs({2, 150, 300}, 4, true));
  }
  const auto wrong = [&](const ShortConvolutionOptions& o, const TensorList& in,
                         const char* fragment) {
    add_error<ValueError>(convolve(o), in, fragment);
  };
  wrong({}, {randn({2, 3}), randn({3, 4})}, "x must be [B, S, C], got");
  wrong({}, {randn({1, 2, 3}), randn({4, 4})}, "must be [3, 1 to 64 taps], got [4, 4]");
  wrong({}, {randn({1, 2, 3}), randn({3, 65})}, "must be [3, 1 to 64 taps], got [3, 65]");
  wrong({}, {randn({1, 2, 3}), randn({3, 0})}, "must be [3, 1 to 64 taps], got [3, 0]");
  wrong({}, {randn({1, 2, 3}), randn({3, 4}), randn({4})}, "the bias must be [3], got [4]");
  wrong({}, {randn({1, 2, 3}), randn({3, 4}), randn({3}), randn({1, 4, 3})},
        "previous must be [1, 3, 3], got [1, 4, 3]");
  wrong({.document_starts = document_starts(std::vector<std::vector<int64_t>>{{}}, 2),
         .first_position = 1},
        {randn({1, 2, 3}), randn({3, 4})}, "at least 3");
  wrong({.first_position = -1}, {randn({1, 2, 3}), randn({3, 4})}, "first_position must not be");
  add_error<TypeError>(
      [](const TensorList& in) {
        return short_convolution(in[0], in[1], {.previous = in[2].to(kFloat32)});
      },
      {randn({1, 2, 3}), randn({3, 4}), randn({1, 3, 3})}, "previous must be float64 as x");
  add_error<TypeError>(
      [](const TensorList& in) { return short_convolution(in[0], in[1].to(kFloat32)); },
      {randn({1, 2, 3}), randn({3, 4})}, "float64 x takes float64 weight and bias");
  add_error<TypeError>(convolve({}), {integers({1, 2, 3}, 3), randn({3, 4})}, "floating");
}

OP_SAMPLES(short_convolution_step) {
  const auto step = [](std::vector<int64_t> slots, bool silu, bool is_wide) {
    return [=](const TensorList& in) -> TensorList {
      const bool widens = is_wide && in[0].dtype() != kFloat64;
      const Tensor state = in[3].to(widens ? kFloat32 : in[0].dtype()).clone();
      return {short_convolution_step(in[0], in[1], in[2], silu, state, slots), state};
    };
  };
  const auto inputs = [&](int64_t texts, int64_t channels, int64_t taps,
                          int64_t slots) -> TensorList {
    return {randn({texts, channels}), randn({channels, taps}), randn({channels}),
            randn({slots, taps - 1, channels})};
  };
  for (const bool silu : {false, true}) {
    add(step({2, 0}, silu, silu), inputs(2, 5, 4, 3)).differentiable({});
    add(step({0, 1, 2}, silu, !silu), inputs(3, 20, 3, 3)).differentiable({});
    add(step({0}, silu, false), inputs(1, 3, 1, 1)).differentiable({});
    add(step({}, silu, false), inputs(0, 3, 4, 2)).differentiable({});
    add_large(step({3, 1, 2, 0}, silu, true), inputs(4, 9000, 4, 5)).differentiable({});
  }
  const auto wrong = [&](std::vector<int64_t> slots, const TensorList& in, const char* fragment) {
    add_error<ValueError>(step(slots, false, false), in, fragment);
  };
  wrong({0}, inputs(2, 5, 4, 3), "1 slots for 2 texts");
  wrong({0, 3}, inputs(2, 5, 4, 3), "slot 3 of a state with 3 slots");
  wrong({1, 1}, inputs(2, 5, 4, 3), "two texts in slot 1");
  TensorList in = inputs(2, 5, 4, 3);
  in[3] = randn({3, 4, 5});
  wrong({0, 1}, in, "the state must be contiguous [slots, 3, 5]");
  in[0] = randn({2, 1, 5});
  wrong({0, 1}, in, "x must be [M, C]");
  add_error<TypeError>(
      [](const TensorList& x) {
        return short_convolution_step(x[0], x[1], x[2], false, x[3].to(kBFloat16),
                                      std::vector<int64_t>{0, 1});
      },
      inputs(2, 5, 4, 3), "must be float64 or float64, got bfloat16");
  add_error<RuntimeError>(
      [](const TensorList& x) {
        return short_convolution_step(x[0].clone().set_requires_grad(), x[1], x[2], false,
                                      x[3].clone(), std::vector<int64_t>{0, 1});
      },
      inputs(2, 5, 4, 3), "has no gradient");
}

}  // namespace tapestry
