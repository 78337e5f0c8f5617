#include "parallel_core/estimates/step_memory.h"

#include <algorithm>

namespace tapestry {

namespace {

double kept_by(const ChunkMemory& chunk) {
  double sum = chunk.kept;
  for (const LayerMemory& layer : chunk.layers) {
    sum += layer.kept;
  }
  return sum;
}

// Goes through the passes of a step as the rank runs them.
class StepWalk {
 public:
  explicit StepWalk(const StepMemory& step)
      : step_(step),
        has_gradients_(step.chunks.size()),
        now_gradients_(step.places == GradientPlaces::kStay ? step.gradients : 0) {}

  StepPeak run() {
    for (const PipelinePass& pass : pipeline_order(step_.pipeline, step_.stage)) {
      pass.backward ? backward(static_cast<size_t>(pass.chunk))
                    : forward(static_cast<size_t>(pass.chunk));
    }
    const double left = step_.places == GradientPlaces::kOneByOne ? 0 : step_.gradients;
    take(left + std::max({step_.reduction, step_.update, step_.saving}));
    take(left + step_.evaluation);
    for (const ChunkMemory& chunk : step_.chunks) {
      for (const LayerMemory& layer : chunk.layers) {
        take(left + chunk.kept + layer.kept + layer.transient);  // of an evaluation, forward
      }
    }
    return peak_;
  }

 private:
  void take(double bytes) { peak_.bytes = std::max(peak_.bytes, bytes); }
  bool is_last(size_t chunk) const { return step_.has_head && chunk + 1 == step_.chunks.size(); }

  void forward(size_t number) {
    const ChunkMemory& chunk = step_.chunks[number];
    double beside = 0;
    for (const LayerMemory& layer : chunk.layers) {
      beside = std::max(beside, layer.transient);
    }
    kept_ += kept_by(chunk);
    ++passes_;
    peak_.passes = std::max(peak_.passes, passes_);
    if (is_last(number)) {
      kept_ += step_.head.kept;
      const double gradient = step_.head.in_forward ? step_.head.gradient : 0;
      beside = std::max(beside, gradient + step_.head.forward);
    }
    take(kept_ + now_gradients_ + beside);
  }

  // The gradient of the head's weight, which is there from here on.
  void backward_of_head() {
    const HeadMemory& head = step_.head;
    const bool is_new = step_.places == GradientPlaces::kOnDemand && !has_gradients_.back();
    const double beside = head.in_forward && !(is_new && head.is_given) ? head.gradient : 0;
    if (is_new) {
      now_gradients_ += head.gradient - head.less;
    }
    const double own =
        step_.places == GradientPlaces::kOneByOne && !head.in_forward ? head.gradient : beside;
    take(kept_ + now_gradients_ + own + head.backward);
    kept_ -= head.kept;
    take(kept_ + now_gradients_ + head.reduction);
    if (step_.places == GradientPlaces::kOneByOne) {
      held_ = step_.head_is_first ? head.gradient : 0;
    }
  }

  void backward(size_t number) {
    const ChunkMemory& chunk = step_.chunks[number];
    if (is_last(number)) {
      backward_of_head();
    }
    const bool is_new = step_.places == GradientPlaces::kOnDemand && !has_gradients_[number];
    for (auto layer = chunk.layers.rbegin(); layer != chunk.layers.rend(); ++layer) {
      take(kept_ + now_gradients_ + held_ + layer->transient + layer->workspace);
      kept_ -= layer->kept;
      now_gradients_ += is_new ? layer->gradients : 0;
    }
    now_gradients_ += is_new ? chunk.first_gradients : 0;
    take(kept_ + now_gradients_ + held_ + chunk.first_workspace);
    kept_ -= chunk.kept;
    has_gradients_[number] = true;
    --passes_;
  }

  const StepMemory& step_;
  std::vector<bool> has_gradients_;  // of chunks
  double now_gradients_;
  double held_ = 0;  // one gradient that waits for another contribution
  double kept_ = 0;
  int64_t passes_ = 0;
  StepPeak peak_;
};

}  // namespace

StepPeak most_at_once(const StepMemory& step) { return StepWalk(step).run(); }

}  // namespace tapestry
