#include "parallel_core/training/watch/nan_watch.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/step/metrics.h"
#include "text/util/numbers.h"

namespace tapestry {

// Empty where everything of this rank is finite.
std::string NanWatch::own_finding(const FinishedStep& step) const {
  const StepResult& result = step.result;
  int64_t bad = 0;
  int64_t all = 0;
  std::string nearest;
  double squares = 0;
  for (const nn::Module::NamedParameter& entry : cell_.network().trained_parameters()) {
    const auto found = result.local_squares.find(entry.name);
    if (found == result.local_squares.end()) {
      continue;
    }
    ++all;
    squares += found->second;
    if (!std::isfinite(found->second)) {
      ++bad;
      nearest = entry.name;  // the last one: parameters stand in the order of the forward pass
    }
  }
  const double loss = std::accumulate(result.local_losses.begin(), result.local_losses.end(), 0.0);
  if (bad == 0 && std::isfinite(loss)) {
    return {};
  }
  std::string text = concat("device_accum_local_loss is ", without_nan_sign(loss), ", loss is ",
                            without_nan_sign(result.loss), ", local_norm is ",
                            without_nan_sign(std::sqrt(squares)), ", global_norm is ",
                            without_nan_sign(result.grad_norm), ", terminate training.\nstep ",
                            step.record.step, ", rank ", RankContext::current().rank(), ": ");
  if (bad == 0) {
    return text + "the local loss is not finite";
  }
  return text + concat(bad, " of ", all,
                       " parameters have a gradient that is not finite; the one nearest to the "
                       "loss is ",
                       nearest);
}

void NanWatch::after(FinishedStep& step) {
  const StepResult& result = step.result;
  const bool on = config_.training_config.check_for_nan_in_grad ||
                  config_.monitor_config.check_for_nan_in_loss_and_grad;
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  const bool scale_comes_down =
      cell_.grad_scaler().is_dynamic() && std::isfinite(result.loss) && result.loss_scale > 1;
  if (!on || finite || scale_comes_down || !step.failure.empty()) {
    return;
  }
  const std::vector<std::string> findings = all_gather_text(get_world_group(), own_finding(step));
  // The order of the ranks is that of the stages (initialize_model_parallel): the last stage that
  // has anything is the one nearest to the loss, and of its ranks the first is named.
  const int stages = get_pipeline_model_parallel_world_size();
  const size_t of_stage = findings.size() / static_cast<size_t>(stages);
  for (size_t stage = static_cast<size_t>(stages); stage-- > 0;) {
    for (size_t i = 0; i < of_stage; ++i) {
      if (const std::string& text = findings[stage * of_stage + i]; !text.empty()) {
        step.failure = text;
        return;
      }
    }
  }
  step.failure = concat("loss is ", without_nan_sign(result.loss), ", global_norm is ",
                        without_nan_sign(result.grad_norm), ", terminate training.\nstep ",
                        step.record.step, ": the values of every single rank are finite");
}

}  // namespace tapestry
