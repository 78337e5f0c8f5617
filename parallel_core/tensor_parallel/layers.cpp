#include "parallel_core/tensor_parallel/layers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/init_method.h"
#include "parallel_core/tensor_parallel/column_linear.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/tensor_parallel/row_linear.h"

namespace tapestry {

namespace {

using nn::ParameterFlags;
using nn::TensorParallel;

std::string describe_linear(const nn::Parameter& weight, bool bias) {
  return concat("in=", weight.size(1), ", out=", weight.size(0), bias ? ", bias" : "");
}

// The sum over the group of what each rank has of hidden states: whole, or a piece of the sequence.
Tensor reduced(const Tensor& partial, const TensorParallelLayout& layout) {
  if (layout.size == 1) {
    return partial;
  }
  return layout.sequence_axis ? reduce_scatter_to_sequence_parallel_region(
                                    partial, *layout.sequence_axis, *layout.group)
                              : reduce_from_model_parallel_region(partial, *layout.group);
}

// How the ranks' parts of a column-parallel layer relate, and what its product knows of them.
TensorParallel rows_on_ranks(const ParallelLinearSpec& spec) {
  return spec.replicated ? spec.layout.hidden_gradient() : TensorParallel::kSharded;
}
TensorParallelLayout layout_of_rows(const ParallelLinearSpec& spec) {
  return spec.replicated ? TensorParallelLayout{} : spec.layout;
}

// Logical tensors of equal size that lie one below the other in the rows of a weight; 1 for one
// tensor, and for several that are interleaved.
int64_t pieces_of(const std::vector<LogicalInit>& weight) {
  const auto is_block = [&](const LogicalInit& part) {
    return part.logical.axis == 0 && part.logical.end - part.logical.begin ==
                                         weight.front().logical.end - weight.front().logical.begin;
  };
  return std::all_of(weight.begin(), weight.end(), is_block) ? std::ssize(weight) : 1;
}

// What is to be registered of a layer's additions: values, flags and logical tensors.
struct LowRankStart {
  const char* name;
  Shape shape;
  std::vector<LogicalInit> parts;
  ParameterFlags flags;
};

// `rows_are_divided`: over the ranks, as a column-parallel layer's are.
std::vector<LowRankStart> low_rank_starts(const ParallelLinearSpec& spec, bool rows_are_divided) {
  const TensorParallel replicated = spec.layout.hidden_gradient();
  LowRankStart a{"lora_a", LowRankAddition::a_shape(spec.low_rank, spec.input_size), {}, {}};
  LowRankStart b{"lora_b", LowRankAddition::b_shape(spec.low_rank), {}, {}};
  LowRankStart magnitude{"lora_magnitude", {0}, {}, {}};
  for (const LowRankModule& module : spec.low_rank.modules) {
    a.parts.push_back(module.a);
    for (const LowRankModule::Output& output : module.outputs) {
      b.parts.push_back(output.b);
      magnitude.parts.push_back(output.magnitude);
      magnitude.shape[0] += output.rows.total();
    }
  }
  a.flags = {.matmul = true,
             .adapter = true,
             .tp = rows_are_divided ? replicated : TensorParallel::kSharded,
             .tp_axis = 1};
  b.flags = {.matmul = true,
             .adapter = true,
             .tp = rows_are_divided ? rows_on_ranks(spec) : replicated,
             .tp_axis = 0};
  magnitude.flags = b.flags;
  magnitude.flags.matmul = false;
  std::vector<LowRankStart> out = {std::move(a), std::move(b)};
  if (spec.low_rank.has_magnitudes()) {
    out.push_back(std::move(magnitude));
  }
  return out;
}

// Registers them, by `add`, with the layer.
template <class Add>
std::optional<LowRankAddition> make_low_rank(const ParallelLinearSpec& spec,
                                             bool rows_are_divided,
                                             const Add& add) {
  if (spec.low_rank.empty()) {
    return std::nullopt;
  }
  std::vector<nn::Parameter*> made;
  for (const LowRankStart& start : low_rank_starts(spec, rows_are_divided)) {
    nn::Parameter& parameter =
        add(start.name, initial_value(start.shape, start.parts), start.flags);
    parameter.set_logical(logical_of(start.parts));
    made.push_back(&parameter);
  }
  return LowRankAddition(spec.low_rank, {made[0], made[1], made.size() > 2 ? made[2] : nullptr},
                         spec.precision, layout_of_rows(spec), spec.replicated);
}

// What adapters add now.
const LowRankAddition* active(const std::optional<LowRankAddition>& low_rank) {
  return low_rank && !adapters_are_off() ? &*low_rank : nullptr;
}

ParallelLinearSpec column_spec(const std::string& name,
                               int64_t input_size,
                               int64_t output_size,
                               const AllConfig& config,
                               const ColumnParallelLinearOptions& options) {
  check<ValueError>(!(options.gather_output && options.skip_bias_add && options.bias), name,
                    ": a gathered output has no use for a rank's part of the bias; gather_output "
                    "and skip_bias_add exclude each other");
  const TensorParallelLayout layout = tensor_parallel_layout(config);
  const int64_t own = layout.share_of(output_size, ("output features of " + name).c_str());
  const InitMethod init = options.init_method.value_or(weight_init(config.model_config));
  ParallelLinearSpec spec{.input_size = input_size,
                          .output_size = own,
                          .weight = {sliced(name + ".weight", {output_size, input_size}, 0,
                                            layout.rank * own, own, init)},
                          .skip_bias_add = options.skip_bias_add,
                          .gather_output = options.gather_output,
                          .precision = precision_of(config.model_config),
                          .layout = layout};
  if (options.bias) {
    spec.bias = {sliced(name + ".bias", {output_size}, 0, layout.rank * own, own,
                        options.bias_init.value_or(bias_init(config.model_config)))};
  }
  return spec;
}

ParallelLinearSpec row_spec(const std::string& name,
                            int64_t input_size,
                            int64_t output_size,
                            const AllConfig& config,
                            const RowParallelLinearOptions& options) {
  const TensorParallelLayout layout = tensor_parallel_layout(config);
  check<ValueError>(options.input_is_parallel || !layout.sequence_axis, name,
                    ": with sequence_parallel the input is a piece of the sequence, of which "
                    "features cannot be taken; it must be parallel (input_is_parallel)");
  const int64_t own = layout.share_of(input_size, ("input features of " + name).c_str());
  const InitMethod init = options.init_method.value_or(output_weight_init(config.model_config));
  ParallelLinearSpec spec{.input_size = own,
                          .output_size = output_size,
                          .weight = {sliced(name + ".weight", {output_size, input_size}, 1,
                                            layout.rank * own, own, init)},
                          .skip_bias_add = options.skip_bias_add,
                          .input_is_parallel = options.input_is_parallel,
                          .precision = precision_of(config.model_config),
                          .layout = layout};
  if (options.bias) {
    spec.bias = {whole(name + ".bias", {output_size},
                       options.bias_init.value_or(bias_init(config.model_config)))};
  }
  return spec;
}

}  // namespace

LogicalInit sliced(std::string name,
                   const Shape& shape,
                   int64_t axis,
                   int64_t first,
                   int64_t size,
                   InitMethod init,
                   int64_t rows) {
  LogicalInit out = whole(std::move(name), shape, init);
  nn::LogicalTensor& logical = out.logical;
  logical.offset = Shape::filled(shape.size(), 0);
  logical.offset[axis] = first;
  logical.slice_shape = shape;
  logical.slice_shape[axis] = size;
  logical.view_shape = logical.slice_shape;
  if (rows >= 0) {
    logical.view_shape[axis] = rows;
  }
  logical.axis = axis;
  logical.begin = 0;
  logical.end = size;
  return out;
}

Tensor gather_vocabulary(const Tensor& own,
                         int64_t vocabulary,
                         const TensorParallelLayout& layout) {
  return layout.size == 1
             ? own
             : gather_from_model_parallel_region(own, -1, *layout.group).slice(-1, 0, vocabulary);
}

LogicalInit vocabulary_rows(const std::string& logical_name,
                            int64_t vocabulary,
                            int64_t hidden,
                            InitMethod init,
                            const TensorParallelLayout& layout) {
  const VocabularyShard shard = vocabulary_shard(vocabulary, layout.rank, layout.size);
  return sliced(logical_name, {vocabulary, hidden}, 0, shard.first, shard.valid, init, shard.rows);
}

Tensor project_columns(const Tensor& x,
                       const nn::Parameter& weight,
                       const nn::Parameter* bias,
                       const Precision& precision,
                       const TensorParallelLayout& layout,
                       bool keeps_gathered,
                       int64_t pieces) {
  LinearSums sums;
  if (in_exact()) {
    sums.outputs = divided_runs(weight.size(0), layout, pieces);
  }
  if (layout.size == 1) {
    return project(x, weight, bias, precision, nullptr, sums);
  }
  if (precision.fused && !weight.is_quantized()) {
    return column_parallel_linear(x.to(precision.compute), weight,
                                  bias != nullptr ? Tensor(*bias) : Tensor(),
                                  rounded_weight(weight, precision), layout, keeps_gathered, sums);
  }
  const Tensor whole = layout.sequence_axis ? gather_from_sequence_parallel_region(
                                                  x, *layout.sequence_axis, *layout.group)
                                            : copy_to_model_parallel_region(x, *layout.group);
  return project(whole, weight, bias, precision, nullptr, sums);
}

Tensor project_rows(const Tensor& x,
                    const nn::Parameter& weight,
                    const nn::Parameter* bias,
                    const Precision& precision,
                    const TensorParallelLayout& layout,
                    std::function<Tensor()> recompute_x) {
  const LinearSums sums{.inputs = divided_runs(weight.size(1), layout)};
  if (!precision.fused || weight.is_quantized()) {  // float32, or project() refuses
    const Tensor sum =
        reduced(project(x, weight, nullptr, precision, std::move(recompute_x), sums), layout);
    return bias != nullptr ? add_bias(sum, *bias) : sum;
  }
  const Tensor operand = x.to(precision.compute);
  if (!operand.is_same(x)) {
    recompute_x = nullptr;
  }
  return exact_row_linear(operand, weight, bias != nullptr ? Tensor(*bias) : Tensor(),
                          rounded_weight(weight, precision), layout, sums, std::move(recompute_x));
}

ColumnParallelLinear::ColumnParallelLinear(const ParallelLinearSpec& spec)
    : weight_(register_parameter("weight",
                                 initial_value({spec.output_size, spec.input_size}, spec.weight),
                                 {.matmul = true, .tp = rows_on_ranks(spec), .tp_axis = 0})),
      skip_bias_add_(spec.skip_bias_add),
      gather_output_(spec.gather_output),
      replicated_(spec.replicated),
      pieces_(pieces_of(spec.weight)),
      has_copies_(std::any_of(spec.weight.begin(),
                              spec.weight.end(),
                              [](const LogicalInit& part) { return part.logical.copies > 1; })),
      precision_(spec.precision),
      layout_(layout_of_rows(spec)) {
  weight_.set_logical(logical_of(spec.weight));
  if (!spec.bias.empty()) {
    bias_ = &register_parameter("bias", initial_value({spec.output_size}, spec.bias),
                                {.decay = false, .tp = rows_on_ranks(spec), .tp_axis = 0});
    bias_->set_logical(logical_of(spec.bias));
  }
  low_rank_ = make_low_rank(
      spec, /*rows_are_divided=*/true,
      [this](const char* name, const Tensor& value, ParameterFlags flags) -> nn::Parameter& {
        return register_parameter(name, value, flags);
      });
}

ColumnParallelLinear::ColumnParallelLinear(const std::string& name,
                                           int64_t input_size,
                                           int64_t output_size,
                                           const AllConfig& config,
                                           const ColumnParallelLinearOptions& options)
    : ColumnParallelLinear(column_spec(name, input_size, output_size, config, options)) {}

std::string ColumnParallelLinear::extra_repr() const {
  return describe_linear(weight_, bias_ != nullptr);
}

OutputAndBias ColumnParallelLinear::forward(const Tensor& x, bool keeps_gathered) const {
  const bool skips_bias = bias_ != nullptr && skip_bias_add_;
  // Magnitudes scale what the bias is no part of.
  const LowRankAddition* const added = active(low_rank_);
  const bool late_bias = bias_ != nullptr && added != nullptr && added->has_magnitudes();
  const nn::Parameter* const bias = skips_bias || late_bias ? nullptr : bias_;
  check<ValueError>(!in_exact() || !has_copies_,
                    "exact mode: tensor-parallel ranks that share heads of keys and values sum "
                    "otherwise than one rank; tensor_model_parallel_size must divide their number");
  const bool at_once = added != nullptr && added->takes_product(weight_, is_training());
  // A replicated layer's rows are all here, but sequence parallelism divides its tokens.
  Tensor own =
      at_once ? added->product(x, weight_, bias)
      : replicated_
          ? project(x, weight_, bias, precision_, nullptr, {.tokens_apart = true})
          : project_columns(x, weight_, bias, precision_, layout_, keeps_gathered, pieces_);
  if (added != nullptr && !at_once) {
    own = added->to_columns(own, x, weight_, is_training());
  }
  if (skips_bias) {  // its output is not gathered
    return {own, *bias_};
  }
  if (late_bias) {
    own = add_bias(own, *bias_);
  }
  return {gather_output_ && layout_.size > 1
              ? gather_from_model_parallel_region(own, -1, *layout_.group)
              : own,
          {}};
}

RowParallelLinear::RowParallelLinear(const ParallelLinearSpec& spec)
    : weight_(register_parameter("weight",
                                 initial_value({spec.output_size, spec.input_size}, spec.weight),
                                 {.matmul = true, .tp = TensorParallel::kSharded, .tp_axis = 1})),
      skip_bias_add_(spec.skip_bias_add),
      input_is_parallel_(spec.input_is_parallel),
      precision_(spec.precision),
      layout_(spec.layout) {
  weight_.set_logical(logical_of(spec.weight));
  if (!spec.bias.empty()) {
    bias_ = &register_parameter("bias", initial_value({spec.output_size}, spec.bias),
                                {.decay = false, .tp = spec.layout.hidden_gradient()});
    bias_->set_logical(logical_of(spec.bias));
  }
  low_rank_ = make_low_rank(
      spec, /*rows_are_divided=*/false,
      [this](const char* name, const Tensor& value, ParameterFlags flags) -> nn::Parameter& {
        return register_parameter(name, value, flags);
      });
}

RowParallelLinear::RowParallelLinear(const std::string& name,
                                     int64_t input_size,
                                     int64_t output_size,
                                     const AllConfig& config,
                                     const RowParallelLinearOptions& options)
    : RowParallelLinear(row_spec(name, input_size, output_size, config, options)) {}

std::string RowParallelLinear::extra_repr() const {
  return describe_linear(weight_, bias_ != nullptr);
}

OutputAndBias RowParallelLinear::forward(const Tensor& input,
                                         std::function<Tensor()> recompute_x) const {
  const bool takes_part = !input_is_parallel_ && layout_.size > 1;
  const Tensor x = takes_part ? scatter_to_model_parallel_region(input, -1, *layout_.group) : input;
  const LowRankAddition* const added = active(low_rank_);
  if (in_exact()) {
    return exact_forward(x, added, std::move(recompute_x));
  }
  if (layout_.size == 1 && !skip_bias_add_ && added == nullptr) {
    return {project(x, weight_, bias_, precision_, std::move(recompute_x)), {}};
  }
  if (added != nullptr && added->takes_product(weight_, is_training())) {
    const nn::Parameter* const own_bias = skip_bias_add_ ? nullptr : bias_;
    return {added->product(x, weight_, own_bias, std::move(recompute_x)),
            skip_bias_add_ && bias_ != nullptr ? Tensor(*bias_) : Tensor()};
  }
  Tensor sum = reduced(project(x, weight_, nullptr, precision_, recompute_x), layout_);
  if (added != nullptr) {
    sum = added->to_rows(sum, x, weight_, is_training(), std::move(recompute_x));
  }
  const Tensor bias = bias_ != nullptr ? Tensor(*bias_) : Tensor();
  return skip_bias_add_ ? OutputAndBias{sum, bias} : OutputAndBias{add_bias(sum, bias), {}};
}

OutputAndBias RowParallelLinear::exact_forward(const Tensor& x,
                                               const LowRankAddition* added,
                                               std::function<Tensor()> recompute_x) const {
  const bool adds_bias = bias_ != nullptr && !skip_bias_add_;
  const bool late_bias = adds_bias && added != nullptr;
  Tensor sum = project_rows(x, weight_, adds_bias && !late_bias ? bias_ : nullptr, precision_,
                            layout_, recompute_x);
  if (added != nullptr) {
    sum = added->to_rows(sum, x, weight_, is_training(), std::move(recompute_x));
  }
  if (late_bias) {
    sum = add_bias(sum, *bias_);
  }
  return {sum, skip_bias_add_ && bias_ != nullptr ? Tensor(*bias_) : Tensor()};
}

Tensor ColumnParallelLinear::effective_weight() const {
  const NoGradGuard guard;
  const Tensor weight = weight_.to(precision_.compute);
  const LowRankAddition* const added = active(low_rank_);
  if (added == nullptr) {
    return weight;
  }
  // What becomes of the unit vectors, as a text whose tokens they are.
  const int64_t in = weight.size(1);
  const int64_t axis = layout_.sequence_axis.value_or(0);
  Tensor units = eye(in, in, precision_.compute).unsqueeze(1 - axis);
  if (layout_.sequence_axis) {
    check<ValueError>(in % layout_.size == 0, "linear layer: ", in,
                      " input features cannot be divided over ", layout_.size, " ranks");
    const int64_t own = in / layout_.size;
    units = units.slice(axis, layout_.rank * own, (layout_.rank + 1) * own);
  }
  const Tensor columns = weight.transpose(0, 1).contiguous().unsqueeze(1 - axis);
  return added->to_columns(columns, units, weight_, /*training=*/false)
      .squeeze(1 - axis)
      .transpose(0, 1)
      .contiguous();
}

void ColumnParallelLinear::start_magnitudes() const {
  if (low_rank_) {
    low_rank_->start_magnitudes(weight_, /*rows_are_whole=*/true);
  }
}

void RowParallelLinear::start_magnitudes() const {
  if (low_rank_) {
    low_rank_->start_magnitudes(weight_, /*rows_are_whole=*/false);
  }
}

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& logical_name,
                                               int64_t num_embeddings,
                                               int64_t embedding_dim,
                                               InitMethod init,
                                               const TensorParallelLayout& layout)
    : vocabulary_(num_embeddings),
      layout_(layout),
      shard_(vocabulary_shard(num_embeddings, layout.rank, layout.size)),
      weight_(register_parameter(
          "weight",
          initial_value(
              {shard_.rows, embedding_dim},
              {vocabulary_rows(logical_name, num_embeddings, embedding_dim, init, layout)}),
          {.tp = TensorParallel::kSharded, .tp_axis = 0})) {
  weight_.set_logical(
      {vocabulary_rows(logical_name, num_embeddings, embedding_dim, init, layout).logical});
}

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name,
                                               int64_t num_embeddings,
                                               int64_t embedding_dim,
                                               const AllConfig& config,
                                               std::optional<InitMethod> init)
    : VocabParallelEmbedding(name + ".weight",
                             num_embeddings,
                             embedding_dim,
                             init.value_or(weight_init(config.model_config)),
                             tensor_parallel_layout(config)) {}

