#include "parallel_core/lora/low_rank_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/lora/adapter_plan.h"

namespace tapestry {

namespace {

// Elements [begin, begin + size) of a parameter of `total`, whatever its shape.
void place_flat(LogicalInit& init, int64_t begin, int64_t size, int64_t total) {
  init.logical.view_shape = {total};
  init.logical.axis = 0;
  init.logical.begin = begin;
  init.logical.end = begin + size;
}

// A tensor with an entry, or a row of `rank`, for each row of a weight, cut like that.
LogicalInit beside_rows(std::string name, const nn::LogicalTensor& weight, int64_t rank) {
  const int64_t rows = weight.shape[0];
  const int64_t own = weight.local_shape()[0];
  const int64_t first = weight.offset.empty() ? 0 : weight.offset[0];
  const Shape shape = rank > 0 ? Shape{rows, rank} : Shape{rows};
  LogicalInit out = own == rows
                        ? whole(std::move(name), shape, InitMethod::constant(0))
                        : sliced(std::move(name), shape, 0, first, own, InitMethod::constant(0));
  out.logical.copies = weight.copies;
  return out;
}

// Sizes of the parameters that all As, Bs and magnitudes of a layer are in.
struct LowRankSizes {
  int64_t ranks = 0;
  int64_t elements = 0;
  int64_t rows = 0;
};

LowRankSizes sizes_of(const LowRankSpec& spec) {
  LowRankSizes sizes;
  for (const LowRankModule& module : spec.modules) {
    sizes.ranks += module.rank;
    for (const LowRankModule::Output& output : module.outputs) {
      sizes.rows += output.rows.total();
      sizes.elements += output.rows.total() * module.rank;
    }
  }
  return sizes;
}

// Gives every logical tensor its place in the parameters.
void place_all(LowRankSpec& spec, int64_t input_size) {
  const LowRankSizes sizes = sizes_of(spec);
  int64_t rank = 0;
  int64_t element = 0;
  int64_t row = 0;
  for (LowRankModule& module : spec.modules) {
    nn::LogicalTensor& a = module.a.logical;
    a.view_shape = {sizes.ranks, input_size};
    a.axis = 0;
    a.begin = rank;
    a.end = rank += module.rank;
    for (LowRankModule::Output& output : module.outputs) {
      const int64_t rows = output.rows.total();
      place_flat(output.b, element, rows * module.rank, sizes.elements);
      element += rows * module.rank;
      if (!output.magnitude.logical.name.empty()) {
        place_flat(output.magnitude, row, rows, sizes.rows);
      }
      row += rows;
    }
  }
}

}  // namespace

InitMethod start_of_lora_a(const LoraConfig& lora) {
  return lora.lora_a_std ? InitMethod::normal(*lora.lora_a_std)
                         : InitMethod{InitMethod::Kind::kHeUniform, 1 / std::sqrt(6.0)};
}

InitMethod start_of_lora_b(const LoraConfig& lora) {
  return lora.lora_b_std > 0 ? InitMethod::normal(lora.lora_b_std) : InitMethod::constant(0);
}

ParallelLinearSpec with_adapters(ParallelLinearSpec spec,
                                 const TransformerConfig& config,
                                 DividedSide divided,
                                 bool sequence_first) {
  if (!config.lora.use_lora) {
    return spec;
  }
  const bool by_columns = divided == DividedSide::kColumns;
  LowRankSpec& low_rank = spec.low_rank;
  for (const AdaptedModule& adapted : adapted_modules(config, spec.weight.front().logical.name)) {
    LowRankModule& module = low_rank.modules.emplace_back();
    module.name = adapted.module;
    module.rank = adapted.rank;
    module.scale = adapted.scale;
    const Shape a_shape = {adapted.rank, adapted.in_features};
    module.a = by_columns && spec.layout.size > 1
                   ? sliced(lora_a_name(adapted), a_shape, 1, spec.layout.rank * spec.input_size,
                            spec.input_size, start_of_lora_a(config.lora))
                   : whole(lora_a_name(adapted), a_shape, start_of_lora_a(config.lora));
    for (const std::string& name : adapted.weights) {
      const auto weight =
          std::find_if(spec.weight.begin(), spec.weight.end(),
                       [&](const LogicalInit& init) { return init.logical.name == name; });
      check<RuntimeError>(weight != spec.weight.end(), "adapter: '", name,
                          "' is no weight of its layer");
      LowRankModule::Output& output = module.outputs.emplace_back();
      output.rows = rows_of(weight->logical);
      output.weight = weight->logical;
      output.b = beside_rows(lora_b_name(name), weight->logical, adapted.rank);
      output.b.init = start_of_lora_b(config.lora);
      if (config.lora.use_dora) {
        output.magnitude = beside_rows(lora_magnitude_name(name), weight->logical, 0);
        output.magnitude.init = InitMethod::constant(1);
      }
    }
  }
  place_all(low_rank, spec.input_size);
  low_rank.dropout = config.lora.lora_dropout;
  low_rank.batch_axis = sequence_first ? 1 : 0;
  low_rank.first_feature = by_columns ? spec.layout.rank * spec.input_size : 0;
  low_rank.total_features = by_columns ? spec.layout.size * spec.input_size : spec.input_size;
  low_rank.positions = [context = context_parallel_layout(), layout = spec.layout,
                        by_columns](int64_t own) {
    // What is divided by features has the whole sequence.
    return by_columns ? context.positions(own) : hidden_positions(context, layout, own);
  };
  return spec;
}

}  // namespace tapestry
