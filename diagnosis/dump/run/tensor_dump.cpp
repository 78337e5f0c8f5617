#include "diagnosis/dump/run/tensor_dump.h"

#include <algorithm>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/ops/elementwise.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/node.h"
#include "autograd/tape/registry.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/random.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

constexpr const char* kObserverName = "dump";
constexpr const char* kGradients = "Gradients/";

std::string with_slashes(std::string_view path) {
  std::string out(path);
  std::replace(out.begin(), out.end(), '.', '/');
  return out;
}

std::string source_of(std::string_view op) {
  const OpInfo* info = find_op(op);
  return info == nullptr ? std::string() : concat(info->file, ":", info->line);
}

std::string rank_suffix() {
  std::string out;
  const auto add = [&](const char* axis, int rank, int size) {
    if (size > 1) {
      out += concat(out.empty() ? "@" : ",", axis, rank);
    }
  };
  add("tp", get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size());
  add("cp", get_context_parallel_rank(), get_context_parallel_world_size());
  add("ep", get_expert_model_parallel_rank(), get_expert_model_parallel_world_size());
  // Stages begin with modules that another stage has, too, and give them other inputs.
  add("pp", get_pipeline_model_parallel_rank(), get_pipeline_model_parallel_world_size());
  return out;
}

std::vector<dump::AxisRanges> ranges_of(const ValuePlacement& placement) {
  std::vector<dump::AxisRanges> out;
  for (const auto& ranges : placement.ranges) {
    dump::AxisRanges& axis = out.emplace_back();
    for (const ValuePlacement::Range& range : ranges) {
      axis.push_back({range.begin, range.end});
    }
  }
  return out;
}

nlohmann::json shapes_of(std::span<const Tensor> tensors) {
  nlohmann::json out = nlohmann::json::array();
  for (const Tensor& t : tensors) {
    out.push_back(t.defined() ? nlohmann::json{{"shape", t.shape().str()},
                                               {"dtype", std::string(name_of(t.dtype()))}}
                              : nlohmann::json());
  }
  return out;
}

}  // namespace

TensorDump::TensorDump(TrainOneStepCell& cell,
                       const AllConfig& config,
                       dump::DumpConfig dump,
                       int64_t rank_on_host)
    : cell_(cell),
      config_(config),
      writer_(std::move(dump), RankContext::current().rank(), rank_on_host),
      writes_state_(get_data_parallel_rank(/*with_context_parallel=*/true) == 0 &&
                    get_tensor_model_parallel_rank() == 0),
      touches_(zero_level(config) == 3),
      suffix_(rank_suffix()),
      kernels_(writer_.config()) {
  cell_.set_gradient_observer([this](int64_t /*step*/) { write_gradients(); },
                              [this](int64_t step) { return writer_.config().wants(step - 1); },
                              kObserverName);
}

TensorDump::~TensorDump() {
  cell_.set_gradient_observer({}, {}, kObserverName);
  if (open_) {
    *open_ = false;
  }
}

void TensorDump::before(int64_t step) {
  writer_.begin_iteration(step - 1);
  if (!writer_.config().wants(step - 1)) {
    return;
  }
  in_step_ = false;
  next_task_ = 0;
  counts_.clear();
  names_.clear();
  running_ops_.clear();
  running_modules_.clear();
  open_ = std::make_shared<bool>(true);
  if (wants_parameter("Updates/")) {
    weights_before_ = get_logical_state(cell_.network(), &cell_.optimizer());
  }
  scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
}

void TensorDump::after(FinishedStep& step) {
  if (scope_ == nullptr) {
    return;
  }
  scope_.reset();
  *open_ = false;
  if (wants_parameter("Updates/") || wants_parameter("")) {
    const NoGradGuard guard;
    LogicalState weights = get_logical_state(cell_.network(), &cell_.optimizer());
    write_state("", "optimizer", weights);
    if (!weights_before_.empty()) {
      LogicalState updates;
      for (const auto& [name, after] : weights) {
        updates.emplace(name, after.to(kFloat64) - weights_before_.at(name).to(kFloat64));
      }
      write_state("Updates/", "optimizer", updates);
    }
    weights_before_.clear();
  }
  write_number("loss", step.result.loss);
  write_number("grad_norm", step.result.grad_norm);
  for (size_t group = 0; group < step.result.lr.size(); ++group) {
    write_number(concat("lr.", group), step.result.lr[group]);
  }
  writer_.end_iteration();
  kernels_.end_step();
}