std::string VocabParallelEmbedding::extra_repr() const {
  return concat("vocabulary=", vocabulary_, ", hidden=", weight_.size(1));
}

Tensor VocabParallelEmbedding::forward(const Tensor& ids) const {
  if (layout_.size == 1) {
    return embedding(weight_, ids);
  }
  // The rows of the tokens that this rank has; the others are added by their owners.
  const Tensor all = dense(ids.to(kInt64));
  const auto* id = all.data<int64_t>();
  std::vector<int64_t> places;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < all.numel(); ++i) {
    check<IndexError>(id[i] >= 0 && id[i] < vocabulary_, "embedding: id ", id[i], " at position ",
                      position_in(ids.shape(), i), " is outside [0, ", vocabulary_,
                      "); check tokenizer and vocabulary size");
    if (id[i] >= shard_.first && id[i] < shard_.first + shard_.valid) {
      places.push_back(i);
      rows.push_back(id[i] - shard_.first);
    }
  }
  const Shape count = {static_cast<int64_t>(rows.size())};
  const Tensor own = embedding(weight_, tensor(rows, count));
  const Tensor partial =
      index_add(zeros({all.numel(), weight_.size(1)}, own.dtype()), 0, tensor(places, count), own);
  Shape shape = ids.shape();
  shape.push_back(weight_.size(1));
  return reduced(partial.view(shape), layout_);
}

}  // namespace tapestry
