#include "parallel_core/transformer/activation_recorder.h"

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
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
  const NoGradGuard guard;
  const Tensor row = value.detach().transpose(0, batch_axis).slice(0, 0, 1);
  values_.emplace(name, dense_copy(row.to(kFloat32)));
}

bool activations_are_recorded() { return current() != nullptr; }

void report_activation(std::string_view name, const Tensor& value, int64_t batch_axis) {
  if (ActivationRecorder* recorder = current(); recorder != nullptr) {
    recorder->record(std::string(name), value, batch_axis);
  }
}

void report_activation(int64_t layer,
                       std::string_view name,
                       const Tensor& value,
                       int64_t batch_axis) {
  if (ActivationRecorder* recorder = current(); recorder != nullptr) {
    recorder->record("layers." + std::to_string(layer) + "." + std::string(name), value,
                     batch_axis);
  }
}

}  // namespace tapestry
