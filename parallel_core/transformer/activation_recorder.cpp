#include "parallel_core/transformer/activation_recorder.h"

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

struct CurrentRecorder {
  ActivationRecorder* recorder = nullptr;
};

ActivationRecorder*& current() { return RankContext::current().slot<CurrentRecorder>().recorder; }

}  // namespace

ActivationRecorder::ActivationRecorder() : previous_(current()) { current() = this; }

ActivationRecorder::~ActivationRecorder() { current() = previous_; }

void ActivationRecorder::record(const std::string& name, const Tensor& value, int64_t batch_axis) {
  if (values_.contains(name)) {
    return;
  }
  values_.emplace(name, row_of(value, batch_axis, 0));
}

Tensor ActivationRecorder::row_of(const Tensor& value, int64_t batch_axis, int64_t row) {
  const NoGradGuard guard;
  const Tensor rows = value.detach().transpose(0, batch_axis);
  return dense_copy(rows.slice(0, row, row + 1).to(kFloat32));
}

bool activations_are_recorded() { return current() != nullptr; }

void report_activation(std::string_view name, const Tensor& value, int64_t batch_axis) {
  if (ActivationRecorder* recorder = current(); recorder != nullptr && !is_recomputing()) {
    recorder->record(std::string(name), value, batch_axis);
  }
}

void report_activation(int64_t layer,
                       std::string_view name,
                       const Tensor& value,
                       int64_t batch_axis) {
  if (ActivationRecorder* recorder = current(); recorder != nullptr && !is_recomputing()) {
    recorder->record("layers." + std::to_string(layer) + "." + std::string(name), value,
                     batch_axis);
  }
}

}  // namespace tapestry
