#include "nn/module.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <set>
#include <unordered_set>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "nn/module_call.h"

namespace tapestry::nn {

namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : name.empty() ? prefix : prefix + "." + name;
}

void collect(Module& module, const std::string& path, std::vector<Module::NamedModule>& out) {
  out.push_back({path, &module});
  for (const Module::NamedModule& child : module.named_children()) {
    collect(*child.module, join(path, child.name), out);
  }
}

void print(std::ostream& out, const Module& module, const std::string& name, int depth) {
  out << std::string(static_cast<size_t>(2 * depth), ' ');
  if (!name.empty()) {
    out << "(" << name << "): ";
  }
  out << module.type_name();
  const std::string extra = module.extra_repr();
  if (!extra.empty()) {
    out << "(" << extra << ")";
  }
  out << "\n";
  for (const Module::NamedModule& child : module.named_children()) {
    print(out, *child.module, child.name, depth + 1);
  }
}

// Nodes and threads point to a path: it outlives its module.
const std::string* kept_for_ever(std::string path) {
  static std::mutex mutex;
  static auto& paths = *new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return &*paths.insert(std::move(path)).first;
}

}  // namespace

std::string LoadReport::str() const {
  constexpr size_t kShown = 5;  // of each kind
  std::string out;
  const auto add = [&](const char* kind, const auto& entries, const auto& text_of) {
    const size_t shown = entries.size() > kShown + 1 ? kShown : entries.size();
    for (size_t i = 0; i < shown; ++i) {
      out += concat(kind, ": ", text_of(entries[i]), "\n");
    }
    if (shown < entries.size()) {
      out += concat(kind, ": ", entries.size() - shown, " more\n");
    }
  };
  const auto name_of = [](const std::string& name) { return name; };
  add("missing", missing, name_of);
  add("unexpected", unexpected, name_of);
  add("wrong shape", mismatched, [](const Mismatch& m) {
    return concat(m.name, " is ", m.found.str(), ", expected ", m.expected.str());
  });
  return out;
}

Module::~Module() = default;

std::vector<Module::NamedModule> Module::named_modules() {
  std::vector<NamedModule> out;
  collect(*this, "", out);
  return out;
}

std::vector<Module::NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> out;
  std::set<const TensorImpl*> seen;
  // The tree is only read; collect() hands out mutable modules because its callers may want them.
  for (const NamedModule& entry : const_cast<Module*>(this)->named_modules()) {
    for (const auto& [name, parameter] : entry.module->parameters_) {
      if (seen.insert(parameter->impl()).second) {
        out.push_back({join(entry.name, name), parameter.get()});
      }
    }
  }
  return out;
}

std::vector<Module::NamedParameter> Module::trained_parameters() const {
  std::vector<NamedParameter> out = named_parameters();
  std::erase_if(out, [](const NamedParameter& p) { return !p.parameter->requires_grad(); });
  return out;
}

TensorList Module::parameters() const {
  TensorList out;
  for (const NamedParameter& p : named_parameters()) {
    out.push_back(*p.parameter);
  }
  return out;
}

std::vector<Module::NamedBuffer> Module::named_buffers() const {
  std::vector<NamedBuffer> out;
  for (const NamedModule& entry : const_cast<Module*>(this)->named_modules()) {
    for (const NamedBuffer& own : entry.module->buffers_) {
      out.push_back({join(entry.name, own.name), own.buffer, own.logical});
    }
  }
  return out;
}

int64_t Module::num_parameters() const {
  int64_t count = 0;
  for (const NamedParameter& p : named_parameters()) {
    count += p.parameter->numel();
  }
  return count;
}

void Module::train(bool on) {
  for (const NamedModule& entry : named_modules()) {
    entry.module->training_ = on;
  }
}

void Module::to(DType dtype) {
  check_floating("Module::to", dtype);
  TensorList tensors = parameters();
  for (const NamedParameter& p : named_parameters()) {
    check<RuntimeError>(!p.parameter->main_grad().defined(), "Module::to: '", p.name,
                        "' has a main_grad; convert the module before that is set");
  }
  for (const NamedBuffer& b : named_buffers()) {
    if (is_floating(b.buffer.dtype())) {
      tensors.push_back(b.buffer);
    }
  }
  const NoGradGuard guard;
  for (const Tensor& t : tensors) {
    if (t.dtype() == dtype) {
      continue;
    }
    const Tensor gradient = t.grad();
    t.set_grad({});
    const MemoryKindGuard kind(MemoryKind::kParameter);
    set_data(t, t.detach().to(dtype));
    if (gradient.defined()) {
      t.set_grad(gradient.to(dtype));
    }
  }
}

