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
  node_ = static_cast<Node*>(thread_state().recording_node);
  if (node_ == nullptr || !value.defined()) {
    return;
  }
  if (value.requires_grad() && value.is_leaf()) {
    keep(value);  // no recorded op can change it in place
    return;
  }
  // An op that later changes the tensor in place becomes its producer. If that op depends on this
  // one, a handle on the tensor itself would close a circle of ownership: keep what it is now.
  keep(alias(value));
  source_ = gradient_edge(value);
}

const Tensor& SavedTensor::save_output(const Tensor& value, uint32_t index) {
  node_ = static_cast<Node*>(thread_state().recording_node);
  if (node_ != nullptr) {
    keep(alias(value));
    output_ = index;
  }
  return value;
}

bool SavedTensor::is_only_handle() const {
  return value_.defined() && value_.impl()->use_count() == 1 && value_.storage()->use_count() == 1;
}

Tensor SavedTensor::take() {
  Tensor out = get();
  value_ = {};
  return out;
}

Tensor SavedTensor::get() const {
  if (!value_.defined()) {
    return {};
  }
  check<RuntimeError>(value_.version() == version_, node_->name(), ": a tensor ", describe(value_),
                      " that backward needs was changed in place: it was saved at version ",
                      version_, " and is now at version ", value_.version(),
                      "; change a clone() instead");
  if (!grad_enabled() || (output_ == kInput && !source_)) {
    return value_;
  }
  Tensor attached = alias(value_);
  if (output_ == kInput) {
    set_gradient_edge(attached, source_.node, source_.output);
  } else {
    set_gradient_edge(attached, Ref<Node>(node_), output_);
  }
  return attached;
}

}  // namespace tapestry
