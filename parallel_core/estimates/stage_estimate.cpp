#include "parallel_core/estimates/stage_estimate.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/heads/token_scores.h"
#include "autograd/ops/loss.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/estimates/layer_workspace.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/estimates/state_estimate.h"
#include "parallel_core/estimates/step_memory.h"
#include "parallel_core/estimates/trained_share.h"
#include "parallel_core/estimates/update_memory.h"
#include "parallel_core/precision.h"

namespace tapestry {

namespace {

// Measured (docs/memory.md): program and libraries, as far as a run touches them; what MPI adds
// where there are several processes; and buffers of files that are written and read back.
constexpr int64_t kProgram = int64_t{28} << 20;
constexpr int64_t kMessages = int64_t{11} << 20;
constexpr double kSaving = 16 << 20;
// Between blocks: small ones of sizes that are not asked for again, and parts of huge pages of
// which a block has another part. There are more of these the more comes and goes, and where pieces
// of gradients and weights do.
constexpr double kRemnants = 12 << 20;
constexpr double kRemnantsOfPieces = 8 << 20;
constexpr double kShareOfRemnants = 1.0 / 128;

// What a stage keeps for backward passes at its peak.
struct InFlight {
  double bytes = 0;  // of all chunks and micro-batches together
  int64_t passes = 0;
};

// The peak comes in the first rounds, however many there are.
PipelineShape first_rounds(const PipelineStage& stage, int64_t micro_batches) {
  return {.stages = stage.size,
          .chunks = stage.num_chunks(),
          .micro_batches = std::min<int64_t>(micro_batches, 4L * stage.size * stage.num_chunks())};
}

InFlight most_in_flight(const PipelineStage& stage,
                        int64_t micro_batches,
                        const std::vector<double>& bytes_of_chunk) {
  const PipelineShape shape = first_rounds(stage, micro_batches);
  InFlight now;
  InFlight most;
  for (const PipelinePass& pass : pipeline_order(shape, stage.rank)) {
    const int64_t sign = pass.backward ? -1 : 1;
    now.bytes += static_cast<double>(sign) * bytes_of_chunk[static_cast<size_t>(pass.chunk)];
    now.passes += sign;
    most.bytes = std::max(most.bytes, now.bytes);
    most.passes = std::max(most.passes, now.passes);
  }
  return most;
}

// The estimate of one stage of the pipeline, kind by kind.
class StageEstimate {
 public:
  StageEstimate(const AllConfig& config,
                const PipelineStage& stage,
                int64_t data_parallel_size,
                double load)
      : config_(config),
        model_(config.model_config),
        stage_(stage),
        load_(load),
        shares_({.tensor = at_least_one(config.parallel_config.tensor_model_parallel_size),
                 .expert = at_least_one(config.parallel_config.expert_model_parallel_size),
                 .expert_tensor = expert_tensor_parallel_size(config.parallel_config)}),
        cp_(at_least_one(config.parallel_config.context_parallel_size)),
        processes_(data_parallel_size * cp_ * shares_.tensor * stage.size),
        ranks_(data_parallel_size * cp_),
        level_(ranks_ > 1 && !model_.lora.use_lora ? zero_level(config) : 0),
        costs_(layer_costs(config, load)),
        element_(d(size_of(model_.compute_dtype))),
        tokens_(d(config.dataset_config.batch_size) * d(model_.seq_length) / d(cp_)),
        piece_(tokens_ / (model_.sequence_parallel ? d(shares_.tensor) : 1.0)),
        workspace_(config, shares_, {.tokens = tokens_, .own = piece_, .element = element_}, load),
        trained_(trained_share(model_, stage, shares_)) {}

  MemoryEstimate make() {
    estimate_.stage = stage_.rank;
    estimate_.stages = stage_.size;
    count_layers_of_stage();
    add_kept_values();
    add_states();
    add_activations();
    add_logits();
    add_workspace();
    add_peak();
    return std::move(estimate_);
  }

