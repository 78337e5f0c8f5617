#include "parallel_core/dist_checkpointing/stored_tensors.h"

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

using nlohmann::json;

json shape_json(const Shape& shape) {
  json sizes = json::array();
  for (const int64_t size : shape) {
    sizes.push_back(size);
  }
  return sizes;
}

Shape shape_of(const json& sizes) {
  const auto values = sizes.get<std::vector<int64_t>>();
  return Shape(std::span<const int64_t>(values));
}

// Halves have float32 masters, as masters or as the bits that they lack.
DType saved_dtype(const nn::Parameter& parameter, const optim::Optimizer* optimizer) {
  const bool is_half = parameter.dtype() == kFloat16 || parameter.dtype() == kBFloat16;
  return optimizer != nullptr && is_half ? kFloat32 : parameter.dtype();
}

// What this rank has, by parameter.
json own_tensors(const nn::Module& model, const optim::Optimizer* optimizer, StoredPart part) {
  json own = {{"parameters", json::array()}, {"buffers", json::array()}};
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!is_stored(*entry.parameter, part)) {
      continue;
    }
    json parameter = {{"expert", entry.parameter->flags().expert}, {"tensors", json::array()}};
    const int64_t updates = optimizer == nullptr ? 0 : optimizer->steps_done(entry.name);
    const std::vector<nn::LogicalTensor>& tensors = entry.parameter->logical();
    for (size_t i = 0; i < tensors.size(); ++i) {
      json states = json::object();
      for (const auto& state : updates > 0 ? optimizer->state_entries(entry.name)
                                           : std::vector<optim::Optimizer::StateEntry>()) {
        if (const auto shape = stored_shape(state, tensors[i], i)) {
          const DType dtype = optimizer->own_state_dtype(entry.name, state.name);
          states[state.name] = {static_cast<int>(dtype), shape_json(*shape)};
        }
      }
      parameter["tensors"].push_back({tensors[i].name, shape_json(tensors[i].shape),
                                      static_cast<int>(saved_dtype(*entry.parameter, optimizer)),
                                      updates, states});
    }
    own["parameters"].push_back(std::move(parameter));
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    const json shape = shape_json(entry.buffer.shape());
    const int dtype = static_cast<int>(entry.buffer.dtype());
    if (entry.logical.empty()) {
      own["buffers"].push_back({entry.name, shape, dtype});
    } else if (part == StoredPart::kAll) {
      json tensor = {entry.logical, shape, dtype, 0, json::object()};
      own["parameters"].push_back(
          {{"expert", false}, {"tensors", json::array({std::move(tensor)})}});
    }
  }
  return own;
}

// What this stage has: to the tensors of each expert parameter come those of the ranks that have
// its other experts.
json tensors_of_stage(const nn::Module& model, const optim::Optimizer* optimizer, StoredPart part) {
  json own = own_tensors(model, optimizer, part);
  json stage = {{"tensors", json::array()}, {"buffers", std::move(own["buffers"])}};
  std::vector<json> ranks = {std::move(own["parameters"])};
  ProcessGroup& experts = experts_group();
  if (experts.size() > 1 && has_experts(model)) {
    const std::vector<std::string> texts = all_gather_text(experts, ranks[0].dump());
    ranks.clear();
    for (const std::string& text : texts) {
      ranks.push_back(json::parse(text));
    }
  }
  for (size_t i = 0; i < ranks.front().size(); ++i) {
    for (json& rank : ranks) {
      for (json& tensor : rank[i]["tensors"]) {
        stage["tensors"].push_back(std::move(tensor));
      }
      if (!rank[i]["expert"].get<bool>()) {
        break;
      }
    }
  }
  return stage;
}

}  // namespace

bool is_stored(const nn::Parameter& parameter, StoredPart part) {
  return !parameter.flags().shared && (part == StoredPart::kAll || parameter.requires_grad());
}

StoredTensors stored_tensors(const nn::Module& model,
                             const optim::Optimizer* optimizer,
                             StoredPart part) {
  const std::string own = tensors_of_stage(model, optimizer, part).dump();
  const std::vector<std::string> stages =
      model_parallel_is_initialized() ? all_gather_text(get_pipeline_model_parallel_group(), own)
                                      : std::vector<std::string>{own};
  StoredTensors all;
  for (const std::string& text : stages) {
    const json stage = json::parse(text);
    for (const json& entry : stage["tensors"]) {
      StoredTensor tensor{.name = entry[0],
                          .shape = shape_of(entry[1]),
                          .dtype = static_cast<DType>(entry[2].get<int>()),
                          .updates = entry[3]};
      for (const auto& [state, stored] : entry[4].items()) {
        tensor.states.emplace(state, StoredState{.dtype = static_cast<DType>(stored[0].get<int>()),
                                                 .shape = shape_of(stored[1])});
      }
      all.tensors.push_back(std::move(tensor));
    }
    for (const json& entry : stage["buffers"]) {
      all.buffers.push_back({.name = entry[0],
                             .shape = shape_of(entry[1]),
                             .dtype = static_cast<DType>(entry[2].get<int>())});
    }
  }
  return all;
}

std::string state_tensor_name(const std::string& logical, const std::string& state) {
  return concat(logical, ".", state);
}

std::string buffer_tensor_name(const std::string& path) { return concat("buffers.", path); }

std::optional<Shape> stored_shape(const optim::Optimizer::StateEntry& entry,
                                  const nn::LogicalTensor& logical,
                                  size_t index) {
  if (entry.extent == optim::StateExtent::kElement) {
    return logical.shape;
  }
  return entry.logical == index ? std::optional(entry.shape) : std::nullopt;
}

bool writes_slice(const nn::LogicalTensor& logical, bool of_expert) {
  const int rank = slices_group(of_expert).rank();
  return logical.slice_shape.empty() ? rank == 0 : rank % logical.copies == 0;
}

}  // namespace tapestry
