#include "diagnosis/profile/recorder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/kernels/machine/work_counter.h"
#include "autograd/tape/registry.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry::profile {

namespace {

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

double size_in_bytes(const Tensor& t) {
  return static_cast<double>(t.numel() * size_of(t.dtype()));
}

bool share_memory(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.storage() == b.storage();
}

Track track_of(std::string_view phase, Track outer) {
  if (phase == "data") {
    return Track::kData;
  }
  return phase == "save" ? Track::kCheckpoint : outer;
}

}  // namespace

void Recorder::start_step(int64_t step) {
  step_ = step;
  if (recording_.first_step == 0) {
    recording_.first_step = step;
  }
  recording_.last_step = step;
}

void Recorder::push(Slice slice, uint64_t number) {
  slice.step = step_;
  if (!frames_.empty() && slice.track == Track::kCompute) {
    slice.track = frames_.back().slice.track;
  }
  const kernels::WorkCounter& counter = kernels::work_counter();
  Frame frame = {.slice = slice,
                 .flops_before = counter.flops,
                 .saved_before = counter.saved_bytes,
                 .number = number};
  frame.slice.begin = now_ns();
  frames_.push_back(std::move(frame));
}

bool Recorder::is_drawn(const Frame& frame) const {
  switch (frame.slice.category) {
    case Category::kModule:
      return detail_.modules;
    case Category::kOp:
      return detail_.ops;
    default:
      return true;
  }
}

// Ends the innermost span of that name, and those inside it that an exception has left open.
void Recorder::end(Category category, uint32_t name, const OpRun* run, int64_t at) {
  const auto found = std::find_if(frames_.rbegin(), frames_.rend(), [&](const Frame& frame) {
    return frame.slice.category == category && frame.slice.name == name;
  });
  if (found == frames_.rend()) {
    return;  // it began before the recording
  }
  const auto depth = static_cast<size_t>(frames_.rend() - found);
  while (frames_.size() >= depth) {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    finish(std::move(frame), frames_.size() + 1 == depth ? run : nullptr, at);
  }
}

void Recorder::finish(Frame frame, const OpRun* run, int64_t at) {
  Slice& slice = frame.slice;
  slice.end = at;
  const int64_t taken = at - slice.begin;
  const double flops = kernels::work_counter().flops - frame.flops_before;
  const int64_t own = taken - frame.inside;
  const double own_flops = flops - frame.flops_inside;
  slice.flops = flops;
  if (run != nullptr) {
    slice.bytes = bytes_of(*run, frame);
  }
  if (!frames_.empty()) {
    Frame& outer = frames_.back();
    // Between its ops a module's time is that of its phase.
    outer.inside += slice.category == Category::kModule ? frame.inside : taken;
    outer.flops_inside += slice.category == Category::kModule ? frame.flops_inside : flops;
  }
  if (detail_.op_time && slice.category != Category::kModule) {
    WorkSum& sum = recording_.work[{slice.category, slice.pass, slice.name}];
    ++sum.calls;
    sum.ns += taken;
    sum.self_ns += own;
    sum.flops += own_flops;
    sum.bytes += slice.bytes;
    if (slice.category == Category::kOp) {
      WorkSum& of_module = recording_.modules[{slice.module, slice.pass}];
      ++of_module.calls;
      of_module.ns += taken;
      of_module.self_ns += own;
      of_module.flops += own_flops;
      of_module.bytes += slice.bytes;
    }
  }
  if (detail_.with_stack && slice.category != Category::kModule) {
    slice.stack = stack_of(frame);
    recording_.stacks[slice.stack] += own;
  }
  if (is_drawn(frame)) {
    recording_.slices.push_back(slice);
  }
}

// "step;forward;layers.0.mlp;linear (autograd/ops/matmul.cpp:120)"
uint32_t Recorder::stack_of(const Frame& frame) {
  std::string text;
  const auto add = [&](std::string_view part) {
    if (!part.empty()) {
      text += text.empty() ? "" : ";";
      text += part;
    }
  };
  for (const Frame& outer : frames_) {
    if (outer.slice.category != Category::kModule) {
      add(recording_.names[outer.slice.name]);
    }
  }
  const std::string& name = recording_.names[frame.slice.name];
  if (frame.slice.category == Category::kOp) {
    add(recording_.names[frame.slice.module]);
    const OpInfo* info = find_op(name);
    add(info == nullptr ? name : concat(name, " (", info->file, ":", info->line, ")"));
  } else {
    add(name);
  }
  return recording_.names.id(text);
}

