#include "diagnosis/verify/injection/reference_values.h"

#include <algorithm>
#include <set>
#include <utility>

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// Which piece of the last axis a name means.
Tensor cut_out(const Tensor& row, accuracy::Cut cut, int64_t part, const std::string& name) {
  const int64_t pieces = cut == accuracy::Cut::kThirds ? 3 : 2;
  const int64_t axis = row.dim() - 1;
  check<ValueError>(row.size(axis) % pieces == 0, name, ": is a piece of a tensor with rows ",
                    row.shape(), ", whose last axis is no multiple of ", pieces);
  const int64_t size = row.size(axis) / pieces;
  return row.slice(axis, part * size, (part + 1) * size);
}

}  // namespace

ReferenceValues::ReferenceValues(const std::string& folder, accuracy::NameMap map)
    : reader_(folder), map_(std::move(map)) {}

bool ReferenceValues::begin_step(int64_t step) {
  end_step();
  const std::vector<int64_t> iterations = reader_.iterations();
  if (std::find(iterations.begin(), iterations.end(), step - 1) == iterations.end()) {
    return false;
  }
  of_step_ = dump::logical_tensors(reader_.tensors(step - 1));
  index();
  return true;
}

void ReferenceValues::end_step() {
  joined_.clear();
  tensors_.clear();
  of_step_.clear();
}

void ReferenceValues::index() {
  bool has_gate = false;
  std::set<std::string> with_second_output;
  for (const dump::LogicalTensor& tensor : of_step_) {
    const dump::DumpRow& row = tensor.row();
    has_gate =
        has_gate || row.op_name.ends_with(".mlp.gate") || row.op_name.ends_with(".mlp.gate_proj");
    if (row.op_type == "Module" && !row.input && row.slot == 1) {
      with_second_output.insert(row.op_name);
    }
  }
  // What the dump itself calls a value comes before what a table says of its modules.
  std::vector<std::pair<std::string, Side>> of_modules;
  for (size_t i = 0; i < of_step_.size(); ++i) {
    const dump::DumpRow& row = of_step_[i].row();
    const std::string name = map_.apply(row.op_name);
    if (row.samples.empty() || !of_step_[i].has_values()) {
      continue;  // no rows, or no elements
    }
    if (row.op_type == "Value" || name != row.op_name) {
      tensors_.try_emplace(name, Side{.tensor = i});
    } else if (row.op_type == "Module") {
      for (accuracy::NamedValue& value :
           accuracy::named_values({.op_name = name,
           .input = row.input,
           .slot = row.slot,
           .has_gate = has_gate,
           .has_second_output = with_second_output.contains(row.op_name)})) {
        if (value.cut != accuracy::Cut::kGroups) {
          of_modules.emplace_back(std::move(value.name),
                                  Side{.tensor = i, .cut = value.cut, .part = value.part});
        }
      }
    }
  }
  for (auto& [name, side] : of_modules) {
    tensors_.try_emplace(std::move(name), side);
  }
}

const dump::JoinedTensor& ReferenceValues::loaded(const std::string& name, size_t tensor) {
  const auto found = joined_.find(tensor);
  if (found != joined_.end()) {
    return found->second;
  }
  const std::string problem = of_step_[tensor].problem();
  check<ValueError>(problem.empty(), folder(), ": ", name, " cannot be injected: ", problem);
  return joined_.emplace(tensor, of_step_[tensor].load()).first->second;
}

Tensor ReferenceValues::row(const std::string& name, int64_t sample, const Shape& shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return {};
  }
  const Side side = found->second;
  const dump::JoinedTensor& joined = loaded(name, side.tensor);
  const auto at = std::lower_bound(joined.samples.begin(), joined.samples.end(), sample);
  if (at == joined.samples.end() || *at != sample) {
    return {};
  }
  Tensor row = joined.values[static_cast<size_t>(at - joined.samples.begin())];
  if (side.cut != accuracy::Cut::kNone) {
    row = cut_out(row, side.cut, side.part, name);
  }
  if (row.shape() == shape) {
    return row;
  }
  check<ValueError>(row.numel() == shape.numel(), folder(), ": ", name, " of sample ", sample,
                    " is ", row.shape(), ", the model's is ", shape,
                    "; are the two of the same configuration?");
  // [S, n, D] or [S, n * D] in place of [n, S, D]
  return shape.size() == 3 ? row.reshape({shape[1], shape[0], shape[2]}).permute({1, 0, 2})
                           : row.reshape(shape);
}

}  // namespace tapestry
