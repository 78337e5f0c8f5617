// The passes of state_space() apart, for ops that do something around them: context parallelism,
// where a rank's tokens begin with the state that the rank before it ends with.
//
// None is recorded, and none reads options.want_final_state. Inputs, options and errors as there.
// `borders` are states between chunks as the kernels have them, [B, chunks + 1, H, padded N, padded
// p] (kernels/recurrence/state_space.h), in float32 (float64 for float64).
#pragma once

#include "autograd/ops/transformer/state_space.h"

namespace tapestry {

struct StateSpaceInputs {
  Tensor xbc;
  Tensor dt;
  Tensor a_log;
  Tensor d;
  Tensor dt_bias;
};

struct StateSpacePass {
  Tensor y;            ///< [B, S, H p] in xbc's dtype
  Tensor borders;      ///< for backward
  Tensor final_state;  ///< [B, H, p, N]
};

/// All of it, from options.initial_state on.
StateSpacePass state_space_forward(const StateSpaceInputs& inputs,
                                   const StateSpaceOptions& options);
/// Only borders and final_state (y is undefined): about half of the work, which has to go from
/// chunk to chunk. The rest is state_space_output().
StateSpacePass state_space_states(const StateSpaceInputs& inputs, const StateSpaceOptions& options);
/// y from the borders, without the pass from chunk to chunk: the same bits as by
/// state_space_forward(). options.initial_state is not read.
Tensor state_space_output(const StateSpaceInputs& inputs,
                          const StateSpaceOptions& options,
                          const Tensor& borders);

/// [B, H], float64: the factor that initial_state has in the final state, e^(sum of -e^a_log step)
/// over all tokens, 0 where a document begins. So with `zero` the final state that zeros lead to,
/// final_state = decay initial_state + zero, and the gradient of initial_state through the final
/// state is decay times that of the final state.
Tensor state_space_decay(const StateSpaceInputs& inputs, const StateSpaceOptions& options);

struct StateSpaceGradientTensors {
  Tensor xbc;            ///< as the input, contiguous
  Tensor dt;             ///< [B, S, H], float32 (float64 for float64)
  Tensor a_log;          ///< [H], as dt
  Tensor d;              ///< [H], as dt
  Tensor dt_bias;        ///< [H], as dt
  Tensor initial_state;  ///< [B, H, p, N], whether or not there was one
};

/// Gradients of everything from dy, in xbc's dtype, and dfinal_state [B, H, p, N]; each may be
/// undefined, which is zeros. options.initial_state is not read.
StateSpaceGradientTensors state_space_backward(const StateSpaceInputs& inputs,
                                               const StateSpaceOptions& options,
                                               const Tensor& borders,
                                               const Tensor& dy,
                                               const Tensor& dfinal_state);
/// The gradient of initial_state alone, for about a quarter of that, and without borders: what the
/// rank before waits for.
Tensor state_space_initial_gradient(const StateSpaceInputs& inputs,
                                    const StateSpaceOptions& options,
                                    const Tensor& dy,
                                    const Tensor& dfinal_state);

}  // namespace tapestry
