// A program's own optimizers, activations, schedules, losses and data sets, by names that a
// configuration then says.
//
//   ModuleRegistry::register_item<ModuleType::kOptimizer>("SignMomentum", make, {{"beta", 0.9}});
//
//   optimizer_config:
//     optimizer_type: SignMomentum
//     optimizer_kwargs: {beta: 0.95}
//
// The registry is a part of the program, as its code is: register before a configuration is read,
// on no particular rank. docs/register.md shows one of each.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/registered_names.h"

namespace tapestry {

namespace optim {
class Optimizer;
class Schedule;
struct ParamGroup;
struct GradTransform;
}  // namespace optim
struct DataRank;
struct OwnData;

/// What an optimizer of one's own is made with. The groups have learning rates already, which a
/// schedule overwrites step by step.
struct OptimizerSettings {
  double learning_rate = 0;
  double weight_decay = 0;
  const OwnOptions& options;  ///< optimizer_kwargs, complete
  uint64_t seed = 0;          ///< training_config.seed, for random numbers of its states
};
/// Makes an optim::Optimizer of all groups. Its state entries are in checkpoints, and it works on
/// pieces of parameters with z1 to z3 and with float32 masters, as the built-in ones do.
using OptimizerFactory = std::function<std::unique_ptr<optim::Optimizer>(
    std::vector<optim::ParamGroup> groups, const OptimizerSettings& settings)>;

/// A differentiable function of each element alone: of x [.., F] to [.., F]; or, gated, of gate and
/// up in one last axis, [.., 2 F] to [.., F], where channel i depends on entries i and F + i alone.
/// So ranks that divide the channels compute what one does. In any floating dtype, result in the
/// same one.
struct ActivationFunction {
  std::function<Tensor(const Tensor& x)> function;
  bool gated = false;
};

/// What a schedule of one's own is made with.
struct ScheduleSettings {
  double learning_rate = 0;       ///< the largest
  double weight_decay = 0;        ///< of all steps
  int64_t training_iters = 0;     ///< steps of the run; 0 where `epochs` alone limits it
  int64_t global_batch_size = 0;  ///< sequences of a step
  OwnOptions options = {};        ///< lr_schedule_kwargs, complete
  bool operator==(const ScheduleSettings&) const = default;
};
/// Makes an optim::Schedule, which has to be a function of these settings: a resumed run makes it
/// again of those that the checkpoint keeps. Where its weight_decay() is unset, groups keep theirs.
using ScheduleFactory =
    std::function<std::unique_ptr<optim::Schedule>(const ScheduleSettings& settings)>;

/// What happens to the gradients of a step before its update, which are finite: made of their norm
/// over all parameters and of grad_clip_kwargs.clip_value. So every layout does the same.
using GradProcess = std::function<optim::GradTransform(double grad_norm, double clip_value)>;

/// The loss of every token: logits of the rank's columns of the vocabulary [.., V / tp], with
/// padding, and labels [..] to losses [..], the same on every rank of the tensor-parallel group.
using TokenLoss = std::function<Tensor(const Tensor& logits, const Tensor& labels)>;
/// Makes the loss of a GPT on the calling rank.
using LossFactory = std::function<TokenLoss(const AllConfig& config)>;

/// Makes the data of a run on the calling rank: the DataProvider of training/data/own_run_data.h.
/// config.dataset_config.data_source_kwargs is complete.
using DataFactory = std::function<OwnData(const AllConfig& config, const DataRank& rank)>;

/// What is registered under names of a type.
template <ModuleType type>
struct RegisteredItem;
template <>
struct RegisteredItem<ModuleType::kOptimizer> {
  using Type = OptimizerFactory;
};
template <>
struct RegisteredItem<ModuleType::kActivationFunc> {
  using Type = ActivationFunction;
};
template <>
struct RegisteredItem<ModuleType::kLrScheduler> {
  using Type = ScheduleFactory;
};
template <>
struct RegisteredItem<ModuleType::kGradProcessFunc> {
  using Type = GradProcess;
};
template <>
struct RegisteredItem<ModuleType::kLossFunc> {
  using Type = LossFactory;
};
template <>
struct RegisteredItem<ModuleType::kDataset> {
  using Type = DataFactory;
};

class ModuleRegistry {
 public:
  template <ModuleType type>
  using Item = typename RegisteredItem<type>::Type;
  /// Names of options, and their defaults.
  using Options = std::map<std::string, config::Value>;

  /// Gives the item a name that a configuration can say from now on. `options` are the entries that
  /// its mapping in the configuration may have, see config::RegisteredName; activations, losses and
  /// what processes gradients have none. ValueError, with the key, for a name that is built in,
  /// registered already or no name, for options where there are none, and for an empty function.
  template <ModuleType type>
  static void register_item(const std::string& name, Item<type> item, Options options = {}) {
    bool empty = false;
    bool gated = false;
    if constexpr (type == ModuleType::kActivationFunc) {
      empty = !item.function;
      gated = item.gated;
    } else {
      empty = !item;
    }
    enter(type, name, empty ? std::any() : std::any(std::move(item)),
          {.options = {std::move(options)}, .is_gated = gated});
  }

  /// ValueError, with all names of the type, for one that has not been registered.
  template <ModuleType type>
  static Item<type> get_item(const std::string& name) {
    return std::any_cast<Item<type>>(find(type, name));
  }

  static bool has_item(ModuleType type, const std::string& name);

 private:
  static void enter(ModuleType type,
                    const std::string& name,
                    std::any item,
                    config::RegisteredName entry);
  static std::any find(ModuleType type, const std::string& name);
};

/// One of the options that a factory gets. ValueError, naming it, if there is none of that name, or
/// it is no number, integer, boolean or text.
double number_option(const OwnOptions& options, const std::string& name);
int64_t integer_option(const OwnOptions& options, const std::string& name);
bool bool_option(const OwnOptions& options, const std::string& name);
std::string text_option(const OwnOptions& options, const std::string& name);

}  // namespace tapestry
