// Faults of one bit that tests plant in runs in exact mode.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "parallel_core/comm/forwarding_transport.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry::testing {

/// Where a fault sits, drawn at random; what a plant has hit, for the checks.
struct BitFault {
  enum class Kind : uint8_t { kWeight, kGradient, kOrderOfSum, kMessage };
  Kind kind = Kind::kWeight;
  int64_t step = 1;
  uint64_t draw = 0;  ///< chooses parameter, element and bit
  // Set when the fault has been planted.
  std::string parameter;
  std::string module;
  int64_t planted = 0;
};

/// Flips a bit of an element that is not 0, counted from one that `draw` chooses.
inline bool flip_bit(float* values, int64_t n, uint64_t draw, int lowest_bit) {
  for (int64_t i = 0; i < n; ++i) {
    float& x = values[(draw + static_cast<uint64_t>(i)) % static_cast<uint64_t>(n)];
    if (x == 0 || !std::isfinite(x)) {
      continue;
    }
    constexpr int kMantissa = 23;
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    bits ^= 1U << (static_cast<unsigned>(lowest_bit) +
                   (draw >> 32U) % static_cast<unsigned>(kMantissa - lowest_bit));
    std::memcpy(&x, &bits, sizeof bits);
    return true;
  }
  return false;
}

/// Plants a fault in one step of a run: of a weight before the step, of a gradient before the
/// update, or in the order of the sums of one product, whose terms it adds from the last to the
/// first.
class PlantedBit final : public StepObserver, private Observer {
 public:
  PlantedBit(TrainOneStepCell& cell, std::shared_ptr<BitFault> fault)
      : cell_(cell), fault_(std::move(fault)) {
    if (fault_->kind == BitFault::Kind::kGradient) {
      cell_.set_gradient_observer([this](int64_t /*step*/) { spoil_gradient(); },
                                  [this](int64_t step) { return step == fault_->step; }, kName);
    }
  }
  ~PlantedBit() override { cell_.set_gradient_observer({}, {}, kName); }

  void before(int64_t step) override {
    if (step != fault_->step) {
      return;
    }
    if (fault_->kind == BitFault::Kind::kWeight) {
      spoil_weight();
    } else if (fault_->kind == BitFault::Kind::kOrderOfSum) {
      scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
    }
  }
  void after(FinishedStep& /*step*/) override { scope_.reset(); }

 private:
  static constexpr const char* kName = "planted_bit";

  nn::Module::NamedParameter chosen() const {
    const auto all = cell_.network().named_parameters();
    return all[(fault_->draw >> 8U) % all.size()];
  }
  void spoil_weight() {
    const auto entry = chosen();
    const NoGradGuard guard;
    fault_->parameter = entry.name;
    fault_->planted += flip_bit(static_cast<float*>(entry.parameter->raw()),
                                entry.parameter->numel(), fault_->draw, 0)
                           ? 1
                           : 0;
    entry.parameter->bump_version();
  }
  // High bits of the mantissa: what is less may be rounded away where moments are updated.
  void spoil_gradient() {
    constexpr int kHighBits = 17;
    const auto entry = chosen();
    const NoGradGuard guard;
    const Tensor gradient = entry.parameter->grad();
    fault_->parameter = entry.name;
    fault_->planted +=
        flip_bit(static_cast<float*>(gradient.raw()), gradient.numel(), fault_->draw, kHighBits)
            ? 1
            : 0;
  }

  void op_ended(const OpRun& run) override {
    if (run.op != "linear" || run.pass != OpPass::kForward || fault_->planted > 0 ||
        seen_++ != static_cast<int64_t>(fault_->draw % kProducts)) {
      return;
    }
    const Tensor& x = run.inputs[0];
    const Tensor& weight = run.inputs[1];
    const Tensor& y = run.outputs[0];
    const int64_t width = weight.size(1);
    const int64_t outputs = weight.size(0);
    const Tensor rows = dense(x);
    const Tensor matrix = dense(weight);
    const auto* a = static_cast<const float*>(rows.raw());
    const auto* w = static_cast<const float*>(matrix.raw());
    auto* out = static_cast<float*>(y.raw());
    for (int64_t i = 0; i < y.numel(); ++i) {
      float sum = 0;
      for (int64_t k = width - 1; k >= 0; --k) {
        sum = std::fma(a[(i / outputs) * width + k], w[(i % outputs) * width + k], sum);
      }
      fault_->planted = sum != out[i] ? 1 : fault_->planted;
      out[i] = sum;
    }
    fault_->module = run.module;
  }

  static constexpr uint64_t kProducts = 5;

  TrainOneStepCell& cell_;
  std::shared_ptr<BitFault> fault_;
  std::unique_ptr<ObserverScope> scope_;
  int64_t seen_ = 0;
};

/// Flips a bit of a message of a reduce-scatter of exact sums, once, while it is armed.
class FlippingTransport final : public ForwardingTransport {
 public:
  struct Plan {
    std::mutex mutex;
    bool armed = false;
    int rank = 0;
    uint64_t draw = 0;
    int64_t flipped = 0;
  };
  FlippingTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Plan> plan)
      : ForwardingTransport(std::move(inner)), plan_(std::move(plan)) {}

  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    const std::scoped_lock lock(plan_->mutex);
    if (plan_->armed && rank() == plan_->rank && carries_gradients(envelope) &&
        flips(envelope, data)) {
      return ForwardingTransport::send(destination, envelope, kept_.back().data());
    }
    return ForwardingTransport::send(destination, envelope, data);
  }

 private:
  // Sums that have one owner each; copies of them would be hashed by one of their ranks alone.
  static bool carries_gradients(const Envelope& envelope) {
    return envelope.kind == Envelope::Kind::kData &&
           envelope.label.collective == Collective::kReduceScatter &&
           envelope.label.dtype == kFloat64;
  }

  // Of a sum in units that is neither 0 nor next to nothing, one of the four highest bits of the
  // mantissa: the rounding to float32 at the end of the step leaves it.
  bool flips(const Envelope& envelope, const void* data) {
    std::vector<uint64_t> words(static_cast<size_t>((envelope.bytes + 7) / 8));
    std::memcpy(words.data(), data, static_cast<size_t>(envelope.bytes));
    const auto whole = static_cast<uint64_t>(envelope.bytes / 8);
    for (uint64_t i = 0; i < whole; ++i) {
      uint64_t& word = words[(plan_->draw + i) % whole];
      constexpr uint64_t kBias = 1023;
      const uint64_t exponent = (word >> 52U) & 0x7ffU;
      if (exponent < kBias + 20 || exponent > kBias + 52) {
        continue;
      }
      word ^= uint64_t{1} << (48U + (plan_->draw >> 40U) % 4);
      kept_.push_back(std::move(words));
      plan_->armed = false;
      ++plan_->flipped;
      return true;
    }
    return false;
  }

  std::shared_ptr<Plan> plan_;
  std::deque<std::vector<uint64_t>> kept_;  // what is sent has to stay
};

/// Arms a plan for one step.
class ArmedStep final : public StepObserver {
 public:
  ArmedStep(int64_t step, std::shared_ptr<FlippingTransport::Plan> plan)
      : step_(step), plan_(std::move(plan)) {}
  void before(int64_t step) override {
    const std::scoped_lock lock(plan_->mutex);
    plan_->armed = plan_->flipped == 0 && step == step_;
  }
  void after(FinishedStep& /*step*/) override {}

 private:
  int64_t step_;
  std::shared_ptr<FlippingTransport::Plan> plan_;
};

}  // namespace tapestry::testing
