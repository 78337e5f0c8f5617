#include "parallel_core/training/verify_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "autograd/kernels/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/random.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/random.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/train_one_step.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A gradient that is zero but for rounding, against the norm of all: in float32 and with 16 bits.
constexpr double kZeroGradient = 1e-6;
constexpr double kZeroGradient16 = 1e-2;
// Weights of which a part has no gradient.
constexpr double kPartlyFreeWeights = 5e-2;

// A value of one sequence.
using ActivationKey = std::pair<std::string, int64_t>;  // name, sample

// Records the rows of some samples, of every one the first value.
class SampleRecorder final : public ActivationRecorder {
 public:
  explicit SampleRecorder(std::set<int64_t> samples) : samples_(std::move(samples)) {}

  void record(const std::string& name, const Tensor& value, int64_t batch_axis) override {
    const std::vector<int64_t>& ids = random_context().sample_ids;
    for (size_t row = 0; row < ids.size(); ++row) {
      const ActivationKey key = {name, ids[row]};
      if (samples_.contains(ids[row]) && !rows_.contains(key)) {
        rows_.emplace(key, row_of(value, batch_axis, static_cast<int64_t>(row)));
        order_.push_back(key);
      }
    }
  }
  const std::vector<ActivationKey>& order() const { return order_; }
  std::map<ActivationKey, Tensor>& rows() { return rows_; }

 private:
  std::set<int64_t> samples_;
  std::map<ActivationKey, Tensor> rows_;
  std::vector<ActivationKey> order_;
};

// What one process has done in a step.
struct StepTrace {
  StepResult result;
  std::vector<ActivationKey> order;
  std::map<ActivationKey, Tensor> activations;
  LogicalState gradients;
  LogicalState weights;
};

struct Trace {
  LogicalState initial;
  LogicalState start;
  std::vector<std::string> tensors;  // in the order of their making
  optim::Schedule::Position position;
  std::vector<StepTrace> steps;

  size_t index_of(const std::string& tensor) const {
    return static_cast<size_t>(std::find(tensors.begin(), tensors.end(), tensor) - tensors.begin());
  }
};

// A training on the current rank, whose groups are made.
struct Training {
  explicit Training(const AllConfig& config_, const LayoutParts& parts, bool in_layout)
      : config(config_),
        source(parts.data ? parts.data(config) : open_data(config).train),
        model(in_layout && parts.model ? parts.model(config) : get_model(config)) {}

  // The weights are in.
  void start(optim::Schedule::Position position) {
    data_parallel = get_data_parallel(config, *model);
    optimizer = get_optimizer(config, *model, data_parallel.get());
    schedule = get_optimizer_param_scheduler(config, get_data_parallel_world_size());
    cell = std::make_unique<TrainOneStepCell>(*model, *optimizer, *schedule, config,
                                              data_parallel.get());
    cell->set_position(position);
  }

  std::vector<data::Batch> batches(int64_t step) const {
    const DatasetConfig& d = config.dataset_config;
    std::vector<data::Batch> out;
    for (int64_t m = 0; m < d.micro_batch_num; ++m) {
      out.push_back(source->micro_batch(step, m, d.micro_batch_num, d.batch_size,
                                        get_data_parallel_rank(), get_data_parallel_world_size()));
    }
    return out;
  }

  const AllConfig& config;
  std::unique_ptr<data::DataSource> source;
  std::unique_ptr<GPTModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  std::unique_ptr<TrainOneStepCell> cell;
};

bool is_looked_at(const VerifyOptions& options, int64_t step) {
  return options.every_step || step == 1;
}

// The first sequence of the first and the last micro-batch. `parts` sets of micro-batches lie among
// each other, as those of data-parallel ranks do in one process.
std::set<int64_t> watched_samples(const std::vector<data::Batch>& batches, size_t parts) {
  std::set<int64_t> samples;
  for (size_t i = 0; i < batches.size(); ++i) {
    if ((i < parts || i + parts >= batches.size()) && !batches[i].sample_ids.empty()) {
      samples.insert(batches[i].sample_ids.front());
    }
  }
  return samples;
}

// Where the schedule has its largest learning rate first.
optim::Schedule::Position strongest_update(const optim::Schedule& schedule, int64_t steps) {
  optim::Schedule::Position best;
  for (int64_t n = 0; n < steps; ++n) {
    if (schedule.learning_rate({n, n}) > schedule.learning_rate(best)) {
      best = {n, n};
    }
  }
  return best;
}

