// Rows of `dataset_config`.
#include <cstdlib>

#include "parallel_core/config/raw_yaml.h"
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace dataset_section {
namespace {

using D = DatasetConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::dataset_config, Path...>();

constexpr std::string_view kDocuments =
    "samples are trained as one stretch of text; boundaries of documents are not treated yet";

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

constexpr Key kKeys[] = {
    {.name = "data_path",
     .field = f<&D::data_path>,
     .check = satisfies(check_blend, "a prefix, prefixes, or weight, prefix, weight, prefix, ..."),
     .doc = "Prefix of a Megatron data set (PREFIX.idx and PREFIX.bin), or a blend. null, without "
            "`step_data_dir`: the default text, prepared on first use."},
    {.name = "split",
     .field = f<&D::split>,
     .check = satisfies(check_split, "one to three shares"),
     .doc = "Shares of training, validation and test data."},
    {.name = "step_data_dir",
     .field = f<&D::step_data_dir>,
     .doc = "Folder with the exact batch of every step: "
            "step_N/rank_R/{tokens,labels,loss_mask}.npy. Not together with `data_path`."},
    {.name = "tokenizer_type",
     .field = f<&D::tokenizer_type>,
     .check = one_of("sentencepiece|byte"),
     .doc = "Tokenizer of the text."},
    {.name = "tokenizer_model",
     .field = f<&D::tokenizer_model>,
     .doc = "SentencePiece model file. null: the one beside the data."},
    {.name = "batch_size",
     .field = f<&D::batch_size>,
     .check = between(1, 2147483647),
     .doc = "Sequences of one micro-batch on one data-parallel rank."},
    {.name = "micro_batch_num",
     .field = f<&D::micro_batch_num>,
     .check = between(1, 2147483647),
     .doc = "Micro-batches of one step, whose gradients are accumulated."},
    {.name = "train_samples",
     .field = f<&D::train_samples>,
     .check = at_least(0),
     .doc = "Length of the run in sequences, in place of `training_config.training_iters`; "
            "schedules then use the *_samples keys."},
    {.name = "data_layout",
     .field = f<&D::data_layout>,
     .check = one_of("BSH|SBH"),
     .doc = "Order of batch, sequence and hidden size inside the model. Results are the same."},
    {.name = "shuffle",
     .field = f<&D::shuffle>,
     .doc =
         "Order of the samples: Megatron's shuffled one (True), or that of the data, epoch after "
         "epoch (False). null: True for texts, False for `step_data_dir`, which cannot be "
         "shuffled yet."},
    {.name = "drop_remainder",
     .field = f<&D::drop_remainder>,
     .accepted = "True",
     .reason = "a last incomplete batch is always left out",
     .doc = "Leave out a last incomplete batch."},
    {.name = "seq_length",
     .field = f<&D::seq_length>,
     .check = above(0),
     .doc = "If given, must equal `model_config.seq_length`."},
    {.name = "dataset_size",
     .field = f<&D::dataset_size>,
     .check = above(0),
     .accepted = "null",
     .reason = "the size follows from the data",
     .doc = "Known for compatibility."},
    {.name = "dataset_dir",
     .field = f<&D::dataset_dir>,
     .accepted = "./dataset",
     .reason = "data are named by data_path or step_data_dir",
     .doc = "Known for compatibility."},
    {.name = "eos_token_id",
     .field = f<&D::eos_token_id>,
     .check = at_least(0),
     .accepted = "0",
     .reason = kDocuments,
     .doc = "Token that ends a document."},
    {.name = "pad_token_id",
     .field = f<&D::pad_token_id>,
     .check = at_least(0),
     .accepted = "null",
     .reason = "samples are never padded",
     .doc = "Token that is left out of the loss."},
    {.name = "reset_attention_mask",
     .field = f<&D::reset_attention_mask>,
     .accepted = "False",
     .reason = kDocuments,
     .doc = "Hide earlier documents of a sample."},
    {.name = "reset_position_ids",
     .field = f<&D::reset_position_ids>,
     .accepted = "False",
     .reason = kDocuments,
     .doc = "Count positions from the start of each document."},
    {.name = "eod_mask_loss",
     .field = f<&D::eod_mask_loss>,
     .accepted = "False",
     .reason = kDocuments,
     .doc = "Leave the end-of-document token out of the loss."},
};

}  // namespace
}  // namespace dataset_section

std::span<const Key> dataset_keys() { return dataset_section::kKeys; }

}  // namespace tapestry::config
