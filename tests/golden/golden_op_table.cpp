#include "tests/golden/golden_op_table.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"

namespace tapestry::golden {

namespace {

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

NamedTensors numbered(const TensorList& parts) {
  NamedTensors out;
  for (size_t i = 0; i < parts.size(); ++i) {
    out.emplace_back(std::to_string(i), parts[i]);
  }
  return out;
}

}  // namespace

Tensor optional_input(const NamedTensors& inputs, const std::string& name) {
  for (const auto& [key, value] : inputs) {
    if (key == name) {
      return value;
    }
  }
  return {};
}

TensorList values_of(const NamedTensors& inputs) {
  TensorList out;
  for (const auto& [key, value] : inputs) {
    out.push_back(value);
  }
  return out;
}

void add_elementwise(OpTable& table) {
  const std::pair<const char*, Unary> unary[] = {{"exp", exp},   {"log", log},
                                                 {"sqrt", sqrt}, {"rsqrt", rsqrt},
                                                 {"tanh", tanh}, {"sigmoid", sigmoid}};
  for (const auto& [name, f] : unary) {
    table[name] = [f = f](const NamedTensors& x, const Attributes&) { return single(f(in(x, 0))); };
  }
  const std::pair<const char*, Binary> binary[] = {
      {"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}};
  for (const auto& [name, f] : binary) {
    table[name] = [f = f](const NamedTensors& x, const Attributes&) {
      return single(f(in(x, 0), in(x, 1)));
    };
  }
  table["pow"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(x.size() == 1 ? pow(in(x, 0), attrs.number("exponent"))
                                : pow(in(x, 0), in(x, 1)));
  };
  table["where"] = [](const NamedTensors& x, const Attributes&) {
    return single(where(in(x, 0), in(x, 1), in(x, 2)));
  };
  table["masked_fill"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(masked_fill(in(x, 0), in(x, 1), attrs.number("value")));
  };
  table["cast_bf16"] = [](const NamedTensors& x, const Attributes& attrs) {
    attrs.expect("to", "bfloat16");
    return single(in(x, 0).to(kBFloat16));
  };
}

void add_shape_ops(OpTable& table) {
  table["cat"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(cat(values_of(x), attrs.integer("dim")));
  };
  table["stack"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(stack(values_of(x), attrs.integer("dim")));
  };
  table["split"] = [](const NamedTensors& x, const Attributes& attrs) {
    return numbered(split(in(x, 0), attrs.integers("sizes"), attrs.integer("dim")));
  };
  table["slice"] = [](const NamedTensors& x, const Attributes& attrs) {
    Tensor y = in(x, 0);
    int64_t axis = 0;
    for (const std::vector<int64_t>& part : attrs.lists("index")) {
      y = slice(y, axis++, part.at(0), part.at(1), part.at(2));
    }
    return single(y);
  };
  table["pad"] = [](const NamedTensors& x, const Attributes& attrs) {
    std::vector<Padding> padding;
    for (const std::vector<int64_t>& pair : attrs.lists("pads")) {
      padding.push_back({pair.at(0), pair.at(1)});
    }
    return single(pad(in(x, 0), padding, attrs.number("value")));
  };
  table["transpose"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(transpose(in(x, 0), attrs.integer("dim0"), attrs.integer("dim1")));
  };
  table["permute"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(permute(in(x, 0), attrs.integers("dims")));
  };
  table["reshape"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(reshape(in(x, 0), attrs.integers("shape")));
  };
  table["expand"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(expand(in(x, 0), attrs.integers("shape")));
  };
  table["squeeze"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(attrs.is_null("dim") ? squeeze(in(x, 0))
                                       : squeeze(in(x, 0), attrs.integer("dim")));
  };
  table["unsqueeze"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(unsqueeze(in(x, 0), attrs.integer("dim")));
  };
}

const std::map<std::string, OpFunction>& op_table() {
  static const OpTable table = [] {
    OpTable out;
    add_elementwise(out);
    add_shape_ops(out);
    add_reductions(out);
    add_matmul_and_indexing(out);
    add_layers(out);
    add_optimizer(out);
    return out;
  }();
  return table;
}

}  // namespace tapestry::golden
