#include "autograd/tape/saved_tensor.h"

#include "autograd/kernels/machine/work_counter.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/dtype.h"

namespace tapestry {

void SavedTensor::keep(const Tensor& value) {
  value_ = value;
  version_ = value.version();
  kernels::work_counter().saved_bytes +=
      static_cast<double>(value.numel() * size_of(value.dtype()));
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
  if (!source_ && is_floating(value.dtype())) {
    leaf_ = value;  // no such op: it would need memory that the alias does not share
  }
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
  const bool holds_both = leaf_.defined();
  return value_.defined() && value_.impl()->use_count() == 1 &&
         (!holds_both || leaf_.impl()->use_count() == 1) &&
         value_.storage()->use_count() == (holds_both ? 2U : 1U);
}

Tensor SavedTensor::take() {
  Tensor out = get();
  value_ = {};
  leaf_ = {};
  return out;
}

Tensor SavedTensor::get() const {
  if (!value_.defined()) {
    return {};
  }
  if (value_.version() != version_) [[unlikely]] {
    detail::throw_changed(node_->name(), {value_.shape(), value_.dtype()}, version_,
                          value_.version());
  }
  if (!grad_enabled()) {
    return value_;
  }
  if (output_ == kInput && !source_) {
    return leaf_.defined() && leaf_.requires_grad() && leaf_.is_leaf() ? leaf_ : value_;
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
