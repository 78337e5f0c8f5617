// The parts that schedules are composed of.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "optim/lr_scheduler.h"

namespace tapestry::optim {

/// A value as a function of how far training is: updates, samples, whatever the caller counts in.
using Curve = std::function<double(double position)>;

/// Curves that begin at position 0. Those with a length keep their last value from there on; r is
/// position / length. ValueError for a length, `every` or a power that is not above 0.
///
///   warm_up(0, 3e-4, 100, cosine(3e-4, 3e-5, 900)) rises for 100 updates and falls for 900.
namespace curve {

Curve constant(double value);
/// first + (last - first) r.
Curve linear(double first, double last, double length);
/// last + (first - last) (1 + cos(pi r)) / 2.
Curve cosine(double first, double last, double length);
/// The same with a number of waves, above 0: last + (first - last) (1 + cos(2 pi waves r)) / 2. One
/// half of a wave is cosine.
Curve cosine_waves(double first, double last, double length, double waves);
/// last + (first - last) (1 + cos(pi (cycles r mod 1))) / 2: half a wave in each of the cycles, of
/// which there may be a fraction.
Curve cosine_restarts(double first, double last, double length, double cycles);
/// The wave of cosine without an end: it rises again to `first`, which it reaches at 2 length.
Curve cosine_annealing(double first, double last, double length);
/// Half a wave from first to last in each cycle, without an end; the first cycle is `length` long,
/// each other `factor` (1 or more) times the one before. Source: Loshchilov & Hutter 2017,
/// arXiv:1608.03983.
Curve warm_restarts(double first, double last, double length, double factor);
/// last + (first - last) (1 - r)^power.
Curve polynomial(double first, double last, double length, double power);
/// last + (first - last) (2 0.5^r - 1).
Curve exponential(double first, double last, double length);
/// first sqrt(before) / sqrt(before + position), but no less than `least`: as if it had begun
/// `before` earlier, which is above 0.
Curve inverse_square_root(double first, double before, double least = 0);
/// value factor^floor(position / every).
Curve steps(double value, double factor, double every);
/// value factor^(number of the positions that have been reached).
Curve steps_at(double value, double factor, std::vector<double> positions);

/// `first` before `length`, then `second`, whose position 0 lies there. A length of 0 leaves
/// `second` alone.
Curve join(Curve first, double length, Curve second);
/// The curve as if it had begun `by` earlier.
Curve shifted(Curve curve, double by);
/// From `start` to `peak` in a line, then `rest`.
Curve warm_up(double start, double peak, double length, Curve rest);

struct OneCycle {
  double peak = 1e-3;
  double length = 1;
  double rising = 0.3;         ///< share of the length, in (0, 1)
  double start_divisor = 25;   ///< it starts at peak / start_divisor
  double final_divisor = 1e4;  ///< and ends at that over final_divisor
};
/// Half a cosine up to the peak, another one down. Source: Smith & Topin 2018, arXiv:1708.07120, in
/// the form of PyTorch's OneCycleLR, but with lengths that count from 0: peak at rising times
/// length, end at length.
Curve one_cycle(const OneCycle& options);

}  // namespace curve

/// A schedule of two curves.
class ComposedSchedule final : public Schedule {
 public:
  /// What the curves' positions count.
  enum class Unit : uint8_t {
    kApplied,  ///< updates that changed weights
    kSeen,     ///< all steps but those skipped for their data
  };
  struct Options {
    Curve learning_rate;
    Curve weight_decay = {};  ///< left out: each group keeps its own
    Unit unit = Unit::kApplied;
    double per_step = 1;  ///< what a step counts: samples, for example
  };
  /// ValueError without a curve of the learning rate.
  explicit ComposedSchedule(Options options);
  double learning_rate(Position position) const override;
  std::optional<double> weight_decay(Position position) const override;

 private:
  double count(Position position) const;

  Options options_;
};

}  // namespace tapestry::optim
