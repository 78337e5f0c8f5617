#include "tests/random_programs/operations.h"

#include <map>
#include <stdexcept>

#include "autograd/ops/ops.h"
#include "autograd/tape/checkpoint.h"

namespace tapestry::random_programs {

namespace {

using Inputs = const TensorList&;
using Values = const Attributes&;
using Operation = TensorList (*)(Inputs, Values);
using Table = std::map<std::string, Operation>;

template <Tensor (*F)(const Tensor&)>
TensorList one(Inputs in, Values /*a*/) {
  return {F(in[0])};
}
template <Tensor (*F)(const Tensor&, const Tensor&)>
TensorList two(Inputs in, Values /*a*/) {
  return {F(in[0], in[1])};
}
template <Tensor (*F)(const Tensor&, Scalar)>
TensorList number(Inputs in, Values a) {
  return {F(in[0], a.real("value"))};
}
template <Tensor (*F)(Scalar, const Tensor&)>
TensorList number_first(Inputs in, Values a) {
  return {F(a.real("value"), in[0])};
}
template <Tensor (*F)(const Tensor&, const Shape&, bool)>
TensorList reduce(Inputs in, Values a) {
  return {F(in[0], a.shape("axes"), a.flag("keepdim"))};
}
template <Tensor (*F)(const Tensor&, const Shape&, double, bool)>
TensorList moment(Inputs in, Values a) {
  return {F(in[0], a.shape("axes"), a.real("correction"), a.flag("keepdim"))};
}
template <Tensor (*F)(const Tensor&, int64_t)>
TensorList along(Inputs in, Values a) {
  return {F(in[0], a.integer("axis"))};
}
template <ValuesAndIndices (*F)(const Tensor&, int64_t, bool)>
TensorList choose(Inputs in, Values a) {
  const ValuesAndIndices found = F(in[0], a.integer("axis"), a.flag("keepdim"));
  return {found.values, found.indices};
}
template <Tensor (*F)(const Tensor&, std::optional<int64_t>, bool)>
TensorList where_chosen(Inputs in, Values a) {
  return {F(in[0], a.find_integer("axis"), a.flag("keepdim"))};
}
template <Tensor (*F)(const Tensor&, int64_t, const Tensor&, const Tensor&)>
TensorList place(Inputs in, Values a) {
  return {F(in[0], a.integer("axis"), in[1], in[2])};
}

Reduction reduction(Values a) {
  const std::string& name = a.text("reduction");
  return name == "mean" ? Reduction::kMean : name == "sum" ? Reduction::kSum : Reduction::kNone;
}

CrossEntropyOptions loss_options(Values a, const Tensor& mask) {
  return {.ignore_index = a.integer("ignore_index"),
          .reduction = reduction(a),
          .loss_mask = mask,
          .label_smoothing = a.real("label_smoothing"),
          .valid_vocab = a.integer("valid_vocab", -1)};
}

TensorList of(const AddNorm& result) { return {result.sum, result.normed}; }

TensorList run_attention(Inputs in, Values a) {
  AttentionOptions options{.causal = a.flag("causal"),
                           .window_left = a.find_integer("window_left"),
                           .mask = in[3],
                           .q_offset = a.integer("q_offset", 0)};
  if (a.has("scale")) {
    options.scale = a.real("scale");
  }
  return {scaled_dot_product_attention(in[0], in[1], in[2], options)};
}

TensorList run_rope(Inputs in, Values a) {
  const RopeTable table =
      rope_table(a.integer("length"), a.integer("width"),
                 {.base = 100, .dtype = in[0].dtype() == kFloat64 ? kFloat64 : kFloat32});
  return {rope(in[0], table,
               {.interleaved = a.flag("interleaved"), .position_offset = a.integer("offset")})};
}

TensorList run_pad(Inputs in, Values a) {
  const Shape pairs = a.shape("padding");
  std::vector<Padding> padding;
  for (int64_t i = 0; i < pairs.size(); i += 2) {
    padding.push_back({pairs[i], pairs[i + 1]});
  }
  return {pad(in[0], padding, a.real("value"))};
}

TensorList run_split(Inputs in, Values a) {
  const int64_t axis = a.integer("axis");
  return a.has("sizes") ? split(in[0], a.shape("sizes"), axis)
                        : split(in[0], a.integer("size"), axis);
}

TensorList run_repeat_interleave(Inputs in, Values a) {
  const std::optional<int64_t> axis = a.find_integer("axis");
  return {in.size() > 1 ? repeat_interleave(in[0], in[1], axis)
                        : repeat_interleave(in[0], a.integer("count"), axis)};
}

TensorList run_checkpoint(Inputs in, Values /*a*/) {
  return {checkpoint(
      [](Inputs x) { return tanh(matmul(x[0], x[1])) * x[0].select(-1, 0).unsqueeze(-1); }, in)};
}

void add_elementwise(Table& t) {
  t.insert({{"neg", one<neg>},
            {"abs", one<abs>},
            {"sign", one<sign>},
            {"floor", one<floor>},
            {"ceil", one<ceil>},
            {"round", one<round>},
            {"relu", one<relu>},
            {"exp", one<exp>},
            {"square", one<square>},
            {"sin", one<sin>},
            {"cos", one<cos>},
            {"tanh", one<tanh>},
            {"sigmoid", one<sigmoid>},
            {"erf", one<erf>},
            {"log", one<log>},
            {"sqrt", one<sqrt>},
            {"rsqrt", one<rsqrt>},
            {"reciprocal", one<reciprocal>},
            {"squared_relu", one<squared_relu>},
            {"gelu", one<gelu>},
            {"gelu_tanh", one<gelu_tanh>},
            {"silu", one<silu>},
            {"softplus", one<softplus>},
            {"add", two<add>},
            {"sub", two<sub>},
            {"mul", two<mul>},
            {"div", two<div>},
            {"pow", two<pow>},
            {"maximum", two<maximum>},
            {"minimum", two<minimum>},
            {"add_number", number<add>},
            {"sub_number", number<sub>},
            {"mul_number", number<mul>},
            {"div_number", number<div>},
            {"pow_number", number<pow>},
            {"number_sub", number_first<sub>},
            {"number_div", number_first<div>},
            {"number_pow", number_first<pow>},
            {"eq", two<eq>},
            {"ne", two<ne>},
            {"lt", two<lt>},
            {"le", two<le>},
            {"gt", two<gt>},
            {"ge", two<ge>},
            {"lt_number", number<lt>},
            {"ge_number", number<ge>},
            {"logical_and", two<logical_and>},
            {"logical_or", two<logical_or>},
            {"logical_xor", two<logical_xor>},
            {"logical_not", one<logical_not>},
            {"isfinite", one<isfinite>},
            {"isnan", one<isnan>}});
  t["clamp"] = [](Inputs in, Values a) {
    return TensorList{clamp(in[0], a.real("low"), a.real("high"))};
  };
  t["where"] = [](Inputs in, Values) { return TensorList{where(in[0], in[1], in[2])}; };
  t["masked_fill"] = [](Inputs in, Values a) {
    return TensorList{masked_fill(in[0], in[1], a.real("value"))};
  };
  t["masked_select"] = two<masked_select>;
}

void add_reductions(Table& t) {
  t.insert({{"sum", reduce<sum>},
            {"mean", reduce<mean>},
            {"logsumexp", reduce<logsumexp>},
            {"amax", reduce<amax>},
            {"amin", reduce<amin>},
            {"prod", reduce<prod>},
            {"any", reduce<any>},
            {"all", reduce<all>},
            {"var", moment<var>},
            {"std", moment<tapestry::std>},
            {"max_all", one<max>},
            {"min_all", one<min>},
            {"max_axis", choose<max>},
            {"min_axis", choose<min>},
            {"argmax", where_chosen<argmax>},
            {"argmin", where_chosen<argmin>},
            {"cumsum", along<cumsum>},
            {"softmax", along<softmax>},
            {"log_softmax", along<log_softmax>}});
  t["sum_to"] = [](Inputs in, Values a) { return TensorList{sum_to(in[0], a.shape("shape"))}; };
}

void add_products(Table& t) {
  t.insert({{"matmul", two<matmul>}, {"bmm", two<bmm>}, {"dot", two<dot>}, {"outer", two<outer>}});
  t["linear"] = [](Inputs in, Values) { return TensorList{linear(in[0], in[1], in[2])}; };
  t["einsum"] = [](Inputs in, Values a) {
    return TensorList{einsum(a.text("equation"), in).clone()};  // it may be a view
  };
}

void add_shapes(Table& t) {
  t.insert({{"contiguous", one<contiguous>}, {"clone", one<clone>}});
  t.insert({{"split", run_split}, {"pad", run_pad}});
  t["view"] = [](Inputs in, Values a) { return TensorList{in[0].view(a.shape("shape"))}; };
  t["reshape"] = [](Inputs in, Values a) { return TensorList{in[0].reshape(a.shape("shape"))}; };
  t["permute"] = [](Inputs in, Values a) { return TensorList{in[0].permute(a.shape("axes"))}; };
  t["transpose"] = [](Inputs in, Values a) {
    return TensorList{in[0].transpose(a.integer("axis0"), a.integer("axis1"))};
  };
  t["t"] = [](Inputs in, Values) { return TensorList{in[0].t()}; };
  t["expand"] = [](Inputs in, Values a) { return TensorList{in[0].expand(a.shape("shape"))}; };
  t["slice"] = [](Inputs in, Values a) {
    return TensorList{
        in[0].slice(a.integer("axis"), a.integer("start"), a.integer("stop"), a.integer("step"))};
  };
  t["select"] = [](Inputs in, Values a) {
    return TensorList{in[0].select(a.integer("axis"), a.integer("index"))};
  };
  t["squeeze"] = [](Inputs in, Values a) {
    return TensorList{in[0].squeeze(a.find_integer("axis"))};
  };
  t["unsqueeze"] = [](Inputs in, Values a) {
    return TensorList{in[0].unsqueeze(a.integer("axis"))};
  };
  t["detach"] = [](Inputs in, Values) { return TensorList{in[0].detach()}; };
  t["to"] = [](Inputs in, Values a) { return TensorList{in[0].to(dtype_from(a.text("dtype")))}; };
  t["cat"] = [](Inputs in, Values a) { return TensorList{cat(in, a.integer("axis"))}; };
  t["stack"] = [](Inputs in, Values a) { return TensorList{stack(in, a.integer("axis"))}; };
}

void add_indexing(Table& t) {
  t.insert({{"scatter_add", place<scatter_add>},
            {"index_add", place<index_add>},
            {"index_copy", place<index_copy>},
            {"nonzero", one<nonzero>},
            {"repeat_interleave", run_repeat_interleave}});
  t["gather"] = [](Inputs in, Values a) {
    return TensorList{gather(in[0], a.integer("axis"), in[1])};
  };
  t["scatter"] = [](Inputs in, Values a) {
    const int64_t axis = a.integer("axis");
    return TensorList{in.size() > 2 ? scatter(in[0], axis, in[1], in[2])
                                    : scatter(in[0], axis, in[1], a.real("value"))};
  };
  t["index_select"] = [](Inputs in, Values a) {
    return TensorList{index_select(in[0], a.integer("axis"), in[1])};
  };
  t["index"] = [](Inputs in, Values) {
    return TensorList{index(in[0], TensorList(in.begin() + 1, in.end()))};
  };
  t["index_put"] = [](Inputs in, Values a) {
    return TensorList{
        index_put(in[0], TensorList(in.begin() + 2, in.end()), in[1], a.flag("accumulate"))};
  };
  t["one_hot"] = [](Inputs in, Values a) {
    return TensorList{one_hot(in[0], a.integer("num_classes"))};
  };
  t["tril"] = [](Inputs in, Values a) { return TensorList{tril(in[0], a.integer("diagonal"))}; };
  t["triu"] = [](Inputs in, Values a) { return TensorList{triu(in[0], a.integer("diagonal"))}; };
  t["roll"] = [](Inputs in, Values a) {
    return TensorList{roll(in[0], a.shape("shifts"), a.shape("axes"))};
  };
  t["flip"] = [](Inputs in, Values a) { return TensorList{flip(in[0], a.shape("axes"))}; };
  t["repeat"] = [](Inputs in, Values a) { return TensorList{repeat(in[0], a.shape("counts"))}; };
  t["sort"] = [](Inputs in, Values a) {
    const ValuesAndIndices sorted = sort(in[0], a.integer("axis"), a.flag("descending"));
    return TensorList{sorted.values, sorted.indices};
  };
  t["argsort"] = [](Inputs in, Values a) {
    return TensorList{argsort(in[0], a.integer("axis"), a.flag("descending"))};
  };
  t["topk"] = [](Inputs in, Values a) {
    const ValuesAndIndices best = topk(in[0], a.integer("k"), a.integer("axis"), a.flag("largest"));
    return TensorList{best.values, best.indices};
  };
  t["unique"] = [](Inputs in, Values) {
    const UniqueResult found = unique(in[0]);
    return TensorList{found.values, found.inverse, found.counts};
  };
}

void add_layers(Table& t) {
  t.insert({{"bias_gelu", two<bias_gelu>},
            {"bias_gelu_tanh", two<bias_gelu_tanh>},
            {"bias_silu", two<bias_silu>},
            {"rope", run_rope},
            {"attention", run_attention},
            {"checkpoint", run_checkpoint}});
  t["layer_norm"] = [](Inputs in, Values a) {
    return TensorList{layer_norm(in[0], in[1], in[2], a.real("eps"))};
  };
  t["rms_norm"] = [](Inputs in, Values a) {
    return TensorList{rms_norm(in[0], in[1], a.real("eps"))};
  };
  t["add_layer_norm"] = [](Inputs in, Values a) {
    return of(add_layer_norm(in[0], in[1], in[2], in[3], {.eps = a.real("eps"), .x_bias = in[4]}));
  };
  t["add_rms_norm"] = [](Inputs in, Values a) {
    return of(add_rms_norm(in[0], in[1], in[2], {.eps = a.real("eps"), .x_bias = in[3]}));
  };
  t["swiglu"] = [](Inputs in, Values) {
    return TensorList{in.size() > 1 ? swiglu(in[0], in[1]) : swiglu(in[0])};
  };
  t["embedding"] = [](Inputs in, Values) { return TensorList{embedding(in[0], in[1])}; };
  t["dropout_mask"] = [](Inputs in, Values a) {
    return TensorList{dropout_mask(in[0], in[1], a.real("p"))};
  };
  t["cross_entropy"] = [](Inputs in, Values a) {
    return TensorList{cross_entropy(in[0], in[1], loss_options(a, in[2]))};
  };
  t["linear_cross_entropy"] = [](Inputs in, Values a) {
    return TensorList{linear_cross_entropy(
        in[0], in[1], in[2],
        {.loss = loss_options(a, in[3]), .chunk_rows = a.integer("chunk_rows")})};
  };
  t["nll_loss"] = [](Inputs in, Values a) {
    return TensorList{nll_loss(
        in[0], in[1], {.ignore_index = a.integer("ignore_index"), .reduction = reduction(a)})};
  };
  t["mse_loss"] = [](Inputs in, Values a) {
    return TensorList{mse_loss(in[0], in[1], reduction(a))};
  };
  t["binary_cross_entropy_with_logits"] = [](Inputs in, Values a) {
    return TensorList{binary_cross_entropy_with_logits(in[0], in[1], in[2], reduction(a))};
  };
}

void add_changes_in_place(Table& t) {
  t.insert({{"add_", two<add_>},           {"sub_", two<sub_>},
            {"mul_", two<mul_>},           {"div_", two<div_>},
            {"copy_", two<copy_>},         {"add_number_", number<add_>},
            {"sub_number_", number<sub_>}, {"mul_number_", number<mul_>},
            {"div_number_", number<div_>}, {"pow_number_", number<pow_>},
            {"neg_", one<neg_>},           {"abs_", one<abs_>},
            {"floor_", one<floor_>},       {"ceil_", one<ceil_>},
            {"round_", one<round_>},       {"zero_", one<zero_>},
            {"square_", one<square_>},     {"tanh_", one<tanh_>},
            {"sigmoid_", one<sigmoid_>},   {"exp_", one<exp_>},
            {"sqrt_", one<sqrt_>},         {"log_", one<log_>},
            {"rsqrt_", one<rsqrt_>},       {"reciprocal_", one<reciprocal_>}});
  t["fill_"] = [](Inputs in, Values a) { return TensorList{fill_(in[0], a.real("value"))}; };
  t["clamp_"] = [](Inputs in, Values a) {
    return TensorList{clamp_(in[0], a.real("low"), a.real("high"))};
  };
  t["masked_fill_"] = [](Inputs in, Values a) {
    return TensorList{masked_fill_(in[0], in[1], a.real("value"))};
  };
}

Table make_table() {
  Table table;
  add_elementwise(table);
  add_reductions(table);
  add_products(table);
  add_shapes(table);
  add_indexing(table);
  add_layers(table);
  add_changes_in_place(table);
  return table;
}

}  // namespace

TensorList run_operation(const std::string& op,
                         const TensorList& inputs,
                         const Attributes& attributes) {
  static const Table table = make_table();
  const auto found = table.find(op);
  if (found == table.end()) {
    throw std::out_of_range("random programs: no op " + op);
  }
  return found->second(inputs, attributes);
}

}  // namespace tapestry::random_programs
