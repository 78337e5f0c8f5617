#include "diagnosis/autopsy/step_trace.h"

#include <algorithm>

#include "autograd/tensor/dtype.h"

namespace tapestry::autopsy {

namespace {

constexpr size_t kMostBadValues = 128;

bool makes_losses_of_tokens(std::string_view op) {
  return op == "cross_entropy" || op == "vocab_parallel_cross_entropy";
}

}  // namespace

StepTrace::StepTrace(const KnownParameters& parameters, bool finds_largest)
    : parameters_(parameters),
      finds_largest_(finds_largest),
      scope_(std::make_unique<ObserverScope>(*this)) {}

const BadValue* StepTrace::first_bad() const {
  const BadValue* received = nullptr;
  for (const BadValue& bad : bad_) {
    if (bad.is_mask) {
      continue;
    }
    if (bad.origin != BadValue::Origin::kReceived) {
      return &bad;
    }
    received = received == nullptr ? &bad : received;
  }
  return received;
}

void StepTrace::phase_begins(const PhaseRun& phase) {
  in_phase_ = phase.micro_batch >= 0 && (phase.name == "forward" || phase.name == "backward");
  phase_ = phase;
  next_number_ = 0;
}

void StepTrace::phase_ended(const PhaseRun& /*phase*/) {
  in_phase_ = false;
  running_.clear();
}

void StepTrace::op_begins(const OpRun& run) {
  if (!in_phase_) {
    return;
  }
  Running now;
  now.op = {.op = run.op,
            .module = run.module,
            .pass = run.pass,
            .in_backward = phase_.name == "backward",
            .micro_batch = phase_.micro_batch,
            .chunk = phase_.chunk,
            .number = next_number_++};
  for (const Tensor& input : run.inputs) {
    const ValueRange range = value_range(input);
    const int32_t parameter = run.pass == OpPass::kBackward ? -1 : parameters_.of_values(input);
    now.op.largest_input = std::max(now.op.largest_input, range.largest);
    if (parameter >= 0) {
      const auto& all = parameters_.all();
      const bool first = now.op.parameter < 0;
      if (first || (all[static_cast<size_t>(parameter)].is_suspect &&
                    !all[static_cast<size_t>(now.op.parameter)].is_suspect)) {
        now.op.parameter = parameter;
      }
    }
    if (!range.finite()) {
      now.op.finite_inputs = false;
      if (now.worst.finite() || parameter >= 0) {
        now.worst = range;
        now.shape = input.shape();
        now.parameter_of_worst = parameter;
      }
    }
  }
  running_.push_back(std::move(now));
}

void StepTrace::op_ended(const OpRun& run) {
  if (!in_phase_) {
    return;
  }
  // An op that threw has no end.
  while (!running_.empty() &&
         (running_.back().op.op != run.op || running_.back().op.pass != run.pass)) {
    running_.pop_back();
  }
  if (running_.empty()) {
    return;
  }
  const Running now = std::move(running_.back());
  running_.pop_back();
  TracedOp op = now.op;
  ValueRange worst;
  Shape shape;
  for (const Tensor& output : run.outputs) {
    const ValueRange range = value_range(output);
    if (finds_largest_ && range.finite() && range.largest > op.largest_output) {
      op.shape = output.shape();
      op.largest_at = place_of_magnitude(output, range.largest);
    }
    op.largest_output = std::max(op.largest_output, range.largest);
    if (!range.finite() && worst.finite()) {
      worst = range;
      shape = output.shape();
      if (run.pass == OpPass::kBackward) {
        const int32_t parameter = parameters_.of_gradient(output);
        op.parameter = parameter >= 0 ? parameter : op.parameter;
      }
    }
  }
  op.finite_outputs = worst.finite();
  const size_t index = ops_.size();
  ops_.push_back(op);
  if (!op.finite_inputs && op.finite_outputs) {
    heal();
  }
  if (!op.finite_inputs && now.parameter_of_worst >= 0) {
    ops_.back().parameter = now.parameter_of_worst;
    if (!op.finite_outputs) {  // rows of a table that nobody looks up harm nobody
      add_bad({.origin = BadValue::Origin::kParameter,
               .op = index,
               .shape = shape,
               .element = worst.first_bad,
               .value = now.worst.bad_value});
    }
  } else if (op.finite_inputs && !op.finite_outputs) {
    add_bad({.origin = BadValue::Origin::kMade,
             .op = index,
             .shape = shape,
             .element = worst.first_bad,
             .value = worst.bad_value,
             .masked_only = worst.all_bad_are_masked});
  } else if (!op.finite_inputs && !op.finite_outputs && bad_.empty()) {
    add_bad({.origin = BadValue::Origin::kReceived,
             .op = index,
             .shape = now.shape,
             .element = now.worst.first_bad,
             .value = now.worst.bad_value});
  }
  if (run.pass == OpPass::kForward && makes_losses_of_tokens(run.op)) {
    keep_losses(run);
  }
}

void StepTrace::keep_losses(const OpRun& run) {
  if (run.outputs.empty() || !run.outputs[0].defined() || run.outputs[0].numel() < 2) {
    return;
  }
  row_losses_.push_back({.micro_batch = phase_.micro_batch,
                         .shape = run.outputs[0].shape(),
                         .tokens = run.outputs[0].to_vector<double>()});
}

void StepTrace::add_bad(BadValue bad) {
  if (bad_.size() < kMostBadValues) {
    bad_.push_back(std::move(bad));
  }
}

void StepTrace::heal() {
  for (BadValue& bad : bad_) {
    bad.is_mask = bad.is_mask || bad.masked_only;
  }
}

}  // namespace tapestry::autopsy
