#include "parallel_core/training/data/sft_run_data.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/blended_dataset.h"
#include "parallel_core/data/dataset_split.h"
#include "parallel_core/sft/sft_dataset.h"
#include "parallel_core/training/data/built_in_chat.h"
#include "parallel_core/training/data/example_format.h"
#include "parallel_core/training/data/take_up_data.h"
#include "text/sources/text_files.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/turn_end.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

using internal::batch_of;
using internal::batches_of;
using sft::ExampleCounts;
using sft::ExampleFile;
using sft::ExampleRange;

// The files of one path, each read once, and their weights, if they have such.
struct ExampleFiles {
  std::vector<std::shared_ptr<const ExampleFile>> files;
  std::vector<double> weights;
  ExampleCounts counts;
};

// Files alone may be folders and patterns; a weight belongs to one file.
std::vector<data::BlendEntry> example_files(const std::vector<std::string>& path,
                                            const char* key,
                                            const std::vector<std::string>& without) {
  std::vector<data::BlendEntry> entries = data::parse_data_path(path);
  if (entries.front().weight) {
    for (const data::BlendEntry& entry : entries) {
      check<ValueError>(!fs::is_directory(entry.prefix), key, ": ", entry.prefix,
                        " is a folder with a weight; a weight belongs to one file");
    }
    return entries;
  }
  std::vector<std::string> names;
  for (const data::BlendEntry& entry : entries) {
    names.push_back(entry.prefix);
  }
  entries.clear();
  for (std::string& file : data::text_files(names, key, without)) {
    entries.push_back({.weight = std::nullopt, .prefix = std::move(file)});
  }
  return entries;
}

ExampleFiles read_files(const std::vector<std::string>& path,
                        const char* key,
                        const std::vector<std::string>& without,
                        const sft::ExampleEncoding& encoding) {
  ExampleFiles read;
  for (const data::BlendEntry& entry : example_files(path, key, without)) {
    const auto same = std::find_if(read.files.begin(), read.files.end(), [&](const auto& file) {
      return file->file().path == entry.prefix;
    });
    check<ValueError>(same == read.files.end(), key, ": ", entry.prefix,
                      " stands there twice; name it once, with a weight");
    read.files.push_back(std::make_shared<const ExampleFile>(entry.prefix, encoding));
    read.counts += read.files.back()->counts();
    if (entry.weight) {
      read.weights.push_back(*entry.weight);
    }
  }
  return read;
}

// A part (0 training, 1 validation, 2 test) of each file by its lines.
std::vector<ExampleRange> part_of(const ExampleFiles& files,
                                  const std::string& split,
                                  size_t part) {
  std::vector<ExampleRange> ranges;
  for (const auto& file : files.files) {
    const auto lines = data::split_sequences(split, file->counts().lines)[part];
    const auto [begin, end] =
        lines ? file->examples_of(lines->begin, lines->end) : std::pair<int64_t, int64_t>{0, 0};
    ranges.push_back({file, begin, end});
  }
  return ranges;
}

int64_t examples_in(const std::vector<ExampleRange>& ranges) {
  int64_t count = 0;
  for (const ExampleRange& range : ranges) {
    count += range.end - range.begin;
  }
  return count;
}

std::string tokens_text(const sft::SftDataset& rows, int64_t count) {
  double filled = 0;
  double learned = 0;
  for (int64_t k = 0; k < count; ++k) {
    const sft::RowFill fill = rows.fill(k);
    filled += static_cast<double>(fill.tokens);
    learned += static_cast<double>(fill.learned);
  }
  char share[40];
  std::snprintf(
      share, sizeof(share), "%.1f %%",
      100 * filled / static_cast<double>(std::max<int64_t>(count, 1) * rows.seq_length()));
  return concat(with_thousands(count), count == 1 ? " row of " : " rows of ", rows.seq_length(),
                " (", share, " filled), ", with_thousands(static_cast<int64_t>(learned)), " of ",
                with_thousands(static_cast<int64_t>(filled)), " tokens learned");
}

std::string count_text(int64_t count, const char* one, const char* many) {
  return concat(with_thousands(count), " ", count == 1 ? one : many);
}

