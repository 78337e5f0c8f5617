#include "parallel_core/post_training/task_data.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/examples/example_reader.h"
#include "parallel_core/post_training/examples/mismatched_pairs.h"
#include "parallel_core/post_training/rows/unit_source.h"
#include "parallel_core/training/data/example_format.h"
#include "parallel_core/training/data/take_up_data.h"
#include "text/sources/text_files.h"
#include "text/tokenizers/turn_end.h"
#include "text/util/numbers.h"

namespace tapestry::post_training {

namespace {

constexpr const char* kData = "post_training_config.data";
constexpr const char* kValidationData = "post_training_config.validation_data";

LongSequences long_sequences_of(const AllConfig& config) {
  const PostTrainingConfig& p = config.post_training_config;
  const std::string& task = *p.task;
  if (task == "reward" || task == "grpo") {
    return LongSequences::kDrop;
  }
  if (p.truncation_mode == "keep_end") {
    return LongSequences::kKeepEnd;
  }
  return LongSequences::kKeepStart;
}

const char* name_of(LongSequences how) {
  switch (how) {
    case LongSequences::kKeepStart:
      return "keep_start";
    case LongSequences::kKeepEnd:
      return "keep_end";
    case LongSequences::kDrop:
      return "left out";
  }
  return "";
}

const char* unit_name(ExampleFormat format, bool many) {
  const bool is_pair = format == ExampleFormat::kPreference || format == ExampleFormat::kReward;
  const bool is_prompt = format == ExampleFormat::kPrompt;
  return is_pair     ? (many ? "pairs" : "pair")
         : is_prompt ? (many ? "prompts" : "prompt")
                     : (many ? "examples" : "example");
}

// Puts the data of one run together.
class TaskDataRun {
 public:
  TaskDataRun(const AllConfig& config, DataUse use, const std::string& day)
      : config_(config),
        p_(config.post_training_config),
        use_(use),
        tokenizer_(tokenizer_of_examples(config, kData, run_)),
        found_(find_chat_format(config, *tokenizer_, day)) {
    const DatasetConfig& d = config.dataset_config;
    const int32_t eod = static_cast<int32_t>(d.eos_token_id.value_or(tokenizer_->eod_id()));
    pad_id_ = d.pad_token_id.value_or(
        std::max({tokenizer_->pad_id() >= 0 ? tokenizer_->pad_id() : eod, int32_t{0}}));
    check<ValueError>(
        eod < config.model_config.vocab_size && pad_id_ < config.model_config.vocab_size,
        "dataset_config.eos_token_id ", eod, " and pad_token_id ", pad_id_,
        " have to be below model_config.vocab_size ", config.model_config.vocab_size);
    options_ = {.format = example_format(config),
                .encoding = {.tokenizer = tokenizer_.get(),
                             .format = found_.format ? &*found_.format : nullptr,
                             .without_format = found_.why_none,
                             .eod = eod},
                .long_sequences = long_sequences_of(config),
                .max_tokens = most_tokens(config),
                .skip_bad_lines = d.skip_bad_lines};
  }

  TaskData open(const DataState* resumed) {
    ReadExamples train = read(*p_.data, kData);
    ReadExamples validation;
    const bool evaluates =
        use_ == DataUse::kEvaluation || config_.training_config.eval_interval.has_value();
    if (evaluates) {
      check<ValueError>(p_.validation_data.has_value(),
                        "training_config.eval_interval is set, but there is no ", kValidationData,
                        " to evaluate on; name its files, or set eval_interval to null");
      validation = read(*p_.validation_data, kValidationData);
    }
    put_together(std::move(train), std::move(validation));
    take_up(resumed);
    make_sources();
    if (use_ == DataUse::kEvaluation) {
      run_.train = nullptr;
    }
    describe();
    return {.run = std::move(run_), .examples = std::move(examples_), .pad_id = pad_id_};
  }

