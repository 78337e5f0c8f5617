#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "autograd/io/packed_folder.h"
#include "autograd/io/tensor_source.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/gguf/gguf_weights.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/config/lora_keys.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/misfit.h"
#include "parallel_core/dist_checkpointing/part_io.h"
#include "parallel_core/dist_checkpointing/peft_names.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/dist_checkpointing/slice_runs.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/dist_checkpointing/upcycle.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/lora/freeze_base.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kTable = "tok_embeddings.weight";
constexpr const char* kScore = "score.weight";
constexpr const char* kScoreOfModules = "language_model.score.weight";

// What files of a model hold; adapters have files of their own.
std::vector<nn::Module::NamedParameter> base_parameters(const nn::Module& model) {
  std::vector<nn::Module::NamedParameter> out = model.named_parameters();
  std::erase_if(out, [](const auto& entry) { return entry.parameter->flags().adapter; });
  return out;
}

// Parameters under their module paths, as an alternative to logical names. Some may be called the
// same in both: the scheme that knows more names of the state counts.
bool uses_module_paths(const nn::Module& model, const std::set<std::string>& names) {
  int64_t paths = 0;
  int64_t logical_names = 0;
  for (const nn::Module::NamedParameter& entry : base_parameters(model)) {
    paths += names.contains(entry.name) ? 1 : 0;
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      logical_names += names.contains(logical.name) ? 1 : 0;
    }
  }
  return paths > logical_names;
}

// The stage's part of a state; strict about what some stage has or lacks.
void load_by_module_paths(nn::Module& model, const LogicalState& state, const std::string& source) {
  nn::StateDict own = model.state_dict();
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.parameter->flags().adapter) {
      own.erase(entry.name);
    }
  }
  LogicalState part;
  std::vector<double> stages_with;
  for (const auto& [name, tensor] : state) {
    stages_with.push_back(own.contains(name) ? 1 : 0);
    if (own.contains(name)) {
      part.emplace(name, tensor);
    }
  }
  sum_over_pipeline(stages_with);
  nn::LoadReport report;
  for (const auto& [name, tensor] : own) {
    if (!state.contains(name)) {
      report.missing.push_back(name);
    }
  }
  size_t index = 0;
  for (const auto& [name, tensor] : state) {
    if (stages_with[index++] == 0) {
      report.unexpected.push_back(name);
    }
  }
  check<ValueError>(report.empty(), source, ": the weights do not fit the model\n", report.str());
  model.load_state_dict(part, /*strict=*/false);
}

// One NaN in an adapter, which is small enough to look through, makes every answer NaN.
void check_finite(const TensorSource& files, const std::string& source) {
  constexpr uint64_t kPiece = uint64_t{4} << 20U;
  std::vector<char> piece(kPiece);
  for (const std::string& name : files.names()) {
    const DType dtype = files.dtype(name);
    const auto bytes = static_cast<uint64_t>(files.shape(name).numel() * size_of(dtype));
    for (uint64_t at = 0; is_floating(dtype) && at < bytes; at += kPiece) {
      const auto count = static_cast<size_t>(std::min(kPiece, bytes - at));
      files.read_bytes(name, at, count, piece.data());
      check<ValueError>(
          kernels::all_finite(dtype, static_cast<int64_t>(count) / size_of(dtype), piece.data()),
          source, ": ", name,
          " holds values that are not finite (NaN or infinite): the training that it comes from "
          "has diverged; take an earlier checkpoint of it");
    }
  }
}

// What stored weights are of: the model that they are loaded into without its adapters, the dense
// one that this mixture starts from, or what is trained of a model with adapters.
enum class WeightsOf : uint8_t { kModel, kDenseModel, kAdapter };

// What of stored weights a logical tensor of the model starts from.
UpcycledTensor start_of(const std::string& logical, WeightsOf of) {
  return of == WeightsOf::kDenseModel ? upcycled_tensor(logical) : UpcycledTensor{.name = logical};
}

struct Stored {
  WeightsOf of = WeightsOf::kModel;
  AdapterPlan plan = {};       // of an adapter: what is adapted, and what is trained whole
  bool head_is_table = false;  // of a base: its output layer, which is trained apart, has no matrix
  bool new_score_head = false;  // they are of a language model, and the model has a score head
};

bool is_score_head(const nn::Parameter& parameter) {
  return !parameter.logical().empty() && parameter.logical().front().name == kScore;
}

