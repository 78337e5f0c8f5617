#include "autograd/tape/op.h"

namespace tapestry::detail {

void throw_released(std::string_view name) {
  throw RuntimeError(concat(name,
                            ": backward was run through this graph before and released what it "
                            "had saved; pass retain_graph to run it again"));
}

void check_count(std::string_view name, size_t gradients, size_t inputs) {
  check<RuntimeError>(gradients == inputs, name, ": backward returned ", gradients,
                      " gradients for ", inputs, " inputs");
}

}  // namespace tapestry::detail
