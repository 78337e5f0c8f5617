// Parts of a call, as state_space.cpp hands them to the loops of isa/state_space.cpp.
#pragma once

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/recurrence/state_space.h"

namespace tapestry::kernels {

/// Heads of one group in one row of the batch, and chunks of its tokens.
struct StateSpacePart {
  int64_t sample;
  int64_t head_begin;
  int64_t head_end;
  int64_t chunk_begin;
  int64_t chunk_end;
};

/// Gradients of states of the chunks that are worked on together: [chunks + 1, batch, H, padded N,
/// padded p], the first of them before chunk `chunk_begin`.
struct StateSpaceWindow {
  void* dstates;
  int64_t chunk_begin;
  int64_t chunk_end;
};

/// What a chunk adds to the gradients of one head's parameters.
struct StateSpaceHeadSums {
  double da;
  double dd;
  double ddt_bias;
};

/// Elements of compute type that a thread needs, for each of the passes.
inline constexpr int64_t state_space_scratch(const StateSpaceCall& call) {
  const int64_t q = state_space_padded(call.chunk < call.tokens ? call.chunk : call.tokens);
  const int64_t n = state_space_padded(call.state_size);
  const int64_t p = state_space_padded(call.head_dim);
  return 7 * q * n + 3 * q * q + 5 * q * p + 2 * n * p + 16 * q + 1024;
}

TAPESTRY_DECLARE_PER_ISA(void state_space_states_part(const StateSpaceCall& call,
                                                      const StateSpacePart& part,
                                                      void* scratch);
                         void state_space_output_part(const StateSpaceCall& call,
                                                      const StateSpacePart& part,
                                                      void* y,
                                                      void* scratch);
                         void state_space_dstates_part(const StateSpaceCall& call,
                                                       const StateSpacePart& part,
                                                       const StateSpaceGradients& gradients,
                                                       const StateSpaceWindow& window,
                                                       void* scratch);
                         void state_space_backward_part(const StateSpaceCall& call,
                                                        const StateSpacePart& part,
                                                        const StateSpaceGradients& gradients,
                                                        const StateSpaceWindow& window,
                                                        StateSpaceHeadSums* sums,
                                                        void* scratch);
                         double state_space_log_decay_of(const StateSpaceCall& call,
                                                         int64_t sample,
                                                         int64_t head,
                                                         void* scratch);
                         void state_space_step_heads(const StateSpaceStep& step,
                                                     int64_t text,
                                                     int64_t head_begin,
                                                     int64_t head_end))

}  // namespace tapestry::kernels
