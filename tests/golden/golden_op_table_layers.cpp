// Activations, softmax, norms, attention, losses.
#include "autograd/ops/activation.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/random.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/rope.h"
#include "autograd/tensor/error.h"
#include "tests/golden/golden_op_table.h"

namespace tapestry::golden {

namespace {

using Unary = Tensor (*)(const Tensor&);

void add_activations(OpTable& table) {
  const std::pair<const char*, Unary> unary[] = {
      {"relu", relu}, {"gelu", gelu}, {"gelu_tanh", gelu_tanh}, {"silu", silu}};
  for (const auto& [name, f] : unary) {
    table[name] = [f = f](const NamedTensors& x, const Attributes&) { return single(f(in(x, 0))); };
  }
  table["swiglu"] = [](const NamedTensors& x, const Attributes& attrs) {
    if (x.size() == 2) {
      attrs.expect("form", "two inputs");
      return single(swiglu(in(x, 0), in(x, 1)));
    }
    attrs.expect("form", "fused, gate is the first half of the last axis");
    return single(swiglu(in(x, 0)));
  };
  table["dropout"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(dropout_mask(in(x, 0), in(x, 1), attrs.number("p")));
  };
}

void add_softmax_and_norms(OpTable& table) {
  table["softmax"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(softmax(in(x, 0), attrs.integer("dim")));
  };
  table["log_softmax"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(log_softmax(in(x, 0), attrs.integer("dim")));
  };
  table["logsumexp"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(logsumexp(in(x, 0), attrs.integers("dim"), attrs.flag("keepdim", false)));
  };
  table["layer_norm"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(layer_norm(in(x, 0), optional_input(x, "weight"), optional_input(x, "bias"),
                             attrs.number("eps", 1e-5)));
  };
  table["rms_norm"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(rms_norm(in(x, 0), optional_input(x, "weight"), attrs.number("eps", 1e-5)));
  };
}

Tensor attention(const NamedTensors& x, const Attributes& attrs) {
  attrs.expect("layout", "BHSD");
  AttentionOptions options;
  options.causal = attrs.flag("causal");
  if (!attrs.is_null("window_left")) {
    options.window_left = attrs.integer("window_left");
  }
  if (attrs.is_text("scale")) {
    attrs.expect("scale", "1/sqrt(D)");
  } else if (!attrs.is_null("scale")) {
    options.scale = attrs.number("scale");
  }
  options.mask = optional_input(x, "mask");
  return scaled_dot_product_attention(in(x, 0), in(x, 1), in(x, 2), options);
}

Tensor rotary(const NamedTensors& x, const Attributes& attrs) {
  attrs.expect("layout", "BHSD");
  attrs.expect("convention", "half rotation");
  const Tensor& input = in(x, 0);
  const int64_t offset = attrs.integer("position_offset");
  const RopeTable table = rope_table(offset + input.size(-2), attrs.integer("rotary_dim"),
                                     {.base = attrs.number("base"), .dtype = input.dtype()});
  return rope(input, table, {.position_offset = offset});
}

Tensor loss(const NamedTensors& x, const Attributes& attrs) {
  CrossEntropyOptions options;
  options.loss_mask = optional_input(x, "loss_mask");
  if (!attrs.is_null("ignore_index")) {
    options.ignore_index = attrs.integer("ignore_index");
  }
  const std::string reduction = attrs.text("reduction");
  if (reduction == "none") {
    options.reduction = Reduction::kNone;
  } else if (reduction == "sum") {
    options.reduction = Reduction::kSum;
  } else {
    attrs.expect("reduction", "mean");
  }
  return cross_entropy(in(x, 0), in(x, 1), options);
}

}  // namespace

void add_layers(OpTable& table) {
  add_activations(table);
  add_softmax_and_norms(table);
  table["embedding"] = [](const NamedTensors& x, const Attributes&) {
    return single(embedding(in(x, 0), in(x, 1)));
  };
  table["scaled_dot_product_attention"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(attention(x, attrs));
  };
  table["rope"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(rotary(x, attrs));
  };
  table["cross_entropy"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(loss(x, attrs));
  };
}

}  // namespace tapestry::golden