 private:
  ReadExamples read(const std::vector<std::string>& paths, const char* key) {
    ReadExamples read = read_examples(data::text_files(paths, key, own_folders(config_)), options_);
    for (std::string& remark : remarks_on(read, options_, key)) {
      run_.remarks.push_back(std::move(remark));
    }
    check<ValueError>(
        read.sequences.units() > 0, key, " ", paths.back(), ": of ", read.counts.lines,
        " lines with an example none is left",
        read.counts.dropped > 0
            ? concat("; raise post_training_config.max_length, which is ", options_.max_tokens)
            : "");
    conversations_ += read.counts.conversations;
    plain_ += read.counts.lines - read.counts.conversations;
    return read;
  }

  // Training, then validation, cut to what is kept of them.
  void put_together(ReadExamples train, ReadExamples validation) {
    examples_ = std::make_shared<TaskExamples>();
    SequenceSet whole = std::move(train.sequences);
    examples_->sequences = SequenceSet(whole.per_unit());
    examples_->train_units = whole.units();
    files_ = std::move(train.files);
    labels_and_lines(train, validation);
    add_cut(whole);
    train_checksum_ = examples_->sequences.checksum();
    add_cut(validation.sequences);
    for (int64_t i = 0; i < validation.sequences.size(); ++i) {
      const auto ids = validation.sequences.ids(i);
      const auto prompt = static_cast<size_t>(validation.sequences.prompt_tokens(i));
      whole.add(ids.first(prompt), ids.subspan(prompt));
    }
    if (*p_.task == "kto" && p_.loss_type->front() == "kto") {
      exchange_completions(whole);
    }
  }