 private:
  static double d(int64_t size) { return static_cast<double>(size); }
  static int64_t at_least_one(int64_t ranks) { return std::max<int64_t>(ranks, 1); }

  void count_layers_of_stage() {
    for (const LayerRange& range : stage_.chunks) {
      for (const AlikeLayers& some : alike_layers(model_, range.first, range.count)) {
        layers_.push_back(some);
      }
    }
  }

  // What a policy leaves of the layers of a chunk, and the most that one of them makes.
  LayerCost cost_of(const LayerRange& range, const RecomputePolicy& policy) const {
    LayerCost out;
    for (const AlikeLayers& some : alike_layers(model_, range.first, range.count)) {
      const LayerCost one = layer_cost(config_, policy, some.layer, load_);
      out.kept += one.kept * d(some.count);
      out.transient = std::max(out.transient, one.transient);
    }
    return out;
  }

  // Of the layers, until their backward passes.
  void add_kept_values() {
    std::vector<double> kept_bytes;
    for (const LayerRange& range : stage_.chunks) {
      const LayerCost usual = cost_of(range, RecomputePolicy());
      transient_ = std::max(transient_, usual.transient);
      double bytes = costs_.empty() ? usual.kept : 0;
      for (int64_t i = range.first; !costs_.empty() && i < range.first + range.count; ++i) {
        const LayerCost& cost = costs_[static_cast<size_t>(i)];
        bytes += cost.kept;
        transient_ = std::max(transient_, cost.transient);
        estimate_.recompute_flops += cost.flops;
      }
      kept_bytes.push_back(bytes);
      estimate_.recompute_saved += bytes_of(std::max(0.0, usual.kept - bytes));
    }
    if (stage_.post_process() && model_.mtp_num_layers > 0) {
      add_layers_ahead(kept_bytes.back());
    }
    kept_ = most_in_flight(stage_, config_.dataset_config.micro_batch_num, kept_bytes);
    estimate_.in_flight = kept_.passes;
  }

  // Layers that predict further tokens are of the last chunk. Each keeps two vectors before and
  // behind its two norms, what joins them, and what its last norm reads and gives; and logits,
  // unless they are made in one op with the loss.
  void add_layers_ahead(double& bytes) {
    if (config_.post_training_config.task) {  // whose losses leave them out
      return;
    }
    const LayerCost usual = layer_cost(config_, RecomputePolicy(), model_.num_layers, load_);
    const LayerCost cost = costs_.empty() ? usual : costs_.back();
    const double depths = d(model_.mtp_num_layers);
    bytes += depths * (cost.kept + kept_ahead());
    transient_ = std::max(transient_, cost.transient);
    estimate_.recompute_flops += depths * cost.flops;
    estimate_.recompute_saved += bytes_of(depths * std::max(0.0, usual.kept - cost.kept));
  }

  double kept_ahead() const {
    double own = 7 * piece_ * d(model_.hidden_size) * element_;
    if (!fuses_head_and_loss(model_)) {
      own +=
          tokens_ * d(shape_on_rank(matrices_before_layers(model_).front(), shares_)[0]) * element_;
    }
    return own;
  }

  void add_states() {
    const int64_t experts = model_.moe.num_experts / shares_.expert;
    const ModelPart part = {.layers = layers_,
                            .pre_process = stage_.pre_process(),
                            .post_process = stage_.post_process()};
    const ParameterCounts counts = count_parameters(model_, part, shares_, experts);
    const double count = counts.all();
    estimate_.parameter_count = static_cast<int64_t>(count);
    estimate_.expert_parameter_count = static_cast<int64_t>(counts.experts);
    if (model_.lora.use_lora) {
      estimate_.parameter_count += static_cast<int64_t>(trained_.adapters);
      estimate_adapter_states(config_, count, quantizable_elements(model_, layers_, shares_),
                              special_elements().looked_up, trained_, estimate_);
    } else {
      estimate_states(config_, count, special_elements(), estimate_);
    }
    if (ranks_ > 1) {
      const int64_t expert_ranks =
          ranks_ * shares_.tensor / (shares_.expert * shares_.expert_tensor);
      share_out(config_, ranks_, at_least_one(expert_ranks), estimate_);
      estimate_.optimizer += bytes_of(muon_moments_of_one());
    }
    if (model_.lora.use_lora) {
      const bool deferred =
          model_.params_dtype != kFloat32 || model_.lora.base_dtype != "params_dtype";
      estimate_.start = estimate_.parameters +
                        bytes_of(4 * (deferred ? start_elements() : largest_parameter(model_)));
    } else {
      estimate_checkpoints(config_, count, ranks_, estimate_);
    }
  }

