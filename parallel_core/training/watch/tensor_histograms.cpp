#include "parallel_core/training/watch/tensor_histograms.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

namespace {

using report::Histogram;

Histogram histogram_of(const Tensor& values) {
  Histogram histogram;
  const Tensor dense_values = dense(values.to(kFloat32));
  histogram.add({dense_values.data<float>(), static_cast<size_t>(dense_values.numel())});
  return histogram;
}

// The extremes of all ranks: the smallest as the largest negated one.
void exchange_extremes(ProcessGroup& group, std::vector<Histogram>& histograms) {
  const auto count = static_cast<int64_t>(histograms.size());
  const Tensor extremes = zeros({2 * count}, kFloat64);
  auto* values = extremes.data<double>();
  for (size_t i = 0; i < histograms.size(); ++i) {
    values[2 * i] = -histograms[i].min();
    values[2 * i + 1] = histograms[i].max();
  }
  group.all_reduce(extremes, ReduceOp::kMax);
  for (size_t i = 0; i < histograms.size(); ++i) {
    histograms[i].set_extremes(-values[2 * i], values[2 * i + 1]);
  }
}

void sum_over_ranks(ProcessGroup& group, std::vector<Histogram>& histograms) {
  std::vector<double> sums;
  for (Histogram& histogram : histograms) {
    sums.insert(sums.end(), histogram.sums().begin(), histogram.sums().end());
  }
  sum_over(group, sums);
  auto from = sums.begin();
  for (Histogram& histogram : histograms) {
    std::copy_n(from, Histogram::size(), histogram.sums().begin());
    from += static_cast<ptrdiff_t>(Histogram::size());
  }
  exchange_extremes(group, histograms);
}

// As a tensor on its way between stages: the extremes, then the sums.
Tensor packed(Histogram& histogram) {
  std::vector<double> values = {histogram.min(), histogram.max()};
  values.insert(values.end(), histogram.sums().begin(), histogram.sums().end());
  return tensor(std::span<const double>(values), {static_cast<int64_t>(values.size())});
}

Histogram unpacked(const Tensor& values) {
  Histogram histogram;
  const auto* from = values.data<double>();
  histogram.set_extremes(from[0], from[1]);
  std::copy_n(from + 2, Histogram::size(), histogram.sums().begin());
  return histogram;
}

// Histograms of the experts' tensors, or of all others, that this rank holds slices of; packed.
std::map<std::string, Tensor> histograms_of(const nn::Module& model,
                                            HistogramOf what,
                                            bool of_experts) {
  ProcessGroup& group = slices_group(of_experts);
  std::vector<std::string> names;
  std::vector<Histogram> histograms;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const nn::ParameterFlags& flags = entry.parameter->flags();
    if (flags.shared || flags.expert != of_experts) {
      continue;
    }
    const Tensor values =
        what == HistogramOf::kWeights ? Tensor(*entry.parameter) : entry.parameter->grad();
    const bool sharded = flags.tp == nn::TensorParallel::kSharded;
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      names.push_back(logical.name);
      histograms.push_back(
          histogram_of(values.defined() ? logical.view_of(values) : zeros(logical.local_shape())));
      // Ranks that hold the same slice count it once together.
      histograms.back().divide(static_cast<double>(sharded ? logical.copies : group.size()));
    }
  }
  if (group.size() > 1) {
    sum_over_ranks(group, histograms);
  }
  std::map<std::string, Tensor> parts;
  for (size_t i = 0; i < names.size(); ++i) {
    parts.emplace(names[i], packed(histograms[i]));
  }
  return parts;
}

}  // namespace

std::map<std::string, Histogram> logical_histograms(const nn::Module& model, HistogramOf what) {
  const NoGradGuard guard;
  std::map<std::string, Tensor> parts = histograms_of(model, what, /*of_experts=*/false);
  if (has_experts(model)) {
    parts.merge(gather_over_experts(histograms_of(model, what, /*of_experts=*/true)));
  }
  std::map<std::string, Histogram> all;
  for (const auto& [name, part] : gather_over_pipeline(std::move(parts))) {
    all.emplace(name, unpacked(part));
  }
  return all;
}

}  // namespace tapestry