void TensorDump::phase_begins(const PhaseRun& phase) {
  in_step_ = in_step_ || phase.name == "step";
  if (phase.micro_batch >= 0) {
    micro_batch_ = phase.micro_batch;
  }
}

void TensorDump::phase_ended(const PhaseRun& phase) { in_step_ = in_step_ && phase.name != "step"; }

std::string TensorDump::name_of_op(const OpRun& run) {
  const std::string prefix = run.module.empty() ? std::string() : with_slashes(run.module) + "/";
  int64_t& count = counts_[{run.pass == OpPass::kAgain, micro_batch_, std::string(run.module),
                            std::string(run.op)}];
  return concat(prefix, run.op, "-op", count++, suffix_);
}

dump::DumpedTensor TensorDump::described(std::string op_type, std::string op_name, int64_t task) {
  kernels_.see(op_type, op_name);
  dump::DumpedTensor entry;
  entry.op_type = std::move(op_type);
  entry.op_name = std::move(op_name);
  entry.task_id = task;
  entry.pass = entry.op_name.starts_with(kGradients) ? "backward" : "forward";
  entry.micro_batch = micro_batch_;
  return entry;
}

void TensorDump::write(dump::DumpedTensor& entry, const Tensor& value, bool input, int64_t slot) {
  if (!value.defined()) {
    return;
  }
  if (touches_) {
    value.raw();
  }
  entry.value = value;
  entry.input = input;
  entry.slot = slot;
  const NoGradGuard guard;
  const UnobservedScope unobserved;
  writer_.write(entry);
  entry.value = {};
}

void TensorDump::write(dump::DumpedTensor& entry, std::span<const Tensor> tensors, bool input) {
  if (!touches_ && !writer_.wants(entry.op_type, entry.op_name, input)) {
    return;
  }
  const std::vector<int64_t> samples = entry.samples;
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    // Rows of a batch are told from other axes by their number, for ranks with other samples.
    const Tensor& t = tensors[slot];
    const bool has_rows = t.defined() && t.dim() >= 2 && t.size(0) == std::ssize(samples);
    entry.samples = has_rows ? samples : std::vector<int64_t>();
    write(entry, t, input, static_cast<int64_t>(slot));
  }
  entry.samples = samples;
}

void TensorDump::op_begins(const OpRun& run) {
  if (!in_step_) {
    return;
  }
  Named named;
  if (run.pass == OpPass::kBackward) {
    const auto found = names_.find(run.number);
    if (found == names_.end()) {
      running_ops_.emplace_back(Named{}, 0);  // a leaf's end, or an op that was not observed
      return;
    }
    named = found->second;
    named.name = kGradients + named.name;
  } else if (run.pass == OpPass::kAgain && run.node == nullptr) {
    return;  // a dropped value is made: written when it was made first
  } else {
    named = {name_of_op(run), micro_batch_, random_context().sample_ids};
    if (run.number != 0) {
      names_[run.number] = named;
    }
    if (run.pass == OpPass::kAgain) {
      return;
    }
  }
  const int64_t task = next_task_++;
  dump::DumpedTensor entry = described(std::string(run.op), named.name, task);
  entry.module = run.module;
  entry.micro_batch = named.micro_batch;
  entry.samples = named.samples;
  entry.source = source_of(run.op);
  write(entry, run.inputs, /*input=*/true);
  running_ops_.emplace_back(std::move(named), task);
}

void TensorDump::op_ended(const OpRun& run) {
  if (!in_step_ || run.pass == OpPass::kAgain) {
    return;
  }
  check<RuntimeError>(!running_ops_.empty(), "dump: ", run.op, " has ended and never begun");
  auto [named, task] = std::move(running_ops_.back());
  running_ops_.pop_back();
  if (named.name.empty()) {
    return;
  }
  dump::DumpedTensor entry = described(std::string(run.op), named.name, task);
  entry.module = run.module;
  entry.micro_batch = named.micro_batch;
  entry.samples = named.samples;
  entry.source = source_of(run.op);
  write(entry, run.outputs, /*input=*/false);
  if (writer_.config().save_kernel_args && writer_.wants(entry.op_type, entry.op_name, false)) {
    writer_.write_attributes(entry.op_type, entry.op_name,
                             {{"module", std::string(run.module)},
                              {"pass", std::string(name_of(run.pass))},
                              {"source", entry.source},
                              {"inputs", shapes_of(run.inputs)},
                              {"outputs", shapes_of(run.outputs)}});
  }
}

