#include "parallel_core/pipeline_parallel/collect.h"

#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

namespace {

// One line "name dtype dim dim ..." a tensor.
std::string describe_all(const std::map<std::string, Tensor>& tensors) {
  std::ostringstream text;
  for (const auto& [name, value] : tensors) {
    text << name << ' ' << static_cast<int>(value.dtype());
    for (int64_t axis = 0; axis < value.dim(); ++axis) {
      text << ' ' << value.size(axis);
    }
    text << '\n';
  }
  return text.str();
}

void send_text(ProcessGroup& group, const std::string& text, int destination) {
  group.send(tensor(std::vector<int64_t>{static_cast<int64_t>(text.size())}, {1}), destination);
  const auto words = static_cast<int64_t>((text.size() + 7) / 8);
  const Tensor packed = zeros({words}, kInt64);
  std::memcpy(packed.raw(), text.data(), text.size());
  group.send(packed, destination);
}

std::string receive_text(ProcessGroup& group, int source) {
  const Tensor size = zeros({1}, kInt64);
  group.receive(size, source);
  std::string text(static_cast<size_t>(size.item()), '\0');
  const Tensor packed = zeros({static_cast<int64_t>((text.size() + 7) / 8)}, kInt64);
  group.receive(packed, source);
  std::memcpy(text.data(), packed.raw(), text.size());
  return text;
}

void receive_tensors(ProcessGroup& group, int source, std::map<std::string, Tensor>& tensors) {
  std::istringstream lines(receive_text(group, source));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name;
    int dtype = 0;
    words >> name >> dtype;
    std::vector<int64_t> dims;
    for (int64_t dim = 0; words >> dim;) {
      dims.push_back(dim);
    }
    const Tensor value = empty(Shape(dims), static_cast<DType>(dtype));
    group.receive(value, source);
    check<ValueError>(tensors.emplace(name, value).second, group.name(),
                      ": two ranks have a tensor '", name, "'");
  }
}

std::map<std::string, Tensor> as_tensors(const std::map<std::string, double>& values) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, value] : values) {
    tensors.emplace(name, scalar(value, kFloat64));
  }
  return tensors;
}

std::map<std::string, double> as_numbers(const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, double> values;
  for (const auto& [name, value] : tensors) {
    values.emplace(name, value.item());
  }
  return values;
}

}  // namespace

void sum_over_pipeline(std::span<double> values) {
  if (model_parallel_is_initialized()) {
    sum_over(get_pipeline_model_parallel_group(), values);
  }
}

void sum_over_pipeline(kernels::ExactSum& sum) {
  if (model_parallel_is_initialized()) {
    sum_over(get_pipeline_model_parallel_group(), sum);
  }
}

int64_t from_last_stage(int64_t value) {
  const PipelinePlace place = pipeline_place();
  if (place.size == 1) {
    return value;
  }
  const Tensor shared = tensor(std::vector<int64_t>{value}, {1});
  get_pipeline_model_parallel_group().broadcast(shared, place.size - 1);
  return shared.data<int64_t>()[0];
}

std::map<std::string, Tensor> gather_over_pipeline(std::map<std::string, Tensor> tensors) {
  const PipelinePlace place = pipeline_place();
  if (place.size == 1) {
    return tensors;
  }
  ProcessGroup& group = get_pipeline_model_parallel_group();
  if (place.rank == 0) {
    for (int source = 1; source < place.size; ++source) {
      receive_tensors(group, source, tensors);
    }
    return tensors;
  }
  send_text(group, describe_all(tensors), 0);
  for (auto& [name, value] : tensors) {
    group.send(dense(std::exchange(value, {})), 0);
  }
  return {};
}

std::map<std::string, double> gather_over_pipeline(const std::map<std::string, double>& values) {
  if (pipeline_place().size == 1) {
    return values;
  }
  return as_numbers(gather_over_pipeline(as_tensors(values)));
}

std::map<std::string, Tensor> gather_over_experts(std::map<std::string, Tensor> tensors) {
  ProcessGroup& group = experts_group();
  if (group.size() == 1) {
    return tensors;
  }
  std::map<std::string, Tensor> all = tensors;
  for (int source = 0; source < group.size(); ++source) {
    if (source != group.rank()) {
      receive_tensors(group, source, all);
      continue;
    }
    for (int other = 0; other < group.size(); ++other) {
      if (other == source) {
        continue;
      }
      send_text(group, describe_all(tensors), other);
      for (const auto& [name, value] : tensors) {
        group.send(dense(value), other);
      }
    }
  }
  return all;
}

std::map<std::string, double> gather_over_experts(const std::map<std::string, double>& values) {
  return experts_group().size() == 1 ? values : as_numbers(gather_over_experts(as_tensors(values)));
}

}  // namespace tapestry
