// Rows of `dataset_config`.
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {
namespace dataset_section {
namespace {

using D = DatasetConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::dataset_config, Path...>();

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
  const auto is_number = [&](size_t i) {
    const ScalarKind kind = scalar_kind(items[i].as<std::string>());
    return kind == ScalarKind::kInt || kind == ScalarKind::kFloat;
  };
  if (items.size() % 2 != 0) {
    // Megatron takes them all for prefixes, and then finds no data set of the name 0.3.
    for (size_t i = 0; i < items.size(); ++i) {
      if (is_number(i)) {
        return "a blend has a weight before each prefix; " + std::to_string(items.size()) +
               " entries with the number " + items[i].as<std::string>() +
               " among them cannot be pairs; expected weight, prefix, weight, prefix, ...";
      }
    }
    return {};
  }
  size_t weights = 0;
  double sum = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const auto& text = items[i].as<std::string>();
    if (!is_number(i) && is_number(i + 1)) {
      return "the weight " + items[i + 1].as<std::string>() + " stands after the prefix '" + text +
             "'; expected weight, prefix, weight, prefix, ...";
    }
    if (is_number(i)) {
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

std::string check_files(const Value& value) {
  const auto& items = value.as<Value::List>();
  for (const Value& item : items) {
    if (item.as<std::string>().empty()) {
      return "holds an empty name";
    }
  }
  return items.empty() ? "must not be an empty list" : "";
}

std::string check_date(const Value& value) {
  const auto& text = value.as<std::string>();
  constexpr std::string_view kForm = "dddd-dd-dd";
  bool is_form = text.size() == kForm.size();
  for (size_t i = 0; is_form && i < kForm.size(); ++i) {
    is_form = kForm[i] == 'd' ? text[i] >= '0' && text[i] <= '9' : text[i] == kForm[i];
  }
  const auto number = [&](size_t at, size_t digits) {
    return static_cast<unsigned>(std::atoi(text.substr(at, digits).c_str()));
  };
  const bool is_day =
      is_form &&
      std::chrono::year_month_day(std::chrono::year(static_cast<int>(number(0, 4))),
                                  std::chrono::month(number(5, 2)), std::chrono::day(number(8, 2)))
          .ok();
  return is_day ? "" : "'" + text + "' is no day; expected YYYY-MM-DD, such as 2026-01-31";
}

constexpr Key kKeys[] = {
    {.name = "data_path",
     .field = f<&D::data_path>,
     .check = satisfies(check_blend, "a prefix, prefixes, or weight, prefix, weight, prefix, ..."),
     .path = true,
     .doc = "Prefix of a Megatron data set (PREFIX.idx and PREFIX.bin), or a blend of several. "
            "null: if no other source is given, the default text, prepared on first use."},
    {.name = "train_data_path",
     .field = f<&D::train_data_path>,
     .check = satisfies(check_blend, "a prefix, prefixes, or weight, prefix, weight, prefix, ..."),
     .path = true,
     .doc = "Data sets that are used completely for training: a prefix or a blend as in "
            "`data_path`, in place of `data_path` and `split`."},
    {.name = "valid_data_path",
     .field = f<&D::valid_data_path>,
     .check = satisfies(check_blend, "a prefix, prefixes, or weight, prefix, weight, prefix, ..."),
     .path = true,
     .doc = "Validation data, if `train_data_path` gives the training data."},
    {.name = "test_data_path",
     .field = f<&D::test_data_path>,
     .check = satisfies(check_blend, "a prefix, prefixes, or weight, prefix, weight, prefix, ..."),
     .path = true,
     .doc = "Test data, if `train_data_path` gives the training data."},
    {.name = "text",
     .field = f<&D::text>,
     .check = satisfies(check_files, "text files"),
     .path = true,
     .doc =
         "Text files, folders of them, or patterns (`corpus/*.txt`), in place of a data set. Files "
         "*.jsonl, *.ndjson, *.jl and *.json have one object with a \"text\" a line. On first use "
         "they are turned into tokens, and their tokenizer is made, in `dataset_dir`."},
    {.name = "sft_data_path",
     .field = f<&D::sft_data_path>,
     .check = satisfies(check_blend, "a file, files, or weight, file, weight, file, ..."),
     .path = true,
     .doc = "Examples for fine-tuning in place of text and data sets: JSONL files of `prompt` and "
            "`completion`, of `messages` (and `tools`), of `text`, of `instruction`, `input` and "
            "`output` (Alpaca), or of `conversations` (ShareGPT). Folders and patterns are given "
            "as in `text`. With weights, one for each file, examples are drawn in these "
            "proportions. A row has whole examples, which do not see each other."},
    {.name = "sft_valid_data_path",
     .field = f<&D::sft_valid_data_path>,
     .check = satisfies(check_files, "files"),
     .path = true,
     .doc = "Fine-tuning examples to evaluate on. null: `split` divides the lines of each file of "
            "`sft_data_path`."},
    {.name = "sft_packing",
     .field = f<&D::sft_packing>,
     .doc = "Put as many fine-tuning examples into a row as fit. False: one example in a row; the "
            "rest of the row is padded."},
    {.name = "sft_long_examples",
     .field = f<&D::sft_long_examples>,
     .check = one_of("cut|drop"),
     .doc = "How fine-tuning examples of more than `seq_length` + 1 tokens are shortened: their "
            "end is left out, or the whole example. The log counts both."},
    {.name = "sft_loss",
     .field = f<&D::sft_loss>,
     .check = one_of("answers|all"),
     .doc = "Tokens of fine-tuning examples that enter the loss: those of answers, or also those "
            "of prompts."},
    {.name = "chat_template",
     .field = f<&D::chat_template>,
     .path = true,
     .doc = "File of a Jinja template that turns `messages` into text. null: the template in the "
            "tokenizer's folder (chat_template.jinja, tokenizer_config.json), or ChatML if it has "
            "none."},
    {.name = "chat_date",
     .field = f<&D::chat_date>,
     .check = satisfies(check_date, "a day, YYYY-MM-DD"),
     .doc = "Date for chat templates that ask for today's (`strftime_now`). null: the day of the "
            "run's first start, which checkpoints keep."},
    {.name = "skip_bad_lines",
     .field = f<&D::skip_bad_lines>,
     .doc = "Skip unreadable lines in the JSONL files of `text` and `sft_data_path`, and list them "
            "in the log. False: the first such line is an error."},
    {.name = "split",
     .field = f<&D::split>,
     .check = satisfies(check_split, "one to three shares"),
     .numbers_as_text = true,
     .doc = "Shares of training, validation and test data. They are counted in documents; in "
            "tokens if there are too few documents for a sample of training and of validation; for "
            "`sft_data_path` in lines of each file."},
    {.name = "step_data_dir",
     .field = f<&D::step_data_dir>,
     .path = true,
     .doc = "Folder with the exact batch of every step, in place of text and data sets: "
            "step_N/rank_R/{tokens,labels,loss_mask}.npy. Without loss_mask.npy all labels but "
            "negative ones count. The ranks are the data-parallel ranks, or all ranks of a job, "
            "where each row is there several times and counts once. Behind the last step the "
            "first one comes again, in a further epoch."},
    {.name = "step_data_as_samples",
     .field = f<&D::step_data_as_samples>,
     .doc = "Take the rows of `step_data_dir` one after the other, as many as a step of this run "
            "has, whatever step they were recorded in: as MindFormers' NumpyDataloader, which sets "
            "this. False: each folder is the batch of one step."},
    {.name = "data_source",
     .field = f<&D::data_source>,
     .registers = ModuleType::kDataset,
     .doc = "Registered name of the program's own data, in place of text, data sets and recorded "
            "steps: `docs/register.md`."},
    {.name = "data_source_kwargs",
     .field = f<&D::data_source_kwargs>,
     .null = Null::kDefault,
     .doc =
         "What a registered `data_source` is made with: as `optimizer_config.optimizer_kwargs`."},
    {.name = "tokenizer_type",
     .field = f<&D::tokenizer_type>,
     .check = one_of("sentencepiece|byte|character|huggingface"),
     .doc = "Tokenizer of the text. It must be the one with which the data were made. "
            "`huggingface` reads tokenizer.json, or vocab.json with merges.txt, and is the default "
            "if `model_config.from_hf` has such files."},
    {.name = "tokenizer_model",
     .field = f<&D::tokenizer_model>,
     .path = true,
     .doc = "File of the tokenizer `sentencepiece` or `character`; for `huggingface` a "
            "tokenizer.json, or the folder of a model. null: the tokenizer beside the data, or in "
            "`model_config.from_hf`."},
    {.name = "character_coverage",
     .field = f<&D::character_coverage>,
     .check = {.low = 0.9, .high = 1.0},
     .doc = "Share of the text whose characters get a piece of their own in a SentencePiece model "
            "that is trained on first use; the others are encoded as bytes. null: 0.9995, or what "
            "the vocabulary has room for."},
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
     .doc = "Order of batch, sequence and hidden size inside the model. Results do not change."},
    {.name = "shuffle",
     .field = f<&D::shuffle>,
     .doc = "Order of the samples. True: shuffled as in Megatron. False: in the order of the data, "
            "epoch after epoch. null: True for texts, False for `step_data_dir`, whose steps are "
            "replayed in order."},
    {.name = "drop_remainder",
     .field = f<&D::drop_remainder>,
     .doc = "Leave out a last incomplete batch. Because data start again at their end, there is "
            "one only if `train_samples` is no multiple of the global batch; with False that is an "
            "error."},
    {.name = "seq_length",
     .field = f<&D::seq_length>,
     .check = above(0),
     .doc = "Tokens of one training sequence. `model_config.seq_length` sets it; if it is given "
            "here too, both must be equal."},
    {.name = "dataset_dir",
     .field = f<&D::dataset_dir>,
     .path = true,
     .doc = "Folder in which the texts of `text`, or the default text, are turned into tokens on "
            "first use."},
    {.name = "eos_token_id",
     .field = f<&D::eos_token_id>,
     .check = at_least(0),
     .default_text = "the tokenizer's",
     .doc = "Token that ends a document, for `reset_attention_mask`, `reset_position_ids` and "
            "`eod_mask_loss`."},
    {.name = "pad_token_id",
     .field = f<&D::pad_token_id>,
     .check = at_least(0),
     .doc = "Token that is left out of the loss where it is the next token. Not together with "
            "`step_data_dir`, which has its own loss masks."},
    {.name = "reset_attention_mask",
     .field = f<&D::reset_attention_mask>,
     .doc = "Restrict attention to a token's own document: tokens after an end-of-document token "
            "do not see it, nor the tokens before it. Hidden tokens cost no computation."},
    {.name = "reset_position_ids",
     .field = f<&D::reset_position_ids>,
     .doc =
         "Count positions from the start of each document, for rotary and for learned positions."},
    {.name = "eod_mask_loss",
     .field = f<&D::eod_mask_loss>,
     .doc = "Leave the prediction after an end-of-document token out of the loss, because it is "
            "the first token of another document."},
};

}  // namespace
}  // namespace dataset_section

std::span<const Key> dataset_keys() { return dataset_section::kKeys; }

}  // namespace tapestry::config
