// The accuracy guide's way from "the curves differ" to the place: one stage after the other, ending
// at the first that fails.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/tensor_names.h"
#include "diagnosis/report/verdict_report.h"
#include "diagnosis/verify/verify_layout.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

struct FindFaultOptions {
  /// Steps of the reference that are compared number by number. Absent: three, which the optimizer
  /// takes to show its betas; of a model that is small enough to keep more, five.
  std::optional<int64_t> steps = {};
  /// How often the steps are repeated with results moved by roundings; the largest movement of
  /// each kind of quantity times RoundingSpread::kMultiple is its bound.
  int64_t rounding_runs = 3;
  std::vector<std::string> expand;  ///< layouts (parse_layout) that are held against one process
  VerifyOptions training;           ///< what our training is made of
  std::string config_file;          ///< of ours, for the checklist's page
  accuracy::NameMap map;            ///< what the reference's tensors are called here
  /// Start weights of ours, in place of those that the configuration names: by logical names or
  /// another scheme's (in_logical_names).
  std::function<LogicalState()> start_weights;
};

/// Holds a training of ours against a reference (ReferenceRun). Stages, and what fails them:
///
///   config       a key that changes what is computed (accuracy::run_checklist)
///   weights      start weights that are not the same bits in the parameters' dtype
///   data         tokens, labels, loss masks, positions, documents or attention masks of a step
///   forward      a value of a step (acts_step_N), or its loss where no values are stored
///   loss         the loss, where the values agree, or the number of its tokens
///   backward     gradients of a step, by tensor, from the head back; or norms of gradients. Named
///                is the module between the last tensor that agrees and the first that does not
///                (place_in_backward)
///   reduction    the norm of all, where those of the tensors agree; in a layout, gradients
///   clip         an update that follows from other clipping (find_optimizer_fault)
///   schedule     a learning rate, of a group or a tensor
///   optimizer    an update that does not follow from gradients, learning rate and settings; a
///                weight that changes between steps; a copy for computing that is not its master.
///                The reference's updates are held against the settings, too: where its gradients
///                and weights of steps are stored, directly; else, where all agrees until an update
///                of which nothing is stored and no more after it, by training with other rules,
///                schedules and settings (explain_updates). Named is what then agrees
///   determinism  the same steps again do not have the same bits
///   long_run     the curves over all of the reference's steps (accuracy::compare_curves)
///   none         nothing of it
///
/// A row whose status is "not_compared" says that the reference has nothing of the stage.
///
/// With `expand` each layout is compared with one process (compare_layout) before the long run; the
/// stage is then that of the first difference there. Findings have a row for each stage: {stage,
/// compared, worst, bound, status, detail}. The verdict is agree or differ.
///
/// `load` gives our configuration; one process with the micro-batches of all its ranks is trained.
/// ConfigError, IoError and ValueError for what cannot be read or trained.
accuracy::VerdictReport find_fault(const ConfigLoader& load,
                                   const std::string& reference_folder,
                                   const FindFaultOptions& options);

}  // namespace tapestry