  // Of Muon, pieces of the tables and the head have two moments, all else has one. z1 and z2 cut
  // what follows one another, so that one rank may have more of these than its share.
  double muon_moments_of_one() const {
    const OptimizerConfig& o = config_.optimizer_config;
    if (o.optimizer_type != "Muon" || level_ < 1 || level_ > 2) {
      return 0;
    }
    const double of_adamw =
        std::max(0.0, d(estimate_.parameter_count) - special_elements().of_layers);
    const double moments = d(size_of(o.exp_avg_dtype) + size_of(o.exp_avg_sq_dtype));
    return std::max(0.0, moments - 4) *
           (std::min(own_parameters(), of_adamw) - of_adamw / d(ranks_));
  }

  SpecialElements special_elements() const {
    SpecialElements special;
    const auto add = [&](const ModelMatrix& matrix, double copies) {
      const Shape shape = shape_on_rank(matrix, shares_);
      if (shape.size() == 2) {
        special.rows_and_columns += copies * d(shape[0] + shape[1]);
      }
    };
    for (const AlikeLayers& some : layers_) {
      for (const ModelMatrix& matrix : layer_matrices(model_, some.layer)) {
        const double copies =
            d(some.count) * (matrix.experts > 0 ? d(matrix.experts / shares_.expert) : 1);
        add(matrix, copies);
        special.of_layers +=
            matrix.shape.size() >= 2 ? copies * weight_elements(matrix, shares_) : 0;
      }
    }
    const bool tied = !model_.untie_embeddings_and_output_weights;
    const std::vector<ModelMatrix> before = matrices_before_layers(model_);
    for (const ModelMatrix& matrix : before) {
      const bool is_table = matrix.role == MatrixRole::kEmbedding;
      const bool is_there = stage_.pre_process() || (is_table && tied && stage_.post_process());
      if (!is_there) {
        continue;
      }
      add(matrix, 1);
      const double elements = weight_elements(matrix, shares_);
      special.tables += elements;
      special.looked_up += is_table && tied && stage_.post_process() ? 0 : elements;
    }
    if (stage_.post_process() && !tied) {
      add(before.front(), 1);
    }
    return special;
  }

  // Start values come in pieces (for_start_values), but those of fused projections of attention as
  // a whole, and one of these beside them.
  double start_elements() const {
    double fused = 0;
    for (const ModelMatrix& matrix : layer_matrices(model_, 0)) {
      const bool is_fused = matrix.role == MatrixRole::kQuery || matrix.role == MatrixRole::kKey ||
                            matrix.role == MatrixRole::kValue;
      fused += is_fused ? weight_elements(matrix, shares_) : 0;
    }
    return std::min(largest_parameter(model_), std::max(2 * fused, d(2 * kStartPiece)));
  }

  double change_by_adapters() const {
    const double unread = d(trained_.unread_attention_inputs + trained_.unread_mlp_inputs);
    return element_ * (tokens_ * trained_.ranks - piece_ * d(model_.hidden_size) * unread);
  }

