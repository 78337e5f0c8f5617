#include "parallel_core/parameter_count.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

void add_elements(const ModelMatrix& matrix,
                  const ModelShares& shares,
                  int64_t experts,
                  ParameterCounts& counts) {
  const double elements = elements_on_rank(matrix, shares);
  if (matrix.experts > 0) {
    counts.experts += static_cast<double>(experts) * elements;
  } else {
    counts.dense += elements;
  }
}

ParameterCounts count_of_layer(const TransformerConfig& model,
                               int64_t layer,
                               const ModelShares& shares,
                               int64_t experts) {
  ParameterCounts counts;
  for (const ModelMatrix& matrix : layer_matrices(model, layer)) {
    add_elements(matrix, shares, experts, counts);
  }
  return counts;
}

double elements_of(const std::vector<ModelMatrix>& matrices, const ModelShares& shares) {
  double sum = 0;
  for (const ModelMatrix& matrix : matrices) {
    sum += elements_on_rank(matrix, shares);
  }
  return sum;
}

}  // namespace

ParameterCounts count_parameters(const TransformerConfig& model,
                                 const ModelPart& part,
                                 const ModelShares& shares,
                                 int64_t experts) {
  ParameterCounts out;
  for (const AlikeLayers& layers : part.layers) {
    const ParameterCounts layer = count_of_layer(model, layers.layer, shares, experts);
    out.dense += static_cast<double>(layers.count) * layer.dense;
    out.experts += static_cast<double>(layers.count) * layer.experts;
  }
  const std::vector<ModelMatrix> before = matrices_before_layers(model);
  if (part.pre_process) {
    out.dense += elements_of(before, shares);
  }
  if (part.post_process) {
    out.dense += elements_of(matrices_after_layers(model), shares);
    for (const ModelMatrix& matrix : matrices_ahead(model)) {
      add_elements(matrix, shares, experts, out);
    }
    if (!part.pre_process && needs_table_at_end(model)) {
      out.dense += elements_on_rank(before.front(), shares);
    }
  }
  return out;
}

int64_t parameter_count(const TransformerConfig& model, const ModelShares& shares) {
  const int64_t experts = model.moe.num_experts / std::max<int64_t>(shares.expert, 1);
  const double total =
      count_parameters(model, {.layers = alike_layers(model)}, shares, experts).all();
  check<ValueError>(total < 9007199254740992.0,  // 2^53: every step above is exact below it
                    "the model would have about ", total, " parameters; check vocab_size, ",
                    "num_layers, hidden_size and ffn_hidden_size");
  return static_cast<int64_t>(total);
}

int64_t active_parameter_count(const TransformerConfig& model) {
  parameter_count(model);  // throws for numbers that are out of all bounds
  return static_cast<int64_t>(
      count_parameters(model, {.layers = alike_layers(model)}, {}, model.moe.moe_router_topk)
          .all());
}

double largest_parameter(const TransformerConfig& model) {
  std::vector<ModelMatrix> matrices = matrices_before_layers(model);
  for (const AlikeLayers& layers : alike_layers(model)) {
    for (ModelMatrix& matrix : layer_matrices(model, layers.layer)) {
      matrices.push_back(std::move(matrix));
    }
  }
  std::map<std::string, double> sizes;
  for (const ModelMatrix& matrix : matrices) {
    const auto experts = static_cast<double>(std::max<int64_t>(matrix.experts, 1));
    // The two parameters of the experts are in one module.
    const bool down = matrix.experts > 0 && matrix.role == MatrixRole::kDown;
    sizes[matrix.module + (down ? ".down" : "")] += experts * weight_elements(matrix);
  }
  double most = 0;
  for (const auto& [module, size] : sizes) {
    most = std::max(most, size);
  }
  return most;
}

}  // namespace tapestry