void TensorDump::module_begins(const ModuleCall& call) {
  if (!in_step_ || call.again) {
    return;
  }
  const std::string path = call.path.empty() ? call.type : with_slashes(call.path);
  running_modules_.push_back({path, next_task_++});
  dump::DumpedTensor entry = described("Module", path + suffix_, running_modules_.back().task);
  entry.module = call.path;
  entry.samples = random_context().sample_ids;
  write(entry, call.arguments, /*input=*/true);
}

void TensorDump::module_ended(const ModuleCall& call) {
  if (!in_step_ || call.again) {
    return;
  }
  check<RuntimeError>(!running_modules_.empty(), "dump: module ", call.path,
                      " has ended and never begun");
  const RunningModule module = std::move(running_modules_.back());
  running_modules_.pop_back();
  dump::DumpedTensor entry = described("Module", module.path + suffix_, module.task);
  entry.module = call.path;
  entry.samples = random_context().sample_ids;
  write(entry, call.results, /*input=*/false);
  dump::DumpedTensor gradient = described("Module", kGradients + module.path + suffix_, 0);
  gradient.module = call.path;
  for (size_t slot = 0; slot < call.results.size(); ++slot) {
    gradient.samples = call.results[slot].defined() && call.results[slot].dim() >= 2 &&
                               call.results[slot].size(0) == std::ssize(entry.samples)
                           ? entry.samples
                           : std::vector<int64_t>();
    gradient.slot = static_cast<int64_t>(slot);
    gradient.input = true;
    watch_gradient(call.results[slot], gradient);
  }
}

void TensorDump::value_made(const ObservedValue& value) {
  const std::string name(value.name);
  dump::DumpedTensor entry = described("Value", name, next_task_++);
  entry.module = detail::current_module();
  entry.samples = random_context().sample_ids;
  entry.sample_axis = value.batch_axis;
  entry.global_shape = value.placement.global_shape;
  entry.ranges = ranges_of(value.placement);
  entry.state = value.placement.is_partial                            ? dump::TensorState::kPartial
                : value.placement.global_shape == value.value.shape() ? dump::TensorState::kWhole
                                                                      : dump::TensorState::kSlice;
  write(entry, value.value, /*input=*/false, 0);
  // Where several ranks have the same keys and values, each has a share of their gradient.
  const bool of_group = name.ends_with(".k") || name.ends_with(".v") || name.ends_with(".key") ||
                        name.ends_with(".value");
  entry.op_name = kGradients + name;
  entry.pass = "backward";
  if (of_group && get_tensor_model_parallel_world_size() >
                      num_query_groups(config_.model_config, layer_of_value(name))) {
    entry.state = dump::TensorState::kPartial;
  }
  watch_gradient(value.goes_on, std::move(entry));
}

void TensorDump::watch_gradient(const Tensor& value, dump::DumpedTensor entry) {
  if (!value.defined() || !value.requires_grad() || value.is_leaf() ||
      (!touches_ && !writer_.wants(entry.op_type, entry.op_name, entry.input))) {
    return;
  }
  value.register_hook([this, open = open_, entry = std::move(entry)](const Tensor& gradient) {
    if (*open) {
      dump::DumpedTensor own = entry;
      own.task_id = next_task_++;
      write(own, gradient, own.input, own.slot);
    }
    return Tensor();
  });
}

bool TensorDump::wants_parameter(const std::string& prefix) const {
  for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      if (writer_.config().wants("Parameter", prefix + logical.name)) {
        return true;
      }
    }
  }
  return false;
}

void TensorDump::write_gradients() {
  if (scope_ == nullptr || !wants_parameter(kGradients)) {
    return;
  }
  const UnobservedScope unobserved;
  write_state(kGradients, "backward", logical_gradients(cell_.network()));
}

void TensorDump::write_state(const std::string& prefix,
                             const std::string& pass,
                             const LogicalState& state) {
  if (!writes_state_) {
    return;
  }
  for (const auto& [name, value] : state) {
    dump::DumpedTensor entry = described("Parameter", prefix + name, next_task_++);
    entry.pass = pass;
    entry.micro_batch = 0;
    write(entry, value, /*input=*/false, 0);
  }
}

void TensorDump::write_number(const std::string& name, double value) {
  if (RankContext::current().rank() != 0) {
    return;
  }
  dump::DumpedTensor entry = described("Scalar", name, next_task_++);
  entry.pass = "optimizer";
  entry.micro_batch = 0;
  write(entry, scalar(value, kFloat64), /*input=*/false, 0);
}

}  // namespace tapestry
