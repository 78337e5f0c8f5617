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
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/estimates/state_estimate.h"
#include "parallel_core/estimates/step_memory.h"
#include "parallel_core/estimates/trained_share.h"
#include "parallel_core/precision.h"

namespace tapestry {

namespace {

// Measured (docs/memory.md): program and libraries, as far as a run touches them; what MPI adds
// where there are several processes; and buffers of files that are written and read back.
constexpr int64_t kProgram = int64_t{28} << 20;
constexpr int64_t kMessages = int64_t{11} << 20;
constexpr double kSaving = 24 << 20;
// Between blocks: small ones of sizes that are not asked for again, ends of huge pages.
constexpr double kRemnants = 16 << 20;

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
        costs_(layer_costs(config, load)),
        element_(d(size_of(model_.compute_dtype))),
        tokens_(d(config.dataset_config.batch_size) * d(model_.seq_length) / d(cp_)),
        piece_(tokens_ / (model_.sequence_parallel ? d(shares_.tensor) : 1.0)),
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
                              trained_, estimate_);
    } else {
      estimate_states(config_, count, special_elements(), estimate_);
    }
    if (ranks_ > 1) {
      const int64_t expert_ranks =
          ranks_ * shares_.tensor / (shares_.expert * shares_.expert_tensor);
      share_out(config_, ranks_, at_least_one(expert_ranks), estimate_);
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
      most = std::max(most, workspace_of(some.layer));
    }
    estimate_.workspace = bytes_of(most);
  }

  // Temporaries of a layer's backward pass.
  double workspace_of(int64_t layer) const {
    const double hidden = d(model_.hidden_size);
    const LayerWidths widths = layer_widths(model_, layer, shares_);
    const double values_in_mlp = d(widths.gates + 1);
    const double keys_and_values = d(widths.keys + widths.values);
    const MixerWidths mixer = mixer_widths(model_, mixer_kind(model_, layer), shares_);
    double widest = std::max({2 * hidden + d(widths.ffn) * values_in_mlp,
                              2 * hidden + 2 * (d(widths.queries) + keys_and_values),
                              2 * hidden + 2 * d(mixer.projected + mixer.values)});
    if (is_moe_layer(model_, layer)) {
      // Rows of experts and their gradients, also on their way.
      const double rows =
          d(model_.moe.moe_router_topk) * load_ * d(shares_.expert_tensor) / d(shares_.tensor);
      widest = std::max(widest, rows * (2 * hidden + d(widths.expert_ffn) * values_in_mlp));
    }
    double bytes = tokens_ * element_ * widest;
    if (model_.hyper_connections.enabled) {
      // The gradients of all streams before and behind a block.
      bytes += 2 * piece_ * d(residual_streams(model_)) * hidden *
               d(size_of(precision_of(model_).residual));
    }
    if (cp_ > 1) {
      // Keys and values of whole sequences, a quarter of the groups at a time: gathered, in order
      // and the next ones on their way, and their gradients in float32 in two orders.
      const double segment = keys_and_values / std::min(4.0, std::max(1.0, d(widths.groups)));
      bytes += d(cp_) * tokens_ * segment * (3 * element_ + 2 * 4);
    }
    return bytes;
  }

  // What a matrix's gradient needs beside the sum into which it goes.
  double gradient_beside(double elements) const {
    const OptimizerConfig& o = config_.optimizer_config;
    if (o.optimizer_in_backward) {
      return elements * (4 + d(size_of(model_.params_dtype)));
    }
    return o.main_grads_dtype == kFloat32 ? 0 : 4 * elements;
  }

  // Of a product of gradients' [tokens, rows] transposed: what its kernel packs (gemm_tiled.cpp).
  double packed(double rows, double tokens) const {
    constexpr double kRows = 1024;
    constexpr double kDepth = 2048;
    constexpr double kPanels = 768 << 10;
    const bool half = element_ < 4;
    const bool pairs =
        model_.compute_dtype == kBFloat16 && kernels::has_native_gemm(model_.compute_dtype);
    const int64_t threads = config_.training_config.num_threads.value_or(num_threads());
    double bytes = kPanels * d(threads);
    if (half && !pairs) {  // which is converted while it is packed, also what is not transposed
      const double most = std::max(rows, tokens);
      bytes += 4 * std::min(most, kRows) * std::min(most, kDepth);
    } else {
      bytes += 4 * std::min(rows, kRows) * std::min(tokens / (pairs ? 2 : 1), kDepth);
    }
    if (half && rows > kDepth * (pairs ? 2 : 1)) {  // sums of a product that has 16 bits
      bytes += 4 * std::min(tokens, 2 * kRows) * d(model_.hidden_size);
    }
    return bytes;
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
    const int level = zero_level(config_);
    if (ranks_ == 1 || level < 2 || model_.lora.use_lora) {
      return 0;
    }
    const double bucket = level == 3 ? 0 : d(bucket_size(config_, ranks_));
    const double several = config_.training_config.overlap_grad_reduce ? 3 : 1;
    const double again = config_.dataset_config.micro_batch_num > 1 ? largest / d(ranks_) : 0;
    return gradient_size() *
           std::min(several * (bucket + largest) + again, d(estimate_.parameter_count));
  }

  // And what is on its way then.
  double in_reductions() const {
    const bool reduces = ranks_ > 1 && zero_level(config_) >= 2 && !model_.lora.use_lora;
    return reduces ? in_messages(ranks_) * (config_.training_config.overlap_grad_reduce ? 3 : 1)
                   : 0;
  }

  // With z3: what is gathered of weights, the last two that were used.
  double gathered(double first, double second) const {
    if (ranks_ == 1 || zero_level(config_) < 3 || model_.lora.use_lora) {
      return 0;
    }
    return (first + second) * d(size_of(model_.compute_dtype));
  }

  double largest_in_layer(int64_t layer) const {
    std::map<std::string, double> sizes;
    double most = 0;
    for (const ModelMatrix& matrix : layer_matrices(model_, layer)) {
      const double copies = matrix.experts > 0 ? d(matrix.experts / shares_.expert) : 1.0;
      // The two parameters of the experts are in one module.
      const bool down = matrix.experts > 0 && matrix.role == MatrixRole::kDown;
      double& size = sizes[matrix.module + (down ? ".down" : "")];
      size += copies * weight_elements(matrix, shares_);
      most = std::max(most, size);
    }
    return most;
  }

  double gradient_size() const {
    return config_.training_config.exact ? 8
                                         : d(size_of(config_.optimizer_config.main_grads_dtype));
  }

  double gathered_in(int64_t layer) const {
    const double largest = zero_level(config_) == 3 ? largest_in_layer(layer) : 0;
    return gathered(largest, largest);
  }

  LayerMemory layer_memory(int64_t layer) const {
    const LayerCost cost = layer_cost(config_, RecomputePolicy(), layer, load_);
    const int64_t experts = model_.moe.num_experts / shares_.expert;
    const ModelPart part = {.layers = {{layer, 1}}, .pre_process = false, .post_process = false};
    const LayerWidths widths = layer_widths(model_, layer, shares_);
    const double largest = largest_in_layer(layer);
    const bool trains = !model_.lora.use_lora;
    return {
        .kept = cost.kept,
        .transient = cost.transient + gathered_in(layer),
        .workspace =
            workspace_of(layer) + in_messages(shares_.tensor) +
            packed(std::max(d(widths.ffn * widths.gates),
                            d(widths.queries + widths.keys + widths.values)),
                   tokens_) +
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
      head.forward = logits + packed(d(model_.vocab_size), chunk) + page;
      head.kept = 4 * tokens_ * hidden;
      head.backward = tokens_ * hidden * (4 + (element_ < 4 ? element_ : 0)) +
                      (trains ? in_buckets(elements) : 0);
    } else if (fused) {
      head.forward = logits + page;
      head.backward = logits + tokens_ * hidden * element_ + beside +
                      packed(d(model_.vocab_size), chunk) + page;
    } else {
      // With sequence parallelism what it reads is gathered, and the gradient of that is summed.
      head.kept = logits;
      head.forward = sent_of_hidden();
      head.backward = 2 * tokens_ * hidden * element_ + sent_of_hidden() + beside +
                      packed(d(model_.vocab_size), tokens_) + page;
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
    const bool in_shards = ranks_ > 1 && zero_level(config_) >= 2 && !model_.lora.use_lora;
    step.gradients = in_shards ? gradient_size() * own_parameters() : d(estimate_.gradients);
    step.has_head = stage_.post_process();
    if (step.has_head) {
      step.head = head_memory();
      step.head_is_first = !model_.untie_embeddings_and_output_weights && stage_.pre_process();
      step.evaluation = evaluation();
    }
    double known = step.has_head ? step.head.gradient : 0;
    for (const ChunkMemory& chunk : step.chunks) {
      for (const LayerMemory& layer : chunk.layers) {
        known += layer.gradients;
      }
    }
    ChunkMemory& first = step.chunks.front();
    first.first_gradients = std::max(0.0, step.gradients - known);
    if (stage_.pre_process() && !model_.lora.use_lora) {
      // Where the sum is not in float32, a table of gradients and the one in which it is added up.
      const OptimizerConfig& o = config_.optimizer_config;
      const bool beside = o.main_grads_dtype != kFloat32 || o.optimizer_in_backward;
      first.first_workspace =
          (beside ? 2 * d(size_of(model_.params_dtype)) * table_elements() : 0) +
          in_buckets(table_elements());
    }
    step.update = update_workspace();
    // And of a parameter that is stored in parts its values.
    step.saving =
        kSaving + (config_.optimizer_config.store_param_remainders ? 2 * 4 * table_elements() : 0);
    return step;
  }

  // Muon's products of one matrix: its direction, the next one, and a power of it.
  double update_workspace() const {
    constexpr double kMatrices = 3;
    const std::string& type = config_.optimizer_config.optimizer_type;
    if (type == "Adafactor" || type == "Came") {
      // Sums of the tiles of all matrices: 0.3 to 1.3 bytes of a parameter, as measured.
      constexpr double kOfTiles = 1.4;
      return kOfTiles * (model_.lora.use_lora ? trained_.trained() : own_parameters());
    }
    if (type != "Muon" || model_.lora.use_lora) {
      return 0;
    }
    double most = 0;
    for (const AlikeLayers& some : layers_) {
      for (const ModelMatrix& matrix : layer_matrices(model_, some.layer)) {
        most = std::max(most, weight_elements(matrix));
      }
    }
    return kMatrices * 4 * most;
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
    if (ranks_ == 1 || zero_level(config_) < 3 || model_.lora.use_lora) {
      return d(estimate_.parameters) + d(estimate_.weight_copies) + d(estimate_.optimizer);
    }
    const double size =
        config_.optimizer_config.store_param_remainders ? 2 : d(size_of(model_.params_dtype));
    const double whole = keeps_gathered_weights(config_)
                             ? d(estimate_.parameter_count) * d(size_of(model_.compute_dtype))
                             : 0;
    return own_parameters() * size + whole + d(estimate_.optimizer);
  }

  // Free memory may lie in pieces that are smaller than the block that is wanted: of a layer's
  // largest gradient where it takes room that activations have left, of what is gathered and
  // reduced of the largest parameter where that comes and goes. With one micro-batch none of the
  // room that activations leave may fit: then gradients lie beside it, as if it were not free.
  double unused(GradientPlaces places, double not_at_once) const {
    double largest = 0;
    for (const AlikeLayers& some : layers_) {
      largest = std::max(largest, largest_in_layer(some.layer));
    }
    const int level = ranks_ > 1 && !model_.lora.use_lora ? zero_level(config_) : 0;
    if (level >= 2) {
      largest = std::max(largest, table_elements());
      return kRemnants + (level == 2 ? in_buckets(largest) : gradient_size() * largest) +
             gathered(largest, 0);
    }
    if (places != GradientPlaces::kOnDemand) {
      return kRemnants;
    }
    const bool one = config_.dataset_config.micro_batch_num == 1;
    // Of the table a gradient in float32 stands beside a sum of 16 bits.
    const bool has_table = stage_.pre_process() || stage_.post_process();
    // Logits that are whole come again with each micro-batch.
    const bool whole_logits = stage_.post_process() && !fuses_head_and_loss(model_);
    const double block =
        std::max({gradient_size() * largest, has_table ? gradient_beside(table_elements()) : 0,
                  whole_logits ? d(estimate_.logits) : 0});
    return kRemnants + block + (one ? std::max(0.0, not_at_once) : 0);
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
    estimate_.unused = bytes_of(unused(step.places, d(estimate_.not_at_once)));
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
  std::vector<LayerCost> costs_;  // of each layer of the model, with recomputation
  double element_;
  double tokens_;
  double piece_;  // of these, whose hidden states the rank has
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
