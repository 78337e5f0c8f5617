#include "parallel_core/estimates/state_estimate.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "parallel_core/optimizer/parameter_rules.h"

namespace tapestry {

namespace {

// Muon's with adamw_include: moments of what AdamW has, momentum of the rest.
double muon_bytes_by_names(const OptimizerConfig& o,
                           const TransformerConfig& model,
                           double moments) {
  double bytes = 0;
  double all = 0;
  for (const ModelMatrix& matrix : model_matrices(model)) {
    const std::vector<std::string> names =
        rule_names(matrix.module + ".weight", matrix.name + ".weight", model.num_layers);
    const bool adamw =
        matrix.shape.size() < 2 ||
        std::any_of(o.adamw_include->begin(), o.adamw_include->end(),
                    [&](const std::string& rule) { return rule_matches(rule, names); });
    const auto copies = static_cast<double>(std::max<int64_t>(matrix.experts, 1));
    const double weights = weight_elements(matrix) * copies;
    const double biases = elements_on_rank(matrix) * copies - weights;
    bytes += weights * (adamw ? moments : 4) + biases * moments;
    all += weights + biases;
  }
  return bytes / all;
}

// What an optimizer keeps of a parameter, on average; without statistics of rows and columns.
double state_bytes_per_parameter(const OptimizerConfig& o, const TransformerConfig& model) {
  const auto moments = static_cast<double>(size_of(o.exp_avg_dtype) + size_of(o.exp_avg_sq_dtype));
  if (o.optimizer_type == "SGD" || o.optimizer_type == "Adafactor") {
    return o.momentum > 0 ? 4 : 0;
  }
  if (o.optimizer_type == "Lion") {
    return static_cast<double>(size_of(o.exp_avg_dtype));
  }
  if (o.optimizer_type == "Came") {
    return 4;
  }
  if (o.optimizer_type == "Muon" && o.adamw_include) {
    return muon_bytes_by_names(o, model, moments);
  }
  if (o.optimizer_type == "Muon") {  // moments of embeddings and head, momentum of the rest
    const int64_t experts = model.moe.num_experts;
    const ModelPart whole = {.layers = alike_layers(model)};
    const ModelPart inner = {.layers = whole.layers, .pre_process = false, .post_process = false};
    const double all = count_parameters(model, whole, {}, experts).all();
    const double layers = count_parameters(model, inner, {}, experts).all();
    return (4 * layers + moments * (all - layers)) / all;
  }
  return moments;
}

double bytes_per_number(BlockFormat format) {
  return static_cast<double>(kernels::block_bytes(format)) /
         static_cast<double>(kernels::kBlockNumbers);
}

}  // namespace

double quantizable_elements(const TransformerConfig& model,
                            const std::vector<AlikeLayers>& layers,
                            const ModelShares& shares) {
  double sum = 0;
  for (const AlikeLayers& some : layers) {
    for (const ModelMatrix& matrix : layer_matrices(model, some.layer)) {
      const int64_t copies = some.count * (matrix.experts > 0 ? matrix.experts / shares.expert : 1);
      sum += matrix.quantizable ? static_cast<double>(copies) * weight_elements(matrix, shares) : 0;
    }
  }
  return sum;
}

void estimate_adapter_states(const AllConfig& config,
                             double base,
                             double quantizable,
                             double looked_up,
                             const TrainedShare& share,
                             MemoryEstimate& estimate) {
  const TransformerConfig& model = config.model_config;
  const OptimizerConfig& o = config.optimizer_config;
  const auto params = static_cast<double>(size_of(model.params_dtype));
  const auto compute = static_cast<double>(size_of(model.compute_dtype));
  const std::optional<BlockFormat> blocks = kernels::block_format(model.lora.base_dtype);
  const double floating = blocks ? base - quantizable : base;
  const double per_number = blocks ? bytes_per_number(*blocks) : params;
  estimate.parameters =
      bytes_of(floating * params + (base - floating) * per_number + share.adapters * 4);
  for (const BlockFormat format : kernels::kBlockFormats) {
    if (const double less = per_number - bytes_per_number(format); less > 0) {
      estimate.savings.push_back({concat("lora_config.base_dtype: ", kernels::name_of(format)),
                                  bytes_of(quantizable * less)});
    }
  }
  const double copied = (model.compute_dtype != model.params_dtype ? floating - looked_up : 0) +
                        (model.compute_dtype != kFloat32 ? share.adapters : 0);
  estimate.weight_copies = bytes_of(copied * compute);
  const DType sums = config.training_config.exact ? kFloat64 : o.main_grads_dtype;
  estimate.gradients = bytes_of(share.trained() * static_cast<double>(size_of(sums)));
  estimate.optimizer = bytes_of(share.trained() * state_bytes_per_parameter(o, model) +
                                (model.params_dtype != kFloat32 ? share.saved * 4 : 0));
  if (model.params_dtype == kFloat32 && model.compute_dtype != kFloat32) {
    estimate.savings.push_back(
        {concat("model_config.params_dtype: ", name_of(model.compute_dtype)), bytes_of(base * 4)});
  }
}

void estimate_states(const AllConfig& config,
                     double count,
                     const SpecialElements& special,
                     MemoryEstimate& estimate) {
  const TransformerConfig& model = config.model_config;
  const OptimizerConfig& o = config.optimizer_config;
  const auto save = [&](const char* setting, double bytes_per_parameter) {
    estimate.savings.push_back({setting, bytes_of(count * bytes_per_parameter)});
  };
  const bool adam = o.optimizer_type == "AdamW" || o.optimizer_type == "Adam";
  const bool half_params = model.params_dtype != kFloat32;
  double per_parameter = 0;  // in the optimizer
  if (o.store_param_remainders) {
    estimate.parameters = bytes_of((count + special.tables) * 2);
    estimate.weight_copies = bytes_of((special.tables - special.looked_up) * 2);
    per_parameter += 2 * (1 - special.tables / std::max(count, 1.0));
  } else {
    const auto size = static_cast<double>(size_of(model.params_dtype));
    estimate.parameters = bytes_of(count * size);
    if (model.compute_dtype != model.params_dtype) {
      estimate.weight_copies =
          bytes_of((count - special.looked_up) * static_cast<double>(size_of(model.compute_dtype)));
    }
    per_parameter += half_params ? 4 : 0;
    if (adam && model.compute_dtype == kBFloat16) {
      save("optimizer_config.store_param_remainders: True", 2);
    }
  }
  if (o.optimizer_in_backward) {
    estimate.gradients = bytes_of(largest_parameter(model) * 4);
  } else {
    const bool exact = config.training_config.exact;
    const auto size = static_cast<double>(size_of(exact ? kFloat64 : o.main_grads_dtype));
    estimate.gradients = bytes_of(count * size);
    if (o.main_grads_dtype == kFloat32 && !exact) {
      save("optimizer_config.main_grads_dtype: bfloat16", 2);
    }
    const std::optional<GradClipConfig> clip = gradient_clipping(config);
    if (config.dataset_config.micro_batch_num == 1 && model.compute_dtype != kFloat16 &&
        (!clip || clip->grad_clip_type == "GradClipByValue")) {
      save("optimizer_config.optimizer_in_backward: True", size);
    }
  }
  if (o.optimizer_type == "Muon" && !o.adamw_include) {
    // Momentum of the matrices of layers, moments of all else.
    const auto moments =
        static_cast<double>(size_of(o.exp_avg_dtype) + size_of(o.exp_avg_sq_dtype));
    per_parameter += moments + (4 - moments) * special.of_layers / std::max(count, 1.0);
  } else {
    per_parameter += state_bytes_per_parameter(o, model);
  }
  for (const auto& [setting, dtype, has_it] :
       {std::tuple{"optimizer_config.exp_avg_dtype: bfloat16", o.exp_avg_dtype,
                   adam || o.optimizer_type == "Lion"},
        std::tuple{"optimizer_config.exp_avg_sq_dtype: bfloat16", o.exp_avg_sq_dtype, adam}}) {
    if (has_it && dtype == kFloat32) {
      save(setting, 2);
    }
  }
  const double statistics = o.optimizer_type == "Came"        ? 8 * special.rows_and_columns
                            : o.optimizer_type == "Adafactor" ? 4 * special.rows_and_columns
                                                              : 0;
  estimate.optimizer = bytes_of(count * per_parameter + statistics);
}

void share_out(const AllConfig& config,
               int64_t ranks,
               int64_t expert_ranks,
               MemoryEstimate& estimate) {
  const int level = zero_level(config);
  const auto count = static_cast<double>(estimate.parameter_count);
  const double largest = largest_parameter(config.model_config);
  // `whole` elements of all are there in full, whoever owns them.
  const auto share = [&](int64_t& bytes, double whole) {
    const auto experts = static_cast<double>(estimate.expert_parameter_count);
    const double own = (count - experts) / static_cast<double>(ranks) +
                       experts / static_cast<double>(expert_ranks);
    const double part = std::min(1.0, (own + whole) / count);
    bytes = bytes_of(static_cast<double>(bytes) * part);
  };
  if (config.model_config.lora.use_lora) {  // of which every rank has the whole base
    const auto part = static_cast<double>(ranks);
    for (int64_t* bytes :
         {level >= 1 ? &estimate.optimizer : nullptr, level >= 2 ? &estimate.gradients : nullptr}) {
      if (bytes != nullptr) {
        *bytes = bytes_of(static_cast<double>(*bytes) / part);
      }
    }
    return;
  }
  if (level >= 1) {
    share(estimate.optimizer, 0);
  }
  if (level >= 2) {
    // One bucket is filled while two are being reduced; with z3 matrices are buckets of their own.
    const auto bucket = static_cast<double>(bucket_size(config, ranks));
    share(estimate.gradients, 3 * (level == 3 ? largest : std::max(bucket, largest)));
  }
  if (level >= 3) {
    share(estimate.parameters, 2 * largest);
    if (config.optimizer_config.store_param_remainders ||
        config.model_config.compute_dtype == config.model_config.params_dtype) {
      estimate.weight_copies = 0;
    } else {
      estimate.weight_copies =
          bytes_of(static_cast<double>(size_of(config.model_config.compute_dtype)) *
                   std::min(count, 2 * largest));
    }
  }
}

void estimate_checkpoints(const AllConfig& config,
                          double count,
                          int64_t ranks,
                          MemoryEstimate& estimate) {
  const OptimizerConfig& o = config.optimizer_config;
  const TrainingConfig& t = config.training_config;
  const bool shared_out = zero_level(config) >= 1 && ranks > 1;
  const double share = shared_out ? 1.0 / static_cast<double>(ranks) : 1.0;
  const auto size = static_cast<double>(size_of(config.model_config.params_dtype));
  // Buckets are filled while what they are filled from is still there.
  const bool moves = shared_out || config.model_config.params_dtype != kFloat32;
  // With z3 parameters are made one after the other, each in its bucket and beside it.
  const bool in_pieces = zero_level(config) == 3 && ranks > 1;
  const double whole =
      in_pieces ? std::min(count, 4 * largest_parameter(config.model_config)) : count;
  const double made = largest_parameter(config.model_config);  // beside what it is put into
  estimate.start =
      bytes_of((whole + made) * 4 + (moves ? count * size * (in_pieces ? share : 1) : 0));
  if (!t.async_save) {
    return;
  }
  const bool divided = shared_out || t.remove_redundancy;
  const double saved = saved_bytes_per_parameter(o, config.model_config);
  estimate.snapshot = bytes_of(count * saved / (divided ? static_cast<double>(ranks) : 1.0));
}

double saved_bytes(const AllConfig& config) {
  const OptimizerConfig& o = config.optimizer_config;
  const TransformerConfig& model = config.model_config;
  if (!model.lora.use_lora) {
    return saved_bytes_per_parameter(o, model) * static_cast<double>(parameter_count(model));
  }
  const TrainedShare share = trained_share(model);
  return share.trained() * (4 + state_bytes_per_parameter(o, model));
}

double saved_bytes_per_parameter(const OptimizerConfig& config, const TransformerConfig& model) {
  return 4 + state_bytes_per_parameter(config, model);
}

}  // namespace tapestry
