#include "parallel_core/inference/open_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "autograd/io/packed_folder.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "interop/gguf/gguf_weights.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/lora/quantize_base.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/random.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/step/get_model.h"

namespace tapestry {

namespace {

// The saved configuration in the layout and the dtypes that are asked for. What only training
// knows of has no effect here.
void prepare(AllConfig& config,
             const OpenModelOptions& options,
             const ModelParallelConfig& parallel) {
  config.parallel_config = parallel;
  TransformerConfig& model = config.model_config;
  model.sequence_parallel = false;
  model.layer_recompute.clear();
  model.hidden_dropout = 0;
  model.attention_dropout = 0;
  model.mtp_num_layers = 0;  // of which files hold more than is read
  if (options.dtype.empty()) {
    return;
  }
  // Blocks are widened to float32, without a further rounding.
  model.compute_dtype = options.dtype == "bfloat16" ? kBFloat16 : kFloat32;
  model.params_dtype = model.compute_dtype;
  model.embedding_init_dtype.reset();
  model.residual_connection_dtype.reset();
  model.use_fused_kernels = true;
}

void check_dtype(const OpenModelOptions& options) {
  check<ValueError>(options.dtype.empty() || options.dtype == "float32" ||
                        options.dtype == "bfloat16" || kernels::block_format(options.dtype),
                    "dtype is '", options.dtype, "', expected float32, bfloat16, q8_0 or q4_0");
}

void check_options(const OpenModelOptions& options, int world_size) {
  check_dtype(options);
  check<ValueError>(options.tensor_parallel > 0 && options.pipeline_parallel > 0,
                    "tensor_parallel and pipeline_parallel must be positive, got ",
                    options.tensor_parallel, " and ", options.pipeline_parallel);
  const int64_t ranks = options.tensor_parallel * options.pipeline_parallel;
  check<ValueError>(ranks == world_size, "tensor_parallel ", options.tensor_parallel,
                    " x pipeline_parallel ", options.pipeline_parallel, " need ", ranks,
                    " processes, but there are ", world_size, "; start them with mpirun -n ",
                    ranks);
}

// Memory for the weights that are still to be loaded, in the dtype in which they are used: what
// takes part in products alone is rounded here once, in place of at each use.
void make_weights(ParallelModel& model,
                  const TransformerConfig& config,
                  const BlocksOf& blocks_of) {
  const MemoryKindGuard kind(MemoryKind::kParameter);
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    entry.parameter->set_requires_grad(false);
  }
  if (blocks_of) {
    quantize_base(model, {.format_of = blocks_of, .values_come_later = true, .head = true});
  }
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    if (parameter.is_quantized()) {
      continue;
    }
    if (parameter.flags().adapter) {
      set_data(parameter, zeros(parameter.shape()));  // as its files are
      continue;
    }
    const bool operand = parameter.flags().matmul && config.use_fused_kernels;
    const DType dtype = config.params_dtype != kFloat32 ? config.params_dtype
                        : operand                       ? config.compute_dtype
                                                        : kFloat32;
    set_data(parameter, empty(parameter.shape(), dtype));
  }
}

// The format in which a parameter can hold what a file has of it as it lies there, if there is one.
std::optional<BlockFormat> blocks_in_file(const GgufWeights& file, const nn::Parameter& parameter) {
  const std::vector<nn::LogicalTensor>& parts = parameter.logical();
  if (parts.empty() || parameter.shape().back() % kernels::kBlockNumbers != 0) {
    return std::nullopt;
  }
  const auto format = file.block_format(parts.front().name);
  const bool is_one = std::all_of(parts.begin(), parts.end(), [&](const auto& logical) {
    return file.block_format(logical.name) == format;
  });
  return is_one ? format : std::nullopt;
}

// The file whose matrices stay as they are; null: there is none, or a dtype was asked for. Says
// what becomes of them.
std::unique_ptr<const GgufWeights> blocks_of_file(OpenModel& opened,
                                                  const OpenModelOptions& options) {
  const std::string& path = opened.folder;
  if (!is_packed_folder(path)) {
    return nullptr;
  }
  auto file = std::make_unique<const GgufWeights>(path);
  const auto kept = [&](BlockFormat format) {
    return options.dtype.empty() || options.dtype == name_of(format);
  };
  if (std::string text = gguf_types_text(*file, kept); !text.empty()) {
    opened.remarks.push_back(std::move(text));
  }
  return options.dtype.empty() ? std::move(file) : nullptr;
}

