#include "diagnosis/verify/op_trace.h"

#include <bit>
#include <span>
#include <utility>

#include "diagnosis/verify/bit_checksum.h"

namespace tapestry {

namespace {

uint64_t checksum_of_all(std::span<const Tensor> tensors) {
  uint64_t sum = 0;
  for (const Tensor& tensor : tensors) {
    sum = std::rotl(sum, 1) ^ bit_checksum(tensor);
  }
  return sum;
}

}  // namespace

bool ComputedThing::is_same_thing(const ComputedThing& other) const {
  return what == other.what && step == other.step && micro_batch == other.micro_batch &&
         pass == other.pass && module == other.module && name == other.name;
}

OpTracer::OpTracer(TrainOneStepCell& cell, std::shared_ptr<OpTrace> trace, TraceOptions options)
    : cell_(cell), trace_(std::move(trace)), options_(std::move(options)) {
  cell_.set_gradient_observer([this](int64_t /*step*/) { add_gradients(); }, options_.wanted,
                              options_.name);
}

OpTracer::~OpTracer() { cell_.set_gradient_observer({}, {}, options_.name); }

void OpTracer::before(int64_t step) {
  if (options_.wanted && !options_.wanted(step)) {
    return;
  }
  step_ = step;
  micro_batch_ = -1;
  if (options_.start_weights) {
    add_weights("start weights");
    add_states();
  }
  scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
}

void OpTracer::after(FinishedStep& step) {
  if (scope_ == nullptr) {
    return;
  }
  scope_.reset();
  micro_batch_ = -1;
  add("loss", {}, {}, "loss", std::bit_cast<uint64_t>(step.result.loss));
  add("grad_norm", {}, {}, "grad_norm", std::bit_cast<uint64_t>(step.result.grad_norm));
  add_weights("weights");
}

void OpTracer::phase_begins(const PhaseRun& phase) {
  if (phase.micro_batch >= 0) {
    micro_batch_ = phase.micro_batch;
  }
}

void OpTracer::op_ended(const OpRun& run) {
  add(kOpResults, name_of(run.pass), run.module, run.op, checksum_of_all(run.outputs),
      options_.inputs ? checksum_of_all(run.inputs) : 0);
}

void OpTracer::add_gradients() {
  for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
    add("gradients", "backward", {}, entry.name, bit_checksum(entry.parameter->grad()));
  }
}

void OpTracer::add_weights(const char* what) {
  for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
    add(what, {}, {}, entry.name, bit_checksum(cell_.optimizer().own_main_param(entry.name)));
  }
}

void OpTracer::add_states() {
  for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
    if (!entry.parameter->requires_grad()) {
      continue;  // frozen: no optimizer has it
    }
    for (const auto& [name, state] : cell_.optimizer().own_state(entry.name)) {
      add("start states", {}, {}, entry.name + "." + name, bit_checksum(state));
    }
  }
}

void OpTracer::add(const char* what,
                   std::string_view pass,
                   std::string_view module,
                   std::string_view name,
                   uint64_t checksum,
                   uint64_t inputs) {
  trace_->push_back({.what = what,
                     .step = step_,
                     .micro_batch = micro_batch_,
                     .pass = std::string(pass),
                     .module = std::string(module),
                     .name = std::string(name),
                     .checksum = checksum,
                     .inputs = inputs});
}

}  // namespace tapestry