double Recorder::bytes_of(const OpRun& run, const Frame& frame) {
  double bytes = 0;
  const bool in_place = !run.op.empty() && run.op.back() == '_';
  const auto is_view = [&](const Tensor& t, std::span<const Tensor> others) {
    return !in_place && run.pass != OpPass::kBackward &&
           std::any_of(others.begin(), others.end(),
                       [&](const Tensor& other) { return share_memory(t, other); });
  };
  for (const Tensor& t : run.inputs) {
    if (t.defined() && !is_view(t, run.outputs)) {
      bytes += size_in_bytes(t);
    }
  }
  for (const Tensor& t : run.outputs) {
    if (t.defined() && !is_view(t, run.inputs)) {
      bytes += size_in_bytes(t);
    }
  }
  if (run.number == 0) {
    return bytes;
  }
  if (run.pass != OpPass::kBackward) {
    saved_[run.number] = kernels::work_counter().saved_bytes - frame.saved_before;
  } else if (const auto saved = saved_.find(run.number); saved != saved_.end()) {
    bytes += saved->second;
    saved_.erase(saved);
  }
  return bytes;
}

void Recorder::note_memory(int64_t at) {
  if (detail_.memory) {
    recording_.memory.push_back({at, RankContext::current().allocator().stats().current_bytes});
  }
}

void Recorder::op_begins(const OpRun& run) {
  if (!detail_.ops && !detail_.op_time) {
    return;
  }
  push({.category = Category::kOp,
        .pass = run.pass,
        .name = recording_.names.id(run.op),
        .module = recording_.names.id(run.module)},
       run.number);
}

void Recorder::op_ended(const OpRun& run) {
  if (!detail_.ops && !detail_.op_time) {
    return;
  }
  const int64_t at = now_ns();
  end(Category::kOp, recording_.names.id(run.op), &run, at);
}

void Recorder::module_begins(const ModuleCall& call) {
  if (detail_.modules) {
    push({.category = Category::kModule,
          .pass = call.again ? OpPass::kAgain : OpPass::kForward,
          .name = recording_.names.id(call.path.empty() ? call.type : call.path)});
  }
}

void Recorder::module_ended(const ModuleCall& call) {
  if (detail_.modules) {
    const int64_t at = now_ns();
    note_memory(at);
    end(Category::kModule, recording_.names.id(call.path.empty() ? call.type : call.path), nullptr,
        at);
  }
}

void Recorder::phase_begins(const PhaseRun& phase) {
  if (phase.name == "fetch" && !detail_.fetches) {
    return;
  }
  push({.category = phase.name == "step" ? Category::kStep : Category::kPhase,
        .track = track_of(phase.name, Track::kCompute),
        .name = recording_.names.id(phase.name),
        .micro_batch = static_cast<int32_t>(phase.micro_batch),
        .chunk = static_cast<int32_t>(phase.chunk)});
}

void Recorder::phase_ended(const PhaseRun& phase) {
  if (phase.name == "fetch" && !detail_.fetches) {
    return;
  }
  const int64_t at = now_ns();
  note_memory(at);
  end(phase.name == "step" ? Category::kStep : Category::kPhase, recording_.names.id(phase.name),
      nullptr, at);
}

Recorder::ExchangeKey Recorder::key_of(const CollectiveRun& run) {
  return {run.group_id, concat(run.kind, "@", run.group_id == 0 ? run.group : ""), run.peer,
          run.sequence};
}

void Recorder::collective_begins(const CollectiveRun& run) {
  const int64_t at = now_ns();
  under_way_[key_of(run)] = recording_.exchanges.size();
  recording_.exchanges.push_back({.kind = recording_.names.id(run.kind),
                                  .group = recording_.names.id(run.group),
                                  .module = recording_.names.id(run.module),
                                  .group_id = run.group_id,
                                  .sequence = run.sequence,
                                  .peer = run.peer,
                                  .step = step_,
                                  .bytes = run.bytes,
                                  .begin = at,
                                  .end = at});
}

void Recorder::collective_ended(const CollectiveRun& run) {
  const int64_t at = now_ns();
  const auto found = under_way_.find(key_of(run));
  if (found == under_way_.end()) {
    return;  // it began before the recording
  }
  Exchange& exchange = recording_.exchanges[found->second];
  under_way_.erase(found);
  const int64_t finished = run.finished > 0 ? nanoseconds(run.finished) : at;
  exchange.end = std::clamp(finished, exchange.begin, at);
  const int64_t wait_began = nanoseconds(run.wait_began);
  if (finished <= wait_began) {
    return;  // it was there already
  }
  exchange.waited = at - wait_began;
  Slice wait = {.category = Category::kWait,
                .name = recording_.names.id(run.kind),
                .module = recording_.names.id(run.module)};
  push(wait);
  frames_.back().slice.begin = std::min(wait_began, at);
  end(Category::kWait, wait.name, nullptr, at);
}

Recording Recorder::take() {
  const int64_t at = now_ns();
  while (!frames_.empty()) {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    finish(std::move(frame), nullptr, at);
  }
  for (const auto& [key, index] : under_way_) {
    recording_.exchanges[index].end = at;
  }
  under_way_.clear();
  saved_.clear();
  return std::exchange(recording_, {});
}

}  // namespace tapestry::profile