void Module::zero_grad() {
  for (const NamedParameter& p : named_parameters()) {
    if (const Tensor buffer = p.parameter->main_grad(); buffer.defined()) {
      copy_values(broadcast_view(scalar(0, buffer.dtype()), buffer.shape()), buffer);
    } else {
      p.parameter->set_grad({});
    }
  }
}

StateDict Module::state_dict() const {
  StateDict out;
  for (const NamedParameter& p : named_parameters()) {
    out.emplace(p.name, p.parameter->detach());
  }
  for (const NamedBuffer& b : named_buffers()) {
    out.emplace(b.name, b.buffer);
  }
  return out;
}

LoadReport Module::load_state_dict(const StateDict& state, bool strict) {
  const StateDict own = state_dict();
  LoadReport report;
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end() || !found->second.defined()) {
      report.missing.push_back(name);
    } else if (found->second.shape() != tensor.shape()) {
      report.mismatched.push_back({name, tensor.shape(), found->second.shape()});
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name)) {
      report.unexpected.push_back(name);
    }
  }
  check<ValueError>(report.mismatched.empty() && (!strict || report.empty()),
                    "load_state_dict: the state does not fit the module\n", report.str());
  std::map<std::string, const Parameter*> quantized;
  for (const NamedParameter& entry : named_parameters()) {
    if (entry.parameter->is_quantized()) {
      quantized.emplace(entry.name, entry.parameter);
    }
  }
  for (const auto& [name, tensor] : own) {
    if (const auto found = state.find(name); found != state.end() && found->second.defined()) {
      copy_values(found->second, tensor);
      if (const auto blocks = quantized.find(name); blocks != quantized.end()) {
        blocks->second->store_quantized();
      }
      tensor.bump_version();
    }
  }
  return report;
}

void Module::check_name(const std::string& name) const {
  check<ValueError>(!name.empty() && name.find('.') == std::string::npos, type_name(),
                    ": a name must not be empty or contain a dot: '", name, "'");
  const auto same = [&](const auto& entry) { return entry.name == name; };
  const bool taken = std::any_of(parameters_.begin(), parameters_.end(),
                                 [&](const auto& entry) { return entry.first == name; }) ||
                     std::any_of(buffers_.begin(), buffers_.end(), same) ||
                     std::any_of(child_list_.begin(), child_list_.end(), same);
  check<ValueError>(!taken, type_name(), ": the name '", name, "' is taken");
}

Parameter& Module::register_parameter(std::string name, const Tensor& value, ParameterFlags flags) {
  check_name(name);
  check<ValueError>(value.defined(), type_name(), ": the parameter '", name, "' is undefined");
  parameters_.emplace_back(std::move(name), std::make_unique<Parameter>(value, flags));
  return *parameters_.back().second;
}

Tensor Module::register_buffer(std::string name, const Tensor& value, std::string logical) {
  check_name(name);
  check<ValueError>(value.defined(), type_name(), ": the buffer '", name, "' is undefined");
  buffers_.push_back({std::move(name), value, std::move(logical)});
  return value;
}

Module& Module::add_child(std::string name, std::unique_ptr<Module> child) {
  check_name(name);
  check<ValueError>(child != nullptr, type_name(), ": the child '", name, "' is null");
  child->parent_ = this;
  child->name_ = name;
  child->forget_paths();
  child_list_.push_back({std::move(name), child.get()});
  children_.push_back(std::move(child));
  return *children_.back();
}

const std::string& Module::path() const {
  const std::string* path = path_.load(std::memory_order_acquire);
  if (path == nullptr) {
    path = kept_for_ever(parent_ == nullptr ? name_ : join(parent_->path(), name_));
    path_.store(path, std::memory_order_release);
  }
  return *path;
}

void Module::forget_paths() {
  for (const NamedModule& entry : named_modules()) {
    entry.module->path_.store(nullptr, std::memory_order_release);
  }
}

std::ostream& operator<<(std::ostream& out, const Module& module) {
  print(out, module, "", 0);
  return out;
}

Tensor UnaryModule::operator()(const Tensor& x) {
  const ModuleScope scope(*this);
  std::optional<detail::CallReport> report;
  if (is_observed()) [[unlikely]] {
    report.emplace(*this, TensorList{x});
  }
  Tensor input = x;
  pre_hooks_.for_each([&](const PreHook& hook) {
    if (Tensor replaced = hook(*this, input); replaced.defined()) {
      input = replaced;
    }
  });
  Tensor output = forward(input);
  hooks_.for_each([&](const Hook& hook) {
    if (Tensor replaced = hook(*this, input, output); replaced.defined()) {
      output = replaced;
    }
  });
  if (report) [[unlikely]] {
    report->end({&output, 1});
  }
  return output;
}

}  // namespace tapestry::nn
