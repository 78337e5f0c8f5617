// Rows of `parallel_config` and `dataset_config`.
#include <cstdlib>

#include "parallel_core/config/raw_yaml.h"
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace {

using P = ModelParallelConfig;
using D = DatasetConfig;
template <auto... Path>
constexpr Field p = field_of<&AllConfig::parallel_config, Path...>();
template <auto... Path>
constexpr Field d = field_of<&AllConfig::dataset_config, Path...>();

constexpr std::string_view kOneProcess = "this release trains in one process";
constexpr std::string_view kRecompute = "recomputation of activations is not built yet";
constexpr std::string_view kHetero = "heterogeneous pipelines are not built yet";
constexpr std::string_view kDocuments =
    "samples are trained as one stretch of text; boundaries of documents are not treated yet";

std::string check_layer_table(const Value& value) {
  const auto& list = value.as<Value::List>();
  size_t width = 0;
  for (const Value& row : list) {
    if (row.is<Value::List>() != list.front().is<Value::List>()) {
      return "mixes numbers and rows";
    }
    if (!row.is<Value::List>()) {
      continue;
    }
    const size_t size = row.as<Value::List>().size();
    if (width != 0 && size != width) {
      return "has rows of different lengths";
    }
    if (size == 0) {
      return "has an empty row";
    }
    width = size;
  }
  return {};
}

std::string check_counts(const Value& value) {
  for (const Value& item : value.as<Value::List>()) {
    if (item.is<Value::List>()) {
      if (std::string error = check_counts(item); !error.empty()) {
        return error;
      }
    } else if (item.as<int64_t>() < 0) {
      return "a number of layers cannot be negative, got " + to_yaml(item);
    }
  }
  return value.as<Value::List>().empty() ? "" : check_layer_table(value);
}

std::string check_layer_list(const Value& value) {
  return value.as<Value::List>().empty() ? "must not be empty" : check_counts(value);
}

std::string check_offset(const Value& value) {
  return value.as<Value::List>().empty() ? "must not be empty" : check_layer_table(value);
}

// Numbers are what a run of digits and points spells; the rest separates them.
std::string check_split(const Value& value) {
  const auto& text = value.as<std::string>();
  const auto pieces = split_text(text, ',');
  double sum = 0;
  for (std::string_view piece : pieces) {
    while (!piece.empty() && piece.front() == ' ') {
      piece.remove_prefix(1);
    }
    while (!piece.empty() && piece.back() == ' ') {
      piece.remove_suffix(1);
    }
    if (piece.empty() || piece.find_first_not_of("0123456789.") != std::string_view::npos ||
        piece.find_first_of("0123456789") == std::string_view::npos ||
        piece.find('.') != piece.rfind('.')) {
      return concat("'", piece, "' is no share; expected up to three numbers such as 969,30,1");
    }
    sum += std::stod(std::string(piece));
  }
  if (pieces.empty() || pieces.size() > 3) {
    return "expected one to three shares (train, valid, test), got " +
           std::to_string(pieces.size());
  }
  return sum > 0 ? "" : "the shares add up to 0";
}

std::string check_blend(const Value& value) {
  const auto& items = value.as<Value::List>();
  if (items.empty()) {
    return "must not be an empty list";
  }
  for (const Value& item : items) {
    if (item.as<std::string>().empty()) {
      return "holds an empty prefix";
    }
  }
  if (items.size() % 2 != 0) {
    return {};
  }
  size_t weights = 0;
  double sum = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const auto& text = items[i].as<std::string>();
    const ScalarKind kind = scalar_kind(text);
    if (kind == ScalarKind::kInt || kind == ScalarKind::kFloat) {
      ++weights;
      const double weight = std::strtod(text.c_str(), nullptr);
      if (!(weight >= 0) || weight > 1e300) {
        return "the weight " + text + " must be a number >= 0";
      }
      sum += weight;
    }
  }
  if (weights == 0) {
    return {};
  }
  if (weights != items.size() / 2) {
    return "mixes prefixes with and without weights; expected weight, prefix, weight, prefix, ...";
  }
  return sum > 0 ? "" : "the weights add up to 0";
}

