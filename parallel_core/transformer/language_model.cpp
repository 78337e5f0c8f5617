#include "parallel_core/transformer/language_model.h"

#include <algorithm>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/init_method.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

class PositionEmbedding final : public nn::Module {
 public:
  PositionEmbedding(const TransformerConfig& config, const TensorParallelLayout& layout)
      : table_(register_parameter("embedding_table",
                                  initial_value(shape(config), {init(config)}),
                                  {.tp = layout.hidden_gradient()})) {
    table_.set_logical({init(config).logical});
  }
  std::string type_name() const override { return "PositionEmbedding"; }
  std::string extra_repr() const override { return concat("positions=", table_.size(0)); }
  nn::Parameter& table() const { return table_; }

 private:
  static Shape shape(const TransformerConfig& config) {
    return {config.max_position_embeddings.value(), config.hidden_size};
  }
  static LogicalInit init(const TransformerConfig& config) {
    return whole("pos_embeddings.weight", shape(config), weight_init(config));
  }
  nn::Parameter& table_;
};

class OutputLayer final : public nn::Module {
 public:
  OutputLayer(const TransformerConfig& config, const TensorParallelLayout& layout)
      : weight_(register_parameter(
            "weight",
            initial_value(init(config, layout).logical.view_shape, {init(config, layout)}),
            {.matmul = true, .head = true, .tp = nn::TensorParallel::kSharded, .tp_axis = 0})) {
    weight_.set_logical({init(config, layout).logical});
  }
  std::string type_name() const override { return "ColumnParallelLinear"; }
  std::string extra_repr() const override {
    return concat("in=", weight_.size(1), ", out=", weight_.size(0));
  }
  nn::Parameter& weight() const { return weight_; }

 private:
  static LogicalInit init(const TransformerConfig& config, const TensorParallelLayout& layout) {
    return vocabulary_rows("lm_head.weight", config.vocab_size, config.hidden_size,
                           weight_init(config), layout);
  }
  nn::Parameter& weight_;
};

// Of all of a rank's tokens; every tensor-parallel rank has all of it. No operand of products in
// reduced precision: its one row costs nothing, and its values are compared with one another.
class ScoreHead final : public nn::Module {
 public:
  ScoreHead(const TransformerConfig& config, const TensorParallelLayout& layout)
      : weight_(register_parameter("weight",
                                   initial_value(shape(config), {init(config)}),
                                   {.tp = layout.hidden_gradient()})) {
    weight_.set_logical({init(config).logical});
  }
  std::string type_name() const override { return "ScoreHead"; }
  std::string extra_repr() const override { return concat("in=", weight_.size(1), ", out=1"); }
  nn::Parameter& weight() const { return weight_; }

 private:
  static Shape shape(const TransformerConfig& config) { return {1, config.hidden_size}; }
  static LogicalInit init(const TransformerConfig& config) {
    return whole("score.weight", shape(config), weight_init(config));
  }
  nn::Parameter& weight_;
};

}  // namespace

Embedding::Embedding(const TransformerConfig& config, bool sequence_first, EmbeddingCopy copy)
    : sequence_first_(sequence_first),
      dropout_(config.hidden_dropout),
      multiplier_(config.embedding_multiplier),
      dtype_(precision_of(config).residual),
      layout_(tensor_parallel_layout(config, sequence_first)),
      context_layout_(context_parallel_layout()) {
  word_embeddings_ = &register_module<VocabParallelEmbedding>(
      "word_embeddings", "tok_embeddings.weight", config.vocab_size, config.hidden_size,
      weight_init(config), layout_);
  nn::Parameter& weight = word_embeddings_->weight();
  nn::ParameterFlags flags = weight.flags();
  flags.shared = copy == EmbeddingCopy::kCopy;
  flags.has_copy = copy == EmbeddingCopy::kOriginal;
  weight.set_flags(flags);
  if (config.embedding_norm && copy != EmbeddingCopy::kCopy) {
    norm_ = static_cast<ParallelNorm*>(&add_child(
        "norm", get_norm(config, config.hidden_size, "embedding_norm", layout_.hidden_gradient())));
  }
  if (config.per_layer_embedding_size > 0 && copy != EmbeddingCopy::kCopy) {
    per_layer_ = &register_module<PerLayerEmbedding>("per_layer", config, sequence_first);
  }
  if (config.position_embedding_type != "learned_absolute" || copy == EmbeddingCopy::kCopy) {
    return;
  }
  num_positions_ = config.max_position_embeddings.value();
  if (config.parallel_position_embedding && layout_.size > 1) {
    parallel_positions_ = &register_module<VocabParallelEmbedding>(
        "position_embeddings", "pos_embeddings.weight", num_positions_, config.hidden_size,
        weight_init(config), layout_);
  } else {
    positions_ =
        &register_module<PositionEmbedding>("position_embeddings", config, layout_).table();
  }
}