// Whether something wants a gradient says nothing here: a model that is only asked wants none.
bool is_part(const nn::Parameter& parameter, const Stored& stored) {
  if (stored.new_score_head && is_score_head(parameter)) {
    return false;
  }
  const std::vector<std::string>& saved = stored.plan.saved_modules;
  const bool is_saved =
      !parameter.logical().empty() &&
      std::find(saved.begin(), saved.end(), parameter.logical().front().name) != saved.end();
  return stored.of == WeightsOf::kAdapter ? parameter.flags().adapter || is_saved
                                          : !parameter.flags().adapter;
}

FilePlace place_in(const FileNames& scheme,
                   const std::string& logical,
                   const Shape& shape,
                   const Stored& stored) {
  return stored.of == WeightsOf::kAdapter
             ? peft_place(scheme, stored.plan, logical, shape)
             : file_place(scheme,
                          stored.head_is_table && logical == kHead ? std::string(kTable) : logical,
                          shape);
}

// Files of a model whose output matrix is its table of embeddings may hold it twice. One of its own
// cannot be passed over: the model that it belongs to is not tied.
bool repeats_embeddings(const TensorSource& files,
                        const FileNames& scheme,
                        const std::string& name,
                        const Stored& stored) {
  const std::string table = place_in(scheme, kTable, {}, stored).name;
  return name == place_in(scheme, kHead, {}, stored).name && files.contains(table) &&
         same_bytes(files, name, table);
}

// What of the model is missing from, unexpected in, or of another shape in the files.
nn::LoadReport compare_with_files(const ParallelModel& model,
                                  const TensorSource& files,
                                  const FileNames& scheme,
                                  const Stored& stored) {
  nn::LoadReport report;
  std::set<std::string> used;
  std::set<std::string> seen;
  const auto expect = [&](const std::string& logical, const Shape& shape) {
    const auto [start, name] = start_of(logical, stored.of);
    // All experts are of one tensor.
    if (start != UpcycledTensor::Start::kDense || !seen.insert(name).second) {
      return;
    }
    const FilePlace place = place_in(scheme, name, shape, stored);
    used.insert(place.name);
    if (!files.contains(place.name)) {
      report.missing.push_back(name);
    } else if (files.shape(place.name) != place.shape) {
      report.mismatched.push_back({place.name, place.shape, files.shape(place.name)});
    }
  };
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!is_part(*entry.parameter, stored)) {
      continue;
    }
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      expect(logical.name, logical.shape);
    }
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (!entry.logical.empty() && stored.of != WeightsOf::kAdapter) {
      expect(entry.logical, entry.buffer.shape());
    }
  }
  const std::vector<std::string> names = files.names();
  std::vector<double> ranks_with;  // of each name
  for (const std::string& name : names) {
    ranks_with.push_back(used.contains(name) || is_constant(scheme, name) ? 1 : 0);
  }
  sum_over_pipeline(ranks_with);
  sum_over(experts_group(), ranks_with);
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_left_out =
        stored.new_score_head && names[i] == place_in(scheme, kHead, {}, stored).name;
    if (ranks_with[i] == 0 && !is_left_out &&
        !repeats_embeddings(files, scheme, names[i], stored)) {
      report.unexpected.push_back(names[i]);
    }
  }
  return report;
}

// Numbers that a file may hold beside the weights, and with which the model is built. Float16 and
// bfloat16 round them.
void check_fixed_numbers(const TensorSource& files, const FileNames& scheme) {
  constexpr double kRounding = 1.0 / 128;
  for (const auto& [name, expected] : fixed_numbers(scheme)) {
    if (!files.contains(name)) {
      continue;
    }
    check<IoError>(files.shape(name).numel() == 1 && is_floating(files.dtype(name)),
                   files.file_of(name), ": tensor ", name, " is ", name_of(files.dtype(name)), " ",
                   files.shape(name).str(), ", expected one floating-point number");
    const Tensor stored = empty({1}, files.dtype(name));
    files.read(name, stored.raw());
    const double got = stored.to(kFloat64).data<double>()[0];
    check<IoError>(std::abs(got - expected) <= kRounding * std::abs(expected), files.file_of(name),
                   ": tensor ", name, " is ", got, ", but models of this family are built with ",
                   expected, "; no other number can be read");
  }
}

// The report, and what is known of the reasons.
std::string told(const nn::LoadReport& report,
                 const TensorSource& files,
                 const FileNames& scheme,
                 const Stored& stored,
                 const TransformerConfig& config) {
  const std::vector<std::string> names = files.names();
  return report.str() + explain_misfit(report, {names.begin(), names.end()},
                                       {.head = place_in(scheme, kHead, {}, stored).name,
                                        .table = place_in(scheme, kTable, {}, stored).name,
                                        .tied = !config.untie_embeddings_and_output_weights,
                                        .adapter = stored.of == WeightsOf::kAdapter});
}

}  // namespace

