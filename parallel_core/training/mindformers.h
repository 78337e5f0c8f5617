// Names of MindFormers' dynamic-graph package for which something better stands here. They do what
// they say, and the compiler names what to write instead; docs/from_mindformers.md has the rest.
// No other header includes this one.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/pipeline_parallel/p2p_communication.h"
#include "parallel_core/random.h"
#include "parallel_core/register.h"
#include "parallel_core/training/data/run_data.h"
#include "parallel_core/training/ranks/initialize_ranks.h"
#include "parallel_core/transformer/gpt_model.h"
#include "parallel_core/transformer/moe/experts.h"
#include "parallel_core/transformer/moe/token_dispatcher.h"

namespace tapestry {

// Classes that are one class here.
using Llama2Model
    [[deprecated("use GPTModel with the configuration's normalization, "
                 "position_embedding_type and hidden_act")]] = GPTModel;
using SequentialMLP [[deprecated("use Experts")]] = Experts;
using GroupedMLP [[deprecated("use Experts")]] = Experts;
using MoEAlltoAllTokenDispatcher [[deprecated("use TokenDispatcher")]] = TokenDispatcher;
using P2PPrimitive [[deprecated("use P2PCommunication")]] = P2PCommunication;
using DistributedDataParallelConfig [[deprecated("use DataParallelOptions")]] = DataParallelOptions;
using ParamAndGradBuffer [[deprecated("use ParamAndGradBucket")]] = ParamAndGradBucket;
using MixedPrecisionOptimizer
    [[deprecated("use optim::Optimizer, which get_optimizer makes with masters where parameters "
                 "have 16 bits")]] = optim::Optimizer;
using Float16OptimizerWithFloat16Params
    [[deprecated("use optim::Optimizer, which get_optimizer makes with masters where parameters "
                 "have 16 bits")]] = optim::Optimizer;
using DistributedOptimizer
    [[deprecated("use optim::Optimizer, which get_optimizer makes of the pieces of "
                 "DistributedDataParallel")]] = optim::Optimizer;

/// Seeds start values and dropout, and the rank's default generator.
[[deprecated("set training_config.seed, which get_model takes")]] inline void set_seed(
    uint64_t seed) {
  random_context().seed = seed;
  RankContext::current().default_generator().manual_seed(seed);
}

/// See initialize_ranks.
[[deprecated("use initialize_ranks")]] inline void set_parallel_context(
    const AllConfig& config, const std::shared_ptr<ProcessGroup>& world) {
  initialize_ranks(config, world);
}

/// The data that a configuration trains on; see open_data for what else it opens.
[[deprecated("use open_data")]] inline std::unique_ptr<data::DataSource> get_dataset(
    const AllConfig& config) {
  return std::move(open_data(config).train);
}

/// Whether weight decay applies to a parameter: its name has neither `norm` nor `bias` in it.
[[deprecated("use nn::Parameter::flags().decay")]] inline bool decay_filter(
    const nn::Parameter& parameter) {
  return parameter.flags().decay;
}

/// See get_param_groups. Here the second group says 0, and the first `weight_decay`, which has to
/// be the configuration's where a schedule writes it.
[[deprecated("use get_param_groups")]] inline std::vector<optim::ParamGroup> set_weight_decay(
    const nn::Module& model, double weight_decay = 0.1) {
  std::vector<optim::ParamGroup> groups = get_param_groups(model, weight_decay);
  for (optim::ParamGroup& group : groups) {
    group.weight_decay = group.wd_mult == 0 ? 0 : weight_decay;
  }
  return groups;
}

/// Sums the gradients of which each rank has a share; data-parallel ranks have added theirs before,
/// by DistributedDataParallel.
class [[deprecated("use finalize_model_grads")]]
ParallelTrainingReducer{public : void operator()(const ParameterList& parameters)
                            const {finalize_model_grads(parameters);
}  // namespace tapestry
}
;

/// sum(loss * mask) / sum(mask) of the losses of tokens, all of one shape.
class [[deprecated(
    "use TransformerModel::mean_loss, which also says how many tokens count")]] LossWithMask {
 public:
  explicit LossWithMask(TokenLoss loss) : loss_(std::move(loss)) {}
  Tensor operator()(const Tensor& logits, const Tensor& labels, const Tensor& mask) const {
    return sum(loss_(logits, labels) * mask) / sum(mask);
  }

 private:
  TokenLoss loss_;
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/// With the loss of training_config.loss_func_kwargs.
[[deprecated("give get_model a TokenLoss, or register one")]] inline LossWithMask get_loss_func(
    const AllConfig& config) {
  return LossWithMask(token_loss(config));
}
#pragma GCC diagnostic pop

}  // namespace tapestry
