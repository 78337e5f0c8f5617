// Pieces of a run that are made outside of the training loop: `diagnosis` has some, programs may
// have others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/train_one_step.h"
#include "parallel_core/training/step/train_options.h"

namespace tapestry {

/// What a piece of the loop may look at, for the length of the loop.
struct LoopView {
  TrainOneStepCell& cell;
  const AllConfig& config;
  const TrainOptions& options;
};

/// A piece of one run on one rank; every rank has the same ones.
class RunPart {
 public:
  RunPart() = default;
  RunPart(const RunPart&) = delete;
  RunPart& operator=(const RunPart&) = delete;
  virtual ~RunPart() = default;

  /// What of a configuration it answers: "training_config.profile" for example. A configuration
  /// that asks for what no part answers is refused (require_parts).
  virtual std::string_view answers() const = 0;
  /// Throws for what would stop it later. Called before anything is written, also by a dry run.
  virtual void check(const AllConfig& /*config*/) const {}
  /// The ranks are there; data and model are not made yet.
  virtual void begin(const AllConfig& /*config*/) {}
  /// Its piece of the loop; null where the configuration does not ask for it.
  virtual std::unique_ptr<StepObserver> observer(const LoopView& loop) = 0;
};

/// ValueError, with the key, if the configuration asks for what none of the parts answers:
/// training_config.profile, the dumps of steps, and what an autopsy alone can do (on_anomaly,
/// loss_spike_threshold).
void require_parts(const AllConfig& config, const std::vector<RunPart*>& parts);

/// The first key that asks for what none of the parts answers; empty if there is none.
std::optional<std::string> missing_part(const AllConfig& config,
                                        const std::vector<RunPart*>& parts);

/// Makes a part for the run that begins: what programs hand in.
using RunPartFactory = std::function<std::unique_ptr<RunPart>()>;

/// One of each, in this order.
std::vector<std::unique_ptr<RunPart>> make_parts(const std::vector<RunPartFactory>& factories);
/// The same as plain pointers.
std::vector<RunPart*> pointers_to(const std::vector<std::unique_ptr<RunPart>>& parts);

}  // namespace tapestry