LogicalState read_weights(const std::string& path) {
  LogicalState state;
  const std::unique_ptr<TensorSource> files = open_weights(path);
  for (const std::string& name : files->names()) {
    Tensor tensor = empty(files->shape(name), files->dtype(name));
    files->read(name, tensor.raw());
    state.emplace(name, std::move(tensor));
  }
  return state;
}

namespace {

// Whether such names are of a language model, which a score head is put on. A reward model that
// lacks its head is broken.
bool starts_score_head(const std::set<std::string>& names, const std::string& resolved) {
  if (names.contains(kScore) || names.contains(kScoreOfModules)) {
    return false;
  }
  if (!folder_exists(resolved) || !path_exists(resolved + "/config.json")) {
    return true;
  }
  const std::vector<HfSetting> settings = read_hf_config(resolved).settings;
  return std::none_of(settings.begin(), settings.end(), [](const HfSetting& setting) {
    return setting.key == "score_head" && setting.value.as<bool>();
  });
}

// Opened files whose tensors are those of the model.
struct Fitting {
  std::string path;
  std::unique_ptr<TensorSource> files;
  FileNames scheme;
  bool by_module_paths = false;
  Stored stored = {};

  UpcycledTensor start_of(const nn::LogicalTensor& logical) const {
    return tapestry::start_of(logical.name, stored.of);
  }
  // Whether nothing of a parameter is stored: it has its start values already.
  bool leaves(const nn::Parameter& parameter) const {
    const std::vector<nn::LogicalTensor>& parts = parameter.logical();
    if (!is_part(parameter, stored)) {
      return true;
    }
    return stored.of == WeightsOf::kDenseModel &&
           std::all_of(parts.begin(), parts.end(), [&](const nn::LogicalTensor& logical) {
             return start_of(logical).start == UpcycledTensor::Start::kInitial;
           });
  }
};

// `resolved`: the folder of an adapter.
Fitting open_adapter_fitting(const ParallelModel& model,
                             const TransformerConfig& config,
                             const std::string& resolved) {
  check<IoError>(holds_adapter(resolved), resolved, ": holds no adapter, ", kAdapterConfigFile,
                 " and ", kAdapterWeightsFile);
  check_adapter_config(config, resolved);
  Fitting found{.path = resolved,
                .files = open_adapter(resolved),
                .scheme = {},
                .stored = {.of = WeightsOf::kAdapter, .plan = plan_adapter(config)}};
  if (model.has_file_names_of_config()) {
    found.scheme = FileNames(name_scheme(config), config);
  }
  check_finite(*found.files, resolved);
  const nn::LoadReport report = compare_with_files(model, *found.files, found.scheme, found.stored);
  check<ValueError>(report.empty(), resolved, ": the adapter does not fit the model\n",
                    told(report, *found.files, found.scheme, found.stored, config));
  return found;
}

Fitting open_fitting(const ParallelModel& model,
                     const TransformerConfig& config,
                     const std::string& path,
                     WeightsOf of) {
  const std::string resolved = resolve_checkpoint(path);
  check<ValueError>(!holds_adapter(resolved), resolved,
                    ": holds an adapter; name the folder of a model's weights, or set "
                    "lora_config.use_lora as in the run that has trained it");
  const bool dense = of == WeightsOf::kDenseModel;
  if (model.has_file_names_of_config()) {
    if (dense) {
      check_dense_model(config, resolved);
    } else {
      check_hf_config(config, resolved);
    }
  }
  Fitting found{
      .path = resolved, .files = open_weights(resolved), .scheme = {}, .stored = {.of = of}};
  const std::vector<std::string> list = found.files->names();
  const std::set<std::string> names(list.begin(), list.end());
  if (model.has_file_names_of_config()) {
    found.scheme = FileNames(names, config);
  }
  found.stored.new_score_head = config.score_head && !dense && starts_score_head(names, resolved);
  found.stored.head_is_table = config.lora.use_lora && saves_output_layer(config.lora) &&
                               config.untie_embeddings_and_output_weights &&
                               !names.contains(file_place(found.scheme, kHead, {1, 1}).name);
  found.by_module_paths =
      found.scheme.scheme != NameScheme::kModules && uses_module_paths(model, names);
  if (found.by_module_paths) {
    check<ValueError>(!dense, resolved,
                      ": its tensors have the names of modules, of which no experts can be made "
                      "(moe_config.upcycle_from); save the model as safetensors");
    return found;
  }
  check_fixed_numbers(*found.files, found.scheme);
  const nn::LoadReport report = compare_with_files(model, *found.files, found.scheme, found.stored);
  check<ValueError>(
      report.empty(), resolved,
      dense ? ": the weights do not fit the model that experts are to be made of "
              "(moe_config.upcycle_from); give the mixture the sizes of this dense model, and its "
              "experts the width of the MLPs\n"
            : ": the weights do not fit the model\n",
      told(report, *found.files, found.scheme, found.stored, config));
  return found;
}

// What belongs to no stored tensor is 0.
void read_parameter(const nn::Parameter& parameter, const Fitting& from, const Part& part) {
  for (const nn::LogicalTensor& logical : parameter.logical()) {
    const auto [start, name] = from.start_of(logical);
    if (start == UpcycledTensor::Start::kDense) {
      read_part(logical, place_in(from.scheme, name, logical.shape, from.stored), *from.files,
                part);
    } else {
      check<RuntimeError>(start == UpcycledTensor::Start::kZeros, logical.name,
                          ": shares its parameter with a tensor that is stored");
    }
  }
}

void read_buffers(const ParallelModel& model, const Fitting& from) {
  if (from.stored.of == WeightsOf::kAdapter) {
    return;
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (!entry.logical.empty() &&
        start_of(entry.logical, from.stored.of).start == UpcycledTensor::Start::kDense) {
      const FilePlace place = file_place(from.scheme, entry.logical, entry.buffer.shape());
      const Tensor values = empty(place.shape, from.files->dtype(place.name));
      from.files->read(place.name, values.raw());
      copy_values(values, entry.buffer);
    }
  }
}

// Into blocks, some rows at a time, of which no more are ever there as floating numbers.
void load_blocks(const nn::Parameter& parameter, const Fitting& from) {
  const QuantizedMatrix& matrix = parameter.quantized();
  const int64_t in = matrix.in();
  const int64_t rows = std::clamp<int64_t>(kStartPiece / in, 1, std::max<int64_t>(1, matrix.out()));
  for (int64_t row = 0; row < matrix.out(); row += rows) {
    const int64_t count = std::min(rows, matrix.out() - row);
    const Tensor values = zeros({count * in});
    read_parameter(parameter, from, {.values = values, .first = row * in});
    parameter.store_quantized(values.view({count, in}), row);
  }
  parameter.bump_version();
}

// Blocks that lie in a file as the parameter has them are copied, and not widened and rounded
// again. False: they do not, or not all.
bool copy_blocks(const nn::Parameter& parameter, const Fitting& from) {
  const GgufWeights* file = as_gguf(*from.files);
  if (file == nullptr || !parameter.is_quantized() || from.stored.of != WeightsOf::kModel) {
    return false;
  }
  const BlockFormat format = parameter.quantized().format();
  const auto name_of_part = [&](const nn::LogicalTensor& logical) {
    return place_in(from.scheme, logical.name, logical.shape, from.stored).name;
  };
  for (const nn::LogicalTensor& logical : parameter.logical()) {
    const std::string name = name_of_part(logical);
    if (file->block_format(name) != format) {
      return false;
    }
  }
  auto* bytes = static_cast<std::byte*>(parameter.quantized().bytes().raw());
  for (const nn::LogicalTensor& logical : parameter.logical()) {
    const FilePlace place = place_in(from.scheme, logical.name, logical.shape, from.stored);
    const FileRuns runs(logical, place);
    for_each_parameter_run(
        logical, range_in_part(logical, 0, parameter.numel()),
        [&](int64_t number, int64_t element, int64_t count) {
          runs.for_each({number, number + count}, [&](const FileRun& run) {
            file->read_blocks(
                place.name, run.element, run.count,
                bytes + kernels::block_row_bytes(format, element + run.number - number));
          });
        });
  }
  return true;
}

// Into the parameter as a whole.
void load_whole(const nn::Parameter& parameter, const Fitting& from) {
  if (copy_blocks(parameter, from)) {
    parameter.bump_version();
    return;
  }
  if (parameter.is_quantized()) {
    load_blocks(parameter, from);
    return;
  }
  const Tensor values = parameter.detach();
  if (from.stored.of == WeightsOf::kDenseModel) {
    copy_values(zeros({}, values.dtype()).expand(values.shape()), values);
  }
  read_parameter(parameter, from, {.values = values});
  parameter.bump_version();
}

void load_parameters(const ParallelModel& model, const Fitting& from) {
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!from.leaves(*entry.parameter)) {
      load_whole(*entry.parameter, from);
    }
  }
  read_buffers(model, from);
}