LogicalState jittered(const LogicalState& state, double size, uint64_t seed) {
  const NoGradGuard guard;
  LogicalState out;
  for (const auto& [name, value] : state) {
    const Tensor noise = normal(0, size, value.shape(), kFloat32,
                                RandomKey{seed, stream_of("verify_layout." + name), 0});
    out.emplace(name, value.to(kFloat32) + noise);
  }
  return out;
}

Trace trace_single_process(const LayoutPair& pair, const VerifyOptions& options, int64_t steps) {
  const AllConfig& config = pair.single;
  Training training(config, options.parts, false);
  Trace trace;
  for (const nn::Module::NamedParameter& entry : training.model->named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      trace.tensors.push_back(logical.name);
    }
  }
  trace.initial = get_logical_state(*training.model);
  if (const std::string& path = config.training_config.load_checkpoint; !path.empty()) {
    load_weights(*training.model, config.model_config, path);
    trace.start = get_logical_state(*training.model);
  } else {
    trace.start =
        jittered(trace.initial, options.jitter, static_cast<uint64_t>(config.training_config.seed));
    set_logical_state(*training.model, trace.start, "verify_layout");
  }
  trace.position = strongest_update(*get_optimizer_param_scheduler(config, 1),
                                    std::max<int64_t>(total_training_iters(config), 1));
  training.start(trace.position);
  for (int64_t step = 1; step <= steps; ++step) {
    StepTrace now;
    const std::vector<data::Batch> batches = training.batches(step - 1);
    std::optional<SampleRecorder> recorder;
    if (is_looked_at(options, step)) {
      recorder.emplace(watched_samples(batches, static_cast<size_t>(pair.data_parallel_size)));
    }
    training.cell->set_gradient_observer(
        [&](int64_t /*step*/) { now.gradients = logical_gradients(*training.model); },
        [&](int64_t /*step*/) { return is_looked_at(options, step); });
    now.result = (*training.cell)(batches);
    training.cell->set_gradient_observer({});
    if (recorder) {
      now.order = recorder->order();
      now.activations = std::move(recorder->rows());
    }
    if (options.every_step || step == steps) {
      now.weights = get_logical_state(*training.model, training.optimizer.get());
    }
    trace.steps.push_back(std::move(now));
  }
  return trace;
}

// What makes the value that the model reports under a name.
std::string maker_of(const std::string& activation) {
  static const std::map<std::string, std::string> kMakers = {
      {"embedding", "Embedding (VocabParallelEmbedding, positions, dropout)"},
      {"attention_norm", "ParallelNorm input_norm"},
      {"attention.q",
       "ColumnParallelLinear qkv_proj (with norm and rotation) in ParallelAttention"},
      {"attention.k",
       "ColumnParallelLinear qkv_proj (with norm and rotation) in ParallelAttention"},
      {"attention.v", "ColumnParallelLinear qkv_proj in ParallelAttention"},
      {"attention.context", "ParallelAttention"},
      {"attention", "RowParallelLinear out_proj in ParallelAttention, dropout"},
      {"ffn_norm", "ParallelNorm post_attention_norm"},
      {"mlp", "ParallelMLP, dropout"},
      {"output", "ParallelTransformerLayer (residual sum)"},
      {"final_norm", "ParallelNorm final_norm"},
      {"logits", "ParallelLMLogits"}};
  std::string name = activation;
  if (name.rfind("layers.", 0) == 0) {
    name = name.substr(name.find('.', std::string("layers.").size()) + 1);
  }
  const auto found = kMakers.find(name);
  return found == kMakers.end() ? std::string() : found->second;
}

// "rank 5 (tp 1, pp 1, dp 0)": the axes that have more than one rank.
std::string place_of_rank() {
  std::string axes;
  const auto add = [&](const char* name, int rank, int size) {
    if (size > 1) {
      axes += concat(axes.empty() ? "" : ", ", name, " ", rank);
    }
  };
  add("tp", get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size());
  add("cp", get_context_parallel_rank(), get_context_parallel_world_size());
  add("dp", get_data_parallel_rank(), get_data_parallel_world_size());
  add("pp", get_pipeline_model_parallel_rank(), get_pipeline_model_parallel_world_size());
  return concat("rank ", RankContext::current().rank(), axes.empty() ? "" : " (" + axes + ")");
}

