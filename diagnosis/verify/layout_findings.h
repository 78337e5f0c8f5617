// What a comparison of two trainings found: distances, their bounds, and where the first one that
// is too large lies.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "autograd/tensor/tensor.h"
#include "diagnosis/verify/zero_gradient.h"

namespace tapestry {

/// What is compared, in the order in which a step makes it.
enum class Compared : uint8_t {
  kInitialWeights,
  kTokens,
  kChoice,  ///< of experts, and what they keep
  kActivation,
  kExpertCounts,
  kLoss,
  kGradient,
  kGradNorm,
  kSchedule,
  kWeights,
};
inline constexpr size_t kNumCompared = 10;
/// "activations", "loss", ...
std::string_view name_of(Compared what);

/// One distance. Distances are relative: of an activation or gradient max|difference| /
/// max|expected| in float32, |difference| / |expected| (Euclidean) with 16-bit compute, where
/// single elements say little; of weights always the latter. Of a choice it is the gap between the
/// numbers that decide; of counts the number of assignments that are counted elsewhere.
struct Finding {
  Compared what = Compared::kInitialWeights;
  int64_t step = 0;  ///< from 1; 0 before the first
  size_t order = 0;  ///< among those of its kind and step
  std::string name;  ///< "layers.1.attention.context"
  std::string made_by;
  std::string where;  ///< "rank 1 (tp 1)"
  double distance = 0;
  double bound = 0;
  bool bound_is_measured = false;  ///< by what rounding did to one process (RoundingSpread)
  ZeroGradient zero_gradient = ZeroGradient::kNone;  ///< of a gradient or weight
  std::string detail;                                ///< more in words; may be empty

  /// False for NaN too.
  bool agrees() const { return distance <= bound; }
};
/// True if a training comes to `a` before it comes to `b`.
bool comes_before(const Finding& a, const Finding& b);

/// max|found - expected| / scale, where the same NaN or infinity on both sides is no difference and
/// one on one side an infinite one (dump/tensor_distance.h). Infinity for other shapes; 0 where
/// nothing differs, whatever the scale.
double element_distance(const Tensor& found, const Tensor& expected, double scale);
/// The same of the Euclidean norm of the difference.
double norm_distance(const Tensor& found, const Tensor& expected, double scale);
/// Of the finite elements.
double largest_element(const Tensor& x);
double euclidean_norm(const Tensor& x);

/// Collects findings; of ranks that are threads, all at once.
class LayoutFindings {
 public:
  struct Worst {
    int64_t compared = 0;
    int64_t above = 0;               ///< their bounds
    std::optional<Finding> finding;  ///< with the largest share of its bound
  };

  void add(const Finding& finding);
  /// More that was compared, in which nothing differs.
  void add_equal(Compared what, int64_t count);

  bool agree() const;
  /// True if all that is above its bound has a measured one and less than `factor` times that.
  bool agree_within(double factor) const;
  /// The first one above its bound.
  std::optional<Finding> first() const;
  Worst worst(Compared what) const;
  /// One line per kind: number compared, worst distance, its bound, where.
  std::string table() const;
  /// "step 1: layers.1.attention.context differs on rank 1 (tp 1): ..."
  static std::string sentence(const Finding& finding);

 private:
  mutable std::mutex mutex_;
  std::array<Worst, kNumCompared> worst_;
  std::optional<Finding> first_;
  double largest_excess_ = 0;  // distance over bound of what is above it; infinity: not measured
};

}  // namespace tapestry