namespace {

// Int64 [1, tokens of the part]; in exact mode, where each token has a share of its own in the
// table's gradient, [batch, tokens].
Tensor ids_of_positions(const SequencePart& part, int64_t batch) {
  TensorList runs;
  for (const PositionRun& run : part.runs) {
    runs.push_back(arange(static_cast<double>(run.first),
                          static_cast<double>(run.first + run.count), 1, kInt64));
  }
  const Tensor ids = cat(runs, 0).unsqueeze(0);
  return in_exact() ? dense(broadcast_view(ids, {batch, ids.size(1)})) : ids;
}

}  // namespace

// Rows of the divided table, of all tokens of the rank's sequences; [B, S], or [1, S] without
// position_ids, becomes what the word embeddings are.
Tensor Embedding::parallel_positions(const Tensor& position_ids,
                                     int64_t batch,
                                     int64_t length) const {
  const Tensor ids = position_ids.defined()
                         ? position_ids
                         : ids_of_positions(context_layout_.positions(length), batch);
  return (*parallel_positions_)(sequence_first_ ? ids.transpose(0, 1).contiguous() : ids);
}

namespace {

// One more than the highest position.
int64_t end_of(const Tensor& position_ids) {
  const Tensor ids = dense(position_ids);
  const auto* first = ids.data<int64_t>();
  return ids.numel() == 0 ? 0 : *std::max_element(first, first + ids.numel()) + 1;
}

}  // namespace

// Of all of the rank's tokens; with sequence parallelism the rank's piece of that.
Tensor Embedding::words(const Tensor& ids) const {
  check<ValueError>(!layout_.sequence_axis || ids.size(1) % layout_.size == 0,
                    "embedding: with sequence parallelism ", ids.size(1),
                    " tokens cannot be divided over ", layout_.size, " ranks");
  const Tensor x = (*word_embeddings_)(sequence_first_ ? ids.transpose(0, 1).contiguous() : ids);
  return multiplier_ == 1 ? x : x * multiplier_;
}

// While training; x has `own` tokens of a sequence.
Tensor Embedding::dropped(const Tensor& x, int64_t layer, int64_t own) const {
  return is_training()
             ? hidden_dropout(x, dropout_, layer, DropoutSite::kEmbedding, sequence_first_ ? 1 : 0,
                              hidden_positions(context_layout_, layout_, own))
             : x;
}

Tensor Embedding::embed_ahead(const Tensor& ids, int64_t layer) const {
  const Tensor x = words(ids);
  return dropped(x, layer, x.size(sequence_first_ ? 0 : 1)).to(dtype_);
}

Tensor Embedding::forward(const Tensor& ids, const Tensor& position_ids, Tensor* per_layer) {
  const int64_t length = ids.size(1);
  const auto in_layout = [&](const Tensor& t) {
    return sequence_first_ ? t.transpose(0, 1).contiguous() : t;
  };
  Tensor x = words(ids);
  if (per_layer_ != nullptr && per_layer != nullptr) {
    *per_layer = (*per_layer_)(in_layout(ids), x);
    report_if_recorded([&] {
      const int64_t batch_axis = sequence_first_ ? 1 : 0;
      pass_activation("per_layer_embedding", *per_layer,
                      hidden_axes(*per_layer, batch_axis, context_layout_, layout_), batch_axis);
    });
  }
  const int64_t own = layout_.sequence_axis ? length / layout_.size : length;
  const int64_t first = layout_.sequence_axis ? layout_.rank * own : 0;
  const SequencePart part = hidden_positions(context_layout_, layout_, own);
  if (num_positions_ > 0 && position_ids.defined()) {
    const int64_t end = end_of(position_ids);
    check<IndexError>(end <= num_positions_, "embedding: position ", end - 1,
                      " lies outside the table of ", num_positions_,
                      "; raise model_config.max_position_embeddings");
  } else {
    check<ValueError>(num_positions_ == 0 || part.length <= num_positions_,
                      "embedding: the sequence has ", part.length,
                      " tokens, the table of positions ", num_positions_,
                      "; raise model_config.max_position_embeddings");
  }
  if (parallel_positions_ != nullptr) {
    x = x + parallel_positions(position_ids, ids.size(0), length);
  } else if (positions_ != nullptr) {
    if (position_ids.defined()) {
      x = x + embedding(*positions_, in_layout(position_ids.slice(1, first, first + own)));
    } else if (in_exact()) {
      x = x + embedding(*positions_, in_layout(ids_of_positions(part, ids.size(0))));
    } else {
      TensorList runs;
      for (const PositionRun& run : part.runs) {
        runs.push_back(positions_->slice(0, run.first, run.first + run.count));
      }
      const Tensor rows = runs.size() == 1 ? runs[0] : cat(runs, 0);
      x = x + (sequence_first_ ? rows.unsqueeze(1) : rows);
    }
  }
  if (norm_ != nullptr) {
    x = (*norm_)(x);
  }
  x = dropped(x, 0, own).to(dtype_);
  report_if_recorded([&] {
    const int64_t batch_axis = sequence_first_ ? 1 : 0;
    pass_activation("embedding", x, hidden_axes(x, batch_axis, context_layout_, layout_),
                    batch_axis);
  });
  return x;
}

