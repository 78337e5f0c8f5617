#include "optim/schedule_curves.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::optim {

namespace curve {

namespace {

void check_positive(const char* curve_name, const char* what, double value) {
  check<ValueError>(value > 0, "curve::", curve_name, ": ", what, " must be above 0, got ", value);
}

// From first to last, with the share factor(r) of what is between left at r, which goes from 1 to
// 0.
template <class Factor>
Curve between(const char* name, double first, double last, double length, Factor factor) {
  check_positive(name, "length", length);
  return [=](double position) {
    return position >= length ? last : last + factor(position / length) * (first - last);
  };
}

// How much is left after the share r of half a wave.
double half_wave(double r) { return 0.5 * (std::cos(std::numbers::pi * r) + 1.0); }

// Where position is in cycles of growing length: the share of its own that has passed.
double share_of_cycle(double position, double length, double factor) {
  if (factor == 1.0) {
    return std::fmod(position, length) / length;
  }
  double begin = 0;
  while (position >= begin + length) {
    begin += length;
    length *= factor;
  }
  return (position - begin) / length;
}

}  // namespace

Curve constant(double value) {
  return [=](double /*position*/) { return value; };
}

Curve linear(double first, double last, double length) {
  return between("linear", first, last, length, [](double r) { return 1.0 - r; });
}

Curve cosine(double first, double last, double length) {
  return between("cosine", first, last, length, half_wave);
}

Curve cosine_waves(double first, double last, double length, double waves) {
  check_positive("cosine_waves", "waves", waves);
  return between("cosine_waves", first, last, length,
                 [waves](double r) { return half_wave(2.0 * waves * r); });
}

Curve cosine_restarts(double first, double last, double length, double cycles) {
  check_positive("cosine_restarts", "cycles", cycles);
  return between("cosine_restarts", first, last, length,
                 [cycles](double r) { return half_wave(std::fmod(cycles * r, 1.0)); });
}

Curve cosine_annealing(double first, double last, double length) {
  check_positive("cosine_annealing", "length", length);
  return [=](double position) { return last + half_wave(position / length) * (first - last); };
}

Curve warm_restarts(double first, double last, double length, double factor) {
  check_positive("warm_restarts", "length", length);
  check<ValueError>(factor >= 1, "curve::warm_restarts: factor must be 1 or more, got ", factor);
  return [=](double position) {
    return last + half_wave(share_of_cycle(position, length, factor)) * (first - last);
  };
}

Curve polynomial(double first, double last, double length, double power) {
  check_positive("polynomial", "power", power);
  return between("polynomial", first, last, length,
                 [power](double r) { return std::pow(1.0 - r, power); });
}

Curve exponential(double first, double last, double length) {
  return between("exponential", first, last, length,
                 [](double r) { return 2.0 * std::pow(0.5, r) - 1.0; });
}

Curve inverse_square_root(double first, double before, double least) {
  check_positive("inverse_square_root", "before", before);
  return [=](double position) {
    return std::max(least, first * std::sqrt(before) / std::sqrt(before + position));
  };
}

Curve steps(double value, double factor, double every) {
  check_positive("steps", "every", every);
  return [=](double position) { return value * std::pow(factor, std::floor(position / every)); };
}

Curve steps_at(double value, double factor, std::vector<double> positions) {
  return [=, all = std::move(positions)](double position) {
    const auto reached = std::count_if(all.begin(), all.end(),
                                       [&](double milestone) { return milestone <= position; });
    return value * std::pow(factor, static_cast<double>(reached));
  };
}

Curve join(Curve first, double length, Curve second) {
  check<ValueError>(length >= 0, "curve::join: length must not be negative, got ", length);
  return [=, before = std::move(first), after = std::move(second)](double position) {
    return position < length ? before(position) : after(position - length);
  };
}

Curve shifted(Curve curve, double by) {
  return [=, inner = std::move(curve)](double position) { return inner(position + by); };
}

Curve warm_up(double start, double peak, double length, Curve rest) {
  return length == 0 ? rest : join(linear(start, peak, length), length, std::move(rest));
}

Curve one_cycle(const OneCycle& o) {
  check<ValueError>(o.rising > 0 && o.rising < 1,
                    "curve::one_cycle: rising must lie between 0 and 1, got ", o.rising);
  check_positive("one_cycle", "start_divisor", o.start_divisor);
  check_positive("one_cycle", "final_divisor", o.final_divisor);
  const double start = o.peak / o.start_divisor;
  const double top = o.rising * o.length;
  return join(cosine(start, o.peak, top), top,
              cosine(o.peak, start / o.final_divisor, o.length - top));
}

}  // namespace curve

ComposedSchedule::ComposedSchedule(Options options) : options_(std::move(options)) {
  check<ValueError>(options_.learning_rate != nullptr,
                    "ComposedSchedule: needs a curve for the learning rate");
}

double ComposedSchedule::count(Position position) const {
  const int64_t steps =
      options_.unit == Unit::kApplied ? position.applied : position.seen - position.skipped;
  return static_cast<double>(steps) * options_.per_step;
}

double ComposedSchedule::learning_rate(Position position) const {
  return options_.learning_rate(count(position));
}

std::optional<double> ComposedSchedule::weight_decay(Position position) const {
  return options_.weight_decay ? std::optional(options_.weight_decay(count(position)))
                               : std::nullopt;
}

}  // namespace tapestry::optim
