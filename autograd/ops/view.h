// Views that remember how they came to be.
#pragma once

#include "autograd/tensor/tensor.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {

/// `view`, new in the forward of an op, as a view of the op's input x. Where the op is not recorded
/// but x is part of a graph, that graph will not learn of changes of the view: those are refused
/// while recording (inplace.h). So they are for what stems from an op with several views.
inline Tensor view_of(const Tensor& x, Tensor view) {
  TensorImpl& impl = *view.impl();
  impl.one_of_several = x.impl()->one_of_several;
  impl.outside_graph =
      thread_state().recording_node == nullptr && (x.requires_grad() || x.impl()->outside_graph);
  return view;
}

}  // namespace tapestry