// What was left out, and what is not as one might expect.
void remark_on_counts(const ExampleFiles& files,
                      const sft::ExampleEncoding& encoding,
                      RunData& run) {
  for (const auto& file : files.files) {
    const ExampleCounts& c = file->counts();
    const auto remark = [&](int64_t count, const std::string& text) {
      if (count > 0) {
        run.remarks.push_back(concat(file->file().path, ": ", text));
      }
    };
    remark(file->bad_lines().count, file->bad_lines().text());
    const std::string limit =
        concat("longer than the ", encoding.max_tokens, " tokens of a row and its last label");
    remark(c.cut, concat(count_text(c.cut, "example is ", "examples are "), limit,
                         " and cut: ", count_text(c.cut_tokens, "token is", "tokens are"),
                         " left out (dataset_config.sft_long_examples: cut)"));
    remark(c.dropped_long, concat(count_text(c.dropped_long, "example is ", "examples are "), limit,
                                  " and left out (dataset_config.sft_long_examples: drop)"));
    remark(c.without_answer,
           concat(count_text(c.without_answer, "example is", "examples are"),
                  " left out, as nothing is learned from ", c.without_answer == 1 ? "it" : "them",
                  ": no answer, or none in what is left of a long one"));
    remark(c.crossing,
           concat(count_text(c.crossing, "learned token reaches", "learned tokens reach"),
                  " over the beginning or end of an answer; prompts that end in a space are the "
                  "usual reason"));
    remark(c.begins_twice,
           concat(count_text(c.begins_twice, "text begins", "texts begin"),
                  " with the token that the tokenizer puts in front of every text as well, and has "
                  "it twice; leave it out of the file, or write conversations (messages)"));
    remark(c.unrolled,
           concat(count_text(c.unrolled, "conversation is", "conversations are"),
                  " one example for each answer, as the template rewrites earlier turns"));
  }
}

// What the data are known by.
DataState identity_of_examples(const AllConfig& config,
                               const ExampleFiles& files,
                               const data::Tokenizer& tokenizer,
                               const sft::ExampleEncoding& encoding) {
  const DatasetConfig& d = config.dataset_config;
  DataState state;
  state.seq_length = config.model_config.seq_length;
  ExampleState& examples = state.examples.emplace();
  for (size_t i = 0; i < files.files.size(); ++i) {
    examples.files.push_back(
        {files.weights.empty() ? std::nullopt : std::optional(files.weights[i]),
         files.files[i]->file()});
  }
  examples.packing = d.sft_packing;
  examples.long_examples = d.sft_long_examples;
  examples.loss = d.sft_loss;
  examples.eod = encoding.eod;
  state.split = d.sft_valid_data_path ? std::string() : d.split;
  state.seed = config.training_config.seed;
  state.shuffle = d.shuffle.value_or(true);
  state.tokenizer = tokenizer.identity();
  return state;
}

// Samples that the run draws of these data, from their first one on; adds the epochs that they
// need.
int64_t draw_rows(const AllConfig& config, const DataState& opened, sft::RowOrder& order) {
  const BatchSchedule batches = batches_of(config);
  const data::BatchPosition done = opened.in_run();
  const int64_t first = opened.position.first_sample;
  const int64_t total = total_steps(config, done);
  int64_t steps = std::max<int64_t>(0, total - done.step);
  if (total == 0 && config.training_config.epochs) {
    while (order.num_epochs() < *config.training_config.epochs) {
      order.add_epoch();
    }
    const int64_t left = order.rows_before(*config.training_config.epochs) - first;
    steps = left > 0 ? batches.steps_until(done.first_sample + left, done.first_sample) : 0;
  }
  // A run that is at its end opens its data all the same.
  const int64_t drawn = batches.consumed_after(steps, done.first_sample) - done.first_sample;
  const int64_t wanted = std::max(first + drawn, batches.full());
  while (order.num_rows() < wanted) {
    order.add_epoch();
  }
  return wanted;
}

struct RowSettings {
  sft::RowOrderOptions order;
  int64_t seq_length;
  int64_t pad_id;
};

std::shared_ptr<const sft::SftDataset> rows_for_evaluation(const AllConfig& config,
                                                           std::vector<ExampleRange> ranges,
                                                           RowSettings settings,
                                                           const char* name,
                                                           RunData& run) {
  settings.order.shuffle = false;
  auto order = std::make_shared<sft::RowOrder>(sft::lengths_of(ranges), std::vector<double>(),
                                               settings.order);
  order->add_epoch();
  const int64_t rows = order->num_rows();
  const int64_t batch = batch_of(config);
  const int64_t read = config.training_config.eval_iters * batch;
  if (read < rows) {
    run.remarks.push_back(concat("training_config.eval_iters ", config.training_config.eval_iters,
                                 " reads ", read, " of the ", rows, " rows of ", name,
                                 " examples; ", (rows + batch - 1) / batch, " would read all"));
  }
  return std::make_shared<sft::SftDataset>(std::move(ranges), std::move(order),
                                           (rows + batch - 1) / batch * batch, settings.seq_length,
                                           settings.pad_id);
}