// Piece number `index` of `pieces` equal ones along an axis.
Tensor piece_of(const Tensor& x, int64_t axis, int64_t index, int64_t pieces) {
  const int64_t size = x.size(axis) / pieces;
  return x.slice(axis, index * size, (index + 1) * size);
}

// What a rank that reports a value of `shape` has of the whole value; undefined if it can have no
// such part. Axes are those that ActivationRecorder documents: context-parallel ranks have chunks
// of the sequence, tensor-parallel ones heads or channels, or where these are whole a part of that
// sequence.
Tensor own_part(const Tensor& whole, const Shape& shape) {
  if (shape.size() != whole.dim()) {
    return {};
  }
  const int64_t ranks = get_tensor_model_parallel_world_size();
  const int64_t rank = get_tensor_model_parallel_rank();
  const NoGradGuard guard;
  Tensor part = own_chunks(whole, whole.dim() == 4 ? 2 : 1, context_parallel_layout());
  for (int64_t axis = 1; axis < whole.dim(); ++axis) {
    if (shape[axis] == 0 || part.size(axis) % shape[axis] != 0) {
      return {};
    }
    const int64_t pieces = part.size(axis) / shape[axis];
    if (pieces > ranks || ranks % pieces != 0) {
      return {};
    }
    part = piece_of(part, axis, rank / (ranks / pieces), pieces);
  }
  return part;
}

// Adds a rank's distances to the findings.
class RankComparison {
 public:
  RankComparison(const LayoutPair& pair, const Trace& trace, LayoutFindings& findings)
      : config_(pair.layout),
        bounds_(layout_bounds(pair.layout.model_config.compute_dtype)),
        trace_(trace),
        findings_(findings),
        where_(place_of_rank()) {}

  void describe_modules(GPTModel& model) {
    for (const nn::Module::NamedModule& entry : model.named_modules()) {
      types_.emplace(entry.name, entry.module->type_name());
    }
  }

  // Bit for bit; `order` tells the first look from the second.
  void weights_before(const nn::Module& model, const LogicalState& expected, size_t look) {
    each_slice(
        model, [&](const nn::Module::NamedParameter& entry, const nn::LogicalTensor& logical) {
          const Tensor& whole = expected.at(logical.name);
          const Tensor own = logical.view_of(*entry.parameter).reshape(logical.local_shape());
          add({.what = Compared::kInitialWeights,
               .order = look * trace_.tensors.size() + trace_.index_of(logical.name),
               .name = logical.name,
               .made_by = maker_of_parameter(entry.name),
               .distance = element_distance(own, logical.slice_of(whole), largest_element(whole)),
               .bound = 0});
        });
  }

  void activations(int64_t step, SampleRecorder& recorder) {
    const StepTrace& expected = step_of(step);
    for (const ActivationKey& key : recorder.order()) {
      if (step > 1 && has_free_bias(key.first)) {
        continue;
      }
      Finding finding = {.what = Compared::kActivation,
                         .step = step,
                         .name = key.first,
                         .made_by = maker_of(key.first),
                         .bound = step == 1 ? bounds_.first_activation : bounds_.activation,
                         .detail = concat("sample ", key.second)};
      const Tensor& own = recorder.rows().at(key);
      const auto found = expected.activations.find(key);
      if (found == expected.activations.end()) {
        finding.distance = kInfinity;
        finding.detail += ", which one process does not compute in this step";
        add(finding);
        continue;
      }
      finding.order = static_cast<size_t>(
          std::find(expected.order.begin(), expected.order.end(), key) - expected.order.begin());
      const Tensor part = own_part(found->second, own.shape());
      if (part.defined()) {
        finding.distance = distance(own, part, found->second);
      } else {
        finding.distance = kInfinity;
        finding.detail +=
            concat(", of shape ", own.shape(), ", the whole is ", found->second.shape());
      }
      add(finding);
    }
  }