  void add_activations() {
    const double hidden = d(model_.hidden_size);
    estimate_.activations =
        bytes_of(kept_.bytes + transient_ +
                 d(kept_.passes) * piece_ * element_ *
                     (2 * hidden + 3 * d(model_.num_layers) * d(model_.per_layer_embedding_size)));
    if (!costs_.empty()) {
      return;
    }
    if (model_.lora.use_lora) {
      // What frozen matrices read is not kept; what adapters make of it is.
      estimate_.activations = bytes_of(
          std::max(0.0, d(estimate_.activations) + d(kept_.passes) * change_by_adapters()));
    }
    RecomputePolicy all;
    all.full = true;
    std::vector<double> full_bytes;
    double full_transient = 0;
    for (const LayerRange& range : stage_.chunks) {
      const LayerCost full = cost_of(range, all);
      full_bytes.push_back(full.kept);
      full_transient = std::max(full_transient, full.transient);
    }
    const InFlight least =
        most_in_flight(stage_, config_.dataset_config.micro_batch_num, full_bytes);
    estimate_.recompute_could_save =
        bytes_of(std::max(0.0, kept_.bytes + transient_ - least.bytes - full_transient));
  }

  // The gradient is written over the logits. In one op with the loss, and for the losses of
  // post-training, a chunk of rows exists.
  void add_logits() {
    if (!stage_.post_process()) {
      return;
    }
    if (model_.score_head) {
      estimate_.logits = bytes_of(tokens_ * 4);
      return;
    }
    double rows = tokens_;
    if (config_.post_training_config.task) {
      rows = std::min(rows, d(LinearTokenScoresOptions().chunk_rows));
    } else if (fuses_head_and_loss(model_)) {
      rows = std::min(rows, d(chunk_rows_for(model_.compute_dtype)));
    }
    const ModelMatrix table = matrices_before_layers(model_).front();
    estimate_.logits = bytes_of(rows * d(shape_on_rank(table, shares_)[0]) *
                                (model_.use_fused_kernels ? element_ : element_ + 4));
  }

  void add_workspace() {
    double most = 0;
    for (const AlikeLayers& some : layers_) {
      most = std::max(most, workspace_.usual(some.layer));
    }
    estimate_.workspace = bytes_of(most);
  }

  // What a matrix's gradient needs beside the sum into which it goes.
  double gradient_beside(double elements) const {
    const OptimizerConfig& o = config_.optimizer_config;
    if (o.optimizer_in_backward) {
      return elements * (4 + d(size_of(model_.params_dtype)));
    }
    return o.main_grads_dtype == kFloat32 ? 0 : 4 * elements;
  }

  // Segments of a message that are on their way between so many ranks (comm/schedule.h).
  static double in_messages(int64_t ranks) {
    constexpr double kOfRank = 2 << 20;
    return ranks > 1 ? kOfRank * d(std::min<int64_t>(ranks, 4)) : 0;
  }

  // What tensor-parallel ranks send of a layer's or head's input and of its gradient.
  double sent_of_hidden() const {
    const double whole = piece_ < tokens_ ? 2 * tokens_ * d(model_.hidden_size) * element_ : 0;
    return whole + in_messages(shares_.tensor);
  }

  // Whole gradients of buckets while they are summed over ranks that share them out, around a
  // matrix of so many elements.
  double in_buckets(double largest) const {
    if (level_ < 2) {
      return 0;
    }
    const double bucket = level_ == 3 ? 0 : d(bucket_size(config_, ranks_));
    const double several = config_.training_config.overlap_grad_reduce ? 3 : 1;
    const double again = config_.dataset_config.micro_batch_num > 1 ? largest / d(ranks_) : 0;
    return gradient_size() *
           std::min(several * (bucket + largest) + again, d(estimate_.parameter_count));
  }

  // And what is on its way then.
  double in_reductions() const {
    return level_ >= 2 ? in_messages(ranks_) * (config_.training_config.overlap_grad_reduce ? 3 : 1)
                       : 0;
  }

