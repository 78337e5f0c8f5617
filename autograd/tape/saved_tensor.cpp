#include "autograd/tape/saved_tensor.h"

#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"

namespace tapestry {

void SavedTensor::keep(const Tensor& value) {
  value_ = value;
  version_ = value.version();
}

void SavedTensor::save(const Tensor& value) {
  node_ = static_cast<Node*>(RankContext::current().recording_node);
  if (node_ != nullptr && value.defined()) {
    keep(value);
  }
}

const Tensor& SavedTensor::save_output(const Tensor& value, uint32_t index) {
  node_ = static_cast<Node*>(RankContext::current().recording_node);
  if (node_ != nullptr) {
    keep(alias(value));
    output_ = index;
  }
  return value;
}

Tensor SavedTensor::get() const {
  if (!value_.defined()) {
    return {};
  }
  check<RuntimeError>(value_.version() == version_, node_->name(), ": a tensor ", describe(value_),
                      " that backward needs was changed in place: it was saved at version ",
                      version_, " and is now at version ", value_.version(),
                      "; change a clone() instead");
  if (output_ == kInput || !grad_enabled()) {
    return value_;
  }
  Tensor attached = alias(value_);
  set_gradient_edge(attached, Ref<Node>(node_), output_);
  return attached;
}

}  // namespace tapestry