  // Also what the whole step agrees in.
  void step_result(int64_t step, const StepResult& found) {
    const StepResult& expected = step_of(step).result;
    number(Compared::kTokens, step, "tokens", static_cast<double>(found.tokens),
           static_cast<double>(expected.tokens), 0);
    number(Compared::kTokens, step, "loss_tokens", found.loss_tokens, expected.loss_tokens, 0);
    number(Compared::kLoss, step, "loss", found.loss, expected.loss, bounds_.loss,
           "VocabParallelCrossEntropy and its sum over micro-batches and ranks");
    number(Compared::kGradNorm, step, "grad_norm", found.grad_norm, expected.grad_norm,
           step == 1 ? bounds_.first_norm : bounds_.norm, "the sum of squares over ranks");
    number(Compared::kGradNorm, step, "finite", found.finite ? 1 : 0, expected.finite ? 1 : 0, 0,
           "the finite check over ranks");
    number(Compared::kSchedule, step, "loss_scale", found.loss_scale, expected.loss_scale, 0);
    for (size_t i = 0; i < expected.lr.size(); ++i) {
      number(Compared::kSchedule, step, concat("learning rate of group ", i),
             i < found.lr.size() ? found.lr[i] : kInfinity, expected.lr[i], 1e-12);
    }
  }

  void gradients(int64_t step, const nn::Module& model) {
    const StepTrace& expected = step_of(step);
    double squares = 0;  // the norm of the step is not known yet
    for (const auto& [name, gradient] : expected.gradients) {
      squares += std::pow(euclidean_norm(gradient), 2);
    }
    each_slice(
        model, [&](const nn::Module::NamedParameter& entry, const nn::LogicalTensor& logical) {
          const Tensor& whole = expected.gradients.at(logical.name);
          const Tensor gradient = entry.parameter->grad();
          const Tensor own = gradient.defined()
                                 ? logical.view_of(gradient).reshape(logical.local_shape())
                                 : zeros(logical.local_shape());
          Finding finding = {.what = Compared::kGradient,
                             .step = step,
                             .order = trace_.tensors.size() - 1 - trace_.index_of(logical.name),
                             .name = logical.name,
                             .made_by = "backward of " + maker_of_parameter(entry.name)};
          if (has_zero_gradient(config_.model_config, logical.name) == ZeroGradient::kAll) {
            finding.distance = norm_distance(own, logical.slice_of(whole), std::sqrt(squares));
            finding.bound = bounds_.by_norm ? kZeroGradient16 : kZeroGradient;
            finding.detail = "zero but for rounding, against the norm of all";
          } else {
            finding.distance = distance(own, logical.slice_of(whole), whole);
            finding.bound = step == 1 ? bounds_.first_gradient : bounds_.gradient;
          }
          add(finding);
        });
  }

  void weights(int64_t step, const nn::Module& model, const optim::Optimizer& optimizer) {
    const StepTrace& expected = step_of(step);
    each_slice(model, [&](const nn::Module::NamedParameter& entry,
                          const nn::LogicalTensor& logical) {
      const ZeroGradient zero = has_zero_gradient(config_.model_config, logical.name);
      const Tensor& whole = expected.weights.at(logical.name);
      // Of 16-bit parameters the masters, which all ranks of a group bring together.
      const Tensor all = entry.parameter->dtype() == kFloat32 ? Tensor(*entry.parameter)
                                                              : optimizer.main_param(entry.name);
      if (zero == ZeroGradient::kAll) {
        return;
      }
      const Tensor own = logical.view_of(all).reshape(logical.local_shape());
      add({.what = Compared::kWeights,
           .step = step,
           .order = trace_.index_of(logical.name),
           .name = logical.name,
           .made_by =
               config_.optimizer_config.optimizer_type + ", of " + maker_of_parameter(entry.name),
           .distance = norm_distance(own, logical.slice_of(whole), euclidean_norm(whole)),
           .bound = zero == ZeroGradient::kPart ? kPartlyFreeWeights : bounds_.weight});
    });
  }

 private:
  // Keys after updates, where the optimizer has turned rounding into steps of their biases.
  bool has_free_bias(const std::string& activation) const {
    constexpr std::string_view kKeys = ".attention.k";
    if (!activation.ends_with(kKeys)) {
      return false;
    }
    const std::string layer = activation.substr(0, activation.size() - 1);
    for (const std::string& bias : {layer + "wk.bias", layer + "k_norm.bias"}) {
      if (has_zero_gradient(config_.model_config, bias) != ZeroGradient::kNone &&
          trace_.start.contains(bias)) {
        return true;
      }
    }
    return false;
  }

  const StepTrace& step_of(int64_t step) const {
    return trace_.steps.at(static_cast<size_t>(step - 1));
  }