  // Without z2 and z3 all buckets are summed at once, and each has its messages.
  double in_all_reductions() const {
    if (ranks_ == 1 || level_ >= 2 || model_.lora.use_lora) {
      return 0;
    }
    const double least = d(bucket_size(config_, ranks_));
    double bucket = 0;
    double bytes = 0;
    const auto close = [&] {
      bytes += std::min(in_messages(ranks_), 4 * std::exchange(bucket, 0.0));
    };
    const auto add = [&](double elements) {
      bucket += elements;
      if (bucket >= least) {
        close();
      }
    };
    for (const AlikeLayers& some : layers_) {
      const std::map<std::string, double> modules = module_elements(some.layer);
      for (int64_t layer = 0; layer < some.count; ++layer) {
        for (const auto& [name, elements] : modules) {
          add(elements);
        }
      }
    }
    if (stage_.pre_process()) {
      add(table_elements());
    }
    if (stage_.post_process()) {
      add(table_elements());
    }
    close();
    return bytes;
  }

  // With z3: what is gathered of weights, the last two that were used.
  double gathered(double first, double second) const {
    if (level_ < 3) {
      return 0;
    }
    return (first + second) * d(size_of(model_.compute_dtype));
  }

  // Of the parameters of a layer that are matrices, by module.
  std::map<std::string, double> module_elements(int64_t layer) const {
    std::map<std::string, double> sizes;
    for (const ModelMatrix& matrix : layer_matrices(model_, layer)) {
      const double copies = matrix.experts > 0 ? d(matrix.experts / shares_.expert) : 1.0;
      // The two parameters of the experts are in one module.
      const bool down = matrix.experts > 0 && matrix.role == MatrixRole::kDown;
      sizes[matrix.module + (down ? ".down" : "")] += copies * weight_elements(matrix, shares_);
    }
    return sizes;
  }

  double largest_in_layer(int64_t layer) const {
    double most = 0;
    for (const auto& [name, elements] : module_elements(layer)) {
      most = std::max(most, elements);
    }
    return most;
  }

  double largest_in_layers() const {
    double most = 0;
    for (const AlikeLayers& some : layers_) {
      most = std::max(most, largest_in_layer(some.layer));
    }
    return most;
  }

  double gradient_size() const {
    return config_.training_config.exact ? 8
                                         : d(size_of(config_.optimizer_config.main_grads_dtype));
  }

  double gathered_in(int64_t layer) const {
    const double largest = largest_in_layer(layer);
    return gathered(largest, largest);
  }

  LayerMemory layer_memory(int64_t layer) const {
    const LayerCost cost = layer_cost(config_, RecomputePolicy(), layer, load_);
    const int64_t experts = model_.moe.num_experts / shares_.expert;
    const ModelPart part = {.layers = {{layer, 1}}, .pre_process = false, .post_process = false};
    const double largest = largest_in_layer(layer);
    const bool trains = !model_.lora.use_lora;
    return {
        .kept = cost.kept,
        .transient = cost.transient + gathered_in(layer),
        .workspace =
            workspace_.backward(layer) + in_messages(shares_.tensor) +
            (trains ? gradient_beside(largest) + in_buckets(largest) + in_reductions() : 0),
        .gradients =
            trains ? gradient_size() * count_parameters(model_, part, shares_, experts).all() : 0};
  }

  ChunkMemory chunk_memory(const LayerRange& range) const {
    ChunkMemory chunk;
    const bool alike = alike_layers(model_, range.first, range.count).size() == 1;
    for (int64_t layer = range.first; layer < range.first + range.count; ++layer) {
      if (alike && !chunk.layers.empty()) {
        chunk.layers.push_back(chunk.layers.front());
      } else {
        chunk.layers.push_back(layer_memory(layer));
      }
      if (!costs_.empty()) {
        const LayerCost& cost = costs_[static_cast<size_t>(layer)];
        chunk.layers.back().kept = cost.kept;
        chunk.layers.back().transient = cost.transient + gathered_in(layer);
      }
    }
    chunk.kept =
        piece_ * element_ *
        (2 * d(model_.hidden_size) + 3 * d(model_.num_layers) * d(model_.per_layer_embedding_size));
    if (costs_.empty() && model_.lora.use_lora) {
      chunk.kept += change_by_adapters() / d(stage_.num_chunks());
    }
    return chunk;
  }

