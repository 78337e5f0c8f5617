#include "parallel_core/pipeline_parallel/schedules.h"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/map.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

namespace {

// A pass whose backward is still to come.
struct InFlight {
  Tensor input;
  Tensor output;  // its place in the graph, not its values
  Tensor gradient;
};

ProcessGroup& pipeline_group(const std::shared_ptr<ProcessGroup>& alone) {
  return model_parallel_is_initialized() ? get_pipeline_model_parallel_group() : *alone;
}

// Then there must be something to train.
bool is_alone(const PipelineShape& shape) { return shape.stages == 1 && shape.chunks == 1; }

PipelineReport run(const PipelineWork& work) {
  const auto start = std::chrono::steady_clock::now();
  const PipelinePlace place = pipeline_place();
  const PipelineShape shape = {.stages = place.size,
                               .chunks = work.chunks,
                               .micro_batches = work.micro_batches,
                               .forward_only = work.forward_only};
  const std::shared_ptr<ProcessGroup> alone = single_process_group();
  P2PCommunication p2p(pipeline_group(alone), shape, work.messages);
  std::vector<InFlight> in_flight(static_cast<size_t>(work.chunks * work.micro_batches));
  for (const PipelinePass& pass : pipeline_order(shape, place.rank)) {
    InFlight& entry =
        in_flight[static_cast<size_t>(pass.chunk * work.micro_batches + pass.micro_batch)];
    Tensor received = [&] {
      const PhaseScope phase("messages", pass.micro_batch, pass.chunk);
      return p2p.receive(pass);
    }();
    const ExactTokensScope tokens(
        work.exact_tokens && in_exact() ? work.exact_tokens(pass.micro_batch) : exact_tokens());
    if (pass.backward) {
      if (work.before_backward) {
        work.before_backward(pass.chunk, pass.micro_batch);
      }
      const InFlight now = std::exchange(entry, {});
      if (!received.defined()) {
        received = now.gradient;
      }
      // Nothing may be trained up to here: of layers whose parameters are all frozen.
      const bool trains = now.output.requires_grad() || is_alone(shape);
      if (trains) {
        const PhaseScope phase("backward", pass.micro_batch, pass.chunk);
        backward(std::array{now.output}, std::array{std::move(received)});
      }
      if (now.input.defined()) {
        const PhaseScope phase("messages", pass.micro_batch, pass.chunk);
        p2p.send(pass, now.input.grad());
      }
      continue;
    }
    if (received.defined() && !work.forward_only) {
      received.set_requires_grad();
    }
    StageOutput out = [&] {
      const PhaseScope phase("forward", pass.micro_batch, pass.chunk);
      return work.forward(pass.chunk, pass.micro_batch, received);
    }();
    {
      const PhaseScope phase("messages", pass.micro_batch, pass.chunk);
      p2p.send(pass, out.value);
    }
    if (!work.forward_only) {
      entry = {std::move(received), graph_root(out.value), std::move(out.gradient)};
    }
  }
  {
    const PhaseScope phase("messages");
    p2p.finish();
  }
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          p2p.waiting_seconds()};
}

}  // namespace

PipelineReport forward_backward_no_pipelining(const PipelineWork& work) {
  const PipelinePlace place = pipeline_place();
  check<ValueError>(place.size == 1 && work.chunks == 1,
                    "forward_backward_no_pipelining: the pipeline has ", place.size, " stages of ",
                    work.chunks, " chunks");
  return run(work);
}

PipelineReport forward_backward_pipelining_without_interleaving(const PipelineWork& work) {
  check<ValueError>(work.chunks == 1,
                    "forward_backward_pipelining_without_interleaving: takes one chunk, got ",
                    work.chunks);
  return run(work);
}

PipelineReport forward_backward_pipelining_with_interleaving(const PipelineWork& work) {
  check<ValueError>(work.chunks > 1,
                    "forward_backward_pipelining_with_interleaving: takes two chunks or more, got ",
                    work.chunks);
  return run(work);
}

ForwardBackwardFunc get_forward_backward_func(int chunks) {
  if (chunks > 1) {
    return forward_backward_pipelining_with_interleaving;
  }
  return pipeline_place().size > 1 ? forward_backward_pipelining_without_interleaving
                                   : forward_backward_no_pipelining;
}

}  // namespace tapestry