  template <class F>
  static void each_slice(const nn::Module& model, const F& function) {
    const NoGradGuard guard;
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
        function(entry, logical);
      }
    }
  }

  // "ColumnParallelLinear language_model.encoder.layers.0.attention.qkv_proj"
  std::string maker_of_parameter(const std::string& path) const {
    const std::string module = path.substr(0, std::min(path.rfind('.'), path.size()));
    const auto type = types_.find(module);
    return (type == types_.end() ? std::string() : type->second + " ") + module;
  }

  double distance(const Tensor& found, const Tensor& expected, const Tensor& whole) const {
    return bounds_.by_norm ? norm_distance(found, expected, euclidean_norm(whole))
                           : element_distance(found, expected, largest_element(whole));
  }

  void number(Compared what,
              int64_t step,
              const std::string& name,
              double found,
              double expected,
              double bound,
              const std::string& made_by = "") {
    const double difference = std::abs(found - expected);
    add({.what = what,
         .step = step,
         .name = name,
         .made_by = made_by,
         .distance = difference == 0 ? 0 : difference / std::abs(expected),
         .bound = bound,
         .detail = concat(found, " against ", expected)});
  }

  void add(Finding finding) {
    finding.where = where_;
    findings_.add(finding);
  }

  const AllConfig& config_;
  LayoutBounds bounds_;
  const Trace& trace_;
  LayoutFindings& findings_;
  std::string where_;
  std::map<std::string, std::string> types_;  // of modules by path
};

// What no rank of the layout has computed.
class Coverage {
 public:
  void add(const std::vector<ActivationKey>& keys, int64_t step) {
    const std::scoped_lock lock(mutex_);
    for (const ActivationKey& key : keys) {
      seen_.emplace(step, key);
    }
  }
  void report_missing(const Trace& trace, LayoutFindings& findings) const {
    for (size_t i = 0; i < trace.steps.size(); ++i) {
      const auto step = static_cast<int64_t>(i + 1);
      const std::vector<ActivationKey>& order = trace.steps[i].order;
      for (size_t k = 0; k < order.size(); ++k) {
        if (!seen_.contains({step, order[k]})) {
          findings.add({.what = Compared::kActivation,
                        .step = step,
                        .order = k,
                        .name = order[k].first,
                        .made_by = maker_of(order[k].first),
                        .distance = kInfinity,
                        .detail = concat("no rank computed it for sample ", order[k].second)});
        }
      }
    }
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<int64_t, ActivationKey>> seen_;
};

uint64_t checksum(uint64_t start, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t out = start;
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, std::min(sizeof(word), bytes - i));
    out = combine(out, word);
  }
  return out;
}

// The layout's training on one rank.
uint64_t train_rank(const LayoutPair& pair,
                    const VerifyOptions& options,
                    const Trace& trace,
                    LayoutFindings& findings,
                    Coverage& coverage) {
  const AllConfig& config = pair.layout;
  const LayoutParts& parts = options.parts;
  RankComparison comparison(pair, trace, findings);
  Training training(config, parts, true);
  comparison.describe_modules(*training.model);
  comparison.weights_before(*training.model, trace.initial, 0);
  if (const std::string& path = config.training_config.load_checkpoint; !path.empty()) {
    load_weights(*training.model, config.model_config, path);
  } else {
    set_logical_state(*training.model, trace.start, "verify_layout");
  }
  comparison.weights_before(*training.model, trace.start, 1);
  if (parts.started) {
    parts.started(*training.model);
  }
  training.start(trace.position);
  uint64_t sum = 0;
  const auto steps = static_cast<int64_t>(trace.steps.size());
  for (int64_t step = 1; step <= steps; ++step) {
    if (parts.before_step) {
      parts.before_step(*training.model, step);
    }
    const std::vector<data::Batch> batches = training.batches(step - 1);
    std::optional<SampleRecorder> recorder;
    if (is_looked_at(options, step)) {
      recorder.emplace(watched_samples(batches, 1));
    }
    training.cell->set_gradient_observer(
        [&](int64_t /*step*/) { comparison.gradients(step, *training.model); },
        [&](int64_t /*step*/) { return is_looked_at(options, step); });
    const StepResult result = (*training.cell)(batches);
    training.cell->set_gradient_observer({});
    if (recorder) {
      comparison.activations(step, *recorder);
      coverage.add(recorder->order(), step);
    }
    comparison.step_result(step, result);
    sum = checksum(sum, &result.loss, sizeof(result.loss));
    sum = checksum(sum, &result.grad_norm, sizeof(result.grad_norm));
    if (options.every_step || step == steps) {
      comparison.weights(step, *training.model, *training.optimizer);
    }
  }
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : training.model->named_parameters()) {
    const Tensor values = dense(*entry.parameter);
    sum =
        checksum(sum, values.raw(), static_cast<size_t>(values.numel() * size_of(values.dtype())));
  }
  return sum;
}

