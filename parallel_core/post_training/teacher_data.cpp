#include "parallel_core/post_training/teacher_data.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/rows/unit_source.h"
#include "parallel_core/post_training/task_data.h"
#include "parallel_core/training/data/example_format.h"
#include "parallel_core/training/data/take_up_data.h"
#include "text/util/numbers.h"

namespace tapestry::post_training {

namespace {

constexpr const char* kTeacherFile = "post_training_config.teacher_log_probs";

void check_temperature(const TeacherFile& file, double temperature) {
  const double of_file = file.header().temperature;
  check<ValueError>(of_file == temperature, kTeacherFile, " ", file.path(),
                    ": its log-probabilities are of logits divided by ", of_file,
                    ", post_training_config.temperature is ", temperature, "; set that to ",
                    of_file,
                    ", or write the file again with "
                    "--logprobs_temperature ",
                    temperature);
}

// The texts cut at their ends.
struct CutTexts {
  std::shared_ptr<SequenceSet> set = std::make_shared<SequenceSet>();
  int64_t cut = 0;
  int64_t prompts = 0;
  int64_t completions = 0;

  CutTexts(const SequenceSet& whole, int64_t most) {
    for (int64_t i = 0; i < whole.size(); ++i) {
      const auto all = whole.ids(i);
      const auto kept = all.first(std::min(all.size(), static_cast<size_t>(most)));
      const size_t prompt = std::min(static_cast<size_t>(whole.prompt_tokens(i)), kept.size());
      set->add(kept.first(prompt), kept.subspan(prompt));
      cut += kept.size() < all.size() ? 1 : 0;
      prompts += static_cast<int64_t>(prompt);
      completions += static_cast<int64_t>(kept.size() - prompt);
    }
  }
};

DataState state_of(const AllConfig& config,
                   const TeacherFile& file,
                   const SequenceSet& texts,
                   const data::TokenizerIdentity& tokenizer) {
  DataState now;
  now.seq_length = config.model_config.seq_length;
  now.seed = config.training_config.seed;
  now.shuffle = config.dataset_config.shuffle.value_or(true);
  now.tokenizer = tokenizer;
  TaskDataState& task = now.task.emplace();
  task.task = *config.post_training_config.task;
  task.files = {{.path = file.path(),
                 .bytes = static_cast<int64_t>(std::filesystem::file_size(file.path())),
                 .crc64 = file.texts()->checksum()}};
  task.max_length = most_tokens(config);
  task.long_sequences = "keep_start";
  task.ids_crc64 = texts.checksum();
  return now;
}

}  // namespace

TeacherData open_teacher_data(const AllConfig& config, DataUse use, const DataState* resumed) {
  const PostTrainingConfig& p = config.post_training_config;
  TeacherData out;
  out.file = std::make_shared<const TeacherFile>(*p.teacher_log_probs);
  const TeacherFile& file = *out.file;
  RunData& run = out.run;
  const auto tokenizer = tokenizer_of_examples(config, kTeacherFile, run);
  check_teacher_file(file, tokenizer->identity(), config.model_config.vocab_size);
  check_temperature(file, p.temperature);
  check<ValueError>(use == DataUse::kTraining, kTeacherFile,
                    ": has no texts to evaluate on, only to train on");
  const CutTexts texts(*file.texts(), most_tokens(config));
  if (texts.cut > 0) {
    run.remarks.push_back(concat(file.path(), ": ", with_thousands(texts.cut),
                                 texts.cut == 1 ? " text is" : " texts are",
                                 " longer than post_training_config.max_length ",
                                 most_tokens(config), ", the ends are left out"));
  }
  const bool one_entry = file.header().top_k == 1 && (p.beta == 0.0 || p.beta == 1.0);
  if (one_entry && !p.loss_add_tail) {
    run.remarks.push_back(
        "one token a position without the rest of the vocabulary is a distribution that cannot be "
        "missed: the divergence is 0; set post_training_config.loss_add_tail, or store more");
  }
  run.opened = state_of(config, file, *texts.set, tokenizer->identity());
  internal::take_up(config, resumed, use, run.opened, run);
  run.start = run.opened.position;
  const DatasetConfig& d = config.dataset_config;
  const int64_t eod = d.eos_token_id.value_or(tokenizer->eod_id());
  const int64_t pad = d.pad_token_id.value_or(
      std::max<int64_t>(tokenizer->pad_id() >= 0 ? tokenizer->pad_id() : eod, 0));
  run.train = std::make_unique<UnitSource>(
      texts.set,
      UnitOrder(texts.set->units(), run.opened.shuffle, config.training_config.seed,
                EpochOrder::kOwn, internal::batch_of(config)),
      row_room(config, pad));
  if (eod >= 0) {
    run.trained_ends.push_back(eod);
  }
  run.description =
      concat(file.path(), ": ", with_thousands(texts.set->units()), " texts with the ",
             file.header().top_k, " likeliest tokens of ", file.header().model, "; ",
             with_thousands(texts.prompts), " tokens of prompts, ",
             with_thousands(texts.completions), " of completions, ", tokenizer->describe());
  return out;
}

}  // namespace tapestry::post_training