void load_own_parameters(const ParallelModel& model,
                         const Fitting& from,
                         optim::Optimizer& optimizer) {
  check<ValueError>(!from.by_module_paths, from.path,
                    ": its tensors have the names of modules, which can be loaded only where no "
                    "rank has less than whole parameters (zero_level up to z2)");
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (from.leaves(*entry.parameter)) {
      continue;
    }
    if (entry.parameter->is_quantized()) {  // which every rank has whole
      load_whole(*entry.parameter, from);
      continue;
    }
    const optim::Optimizer::OwnPart part = optimizer.own_part(entry.name);
    const Tensor own = zeros(optimizer.updates_pieces() ? Shape{part.count} : part.shape);
    read_parameter(*entry.parameter, from, {.values = own, .first = part.first});
    optimizer.set_own_main_param(entry.name, own);
  }
  read_buffers(model, from);
}

// What a model with adapters is loaded from.
struct AdapterSources {
  std::string base;     // empty: the start values of the run
  std::string adapter;  // empty: start values
};

AdapterSources adapter_sources(const TransformerConfig& config, const std::string& path) {
  const std::string resolved = resolve_checkpoint(path);
  AdapterSources out;
  if (!holds_adapter(resolved)) {
    out.base = resolved;
    out.adapter = config.lora.adapter ? resolve_checkpoint(*config.lora.adapter) : std::string();
  } else {
    out.adapter = resolved;
    out.base = find_adapter_base(resolved, config.from_hf.value_or("")).path;
  }
  if (!out.base.empty() && !out.adapter.empty()) {
    out.base = resolve_checkpoint(out.base);
    check_adapter_base(out.adapter, out.base);
  }
  return out;
}