ModelParallelSizes sizes_of(const ModelParallelConfig& p) {
  const int64_t chunks = p.virtual_pipeline_model_parallel_size.value_or(1);
  return {.tensor_model_parallel_size = static_cast<int>(p.tensor_model_parallel_size),
          .pipeline_model_parallel_size = static_cast<int>(p.pipeline_model_parallel_size),
          .virtual_pipeline_model_parallel_size =
              chunks > 1 ? std::optional(static_cast<int>(chunks)) : std::nullopt,
          .context_parallel_size = static_cast<int>(p.context_parallel_size),
          .expert_model_parallel_size = static_cast<int>(p.expert_model_parallel_size)};
}

}  // namespace

ZeroGradient has_zero_gradient(const TransformerConfig& config, const std::string& logical_name) {
  const bool key_bias = logical_name.ends_with(".attention.wk.bias") && !config.qk_layernorm;
  const bool key_norm_bias = logical_name.ends_with(".attention.k_norm.bias");
  if (!key_bias && !key_norm_bias) {
    return ZeroGradient::kNone;
  }
  if (config.position_embedding_type != "rope") {
    return ZeroGradient::kAll;
  }
  return config.rotary_config.rotary_percent < 1 ? ZeroGradient::kPart : ZeroGradient::kNone;
}

LayoutReport compare_layout(const LayoutPair& pair, const VerifyOptions& options) {
  require_supported(pair.single);
  require_supported(pair.layout);
  check<ValueError>(options.steps >= 1, "verify_layout: ", options.steps,
                    " steps; at least one is needed");
  if (const auto& threads = pair.single.training_config.num_threads) {
    set_num_threads(static_cast<int>(*threads));  // of the one process; a thread rank has one
  }
  const int64_t configured = total_training_iters(pair.single);
  LayoutReport report;
  report.steps = configured > 0 ? std::min(options.steps, configured) : options.steps;
  report.findings = std::make_shared<LayoutFindings>();
  Trace trace;
  {
    RankContext context;
    const RankContextGuard guard(context);
    initialize_model_parallel();
    trace = trace_single_process(pair, options, report.steps);
    destroy_model_parallel();
  }
  const auto ranks =
      static_cast<int>(world_size(pair.layout.parallel_config, pair.data_parallel_size));
  report.checksums.resize(static_cast<size_t>(ranks));
  Coverage coverage;
  run_thread_ranks(ranks,
                   [&](const std::shared_ptr<ProcessGroup>& own_world) {
                     initialize_model_parallel(
                         sizes_of(pair.layout.parallel_config),
                         options.parts.world ? options.parts.world(own_world) : own_world);
                     report.checksums[static_cast<size_t>(own_world->rank())] =
                         train_rank(pair, options, trace, *report.findings, coverage);
                     destroy_model_parallel();
                   },
                   {.timeout_seconds = options.timeout_seconds});
  coverage.report_missing(trace, *report.findings);
  return report;
}

LayoutPair load_layout_pair(const std::string& layout, const ConfigLoader& load) {
  const LayoutText text = parse_layout(layout);
  LayoutPair pair;
  pair.data_parallel_size = text.data_parallel_size;
  pair.layout = load(text.overrides);
  std::vector<std::string> single = text.overrides;
  for (std::string& override : single_process_overrides(pair.layout, pair.data_parallel_size)) {
    single.push_back(std::move(override));
  }
  pair.single = load(single);
  return pair;
}

std::string report_text(const LayoutReport& report, const LayoutPair& pair) {
  std::string out = concat("verify_layout: ", layout_text(pair.layout, pair.data_parallel_size),
                           " on ", world_size(pair.layout.parallel_config, pair.data_parallel_size),
                           " ranks against one process, ", report.steps, " steps\n\n",
                           report.findings->table(), "\n");
  const std::optional<Finding> first = report.findings->first();
  return out +
         (first ? "first difference: " + LayoutFindings::sentence(*first)
                : "no difference above its bound") +
         "\n";
}

}  // namespace tapestry