// A run's folder, or one of its checkpoints, or the folder of PEFT's.
std::string resolve_adapter(const std::string& path) {
  return std::filesystem::exists(path + "/adapter_config.json") ? path : resolve_checkpoint(path);
}

// Ids that end a text: those of generation_config.json, of which a chat model has several.
std::vector<int32_t> stop_ids_of(const OpenModel& opened) {
  std::vector<int32_t> out = opened.suggested.eos_token_ids;
  if (out.empty() && opened.saved.eod_id >= 0) {
    out.push_back(static_cast<int32_t>(opened.saved.eod_id));
  }
  return out;
}

}  // namespace

std::unique_ptr<GPTModel> model_without_weights(const AllConfig& config,
                                                const BlocksOf& blocks_of) {
  const DeferInitialValues deferred(DeferInitialValues::Values::kZeros);
  std::unique_ptr<GPTModel> model = get_model(config);
  make_weights(*model, config.model_config, blocks_of);
  model->eval();
  return model;
}

namespace {

OpenModel open_in_layout(const OpenModelOptions& options,
                         const ModelParallelConfig& parallel,
                         const std::shared_ptr<ProcessGroup>& world) {
  OpenModel opened;
  opened.folder = resolve_checkpoint(options.checkpoint);
  if (opened.folder != options.checkpoint) {
    opened.remarks.push_back(
        concat("the latest checkpoint of ", options.checkpoint, " is ", opened.folder));
  }
  opened.saved = open_saved_model(opened.folder);
  if (!opened.saved.remark.empty()) {
    opened.remarks.push_back(opened.saved.remark);
  }
  for (const std::string& remark : opened.saved.tokenizer->remarks()) {
    opened.remarks.push_back(remark);
  }
  AllConfig& config = opened.saved.config;
  if (!options.adapter.empty()) {
    check<ValueError>(!config.lora_config.use_lora, opened.folder,
                      " is itself an adapter; name its base as the checkpoint to use ",
                      options.adapter, " in its place");
    configure_adapter(config, resolve_adapter(options.adapter));
  }
  prepare(config, options, parallel);
  opened.suggested = read_generation_config(opened.folder);
  opened.stop_ids = stop_ids_of(opened);
  verify_weights(opened.folder, options.checksums, *world);
  if (!model_parallel_is_initialized() && world->size() > 1) {
    initialize_model_parallel(model_parallel_sizes(config.parallel_config), world);
  }
  const bool as_trained = options.dtype.empty() && config.lora_config.use_lora;
  const auto blocks =
      kernels::block_format(as_trained ? config.lora_config.base_dtype : options.dtype);
  if (const auto file = blocks_of_file(opened, options); file != nullptr) {
    opened.model = model_without_weights(
        config, [&](const nn::Parameter& parameter) { return blocks_in_file(*file, parameter); });
  } else {
    opened.model = model_without_weights(config, blocks ? all_in(*blocks) : BlocksOf());
  }
  load_weights(*opened.model, config.model_config, opened.folder);
  return opened;
}

}  // namespace

OpenModel open_model(const OpenModelOptions& options, const std::shared_ptr<ProcessGroup>& world) {
  check_options(options, world->size());
  ModelParallelConfig parallel;
  parallel.tensor_model_parallel_size = options.tensor_parallel;
  parallel.pipeline_model_parallel_size = options.pipeline_parallel;
  return open_in_layout(options, parallel, world);
}

OpenModel open_model_in_groups(const OpenModelOptions& options) {
  check_dtype(options);
  if (!model_parallel_is_initialized()) {
    return open_in_layout(options, {}, single_process_group());
  }
  ModelParallelConfig parallel;
  parallel.tensor_model_parallel_size = get_tensor_model_parallel_world_size();
  parallel.pipeline_model_parallel_size = get_pipeline_model_parallel_world_size();
  parallel.context_parallel_size = get_context_parallel_world_size();
  parallel.expert_model_parallel_size = get_expert_model_parallel_world_size();
  parallel.expert_tensor_parallel_size = get_expert_tensor_parallel_world_size();
  const uint64_t seed = random_context().seed;  // of the model that trains
  // The groups live as long as the rank.
  OpenModel opened =
      open_in_layout(options, parallel, {std::shared_ptr<ProcessGroup>(), &get_world_group()});
  random_context().seed = seed;
  return opened;
}

}  // namespace tapestry
