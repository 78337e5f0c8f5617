// Reductions, sorting, indexing, products.
#include "autograd/ops/indexing.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/tensor/error.h"
#include "tests/golden/golden_op_table.h"

namespace tapestry::golden {

namespace {

NamedTensors both(const ValuesAndIndices& result) {
  return {{"values", result.values}, {"indices", result.indices}};
}

using Reduction = Tensor (*)(const Tensor&, const Shape&, bool);
using Spread = Tensor (*)(const Tensor&, const Shape&, double, bool);
using OverAll = Tensor (*)(const Tensor&);
using AlongAxis = ValuesAndIndices (*)(const Tensor&, int64_t, bool);

struct Pick {
  const char* name;
  OverAll over_all;
  AlongAxis along_axis;
};

}  // namespace

void add_reductions(OpTable& table) {
  const std::pair<const char*, Reduction> reductions[] = {{"sum", sum}, {"mean", mean}};
  for (const auto& [name, f] : reductions) {
    table[name] = [f = f](const NamedTensors& x, const Attributes& attrs) {
      return single(f(in(x, 0), attrs.integers("dim"), attrs.flag("keepdim")));
    };
  }
  const std::pair<const char*, Spread> spreads[] = {{"var", var}, {"std", tapestry::std}};
  for (const auto& [name, f] : spreads) {
    table[name] = [f = f](const NamedTensors& x, const Attributes& attrs) {
      return single(
          f(in(x, 0), attrs.integers("dim"), attrs.number("correction"), attrs.flag("keepdim")));
    };
  }
  for (const Pick& pick : {Pick{"max", max, max}, Pick{"min", min, min}}) {
    table[pick.name] = [pick](const NamedTensors& x, const Attributes& attrs) {
      return attrs.is_null("dim")
                 ? single(pick.over_all(in(x, 0)))
                 : both(pick.along_axis(in(x, 0), attrs.integer("dim"), attrs.flag("keepdim")));
    };
  }
  table["cumsum"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(cumsum(in(x, 0), attrs.integer("dim")));
  };
}

void add_matmul_and_indexing(OpTable& table) {
  table["matmul"] = [](const NamedTensors& x, const Attributes&) {
    return single(matmul(in(x, 0), in(x, 1)));
  };
  table["matmul_bf16"] = [](const NamedTensors& x, const Attributes& attrs) {
    const Tensor& b = in(x, 1);
    return single(matmul(in(x, 0), attrs.flag("transpose_b") ? b.t() : b));
  };
  table["linear"] = [](const NamedTensors& x, const Attributes&) {
    return single(linear(in(x, 0), in(x, 1), optional_input(x, "bias")));
  };
  table["topk"] = [](const NamedTensors& x, const Attributes& attrs) {
    check<ValueError>(attrs.flag("sorted"), "topk: results are always sorted");
    return both(topk(in(x, 0), attrs.integer("k"), attrs.integer("dim"), attrs.flag("largest")));
  };
  // Sorting is always stable, so it does not matter whether a case asks for it.
  table["sort"] = [](const NamedTensors& x, const Attributes& attrs) {
    (void)attrs.flag("stable", true);
    return both(sort(in(x, 0), attrs.integer("dim"), attrs.flag("descending")));
  };
  table["argsort"] = [](const NamedTensors& x, const Attributes& attrs) {
    (void)attrs.flag("stable", true);
    return single(argsort(in(x, 0), attrs.integer("dim"), attrs.flag("descending")));
  };
  table["gather"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(gather(in(x, 0), attrs.integer("dim"), in(x, 1)));
  };
  table["scatter_add"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(scatter_add(in(x, 0), attrs.integer("dim"), optional_input(x, "index"),
                              optional_input(x, "src")));
  };
  table["index_select"] = [](const NamedTensors& x, const Attributes& attrs) {
    return single(index_select(in(x, 0), attrs.integer("dim"), in(x, 1)));
  };
}

}  // namespace tapestry::golden
