#include "nn/module_call.h"

namespace tapestry::nn::detail {

CallReport::CallReport(const Module& module, TensorList arguments)
    : arguments_(std::move(arguments)),
      call_{.path = module.path(),
            .type = module.type_name(),
            .again = thread_state().recomputing,
            .arguments = arguments_,
            .results = {}} {
  tapestry::detail::tell(tapestry::detail::op_observers(), &Observer::module_begins, call_);
}

void CallReport::end(std::span<const Tensor> results) {
  call_.results = results;
  tapestry::detail::tell(tapestry::detail::op_observers(), &Observer::module_ended, call_);
}

}  // namespace tapestry::nn::detail
