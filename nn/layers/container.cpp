#include "nn/layers/container.h"

#include "autograd/tensor/error.h"

namespace tapestry::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (UnaryModule* module : modules_) {
    y = (*module)(y);
  }
  return y;
}

void Sequential::append(std::unique_ptr<UnaryModule> module) {
  UnaryModule* const added = module.get();
  add_child(std::to_string(modules_.size()), std::move(module));
  modules_.push_back(added);
}

UnaryModule& Sequential::operator[](size_t index) const {
  check<IndexError>(index < modules_.size(), "Sequential: module ", index, " of ", modules_.size());
  return *modules_[index];
}

Module& ModuleList::operator[](size_t index) const {
  check<IndexError>(index < modules_.size(), "ModuleList: module ", index, " of ", modules_.size());
  return *modules_[index];
}

}  // namespace tapestry::nn