  void labels_and_lines(ReadExamples& train, ReadExamples& validation) {
    const auto join = [](auto& to, auto& a, auto& b) {
      to = std::move(a);
      to.insert(to.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
    };
    const auto even_out = [](ReadExamples& read) {
      read.margins.resize(static_cast<size_t>(read.sequences.units()), 0.0);
    };
    if (!train.margins.empty() || !validation.margins.empty()) {
      train.margins.resize(static_cast<size_t>(examples_->train_units), 0.0);
      even_out(validation);
    }
    join(examples_->labels, train.labels, validation.labels);
    join(examples_->margins, train.margins, validation.margins);
    join(examples_->lines, train.lines, validation.lines);
    const auto files = static_cast<int32_t>(train.files.size());
    for (ExamplePlace& place : validation.places) {
      place.file += files;
    }
    join(examples_->places, train.places, validation.places);
  }

  void add_cut(const SequenceSet& whole) {
    for (int64_t i = 0; i < whole.size(); ++i) {
      const auto ids = whole.ids(i);
      const auto prompt = static_cast<size_t>(whole.prompt_tokens(i));
      const CutSequence cut = cut_sequence(ids.first(prompt), ids.subspan(prompt),
                                           options_.long_sequences, options_.max_tokens);
      examples_->sequences.add(cut.prompt, cut.completion);
    }
  }

  void exchange_completions(const SequenceSet& whole) {
    const int64_t group = internal::batch_of(config_);
    check<ValueError>(group > 1,
                      "post_training_config.task kto: a step has one example, whose completion "
                      "cannot be exchanged with another's; raise dataset_config.batch_size or "
                      "micro_batch_num, or set post_training_config.loss_type: apo_zero_unpaired");
    std::vector<ExchangedUnits> parts;
    auto order = std::make_shared<UnitOrder>(training_order());
    const auto part = [&](int64_t first, int64_t count, std::function<int64_t(int64_t)> of) {
      check<ValueError>(count > 1,
                        "post_training_config.task kto: ", first == 0 ? kData : kValidationData,
                        " has one example, whose completion cannot be exchanged with another's; "
                        "add examples, or set post_training_config.loss_type: apo_zero_unpaired");
      parts.push_back({.first = first, .count = count, .order = std::move(of)});
    };
    part(0, examples_->train_units, [order](int64_t place) { return order->unit(place); });
    if (examples_->validation_units() > 0) {
      part(examples_->train_units, examples_->validation_units(),
           [](int64_t place) { return place; });
    }
    examples_->mismatched = mismatched_pairs(whole, parts, group, options_.max_tokens);
  }

  UnitOrder training_order() const {
    return {examples_->train_units, config_.dataset_config.shuffle.value_or(true),
            config_.training_config.seed,
            *p_.task == "kto" ? EpochOrder::kOfFirst : EpochOrder::kOwn,
            internal::batch_of(config_)};
  }

  void take_up(const DataState* resumed) {
    DataState& now = run_.opened;
    now.seq_length = config_.model_config.seq_length;
    now.seed = config_.training_config.seed;
    now.shuffle = config_.dataset_config.shuffle.value_or(true);
    now.tokenizer = tokenizer_->identity();
    TaskDataState& task = now.task.emplace();
    task.task = *p_.task;
    task.files = std::move(files_);
    task.max_length = options_.max_tokens;
    task.long_sequences = name_of(options_.long_sequences);
    task.eod = options_.encoding.eod;
    if (conversations_ > 0 || !found_.is_built_in) {
      task.template_crc64 = chat_format_checksum(found_.format);
    }
    if (conversations_ > 0) {
      task.chat_date = found_.chat_date;
    }
    const int64_t group = internal::batch_of(config_);
    const bool matters = examples_->mismatched.size() > 0 || examples_->train_units % group != 0;
    task.group = matters ? group : 0;
    task.ids_crc64 = train_checksum_;
    internal::take_up(config_, resumed, use_, now, run_);
    run_.start = now.position;
  }

  void make_sources() {
    // One that shares the examples' lifetime.
    const std::shared_ptr<const SequenceSet> set(examples_, &examples_->sequences);
    const int64_t train = examples_->train_units;
    const int64_t group = internal::batch_of(config_);
    const RowRoom room = row_room(config_, pad_id_);
    run_.train =
        std::make_unique<UnitSource>(set, training_order(), UnitSourceOptions{.room = room});
    const int64_t validation = examples_->validation_units();
    if (validation == 0) {
      return;
    }
    const int64_t read = std::min(validation, config_.training_config.eval_iters * group);
    if (read < validation) {
      run_.remarks.push_back(concat(
          "an evaluation reads the first ", read, " of the ", validation, " ",
          unit_name(options_.format, true), " of ", kValidationData,
          ": training_config.eval_iters ", config_.training_config.eval_iters,
          " global batches of ", group, "; ", (validation + group - 1) / group, " would read all"));
    }
    run_.validation = std::make_unique<UnitSource>(
        set, UnitOrder(validation, /*shuffle=*/false, /*seed=*/0, EpochOrder::kOwn, group),
        UnitSourceOptions{.room = room, .first_unit = train, .samples = validation});
  }

  void describe() {
    const SequenceSet& set = examples_->sequences;
    int64_t prompts = 0;
    int64_t completions = 0;
    for (int64_t i = 0; i < set.size(); ++i) {
      prompts += set.prompt_tokens(i);
      completions += set.completion_tokens(i);
    }
    const auto counted = [&](int64_t count) {
      return concat(with_thousands(count), " ", unit_name(options_.format, count != 1));
    };
    std::string names;
    for (const data::TextFile& file : run_.opened.task->files) {
      names += concat(names.empty() ? "" : ", ", file.path);
    }
    run_.description = concat(names, ": ", counted(examples_->train_units));
    if (examples_->validation_units() > 0) {
      run_.description += concat(", ", counted(examples_->validation_units()), " for validation");
    }
    if (!examples_->labels.empty()) {
      const auto desirable = std::count(examples_->labels.begin(), examples_->labels.end(), 1);
      run_.description += concat(", ", with_thousands(desirable), " of them desirable");
    }
    run_.description +=
        concat("; ", with_thousands(prompts), " tokens of prompts, ", with_thousands(completions),
               " of completions, ", tokenizer_->describe());
    remark_on_format();
  }

  void remark_on_format() {
    const data::TurnEnd turn =
        found_.format ? data::find_turn_end(*found_.format, *tokenizer_) : data::TurnEnd{};
    if (conversations_ > 0 && turn.id >= 0 && !turn.begins_next) {
      run_.trained_ends.push_back(turn.id);
    }
    if (plain_ > 0 && (conversations_ == 0 || turn.id != options_.encoding.eod)) {
      run_.trained_ends.push_back(options_.encoding.eod);
    }
    if (conversations_ == 0) {
      return;
    }
    if (found_.is_built_in) {
      run_.remarks.push_back(
          "conversations are written in ChatML, as there is no chat template beside the tokenizer");
    }
    if (!found_.chat_date.empty() && !config_.dataset_config.chat_date) {
      run_.remarks.push_back(concat(found_.format->chat_template->name(),
                                    ": asks for the day and is told ", found_.chat_date,
                                    "; dataset_config.chat_date sets another"));
    }
  }

  const AllConfig& config_;
  const PostTrainingConfig& p_;
  DataUse use_;
  RunData run_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  FoundChatFormat found_;
  int64_t pad_id_ = 0;
  ReadingOptions options_;
  int64_t conversations_ = 0;
  int64_t plain_ = 0;
  std::vector<data::TextFile> files_;  // of training
  std::string train_checksum_;
  std::shared_ptr<TaskExamples> examples_;
};

}  // namespace

ExampleFormat example_format(const AllConfig& config) {
  const std::string& task = *config.post_training_config.task;
  return task == "kto"      ? ExampleFormat::kUnpaired
         : task == "reward" ? ExampleFormat::kReward
         : task == "distil" ? ExampleFormat::kCompletion
         : task == "grpo"   ? ExampleFormat::kPrompt
                            : ExampleFormat::kPreference;
}

int64_t most_tokens(const AllConfig& config) {
  const PostTrainingConfig& p = config.post_training_config;
  const int64_t row = config.model_config.seq_length;
  if (*p.task == "grpo") {
    return row - p.max_completion_length;
  }
  return std::min(p.max_length.value_or(row), row);
}

namespace {

// TRL's trainers of tasks without a reference average logits over whole rows, padding included,
// without the last position in ORPO's. Where tokens go by a state in place of attention, they
// cannot be kept from seeing padding.
CountedPositions counted_positions(const AllConfig& config) {
  const std::string& task = *config.post_training_config.task;
  if (task != "orpo" && task != "cpo") {
    return CountedPositions::kCompletions;
  }
  return has_recurrent_layers(config.model_config) ? CountedPositions::kSequences
         : task == "orpo"                          ? CountedPositions::kPaddedRowsButLast
                                                   : CountedPositions::kPaddedRows;
}

}  // namespace

RowRoom row_room(const AllConfig& config, int64_t pad_id) {
  const ContextParallelLayout context = context_parallel_layout();
  const int64_t pieces =
      config.parallel_config.sequence_parallel ? get_tensor_model_parallel_world_size() : 1;
  return {.seq_length = config.model_config.seq_length,
          .unit = context.size == 1 ? pieces : context.chunks() * pieces,
          .pad_id = pad_id,
          .counted = counted_positions(config)};
}

TaskData open_task_data(const AllConfig& config,
                        ProcessGroup& world,
                        DataUse use,
                        const DataState* resumed) {
  check<ValueError>(config.post_training_config.data.has_value(), kData,
                    ": is not given; name the files of examples for task ",
                    *config.post_training_config.task);
  const bool has_day = resumed != nullptr && resumed->task && !resumed->task->chat_date.empty();
  const std::string today = all_gather_text(world, local_day()).front();
  return TaskDataRun(config, use, has_day ? resumed->task->chat_date : today).open(resumed);
}

}  // namespace tapestry::post_training