  double table_elements() const {
    return weight_elements(matrices_before_layers(model_).front(), shares_);
  }

  // The output layer, which is fused with the loss in training on one tensor-parallel rank.
  HeadMemory head_memory() const {
    HeadMemory head;
    const double hidden = d(model_.hidden_size);
    const double elements = table_elements();
    const bool scores = config_.post_training_config.task.has_value();
    const bool fused = fuses_head_and_loss(model_) || scores;
    const double logits = d(estimate_.logits);
    const bool trains = !model_.lora.use_lora && !model_.score_head;
    const double page = gathered(elements, 0);
    const double chunk = std::min(tokens_, d(chunk_rows_for(model_.compute_dtype)));
    const double beside = trains ? gradient_beside(elements) + in_buckets(elements) : 0;
    head.gradient = trains ? gradient_size() * elements : 0;
    if (fused && model_.compute_dtype != kFloat16 && !scores) {
      head.in_forward = trains;
      const bool exact = config_.training_config.exact;
      head.gradient = trains ? (exact ? 8 : 4) * elements : 0;
      head.is_given = exact || gradient_size() == 4;
      head.less = trains ? head.gradient - gradient_size() * elements : 0;
      head.forward = logits + workspace_.packed(d(model_.vocab_size), chunk) + page;
      head.kept = 4 * tokens_ * hidden;
      head.backward = tokens_ * hidden * (4 + (element_ < 4 ? element_ : 0)) + page +
                      (trains ? in_buckets(elements) + in_reductions() : 0);
    } else if (fused) {
      head.forward = logits + page;
      head.backward = logits + tokens_ * hidden * element_ + beside +
                      workspace_.packed(d(model_.vocab_size), chunk) + page;
    } else {
      // With sequence parallelism what it reads is gathered, and the gradient of that is summed.
      head.kept = logits;
      head.forward = sent_of_hidden();
      head.backward = 2 * tokens_ * hidden * element_ + sent_of_hidden() + beside +
                      workspace_.packed(d(model_.vocab_size), tokens_) + page;
    }
    head.reduction = trains ? in_buckets(elements) + in_reductions() : 0;
    return head;
  }

  // Layers that predict further tokens, as parts of the last chunk.
  LayerMemory layer_ahead() const {
    LayerMemory ahead = layer_memory(model_.num_layers);
    ahead.kept += kept_ahead();
    if (!costs_.empty()) {
      ahead.kept = costs_.back().kept + kept_ahead();
      ahead.transient = costs_.back().transient + gathered_in(model_.num_layers);
    }
    return ahead;
  }