// A model with adapters, in two steps; without them in one.
template <class Load>
void load_with_adapter(const ParallelModel& model,
                       const TransformerConfig& config,
                       const std::string& path,
                       const Load& load) {
  if (!config.lora.use_lora) {
    load(open_fitting(model, config, path, WeightsOf::kModel));
    return;
  }
  const AdapterSources sources = adapter_sources(config, path);
  if (!sources.base.empty()) {
    load(open_fitting(model, config, sources.base, WeightsOf::kModel));
  }
  if (!sources.adapter.empty()) {
    load(open_adapter_fitting(model, config, sources.adapter));
  }
}

}  // namespace

bool starts_score_head(const TransformerConfig& config, const std::string& path) {
  if (!config.score_head) {
    return false;
  }
  std::string resolved = resolve_checkpoint(path);
  if (holds_adapter(resolved)) {
    return false;  // which has trained it
  }
  const std::vector<std::string> names = open_weights(resolved)->names();
  return starts_score_head(std::set<std::string>(names.begin(), names.end()), resolved);
}

void load_weights(ParallelModel& model, const TransformerConfig& config, const std::string& path) {
  load_with_adapter(model, config, path, [&](const Fitting& from) {
    if (from.by_module_paths) {
      load_by_module_paths(model, read_weights(from.path), from.path);
    } else {
      load_parameters(model, from);
    }
  });
  if (config.lora.use_lora && adapter_sources(config, path).adapter.empty()) {
    start_magnitudes(model);
  }
}

void load_own_weights(const ParallelModel& model,
                      const TransformerConfig& config,
                      const std::string& path,
                      optim::Optimizer& optimizer) {
  load_with_adapter(model, config, path,
                    [&](const Fitting& from) { load_own_parameters(model, from, optimizer); });
}

void load_adapter(ParallelModel& model,
                  const TransformerConfig& config,
                  const std::string& path,
                  optim::Optimizer* optimizer) {
  check<ValueError>(config.lora.use_lora, path,
                    ": the model has no adapters to load it into; set "
                    "lora_config (configure_adapter)");
  const Fitting from = open_adapter_fitting(model, config, resolve_checkpoint(path));
  if (optimizer == nullptr) {
    load_parameters(model, from);
  } else {
    load_own_parameters(model, from, *optimizer);
  }
}

void load_upcycled(ParallelModel& model,
                   const TransformerConfig& config,
                   const std::string& path,
                   optim::Optimizer* optimizer) {
  const Fitting from = open_fitting(model, config, path, WeightsOf::kDenseModel);
  if (optimizer == nullptr) {
    load_parameters(model, from);
  } else {
    load_own_parameters(model, from, *optimizer);
  }
}

}  // namespace tapestry