// Opens the parts of one run.
class ExampleRun {
 public:
  ExampleRun(const AllConfig& config, DataUse use, const std::string& day)
      : config_(config),
        d_(config.dataset_config),
        use_(use),
        tokenizer_(tokenizer_of_examples(config, "dataset_config.sft_data_path", run_)),
        found_(find_chat_format(config, *tokenizer_, day)) {
    const int64_t seq_length = config.model_config.seq_length;
    encoding_ = {
        .tokenizer = tokenizer_.get(),
        .format = found_.format ? &*found_.format : nullptr,
        .without_format = found_.why_none,
        .eod = static_cast<int32_t>(d_.eos_token_id.value_or(tokenizer_->eod_id())),
        .learned = d_.sft_loss == "all" ? sft::LearnedTokens::kAll : sft::LearnedTokens::kAnswers,
        .long_examples =
            d_.sft_long_examples == "drop" ? sft::LongExamples::kDrop : sft::LongExamples::kCut,
        .max_tokens = seq_length + 1};
    settings_ = {
        .order = {.capacity = seq_length + 1,
                  .packing = d_.sft_packing,
                  .shuffle = d_.shuffle.value_or(true),
                  .seed = config.training_config.seed},
        .seq_length = seq_length,
        .pad_id = d_.pad_token_id.value_or(std::max(
            {tokenizer_->pad_id() >= 0 ? tokenizer_->pad_id() : encoding_.eod, int32_t{0}}))};
    const int64_t vocab_size = config.model_config.vocab_size;
    check<ValueError>(encoding_.eod < vocab_size && settings_.pad_id < vocab_size,
                      "dataset_config.eos_token_id ", encoding_.eod, " and pad_token_id ",
                      settings_.pad_id, " have to be below model_config.vocab_size ", vocab_size);
    const data::TurnEnd turn =
        found_.format ? data::find_turn_end(*found_.format, *tokenizer_) : data::TurnEnd{};
    if (turn.begins_next) {
      encoding_.next_turn = turn.id;
    }
    encoding_.skip_bad_lines = d_.skip_bad_lines;
    files_ = read_files(*d_.sft_data_path, "dataset_config.sft_data_path", own_folders(config),
                        encoding_);
    remark_on_counts(files_, encoding_, run_);
    remark_on_format();
    if (files_.counts.rendered > 0 && turn.id >= 0) {
      run_.trained_ends.push_back(turn.id);
    }
    if (files_.counts.plain > 0 && (files_.counts.rendered == 0 || turn.id != encoding_.eod)) {
      run_.trained_ends.push_back(encoding_.eod);
    }
    remark_on_turns(turn);
  }

  // Whether a model learns from these conversations where an answer ends.
  void remark_on_turns(data::TurnEnd turn) {
    if (files_.counts.rendered == 0) {
      return;
    }
    const std::string& file = found_.format->chat_template->name();
    if (turn.id < 0) {
      run_.remarks.push_back(
          concat(file,
                 ": the template writes no special token behind an answer, so that none is "
                 "learned: the model will not know where to stop"));
    } else if (turn.begins_next) {
      run_.remarks.push_back(concat(file, ": an answer ends where the next message begins, so ",
                                    token_spelling(*tokenizer_, turn.id), " (", turn.id,
                                    ") is learned behind every answer"));
    }
  }

  RunData open(const DataState* resumed) {
    run_.opened = identity_of_examples(config_, files_, *tokenizer_, encoding_);
    const bool has_conversations = files_.counts.conversations > 0;
    if (has_conversations || !found_.is_built_in) {
      run_.opened.examples->template_crc64 = chat_format_checksum(found_.format);
    }
    if (has_conversations) {
      run_.opened.examples->chat_date = found_.chat_date;
    }
    internal::take_up(config_, resumed, use_, run_.opened, run_);
    run_.start = run_.opened.position;
    if (use_ == DataUse::kTraining) {
      open_training();
    }
    open_evaluation();
    return std::move(run_);
  }

  // For the description.
  std::string names() const {
    std::string names;
    for (const auto& file : files_.files) {
      names += concat(names.empty() ? "" : ", ", file->file().path);
    }
    return concat(names, ": ", count_text(files_.counts.lines, "line", "lines"));
  }
  std::string tokenizer() const { return tokenizer_->describe(); }

 private:
  bool has_own_validation() const { return d_.sft_valid_data_path.has_value(); }
  std::string split() const { return has_own_validation() ? "1" : d_.split; }

  void remark_on_format() {
    if (files_.counts.conversations == 0) {
      return;
    }
    if (found_.is_built_in) {
      run_.remarks.push_back(
          concat("conversations are written in ChatML, as there is no chat template beside the "
                 "tokenizer; a turn ends with ",
                 built_in_turn_end(*tokenizer_)));
    }
    if (!found_.chat_date.empty() && !d_.chat_date) {
      run_.remarks.push_back(concat(found_.format->chat_template->name(),
                                    ": asks for the day and is told ", found_.chat_date,
                                    "; dataset_config.chat_date sets another"));
    }
  }