  StepMemory step_memory() const {
    StepMemory step;
    step.pipeline = first_rounds(stage_, config_.dataset_config.micro_batch_num);
    step.stage = stage_.rank;
    for (const LayerRange& range : stage_.chunks) {
      step.chunks.push_back(chunk_memory(range));
    }
    if (stage_.post_process() && !config_.post_training_config.task) {
      for (int64_t depth = 0; depth < model_.mtp_num_layers; ++depth) {
        step.chunks.back().layers.push_back(layer_ahead());
      }
    }
    if (ranks_ > 1 || model_.lora.use_lora) {
      step.places = GradientPlaces::kStay;
    } else if (config_.optimizer_config.optimizer_in_backward) {
      step.places = GradientPlaces::kOneByOne;
    }
    step.gradients = level_ >= 2 ? gradient_size() * own_parameters() : d(estimate_.gradients);
    step.has_head = stage_.post_process();
    if (step.has_head) {
      step.head = head_memory();
      step.head_is_first = !model_.untie_embeddings_and_output_weights && stage_.pre_process();
      step.evaluation = evaluation();
    }
    double known = step.has_head ? step.head.gradient - step.head.less : 0;
    for (const ChunkMemory& chunk : step.chunks) {
      for (const LayerMemory& layer : chunk.layers) {
        known += layer.gradients;
      }
    }
    ChunkMemory& first = step.chunks.front();
    first.first_gradients = std::max(0.0, step.gradients - known);
    if (stage_.pre_process() && !model_.lora.use_lora) {
      // Where the sum is not in float32, a table of gradients; and of a tied one what the head has
      // made with the loss, or what waits to be updated.
      const OptimizerConfig& o = config_.optimizer_config;
      const bool beside = o.main_grads_dtype != kFloat32 || o.optimizer_in_backward;
      const bool waits = step.head_is_first && (step.head.in_forward || o.optimizer_in_backward);
      const double size = waits ? std::max(4.0, 2 * d(size_of(model_.params_dtype))) : 4.0;
      first.first_workspace = (beside ? size * table_elements() : 0) + in_buckets(table_elements());
    }
    step.reduction = in_all_reductions();
    step.update = update_workspace();
    // And of a parameter that is stored in parts its values.
    step.saving = kSaving + (config_.optimizer_config.store_param_remainders
                                 ? 4 * std::max(table_elements(), largest_in_layers())
                                 : 0);
    return step;
  }

  // The matrices of the stage's layers, those of experts or all others.
  std::vector<UpdatedMatrices> updated_matrices(bool of_experts) const {
    std::vector<UpdatedMatrices> matrices;
    const auto add = [&](const ModelMatrix& matrix, double layers, double together) {
      if (matrix.shape.size() == 2 && (matrix.experts > 0) == of_experts) {
        const double copies = matrix.experts > 0 ? d(matrix.experts / shares_.expert) : 1;
        matrices.push_back({.rows = d(matrix.shape[0]),
                            .columns = d(matrix.shape[1]),
                            .count = layers * copies,
                            .rows_together = together});
      }
    };
    for (const AlikeLayers& some : layers_) {
      for (const ModelMatrix& matrix : layer_matrices(model_, some.layer)) {
        const bool in_groups = matrix.role == MatrixRole::kQuery ||
                               matrix.role == MatrixRole::kKey || matrix.role == MatrixRole::kValue;
        add(matrix, d(some.count), in_groups ? d(matrix.unit) : d(matrix.shape[0]));
      }
    }
    return matrices;
  }

  MatrixHolders holders(bool of_experts) const {
    const int64_t slices = of_experts ? shares_.expert_tensor : shares_.tensor;
    const int64_t all = ranks_ * shares_.tensor / (of_experts ? shares_.expert : 1);
    return {.slices = slices, .copies = at_least_one(all / slices), .in_pieces = level_ >= 1};
  }

  double update_workspace() const {
    const std::string& type = config_.optimizer_config.optimizer_type;
    const bool factored = type == "Adafactor" || type == "Came";
    if (model_.lora.use_lora || (type != "Muon" && !factored)) {
      return 0;
    }
    const std::vector<UpdatedMatrices> experts = updated_matrices(true);
    std::vector<UpdatedMatrices> others = updated_matrices(false);
    if (!factored) {
      const MuonNeeds needs = {.half_products = kernels::has_native_gemm(kBFloat16),
                               .packed = workspace_.packed(1024, 2048),
                               .messages = in_messages(ranks_ * shares_.tensor)};
      return std::max(muon_workspace(experts, holders(true), needs),
                      muon_workspace(others, holders(false), needs));
    }
    for (const ModelMatrix& matrix : matrices_before_layers(model_)) {
      if (matrix.shape.size() == 2) {
        others.push_back({.rows = d(matrix.shape[0]),
                          .columns = d(matrix.shape[1]),
                          .count = stage_.pre_process() && stage_.post_process() ? 2.0 : 1.0,
                          .rows_together = d(matrix.shape[0])});
      }
    }
    // Where few rows lie together there are more tiles: up to 1.4 bytes of a parameter, as
    // measured.
    constexpr double kOfTiles = 1.4;
    return std::max(kOfTiles * own_parameters(), factored_workspace(experts, holders(true)) +
                                                     factored_workspace(others, holders(false)));
  }

