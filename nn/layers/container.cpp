#include "nn/layers/container.h"

#include <algorithm>

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

bool ModuleDict::contains(std::string_view name) const {
  const auto& children = named_children();
  return std::any_of(children.begin(), children.end(),
                     [&](const NamedModule& child) { return child.name == name; });
}

std::vector<std::string> ModuleDict::keys() const {
  std::vector<std::string> out;
  for (const NamedModule& child : named_children()) {
    out.push_back(child.name);
  }
  return out;
}

Module& ModuleDict::operator[](std::string_view name) const {
  std::string known;
  for (const NamedModule& child : named_children()) {
    if (child.name == name) {
      return *child.module;
    }
    known += (known.empty() ? "" : ", ") + child.name;
  }
  throw ValueError(concat("ModuleDict: there is no '", name, "'; it has ",
                          known.empty() ? "no modules" : known));
}

}  // namespace tapestry::nn
