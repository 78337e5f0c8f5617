#include "parallel_core/dist_checkpointing/peft_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"

namespace tapestry {

namespace {

constexpr std::string_view kLoraA = ".lora_A.weight";
constexpr std::string_view kLoraB = ".lora_B.weight";
constexpr std::string_view kBias = ".bias";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
// Modules that hold several logical ones, of which any has their path.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kFusedModules = {
    {{".wqkv", ".wq"},
     {".wqg", ".wq"},
     {".wqkvz", ".wq"},
     {".wba", ".wb"},
     {".wbcx", ".wb"},
     {".wzxBCdt", ".wz"},
     {".w_gate_up", ".w_gate"}}};
// Of the two matrices of stacked experts the one that PEFT wraps first.
constexpr std::string_view kFirstParameter = "gate_up_proj";
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
  FilePlace place = file_place(names, module + std::string(kBias), {rows});
  place.name.resize(place.name.size() - kBias.size());
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

// "layers.0.moe.experts.3.w_gate": what is before the number, the number and the matrix.
struct ExpertModule {
  std::string stem;  // "layers.0.moe.experts."
  int64_t expert = 0;
  std::string matrix;
};

std::optional<ExpertModule> expert_module(const std::string& module) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = module.find(kExperts);
  const size_t dot = module.rfind('.');
  if (at == std::string::npos || dot < at + kExperts.size()) {
    return std::nullopt;
  }
  ExpertModule out{.stem = module.substr(0, at + kExperts.size()),
                   .matrix = module.substr(dot + 1)};
  std::from_chars(module.data() + out.stem.size(), module.data() + dot, out.expert);
  return out;
}

// PEFT has all experts' As below one another, [E rank, in], and their Bs column by column,
// [out, rank E]: the columns of rank 0 of all experts come first.
std::optional<FilePlace> stacked_place(const FileNames& names,
                                       const AdapterPlan& plan,
                                       const std::string& module,
                                       std::string_view ending,
                                       const Shape& shape) {
  const auto own = expert_module(module);
  if (!own || !stacks_experts(names.scheme) || shape.size() != 2) {
    return std::nullopt;
  }
  std::string matrix = own->matrix;
  for (const auto& [fused, one] : kFusedModules) {
    matrix = fused.substr(1) == matrix ? std::string(one.substr(1)) : matrix;
  }
  const bool is_a = ending == kLoraA;
  const FilePlace base = file_place(names, concat(own->stem, own->expert, ".", matrix, ".weight"),
                                    {is_a ? 1 : shape[0], 1});
  const bool down_too = std::any_of(plan.modules.begin(), plan.modules.end(), [&](const auto& of) {
    return of.module == own->stem + "w_down";
  });
  FilePlace place;
  place.name = concat(kPeftPrefix, peft_parameter_stem(base.name, down_too), ending);
  const int64_t experts = names.experts;
  if (is_a) {
    place.shape = {experts * shape[0], shape[1]};
    place.strides = FilePlace::Strides{own->expert * shape.numel(), shape[1], 1};
    return place;
  }
  const int64_t rows = base.shape.numel() / experts;
  const int64_t columns = shape[1] * experts;
  place.shape = {rows, columns};
  place.strides =
      FilePlace::Strides{(base.strides->offset - own->expert * rows) * columns + own->expert,
                         base.strides->row * columns, experts};
  return place;
}

}  // namespace

std::string peft_parameter_stem(const std::string& path, bool down_too) {
  const size_t dot = path.rfind('.');
  const std::string module = path.substr(0, dot);
  return path.substr(dot + 1) == kFirstParameter && down_too ? concat(module, kBaseLayer) : module;
}

bool is_adapter_tensor(std::string_view logical) {
  return logical.ends_with(kLoraA) || logical.ends_with(kLoraB) || logical.ends_with(kMagnitude);
}

FilePlace peft_place(const FileNames& names,
                     const AdapterPlan& plan,
                     const std::string& logical,
                     const Shape& shape) {
  for (const std::string_view ending : {kLoraA, kLoraB}) {
    const auto module = before(logical, ending);
    const auto place = module ? stacked_place(names, plan, *module, ending, shape) : std::nullopt;
    if (place) {
      return *place;
    }
  }
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
  const auto module = before(place.name, kBias);
  place.name = module && is_adapted_bias(plan, logical)
                   ? concat(kPeftPrefix, *module, kBaseLayer, kBias)
                   : concat(kPeftPrefix, place.name);
  return place;
}

std::string peft_twin(const TransformerConfig& config, const std::string& logical) {
  return logical == kTableTensor && !config.untie_embeddings_and_output_weights &&
                 !config.score_head
             ? concat(kPeftPrefix, kOutputTensor)
             : std::string();
}

}  // namespace tapestry