constexpr Key kParallelKeys[] = {
    {.name = "tensor_model_parallel_size",
     .field = p<&P::tensor_model_parallel_size>,
     .check = above(0),
     .doc = "Ranks that share each layer's matrices. Must divide the attention heads and "
            "`ffn_hidden_size`, and divide or be a multiple of the query groups."},
    {.name = "pipeline_model_parallel_size",
     .field = p<&P::pipeline_model_parallel_size>,
     .check = above(0),
     .doc = "Pipeline stages: ranks that each hold some of the layers. The first also has the "
            "embeddings, the last the head."},
    {.name = "context_parallel_size",
     .field = p<&P::context_parallel_size>,
     .check = above(0),
     .doc = "Ranks that share each sequence: each has two chunks of it, an early and a late one. "
            "`seq_length` must be a multiple of twice as many."},
    {.name = "expert_model_parallel_size",
     .field = p<&P::expert_model_parallel_size>,
     .check = above(0),
     .accepted = "1",
     .reason = kOneProcess,
     .doc = "Ranks that share the experts."},
    {.name = "virtual_pipeline_model_parallel_size",
     .field = p<&P::virtual_pipeline_model_parallel_size>,
     .check = above(0),
     .doc = "Model chunks of one pipeline stage, which are interleaved; null or 1: 1F1B."},
    {.name = "sequence_parallel",
     .field = p<&P::sequence_parallel>,
     .doc = "Divide activations outside the matrices along the sequence, whose length must be a "
            "multiple of `tensor_model_parallel_size`. Has no effect with one tensor-parallel "
            "rank."},
    {.name = "recv_dtype",
     .field = p<&P::recv_dtype>,
     .doc =
         "Known for compatibility: between pipeline stages the residual stream is sent as it is. "
         "Always `model_config.compute_dtype`; another value is replaced, with a note."},
    {.name = "zero_level",
     .field = p<&P::zero_level>,
     .check = one_of("z1|z2|z3"),
     .doc =
         "What each data-parallel rank keeps only its share of: optimizer state (z1, the same as "
         "`training_config.use_distributed_optimizer`), also gradients (z2), also weights "
         "between their uses (z3). Has no effect with one data-parallel rank."},
    {.name = "standalone_embedding_stage",
     .field = p<&P::standalone_embedding_stage>,
     .doc = "The first pipeline stage holds the embedding and no layers. Without interleaving; "
            "`num_layer_list` and `offset` then have a number for each of the other stages."},
    {.name = "overlap_grad_reduce",
     .field = p<&P::overlap_grad_reduce>,
     .accepted = "False",
     .reason = "set training_config.overlap_grad_reduce, the key that counts",
     .doc = "Known for compatibility."},
    {.name = "gradient_accumulation_fusion",
     .field = p<&P::gradient_accumulation_fusion>,
     .doc =
         "Known for compatibility: matrix products always add weight gradients straight into the "
         "accumulated ones."},
    {.name = "overlap_p2p_comm",
     .field = p<&P::overlap_p2p_comm>,
     .doc =
         "Receive a message from another stage while computing, one ahead of the pass that needs "
         "it. Sending never waits. Has no effect with one stage."},
    {.name = "use_cpu_initialization",
     .field = p<&P::use_cpu_initialization>,
     .doc = "Initialise weights on the CPU. Always so here."},
    {.name = "deterministic_mode",
     .field = p<&P::deterministic_mode>,
     .doc = "Same bits every run. Always so here."},
    {.name = "num_layer_list",
     .field = p<&P::num_layer_list>,
     .check = satisfies(check_layer_list, "layers per stage, or one such row per virtual stage"),
     .doc = "Layers of each pipeline stage, or one such row per chunk; not together with `offset`. "
            "Also as text: \"[2, 3]\". Neither: as even as possible, the last stage last."},
    {.name = "offset",
     .field = p<&P::offset>,
     .check = satisfies(check_offset, "one number per stage, or one such row per virtual stage"),
     .doc = "What each stage's layers differ by from the even share, rounded down; not together "
            "with `num_layer_list`."},
    {.name = "recompute_config",
     .field = p<&P::recompute_config>,
     .aliases = "/recompute_config",
     .doc = "Recomputation of activations in the backward pass."},
    {.name = "recompute_config.recompute",
     .field = p<&P::recompute_config, &RecomputeConfig::recompute>,
     .check = satisfies(check_counts, "layers per stage"),
     .null = Null::kDefault,
     .aliases = "recompute",
     .accepted = "[]|[0]",
     .reason = kRecompute,
     .doc = "Layers of each stage that are recomputed as a whole."},
    {.name = "recompute_config.select_recompute",
     .field = p<&P::recompute_config, &RecomputeConfig::select_recompute>,
     .check = satisfies(check_counts, "layers per stage"),
     .null = Null::kDefault,
     .aliases = "select_recompute",
     .accepted = "[]|[0]",
     .reason = kRecompute,
     .doc = "Layers of each stage whose attention is recomputed."},
    {.name = "recompute_config.select_comm_recompute",
     .field = p<&P::recompute_config, &RecomputeConfig::select_comm_recompute>,
     .check = satisfies(check_counts, "layers per stage"),
     .null = Null::kDefault,
     .aliases = "select_comm_recompute",
     .accepted = "[]|[0]",
     .reason = kRecompute,
     .doc = "Layers of each stage whose gathered inputs are gathered again."},
    {.name = "heterogeneous_pipeline",
     .field = p<&P::heterogeneous_pipeline>,
     .accepted = "False",
     .reason = kHetero,
     .doc = "Stages with different numbers of ranks."},
    {.name = "pipeline_stage_device",
     .field = p<&P::pipeline_stage_device>,
     .check = at_least(1),
     .accepted = "null",
     .reason = kHetero,
     .doc = "Ranks of each stage."},
};