  void open_training() {
    std::vector<ExampleRange> ranges = part_of(files_, split(), 0);
    const int64_t examples = examples_in(ranges);
    check<ValueError>(
        examples > 0, "dataset_config.sft_data_path ", d_.sft_data_path->back(), ": of ",
        files_.counts.lines, " lines none is left for training",
        files_.counts.lines > 0 ? " (see dataset_config.split and sft_long_examples)" : "");
    for (size_t i = 0; i < ranges.size() && !files_.weights.empty(); ++i) {
      check<ValueError>(files_.weights[i] == 0 || ranges[i].end > ranges[i].begin,
                        ranges[i].file->file().path,
                        ": has a weight, but no example of it is left for training");
    }
    auto order =
        std::make_shared<sft::RowOrder>(sft::lengths_of(ranges), files_.weights, settings_.order);
    order->add_epoch();
    const int64_t epoch_rows = order->num_rows();
    const int64_t samples = draw_rows(config_, run_.opened, *order);
    auto rows = std::make_shared<sft::SftDataset>(std::move(ranges), std::move(order), samples,
                                                  settings_.seq_length, settings_.pad_id);
    describe(concat(count_text(examples, "example", "examples"), " in ",
                    tokens_text(*rows, epoch_rows), files_.weights.empty() ? "" : " an epoch"));
    run_.train = std::make_unique<data::TokenDataSource>(std::move(rows));
  }

  void open_evaluation() {
    const bool evaluates =
        use_ == DataUse::kEvaluation || config_.training_config.eval_interval.has_value();
    if (has_own_validation() && evaluates) {
      for (const data::BlendEntry& entry : data::parse_data_path(*d_.sft_valid_data_path)) {
        check<ValueError>(!entry.weight, "dataset_config.sft_valid_data_path has the weight ",
                          *entry.weight, ", but each example is read once; name files alone");
      }
      const ExampleFiles validation =
          read_files(*d_.sft_valid_data_path, "dataset_config.sft_valid_data_path",
                     own_folders(config_), encoding_);
      remark_on_counts(validation, encoding_, run_);
      run_.validation = evaluation_part(part_of(validation, "1", 0), "validation");
    } else if (evaluates) {
      run_.validation = evaluation_part(part_of(files_, d_.split, 1), "validation");
    }
    if (!has_own_validation()) {
      run_.test = evaluation_part(part_of(files_, d_.split, 2), "test");
    }
    check<ValueError>(
        run_.validation != nullptr || !config_.training_config.eval_interval ||
            use_ == DataUse::kEvaluation,
        "training_config.eval_interval is set, but there is no example to evaluate on; ",
        has_own_validation()
            ? "sft_valid_data_path has none"
            : "give dataset_config.split a larger second share, name sft_valid_data_path",
        ", or set eval_interval to null");
  }

  std::unique_ptr<data::DataSource> evaluation_part(std::vector<ExampleRange> ranges,
                                                    const char* name) {
    const int64_t examples = examples_in(ranges);
    if (examples == 0) {
      return nullptr;
    }
    auto rows = rows_for_evaluation(config_, std::move(ranges), settings_, name, run_);
    describe(concat(with_thousands(examples), " for ", name, " in ",
                    tokens_text(*rows, rows->real_rows())));
    return std::make_unique<data::TokenDataSource>(std::move(rows));
  }

  void describe(const std::string& part) {
    run_.description += concat(run_.description.empty() ? "" : "; ", part);
  }

  const AllConfig& config_;
  const DatasetConfig& d_;
  DataUse use_;
  RunData run_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  FoundChatFormat found_;
  sft::ExampleEncoding encoding_;
  RowSettings settings_;
  ExampleFiles files_;
};

}  // namespace

RunData open_examples(const AllConfig& config,
                      DataUse use,
                      const DataState* resumed,
                      const std::string& day) {
  const auto start = std::chrono::steady_clock::now();
  const bool has_day =
      resumed != nullptr && resumed->examples && !resumed->examples->chat_date.empty();
  ExampleRun examples(config, use, has_day ? resumed->examples->chat_date : day);
  RunData run = examples.open(resumed);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  char time[40];
  std::snprintf(time, sizeof(time), "%.1f s", seconds.count());
  run.description = concat(examples.names(), ", ", run.description, "; encoded in ", time, ", ",
                           examples.tokenizer());
  return run;
}

}  // namespace tapestry