namespace {

// Of the first layer with a window, or without one; of the others where there is none.
int64_t rotated_channels_of(const TransformerConfig& config, bool windows) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (has_window(config, layer) == windows &&
        mixer_kind(config, layer) == MixerKind::kAttention) {
      return rotated_channels(config, layer);
    }
  }
  return rotated_channels(config);
}

}  // namespace

TransformerLanguageModel::TransformerLanguageModel(const TransformerConfig& config,
                                                   bool sequence_first,
                                                   const PipelineStage& stage)
    : stage_(stage), num_layers_(config.num_layers) {
  if (config.position_embedding_type == "rope") {
    rotary_ = std::make_unique<RotaryEmbedding>(config, config.rotary_config,
                                                rotated_channels_of(config, /*windows=*/false));
    const auto sliding = sliding_rotation(config);
    if (sliding || config.full_attention_kv_channels) {
      sliding_rotary_ =
          std::make_unique<RotaryEmbedding>(config, sliding.value_or(config.rotary_config),
                                            rotated_channels_of(config, /*windows=*/true));
    }
  }
  check<ValueError>(!config.score_head || config.mtp_num_layers == 0,
                    "language model: a model with a score head predicts no tokens, so it has no "
                    "layers that predict further ones; set model_config.mtp_num_layers to 0");
  const bool at_the_end = needs_table_at_end(config);
  if (stage.pre_process()) {
    embedding_ = &register_module<Embedding>(
        "embedding", config, sequence_first,
        at_the_end && !stage.post_process() ? EmbeddingCopy::kOriginal : EmbeddingCopy::kOnly);
  } else if (stage.post_process() && at_the_end) {
    // Under the original's name, so that both have the same start values, optimizer state and
    // random numbers, and stay equal.
    embedding_ =
        &register_module<Embedding>("embedding", config, sequence_first, EmbeddingCopy::kCopy);
  }
  encoder_ = &register_module<ParallelTransformer>("encoder", config, sequence_first, stage);
  if (stage.post_process() && config.score_head) {
    score_weight_ =
        &register_module<ScoreHead>("score", config, tensor_parallel_layout(config, sequence_first))
             .weight();
  } else if (stage.post_process() && config.untie_embeddings_and_output_weights) {
    output_weight_ = &register_module<OutputLayer>("output_layer", config,
                                                   tensor_parallel_layout(config, sequence_first))
                          .weight();
  }
  if (stage.post_process() && config.mtp_num_layers > 0) {
    ahead_ = &register_module<MultiTokenPrediction>("mtp", config, sequence_first);
  }
}

AttentionContext TransformerLanguageModel::context_of(const Input& input) const {
  return {.rotary = rotary_.get(),
          .sliding_rotary = sliding_rotary_.get(),
          .position_ids = input.position_ids,
          .mask = input.mask,
          .document_starts = input.document_starts,
          .cached = input.cached};
}

Tensor TransformerLanguageModel::forward(const Input& input) {
  const bool first = stage_.is_first(input.chunk);
  check<ValueError>(first || input.hidden.defined(), "language model: the chunk with layers from ",
                    stage_.chunks.at(static_cast<size_t>(input.chunk)).first,
                    " needs the hidden states of the one before");
  for (RotaryEmbedding* const rotary : {rotary_.get(), sliding_rotary_.get()}) {
    if (input.cached != nullptr && rotary != nullptr) {
      rotary->reserve(input.cached->cache->positions());
    }
  }
  Tensor per_layer;
  const Tensor hidden =
      first ? (*embedding_)(input.ids, input.position_ids, &per_layer) : input.hidden;
  return (*encoder_)(hidden, context_of(input), input.chunk, per_layer);
}

Tensor TransformerLanguageModel::predict_ahead(int64_t depth,
                                               const Input& input,
                                               const Tensor& hidden) {
  check<RuntimeError>(ahead_ != nullptr,
                      "language model: no layer here predicts further tokens; see mtp_num_layers");
  return ahead_->layer(depth - 1)(
      hidden, embedding_->embed_ahead(input.ids, num_layers_ + depth - 1), context_of(input));
}

nn::Parameter& TransformerLanguageModel::output_weight() const {
  check<RuntimeError>(stage_.post_process(),
                      "language model: the output layer belongs to the last pipeline stage");
  check<RuntimeError>(score_weight_ == nullptr,
                      "language model: has a score head in place of an output layer; see "
                      "model_config.score_head");
  return output_weight_ != nullptr ? *output_weight_ : embedding_->word_embeddings();
}

nn::Parameter& TransformerLanguageModel::score_weight() const {
  check<RuntimeError>(score_weight_ != nullptr,
                      "language model: has no score head here; see model_config.score_head");
  return *score_weight_;
}

std::unique_ptr<TransformerLanguageModel> get_language_model(const TransformerConfig& config,
                                                             bool sequence_first,
                                                             const PipelineStage& stage) {
  return std::make_unique<TransformerLanguageModel>(config, sequence_first, stage);
}

std::unique_ptr<TransformerLanguageModel> get_language_model(const AllConfig& config) {
  return std::make_unique<TransformerLanguageModel>(config);
}

}  // namespace tapestry