  // Evaluations make all logits of a micro-batch at once.
  double evaluation() const {
    if (config_.post_training_config.task || model_.score_head) {
      return 0;
    }
    const ModelMatrix table = matrices_before_layers(model_).front();
    const double element = model_.use_fused_kernels ? element_ : element_ + 4;
    return tokens_ * (d(shape_on_rank(table, shares_)[0]) * element +
                      2 * d(model_.hidden_size) * element_) +
           sent_of_hidden() + gathered(table_elements(), 0);
  }

  // Of parameters, those that this rank updates.
  double own_parameters() const {
    const double all = d(estimate_.parameter_count);
    const double experts = d(estimate_.expert_parameter_count);
    const double expert_ranks =
        std::max(1.0, d(ranks_ * shares_.tensor) / d(shares_.expert * shares_.expert_tensor));
    return (all - experts) / d(ranks_) + experts / expert_ranks;
  }

  // What stays from step to step, without what z3 gathers in between.
  double lasting() const {
    if (level_ < 3) {
      return d(estimate_.parameters) + d(estimate_.weight_copies) + d(estimate_.optimizer);
    }
    const double size =
        config_.optimizer_config.store_param_remainders ? 2 : d(size_of(model_.params_dtype));
    const double whole = keeps_gathered_weights(config_)
                             ? d(estimate_.parameter_count) * d(size_of(model_.compute_dtype))
                             : 0;
    return own_parameters() * size + whole + d(estimate_.optimizer);
  }

  // With z3 what comes and goes of the largest parameter may be there once more.
  double of_largest_with_z3() const {
    if (level_ < 3) {
      return 0;
    }
    const double largest = std::max(table_elements(), largest_in_layers());
    return gradient_size() * largest + gathered(largest, 0);
  }

  void add_peak() {
    const StepMemory step = step_memory();
    const StepPeak peak = most_at_once(step);
    if (step.has_head) {
      estimate_.head = bytes_of((step.head.in_forward ? step.head.gradient : 0) +
                                (step.head.in_forward ? step.head.kept : 0));
    }
    const double kinds = d(estimate_.parameters) + d(estimate_.weight_copies) +
                         d(estimate_.optimizer) + d(estimate_.gradients) +
                         d(estimate_.activations) + d(estimate_.logits) + d(estimate_.head) +
                         d(estimate_.workspace);
    estimate_.not_at_once =
        static_cast<int64_t>(std::clamp(kinds - lasting() - peak.bytes, -4e18, 4e18));
    estimate_.process = kProgram + (processes_ > 1 ? kMessages : 0);
    estimate_.unused = bytes_of(kRemnants + (level_ >= 2 ? kRemnantsOfPieces : 0) +
                                of_largest_with_z3() + kShareOfRemnants * peak.bytes);
    estimate_.start += estimate_.process;
  }

  const AllConfig& config_;
  const TransformerConfig& model_;
  const PipelineStage& stage_;
  double load_;
  ModelShares shares_;
  int64_t cp_;
  int64_t processes_;             // of the run
  int64_t ranks_;                 // that share out what they have in common
  int level_;                     // zero_level; 0 where nothing is shared out
  std::vector<LayerCost> costs_;  // of each layer of the model, with recomputation
  double element_;
  double tokens_;
  double piece_;  // of these, whose hidden states the rank has
  LayerWorkspace workspace_;
  TrainedShare trained_;
  std::vector<AlikeLayers> layers_;
  InFlight kept_;
  double transient_ = 0;
  MemoryEstimate estimate_;
};

}  // namespace

MemoryEstimate estimate_stage(const AllConfig& config,
                              const PipelineStage& stage,
                              int64_t data_parallel_size,
                              double load) {
  return StageEstimate(config, stage, data_parallel_size, load).make();
}

}  // namespace tapestry
