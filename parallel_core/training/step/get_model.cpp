#include "parallel_core/training/step/get_model.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/random.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

namespace {

// Gives a parameter without logical tensors one of its own.
void complete_logical_tensors(nn::Module& model, bool sequence_parallel) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    nn::Parameter& parameter = *entry.parameter;
    if (!parameter.logical().empty()) {
      continue;
    }
    check<ValueError>(parameter.flags().tp != nn::TensorParallel::kSharded, "model: parameter '",
                      entry.name,
                      "' is sharded over tensor-parallel ranks, but has no logical tensors; say "
                      "with Parameter::set_logical what slice this rank has");
    check<ValueError>(
        !sequence_parallel, "model: parameter '", entry.name,
        "' has no logical tensors, so with sequence_parallel it is not known whether its gradient "
        "is whole on each rank or a share of it; make it with flags (nn::TensorParallel) and "
        "Parameter::set_logical, or use a layer of parallel_core");
    const Shape shape = parameter.dim() > 0 ? parameter.shape() : Shape{1};
    parameter.set_logical({whole(entry.name, shape, {}).logical});
  }
}

// Two tensors of one name would be one in files, norms and comparisons.
void check_names(const nn::Module& model) {
  std::map<std::string, std::string> owners;
  std::map<std::string, double> names;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      const auto [owner, is_new] = owners.emplace(logical.name, entry.name);
      check<ValueError>(is_new, "model: the logical tensor '", logical.name,
                        "' belongs to two parameters: '", owner->second, "' and '", entry.name,
                        "'");
      if (!entry.parameter->flags().shared) {
        names.emplace(logical.name, 0);
      }
    }
  }
  gather_over_pipeline(names);  // throws where two stages have one name
}

// The first parameter that is not sharded and has other bits on some tensor-parallel rank, of an
// expert on some expert-tensor-parallel one.
void check_replicas(const nn::Module& model) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const nn::ParameterFlags& flags = entry.parameter->flags();
    ProcessGroup& group = slices_group(flags.expert);
    if (flags.tp == nn::TensorParallel::kSharded || group.size() == 1) {
      continue;
    }
    const Tensor own = dense(entry.parameter->detach());
    const Tensor all = empty({group.size(), own.numel()}, own.dtype());
    group.all_gather(all, own.view({own.numel()}));
    const auto bytes = static_cast<size_t>(own.numel() * size_of(own.dtype()));
    const auto* first = static_cast<const std::byte*>(all.raw());
    for (int rank = 1; rank < group.size(); ++rank) {
      check<ValueError>(
          std::memcmp(first, first + static_cast<size_t>(rank) * bytes, bytes) == 0,
          "model: parameter '", entry.name, "' is not sharded, but ", flags.expert ? "expert-" : "",
          "tensor-parallel ranks 0 and ", rank,
          " start from different values; initialise it from its name (initial_value) or from the "
          "default generator, in the same order on every rank");
    }
  }
}

}  // namespace

std::unique_ptr<GPTModel> get_model(const AllConfig& config, TokenLoss loss) {
  require_complete(config);
  random_context().seed = static_cast<uint64_t>(config.training_config.seed);
  return std::make_unique<GPTModel>(config, std::move(loss));
}

std::unique_ptr<ParallelModel> get_model(const ModelProvider& provider, const AllConfig& config) {
  require_complete(config);
  random_context().seed = static_cast<uint64_t>(config.training_config.seed);
  manual_seed(static_cast<uint64_t>(config.training_config.seed));
  std::unique_ptr<ParallelModel> model = provider(config);
  check<ValueError>(model != nullptr, "get_model: the provider gave no model");
  complete_logical_tensors(*model, tensor_parallel_layout(config).sequence_axis.has_value());
  check_names(*model);
  check_replicas(*model);
  return model;
}

}  // namespace tapestry