constexpr Key kDatasetKeys[] = {
    {.name = "data_path",
     .field = d<&D::data_path>,
     .check = satisfies(check_blend, "a prefix, prefixes, or weight, prefix, weight, prefix, ..."),
     .doc = "Prefix of a Megatron data set (PREFIX.idx and PREFIX.bin), or a blend. null, without "
            "`step_data_dir`: the default text, prepared on first use."},
    {.name = "split",
     .field = d<&D::split>,
     .check = satisfies(check_split, "one to three shares"),
     .doc = "Shares of training, validation and test data."},
    {.name = "step_data_dir",
     .field = d<&D::step_data_dir>,
     .doc = "Folder with the exact batch of every step: "
            "step_N/rank_R/{tokens,labels,loss_mask}.npy. Not together with `data_path`."},
    {.name = "tokenizer_type",
     .field = d<&D::tokenizer_type>,
     .check = one_of("sentencepiece|byte"),
     .doc = "Tokenizer of the text."},
    {.name = "tokenizer_model",
     .field = d<&D::tokenizer_model>,
     .doc = "SentencePiece model file. null: the one beside the data."},
    {.name = "batch_size",
     .field = d<&D::batch_size>,
     .check = between(1, 2147483647),
     .doc = "Sequences of one micro-batch on one data-parallel rank."},
    {.name = "micro_batch_num",
     .field = d<&D::micro_batch_num>,
     .check = between(1, 2147483647),
     .doc = "Micro-batches of one step, whose gradients are accumulated."},
    {.name = "train_samples",
     .field = d<&D::train_samples>,
     .check = at_least(0),
     .doc = "Length of the run in sequences, in place of `training_config.training_iters`; "
            "schedules then use the *_samples keys."},
    {.name = "data_layout",
     .field = d<&D::data_layout>,
     .check = one_of("BSH|SBH"),
     .doc = "Order of batch, sequence and hidden size inside the model. Results are the same."},
    {.name = "shuffle",
     .field = d<&D::shuffle>,
     .doc = "null: as the data set has it (`data_path` shuffled as Megatron does, `step_data_dir` "
            "in order). The other choice is not supported yet."},
    {.name = "drop_remainder",
     .field = d<&D::drop_remainder>,
     .accepted = "True",
     .reason = "a last incomplete batch is always left out",
     .doc = "Leave out a last incomplete batch."},
    {.name = "seq_length",
     .field = d<&D::seq_length>,
     .check = above(0),
     .doc = "If given, must equal `model_config.seq_length`."},
    {.name = "dataset_size",
     .field = d<&D::dataset_size>,
     .check = above(0),
     .accepted = "null",
     .reason = "the size follows from the data",
     .doc = "Known for compatibility."},
    {.name = "dataset_dir",
     .field = d<&D::dataset_dir>,
     .accepted = "./dataset",
     .reason = "data are named by data_path or step_data_dir",
     .doc = "Known for compatibility."},
    {.name = "eos_token_id",
     .field = d<&D::eos_token_id>,
     .check = at_least(0),
     .accepted = "0",
     .reason = kDocuments,
     .doc = "Token that ends a document."},
    {.name = "pad_token_id",
     .field = d<&D::pad_token_id>,
     .check = at_least(0),
     .accepted = "null",
     .reason = "samples are never padded",
     .doc = "Token that is left out of the loss."},
    {.name = "reset_attention_mask",
     .field = d<&D::reset_attention_mask>,
     .accepted = "False",
     .reason = kDocuments,
     .doc = "Hide earlier documents of a sample."},
    {.name = "reset_position_ids",
     .field = d<&D::reset_position_ids>,
     .accepted = "False",
     .reason = kDocuments,
     .doc = "Count positions from the start of each document."},
    {.name = "eod_mask_loss",
     .field = d<&D::eod_mask_loss>,
     .accepted = "False",
     .reason = kDocuments,
     .doc = "Leave the end-of-document token out of the loss."},
};

}  // namespace

std::span<const Key> parallel_keys() { return kParallelKeys; }
std::span<const Key> dataset_keys() { return kDatasetKeys; }

}  // namespace tapestry::config
