#include "diagnosis/verify/faults/common_factor.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/known_rules.h"
#include "diagnosis/verify/layout_comparison.h"
#include "optim/grad_clip.h"
#include "parallel_core/optimizer/get_optimizer.h"

namespace tapestry {

namespace {

// Numbers that are one but for rounding, of sums in float32 over a model.
constexpr double kSameFactor = 1e-4;
bool is_same(double a, double b) { return std::abs(a - b) <= kSameFactor * std::abs(b); }

// Of the reference's gradients to ours; nothing where they are not all ours times that.
std::optional<double> gradient_factor(const FaultSearch& search, int64_t step) {
  const NoGradGuard guard;
  const OwnStep& own = search.own.steps.at(static_cast<size_t>(step - 1));
  const ReferenceStep& theirs = search.reference.step(step);
  std::optional<double> factor;
  if (theirs.grad_norm && own.result.grad_norm > 0) {
    factor = *theirs.grad_norm / own.result.grad_norm;
  }
  const auto stored = search.reference.gradients(step);
  if (!stored) {
    return factor;
  }
  double ours_squares = 0;
  double theirs_squares = 0;
  for (const auto& [name, gradient] : own.gradients) {
    if (const auto found = stored->find(name); found != stored->end()) {
      ours_squares += std::pow(euclidean_norm(gradient), 2);
      theirs_squares += std::pow(euclidean_norm(found->second), 2);
    }
  }
  if (!(ours_squares > 0)) {
    return std::nullopt;
  }
  // The norm that is said may be that after clipping.
  factor = std::sqrt(theirs_squares / ours_squares);
  for (const auto& [name, gradient] : own.gradients) {
    const auto found = stored->find(name);
    if (found == stored->end()) {
      continue;
    }
    const double norm = euclidean_norm(gradient);
    const Tensor expected = found->second.reshape(gradient.shape()).to(kFloat32);
    // What is 0 but for rounding has no factor.
    if (norm > kSameFactor * own.result.grad_norm &&
        norm_distance(gradient.to(kFloat32) * *factor, expected, norm * *factor) >
            10 * kSameFactor) {
      return std::nullopt;
    }
  }
  return factor;
}

std::string reason_of(const FaultSearch& search, double factor) {
  const int64_t micro_batches = search.single.dataset_config.micro_batch_num;
  if (micro_batches > 1 && is_same(factor, static_cast<double>(micro_batches))) {
    return concat("as if gradients were summed over the ", micro_batches,
                  " micro-batches, not averaged");
  }
  if (micro_batches > 1 && is_same(factor, 1 / static_cast<double>(micro_batches))) {
    return concat("as if gradients were divided twice by the number of micro-batches, ",
                  micro_batches);
  }
  const double power = std::log2(factor);
  if (std::abs(power) >= 3 && std::abs(power - std::round(power)) < kSameFactor) {
    return concat("as if a loss scale of ", short_text(factor), " were not divided out again");
  }
  return "as if the loss were divided by another number, of tokens, sequences, micro-batches or "
         "ranks";
}

// The reference says the norm after clipping.
bool is_clipped_norm(const FaultSearch& search, int64_t step, double factor) {
  const auto clip = gradient_clipping(search.single);
  const double norm = search.own.steps.at(static_cast<size_t>(step - 1)).result.grad_norm;
  return clip && clip->grad_clip_type == "ClipGlobalNorm" && clip->clip_value < norm &&
         is_same(factor, optim::clip_coefficient(norm, clip->clip_value));
}

}  // namespace

std::string common_factor_text(const FaultSearch& search, const ComparedQuantity& found) {
  const int64_t step = found.finding.step;
  const OwnStep& own = search.own.steps.at(static_cast<size_t>(step - 1));
  const auto factor = gradient_factor(search, step);
  if (!factor || !std::isfinite(*factor) || !(*factor > 0)) {
    return {};
  }
  const bool stored = search.reference.gradients(step).has_value();
  switch (found.finding.what) {
    case Compared::kLoss: {
      const double of_loss = *search.reference.step(step).loss / own.result.loss;
      if (!is_same(of_loss, *factor)) {
        return {};
      }
      return concat("loss and ", stored ? "every gradient" : "the norm of gradients", " are ",
                    short_text(*factor),
                    " times ours, as if the mean were over another number of "
                    "tokens");
    }
    case Compared::kGradient:
    case Compared::kGradNorm:
      if (is_same(*factor, 1)) {
        if (found.finding.what == Compared::kGradNorm && search.reference.step(step).grad_norm &&
            is_clipped_norm(search, step,
                            *search.reference.step(step).grad_norm / own.result.grad_norm)) {
          return "the gradients are ours: the norm that is said is that after clipping";
        }
        return {};
      }
      if (!stored && is_clipped_norm(search, step, *factor)) {
        return concat("the norm is ", short_text(*factor),
                      " times ours, as if it were taken after clipping");
      }
      return concat(stored ? "every gradient is " : "the norm of all is ", short_text(*factor),
                    " times ours, ", reason_of(search, *factor));
    default:
      return {};
  }
}

}  // namespace tapestry
