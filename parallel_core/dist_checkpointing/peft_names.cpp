#include "parallel_core/dist_checkpointing/peft_names.h"

#include <array>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"

namespace tapestry {

namespace {

constexpr std::string_view kLoraA = ".lora_A.weight";
constexpr std::string_view kLoraB = ".lora_B.weight";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
// Modules that hold several logical ones, of which any has their path.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kFusedModules = {
    {{".wqkv", ".wq"}, {".w_gate_up", ".w_gate"}}};
constexpr std::string_view kTableTensor = "tok_embeddings.weight";
constexpr std::string_view kOutputTensor = "lm_head.weight";

// What is before the ending; empty if the name has another one.
std::optional<std::string> before(std::string_view name, std::string_view ending) {
  return name.ends_with(ending)
             ? std::optional(std::string(name.substr(0, name.size() - ending.size())))
             : std::nullopt;
}

// The path of a logical module. As a vector its rows lie where those of its matrix do, and nothing
// is transposed.
FilePlace row_place(const FileNames& names, const std::string& module, int64_t rows) {
  constexpr std::string_view kVector = ".bias";
  FilePlace place = file_place(names, module + std::string(kVector), {rows});
  place.name.resize(place.name.size() - kVector.size());
  return place;
}

std::string path_of(const FileNames& names, std::string module) {
  for (const auto& [fused, one] : kFusedModules) {
    if (module.ends_with(fused)) {
      module.replace(module.size() - fused.size(), std::string::npos, one);
      break;
    }
  }
  return row_place(names, module, 1).name;
}

}  // namespace

bool is_adapter_tensor(std::string_view logical) {
  return logical.ends_with(kLoraA) || logical.ends_with(kLoraB) || logical.ends_with(kMagnitude);
}

FilePlace peft_place(const FileNames& names, const std::string& logical, const Shape& shape) {
  if (const auto module = before(logical, kLoraA)) {
    return {.name = concat(kPeftPrefix, path_of(names, *module), kLoraA), .shape = shape};
  }
  for (const std::string_view ending : {kLoraB, kMagnitude}) {
    const auto module = before(logical, ending);
    if (module && shape.size() > 0) {
      FilePlace place = row_place(names, *module, shape[0]);
      place.name = concat(kPeftPrefix, place.name, ending);
      Shape whole = shape;
      whole[0] = place.shape[0];
      place.shape = whole;
      return place;
    }
  }
  FilePlace place = file_place(names, logical, shape);
  place.name = concat(kPeftPrefix, place.name);
  return place;
}

std::string peft_twin(const TransformerConfig& config, const std::string& logical) {
  return logical == kTableTensor && !config.untie_embeddings_and_output_weights
             ? concat(kPeftPrefix, kOutputTensor)
             : std::string();
}

}  // namespace tapestry
