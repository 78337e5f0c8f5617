// Notices a run whose steps are not finite any more, and says what may help.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/train_one_step.h"
#include "parallel_core/training/step/trainer_state.h"

namespace tapestry {

/// Counts the steps in a row whose loss or gradients were not finite. All ranks have the same
/// results and so come to the same conclusions.
class DivergenceWatch {
 public:
  explicit DivergenceWatch(const AllConfig& config) : config_(config) {}  // has to outlive it

  /// A step, counted from 1, has given `result`.
  void observe(int64_t step, const StepResult& result);

  /// False after a step whose loss was NaN or infinite: the weights that gave it are of no use.
  bool loss_is_finite() const;
  /// The last training_config.max_nonfinite_steps steps were not finite.
  bool has_diverged() const;
  /// A run that ends here has failed: its last loss is not finite, or none of its steps was, those
  /// before it was gone on with among them.
  bool ends_badly() const;
  /// What a run has come to that ends here with a finite loss, but worse than it began; empty for
  /// any other. Of n steps of this start, the lowest of the last w = min(10, n / 2) losses lies
  ///   - above 1.25 times the loss of its first step, which no update has touched, and above
  ///     ln(vocab_size) + 1, where giving every id the same probability would be better; or
  ///   - for w = 10, above twice the highest of the first 10, and by more than 1; or
  ///   - for w = 10, above 1.5 times the loss of its first step, and by more than 1, as all losses
  ///     after the first 10 do: a good model that the first updates have ruined.
  /// Neither is what single batches, a resumed or a fine-tuned model do by chance.
  std::string worse_than_it_began() const;

  /// What a run that goes on has to know of its earlier steps.
  const PastOfDivergence& past() const { return past_; }
  void set_past(const PastOfDivergence& past) { past_ = past; }

  /// Which steps were not finite, since when the weights have not changed, and what may help, by
  /// what is configured: a sentence, and a line for each remedy.
  std::string report() const;

 private:
  std::string remedies() const;
  std::string step_size_remedies() const;

  const AllConfig& config_;
  int64_t steps_ = 0;
  int64_t last_step_ = 0;
  PastOfDivergence past_;
  double loss_ = 0;
  double grad_norm_ = 0;
  double loss_scale_ = 1;
  std::vector<double> first_losses_;  // as many of this start's as are compared
  double lowest_later_ = std::numeric_limits<double>::infinity();  // of the steps after those
  std::deque<double> last_losses_;
};

}  // namespace tapestry
