// Whether a curve of numbers over steps is that of its references.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/curve_statistics.h"

namespace tapestry::accuracy {

/// From the mildest to the gravest. The first three are accepted, the others are not.
enum class CurveVerdict : uint8_t {
  kAccepted,          ///< differences oscillate around 0 and stay below the bound
  kWithinReferences,  ///< as far from the references as these are from each other
  kClose,      ///< below `close` of the reference's value at the end: what the model can do decides
  kOneSided,   ///< on one side of the reference all along
  kLateDrift,  ///< good early, different late
  kJump,       ///< another level from one step to the next, or no number any more
};

/// "accepted", "within_references", "close", "one_sided", "late_drift", "jump".
std::string name_of(CurveVerdict verdict);
bool is_accepted(CurveVerdict verdict);

/// Numbers of one kind at the steps that all runs have; all finite but for `ours`.
struct CurveSet {
  std::string name;  ///< "loss"
  std::vector<int64_t> steps;
  std::vector<double> ours;
  std::vector<std::vector<double>> references;  ///< at least one
  /// Differences are divided by the reference's mean over the window: what is noisy and has no
  /// natural scale, such as gradient norms.
  bool relative = false;
};

/// Defaults are those of losses.
struct CurveBounds {
  double bound = 0.03;        ///< differences stay below: 99 of 100 steps, and every window's mean
  double jump = 0.05;         ///< the smallest jump that counts
  double close = 0.01;        ///< of the reference's value
  double bias = 0.001;        ///< the smallest mean difference that counts as one-sided
  double significance = 5;    ///< the smallest mean difference in standard errors that does
  double sign_balance = 0.8;  ///< and the smallest share of windows on its side
  size_t window = 50;         ///< steps of a window
};

struct CurveJudgement {
  CurveVerdict verdict = CurveVerdict::kAccepted;
  int64_t step = 0;    ///< where it begins: of what is not accepted; else the first step
  std::string reason;  ///< a sentence

  Bias bias;                       ///< of the differences' windows
  double mean_relative_error = 0;  ///< of |ours - reference| / |reference|
  double largest = 0;              ///< |difference| of a step
  int64_t largest_step = 0;
  double share_below_bound = 0;  ///< of the steps
  double largest_window = 0;     ///< |mean difference| of a window
  double last_relative = 0;  ///< root mean square of the last quarter of the windows' means, over
                             ///< the reference's value there
  double end_relative = 0;   ///< where a drift ends up (drift_end), over the reference there
  std::optional<double> share_in_band;  ///< of the windows, with two references or more

  /// Ours minus the mean of the references, at the steps; as long as both are finite.
  std::vector<double> difference;
  WindowMeans windows;
  /// Of each window, how far apart equal runs may be: 2.5 times the root mean square of the means
  /// of the references' mutual differences in this window and the ten on either side. Empty with
  /// one reference.
  std::vector<double> band;
};

/// The verdict, in this order:
/// - a value of ours that is not finite is a jump there. So is the largest jump of the differences
///   (largest_jump) if it is at least `jump`, six times the usual, and half as much again as
///   the largest between two references;
/// - one-sided are differences whose mean exceeds `bias`, `significance` standard errors, and
///   `sign_balance` (bias_of), over all steps or the second half;
/// - accepted is what is not one-sided, below `bound`, and does not drift to `close` or more;
/// - within the references is what lies in their band in 90 of 100 windows and whose mean is at
/// most
///   half as much again as the largest between two of them, or not one-sided;
/// - one-sided over all steps, unless the last quarter differs three times as much as the first;
/// - close is what differs by less than `close` in the last quarter, in the mean over all windows,
///   and where a drift ends up;
/// - else it drifts, from `onset_of` on.
/// These rules are those of MindSpore Transformers' accuracy guide with numbers for its words.
/// ValueError for no steps and for sizes that do not agree.
CurveJudgement judge_curve(const CurveSet& curves, const CurveBounds& bounds);

}  // namespace tapestry::accuracy
