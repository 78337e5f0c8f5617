#include "parallel_core/training/data/run_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/data/blended_dataset.h"
#include "parallel_core/data/dataset_fingerprint.h"
#include "parallel_core/data/default_text.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/data/own_run_data.h"
#include "parallel_core/training/data/recorded_run_data.h"
#include "parallel_core/training/data/sft_run_data.h"
#include "parallel_core/training/data/take_up_data.h"
#include "parallel_core/training/log/logging.h"
#include "text/sources/text_files.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/tokenizer_record.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr const char* kModelKey = "dataset_config.tokenizer_model";

using internal::batch_of;
using internal::take_up;

// Steps that are left of a run, which stands at `opened`. Where epochs alone limit it they follow
// from the text.
int64_t count_steps(const AllConfig& config,
                    const DataState& opened,
                    data::GPTDatasetsConfig datasets) {
  const data::BatchPosition done = opened.in_run();
  const int64_t total = total_steps(config, done);
  if (total > 0 || !config.training_config.epochs) {
    return std::max<int64_t>(0, total - done.step);
  }
  datasets.counts = {.train = 1};
  datasets.earlier = {};
  const auto train = data::build_gpt_datasets(datasets).train;
  if (train == nullptr) {
    return 0;
  }
  const int64_t tokens = *config.training_config.epochs * train->tokens_per_epoch();
  const int64_t left = tokens - opened.position.first_sample * train->seq_length();
  const int64_t step_tokens = batch_of(config) * train->seq_length();
  return left > 0 ? (left + step_tokens - 1) / step_tokens : 0;
}

// Samples that the run asks for, those behind it included. Validation reads the first ones again
// and again: Megatron's number, as if each evaluation had samples of its own, only decides their
// order, which stays what it was.
data::SampleCounts wanted_samples(const AllConfig& config,
                                  const DataState& opened,
                                  int64_t steps_left,
                                  DataUse use) {
  const TrainingConfig& t = config.training_config;
  const int64_t batch = batch_of(config);
  data::SampleCounts counts =
      data::sample_counts(steps_left, t.eval_interval.value_or(0), t.eval_iters, batch);
  // With a ramp-up of the batch the run asks for as many as without, or more if it draws more: so
  // it has the same samples in the same order.
  const data::BatchPosition done = opened.in_run();
  const int64_t samples = config.dataset_config.train_samples;
  if (t.training_iters == 0 && samples > 0) {
    counts.train = std::max<int64_t>(0, samples - done.first_sample) / batch * batch;
  }
  const int64_t drawn = internal::batches_of(config).consumed_after(steps_left, done.first_sample) -
                        done.first_sample;
  // A run that is at its end opens its data all the same.
  counts.train = std::max(opened.position.first_sample + std::max(counts.train, drawn), batch);
  if (!opened.plan.valid.empty()) {
    counts.valid = std::min(counts.valid, t.eval_iters * batch);
  }
  if (use == DataUse::kEvaluation) {
    counts.train = 0;
    counts.valid = std::max(counts.valid, t.eval_iters * batch);
  }
  return counts;
}

// The data sets of all parts.
std::vector<std::string> prefixes_of(const DatasetConfig& d) {
  std::vector<std::string> prefixes;
  for (const auto* path :
       {&d.data_path, &d.train_data_path, &d.valid_data_path, &d.test_data_path}) {
    if (*path) {
      for (const data::BlendEntry& entry : data::parse_data_path(**path)) {
        prefixes.push_back(entry.prefix);
      }
    }
  }
  return prefixes;
}

// Where preprocess_data of earlier releases, which kept no record, left the tokenizer of
// PREFIX_KEY_document: PREFIX.model. Empty if there is none.
std::string model_beside(std::string prefix) {
  constexpr std::string_view kEnding = "_document";
  if (prefix.ends_with(kEnding)) {
    prefix.resize(prefix.size() - kEnding.size());
  }
  prefix.resize(std::min(prefix.rfind('_'), prefix.size()));
  prefix += ".model";
  return fs::is_regular_file(prefix) ? prefix : "";
}

struct RecordedData {
  std::string prefix;
  data::TokenizerRecord record;
};

// The record that all data sets with one share. Those without are remarked upon.
std::optional<RecordedData> common_record(const std::vector<std::string>& prefixes,
                                          const std::string& type,
                                          std::vector<std::string>& remarks) {
  std::optional<RecordedData> first;
  for (const std::string& prefix : prefixes) {
    auto record = data::read_tokenizer_record(prefix);
    if (!record) {
      if (fs::exists(prefix + ".idx")) {
        remarks.push_back(concat(prefix, ": has no record of its tokenizer (",
                                 data::tokenizer_record_path(prefix), "); it is taken for ", type));
      }
    } else if (!first) {
      first = {prefix, *std::move(record)};
    } else {
      check<ValueError>(record->tokenizer == first->record.tokenizer, prefix,
                        ": was made with the ", describe(record->tokenizer), ", but ",
                        first->prefix, " with the ", describe(first->record.tokenizer),
                        "; data of one run need one tokenizer: prepare one of the texts again");
    }
  }
  return first;
}

// The model that the data were made with: as their record says, or beside all of them.
std::string find_model(const std::vector<std::string>& prefixes,
                       const std::optional<RecordedData>& recorded,
                       std::vector<std::string>& remarks) {
  if (recorded) {
    std::string model = data::recorded_model_path(recorded->prefix, recorded->record);
    if (path_exists(model)) {
      return model;
    }
  }
  std::string found = prefixes.empty() ? "" : model_beside(prefixes.front());
  for (const std::string& prefix : prefixes) {
    if (model_beside(prefix) != found) {
      return "";
    }
  }
  if (found.empty() && recorded) {
    remarks.push_back(concat(
        data::recorded_model_path(recorded->prefix, recorded->record),
        ": the tokenizer of the data is not there, so checkpoints will be without; name it with ",
        kModelKey));
  }
  return found;
}

// The run's tokenizer, which has to be the data's; null if there is no model to make it of.
std::unique_ptr<data::Tokenizer> tokenizer_of_data(const AllConfig& config, RunData& run) {
  const DatasetConfig& d = config.dataset_config;
  const std::vector<std::string> prefixes = prefixes_of(d);
  const auto recorded = common_record(prefixes, d.tokenizer_type, run.remarks);
  if (recorded) {
    const data::TokenizerIdentity& made_with = recorded->record.tokenizer;
    check<ValueError>(made_with.type == d.tokenizer_type, recorded->prefix, ": was made with the ",
                      describe(made_with), ", but dataset_config.tokenizer_type is ",
                      d.tokenizer_type, "; set it to ", made_with.type,
                      ", or prepare the text again");
    check<ValueError>(made_with.vocab_size <= config.model_config.vocab_size,
                      "model_config.vocab_size is ", config.model_config.vocab_size, ", but ",
                      recorded->prefix, " was made with the ", describe(made_with),
                      "; raise vocab_size or prepare the text with a smaller one");
  }
  if (d.tokenizer_type != "byte") {
    run.tokenizer_model = d.tokenizer_model
                              ? data::tokenizer_file(d.tokenizer_type, *d.tokenizer_model)
                              : find_model(prefixes, recorded, run.remarks);
    if (run.tokenizer_model.empty()) {
      return nullptr;
    }
  }
  auto tokenizer = data::make_tokenizer(d.tokenizer_type, run.tokenizer_model);
  check<ValueError>(!recorded || recorded->record.tokenizer == tokenizer->identity(),
                    recorded ? recorded->prefix : "", ": was made with the ",
                    recorded ? describe(recorded->record.tokenizer) : "", ", but ",
                    run.tokenizer_model, " is the ", describe(tokenizer->identity()),
                    "; name the right one with ", kModelKey, ", or prepare the text again");
  const std::vector<std::string> remarks = tokenizer->remarks();
  run.remarks.insert(run.remarks.end(), remarks.begin(), remarks.end());
  return tokenizer;
}

// Prepares dataset_config.text or the default text where that has not been done.
std::unique_ptr<data::Tokenizer> prepare_on_first_use(const AllConfig& config,
                                                      data::GPTDatasetsConfig& datasets,
                                                      RunData& run) {
  const DatasetConfig& d = config.dataset_config;
  check_tokenizer_of_weights(config);
  const std::string other_data = check_dataset_dir(d);
  const data::CorpusOptions options = corpus_options(config);
  data::PreparedCorpus corpus =
      d.text ? data::prepare_text(*d.text, options) : data::prepare_default_text(options);
  datasets.data_path = {corpus.prefix};
  run.tokenizer_model = corpus.tokenizer_model;
  run.remarks = std::move(corpus.remarks);
  if (!other_data.empty()) {
    run.remarks.push_back(other_data);
  }
  run.description = concat(
      corpus.prepared ? "prepared " : "found ",
      d.text ? concat("the text as ", corpus.prefix) : "the default text", ": ", corpus.documents,
      corpus.documents == 1 ? " document, " : " documents, ", corpus.tokens, " tokens, ");
  auto tokenizer = data::make_tokenizer(d.tokenizer_type, run.tokenizer_model);
  const std::vector<std::string> remarks = tokenizer->remarks();
  run.remarks.insert(run.remarks.end(), remarks.begin(), remarks.end());
  return tokenizer;
}

// A part that cannot fill one global batch is an error now, not at the first evaluation.
void check_batches(const data::TokenDataset& part, const char* name, const AllConfig& config) {
  const int64_t batch = batch_of(config);
  check<ValueError>(
      part.size() >= batch, "the ", name, " data hold ", part.size(),
      " samples, one global batch needs ", batch,
      "; give each prefix a weight so that it is repeated, use more text or a smaller "
      "dataset_config.batch_size");
}

std::vector<DatasetShare> shares_of_blend(const std::vector<std::string>& path) {
  std::vector<DatasetShare> shares;
  if (!path.empty()) {
    for (const data::BlendEntry& entry : data::parse_data_path(path)) {
      shares.push_back({entry.weight, data::dataset_fingerprint(entry.prefix)});
    }
  }
  return shares;
}

// What the data sets are known by.
DataState identity_of(const AllConfig& config,
                      const data::GPTDatasetsConfig& datasets,
                      const data::Tokenizer* tokenizer) {
  const bool own = datasets.data_path.empty();
  DataState state;
  state.seq_length = datasets.options.seq_length;
  state.datasets = {shares_of_blend(own ? datasets.train_data_path : datasets.data_path),
                    shares_of_blend(datasets.valid_data_path),
                    shares_of_blend(datasets.test_data_path)};
  state.split = own ? std::string() : datasets.split;
  state.seed = datasets.options.seed;
  state.shuffle = datasets.options.shuffle;
  state.tokenizer = tokenizer != nullptr
                        ? tokenizer->identity()
                        : data::TokenizerIdentity{.type = config.dataset_config.tokenizer_type};
  return state;
}

bool some_document_ends_with(const std::string& prefix, int64_t token) {
  constexpr int64_t kEnough = 1000;
  const data::IndexedDataset dataset(prefix);
  std::vector<int64_t> last;
  for (int64_t i = 0; i < std::min(dataset.num_sequences(), kEnough); ++i) {
    const int64_t length = dataset.sequence_lengths()[static_cast<size_t>(i)];
    if (length > 0) {
      last.clear();
      dataset.read(i, length - 1, 1, last);
      if (last[0] == token) {
        return true;
      }
    }
  }
  return false;
}

// Takes the token that ends documents, and says where there seems to be none.
void remark_on_documents(const DatasetConfig& d, data::GPTDatasetsConfig& datasets, RunData& run) {
  data::GPTDatasetOptions& options = datasets.options;
  const int64_t of_tokenizer = options.eod_id;
  options.eod_id = d.eos_token_id.value_or(of_tokenizer);
  if (options.eod_id < 0 ||
      (!d.eod_mask_loss && !d.reset_attention_mask && !d.reset_position_ids)) {
    return;
  }
  if (of_tokenizer >= 0 && options.eod_id != of_tokenizer) {
    run.remarks.push_back(concat("dataset_config.eos_token_id: documents are taken to end with ",
                                 options.eod_id, ", the tokenizer ends them with ", of_tokenizer));
  }
  for (const auto* path : {&datasets.data_path, &datasets.train_data_path}) {
    for (const data::BlendEntry& entry :
         path->empty() ? std::vector<data::BlendEntry>{} : data::parse_data_path(*path)) {
      if (!some_document_ends_with(entry.prefix, options.eod_id)) {
        run.remarks.push_back(concat(
            entry.prefix, ": no document ends with the token ", options.eod_id,
            ", so that none is told from the next; was the text prepared with --append_eod?"));
      }
    }
  }
}

RunData open_text(const AllConfig& config, DataUse use, const DataState* resumed) {
  const DatasetConfig& d = config.dataset_config;
  const TransformerConfig& m = config.model_config;
  RunData run;
  data::GPTDatasetsConfig datasets;
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (d.data_path || d.train_data_path) {
    datasets.data_path = d.data_path.value_or(std::vector<std::string>());
    datasets.train_data_path = d.train_data_path.value_or(std::vector<std::string>());
    datasets.valid_data_path = d.valid_data_path.value_or(std::vector<std::string>());
    datasets.test_data_path = d.test_data_path.value_or(std::vector<std::string>());
    tokenizer = tokenizer_of_data(config, run);
  } else {
    tokenizer = prepare_on_first_use(config, datasets, run);
  }
  datasets.split = d.split;
  datasets.options.seq_length = m.seq_length;
  datasets.options.seed = config.training_config.seed;
  datasets.options.shuffle = d.shuffle.value_or(true);
  datasets.options.vocab_size = m.vocab_size;
  datasets.options.pad_id = d.pad_token_id.value_or(-1);
  datasets.options.eod_mask_loss = d.eod_mask_loss;
  datasets.options.reset_position_ids = d.reset_position_ids;
  datasets.options.reset_attention_mask = d.reset_attention_mask;
  if (tokenizer) {
    check<ValueError>(tokenizer->vocab_size() <= m.vocab_size, "model_config.vocab_size is ",
                      m.vocab_size, ", but the text's is the ", tokenizer->describe(),
                      "; raise vocab_size or use another tokenizer. A model that exists "
                      "(model_config.from_hf) gets a row for each id with --resize_embeddings");
    datasets.options.eod_id = tokenizer->eod_id();
    run.description += tokenizer->describe();
  }
  remark_on_documents(d, datasets, run);
  DataState& opened = run.opened;
  opened = identity_of(config, datasets, tokenizer.get());
  take_up(config, resumed, use, opened, run);
  run.start = opened.position;
  datasets.earlier = opened.plan;
  datasets.counts = wanted_samples(config, opened, count_steps(config, opened, datasets), use);
  opened.plan = data::extend_plan(opened.plan, datasets.counts);
  data::GPTDatasets built = data::build_gpt_datasets(datasets);
  run.remarks.insert(run.remarks.end(), built.remarks.begin(), built.remarks.end());
  if (use == DataUse::kTraining) {
    check<ValueError>(built.train != nullptr, "dataset_config.split '", d.split,
                      "' leaves nothing for training");
    run.train = std::make_unique<data::TokenDataSource>(built.train);
    check<ValueError>(built.valid != nullptr || !config.training_config.eval_interval,
                      "training_config.eval_interval is set, but dataset_config.split '", d.split,
                      "' leaves nothing for validation; give it a share, such as 90,10, or set "
                      "eval_interval to null");
  }
  if (built.valid != nullptr) {
    check_batches(*built.valid, "validation", config);
    run.validation = std::make_unique<data::TokenDataSource>(built.valid);
  }
  const int64_t batch = batch_of(config);
  if (built.test != nullptr && (d.test_data_path || built.test->size() >= batch)) {
    check_batches(*built.test, "test", config);
    run.test = std::make_unique<data::TokenDataSource>(built.test);
  }
  return run;
}

bool is_tokenizer(const std::string& type,
                  const std::string& model,
                  const data::huggingface::TokenizerFiles& files) {
  return type == "huggingface" &&
         data::huggingface::tokenizer_checksum(data::huggingface::find_tokenizer_files(model)) ==
             data::huggingface::tokenizer_checksum(files);
}

}  // namespace

DataState RunData::state(data::BatchPosition next) const {
  DataState state = opened;
  state.position = next;
  return state;
}

int64_t total_steps(const AllConfig& config, data::BatchPosition done) {
  const int64_t samples = config.dataset_config.train_samples;
  if (config.training_config.training_iters > 0 || samples == 0) {
    return config.training_config.training_iters;
  }
  return done.step +
         internal::batches_of(config).steps_within(samples, std::min(samples, done.first_sample));
}

bool has_steps_left(const AllConfig& config, const RunData& data) {
  const data::BatchPosition done = data.opened.in_run();
  const int64_t total = total_steps(config, done);
  const auto& epochs = config.training_config.epochs;
  return (total == 0 || done.step < total) &&
         (!epochs || data.train->epoch(data.start.first_sample) < *epochs);
}

void check_tokenizer_of_weights(const AllConfig& config) {
  const DatasetConfig& d = config.dataset_config;
  const auto& folder = config.model_config.from_hf;
  check<ValueError>(
      !folder || d.tokenizer_model || d.tokenizer_type == "byte", "model_config.from_hf '",
      folder.value_or(""),
      "' has no tokenizer (tokenizer.json, vocab.json with merges.txt, or tokenizer.model), and "
      "one "
      "made of the text would have other ids than those that its weights know; fetch the missing "
      "file, or name the tokenizer: dataset_config.tokenizer_type with tokenizer_model "
      "(tokenizer_type: byte if its ids are bytes)");
}

std::string check_dataset_dir(const DatasetConfig& d) {
  const auto found = data::foreign_data(d.dataset_dir, /*texts=*/!d.text);
  if (!found) {
    return "";
  }
  const char* text = d.text ? "the text" : "the default text";
  const std::string message =
      concat("dataset_config.dataset_dir ", d.dataset_dir, " is where ", text,
             " is prepared, which this run trains on, but ", found->name, " ", found->remedy);
  const bool is_chosen = d.dataset_dir != DatasetConfig().dataset_dir;
  check<ValueError>(!is_chosen && found->name.find(".mindrecord") == std::string::npos, message,
                    "; for ", text, " use another folder");
  return message;
}

std::vector<std::string> own_folders(const AllConfig& config) {
  return {config.dataset_config.dataset_dir + "/", config.training_config.output_dir + "/"};
}

data::CorpusOptions corpus_options(const AllConfig& config) {
  const DatasetConfig& d = config.dataset_config;
  return {.dataset_dir = d.dataset_dir,
          .tokenizer_type = d.tokenizer_type,
          .vocab_size = std::min(config.model_config.vocab_size, kDefaultTextMaxVocab),
          .character_coverage = d.character_coverage,
          .tokenizer_model = d.tokenizer_model.value_or(""),
          .skip_bad_lines = d.skip_bad_lines,
          .without = own_folders(config),
          .report = [context = &RankContext::current()](const std::string& message) {
            const RankContextGuard guard(*context);  // it may come from another thread
            log_info(message);
          }};
}

namespace {

RunData open_on(const std::string& day,
                const AllConfig& config,
                DataUse use,
                const DataState* resumed) {
  const DatasetConfig& d = config.dataset_config;
  const std::optional<std::string>& task = config.post_training_config.task;
  check<ValueError>(!task, "post_training_config.task ", task.value_or(""),
                    ": its examples are no text to open or to evaluate on; its run evaluates on "
                    "validation_data every eval_interval steps; for losses on a text or a data set "
                    "set post_training_config.task to null and name that");
  const BatchSchedule batches = internal::batches_of(config);
  const int64_t whole = batches.reach(0, BatchSchedule::kNoLimit, d.train_samples).consumed;
  check<ValueError>(d.drop_remainder || whole == d.train_samples,
                    "dataset_config.drop_remainder is False, but train_samples ", d.train_samples,
                    batches.ramps()
                        ? concat(" ends within a step, the last whole one with sample ", whole,
                                 "; make it that number")
                        : concat(" is no multiple of the ", batches.full(),
                                 " samples of a step, and every step has as many; make it one"));
  if (d.sft_data_path) {
    return open_examples(config, use, resumed, day);
  }
  if (!d.step_data_dir) {
    return open_text(config, use, resumed);
  }
  check<ValueError>(use == DataUse::kTraining,
                    "dataset_config.step_data_dir holds steps of training, nothing to evaluate on; "
                    "name a text or a data set");
  return internal::open_recorded(config, resumed);
}

}  // namespace

RunData open_data(const AllConfig& config, DataUse use, const DataState* resumed) {
  check<ValueError>(!config.dataset_config.data_source, "dataset_config.data_source ",
                    config.dataset_config.data_source.value_or(""),
                    " is the program's own, which its ranks open together");
  return open_on(local_day(), config, use, resumed);
}

RunData open_data(const AllConfig& config,
                  ProcessGroup& world,
                  DataUse use,
                  const DataState* resumed) {
  if (config.dataset_config.data_source) {
    check<ValueError>(use == DataUse::kTraining, "dataset_config.data_source ",
                      *config.dataset_config.data_source,
                      " is for training; to evaluate on data of your own, call evaluate()");
    return open_registered_data(config, world, resumed);
  }
  if (config.dataset_config.sft_data_path) {
    // Nothing is prepared; but one day counts, where ranks open their data around midnight.
    return open_on(all_gather_text(world, local_day()).front(), config, use, resumed);
  }
  if (world.rank() != 0) {
    world.barrier();
    return open_data(config, use, resumed);
  }
  RunData data = open_data(config, use, resumed);
  world.barrier();
  return data;
}

std::string other_tokenizer_remark(const AllConfig& config,
                                   const RunData& data,
                                   const std::string& weights) {
  const fs::path path = weights;
  const fs::path folder = folder_exists(weights) ? path : path.parent_path();
  if (config.dataset_config.step_data_dir || data.opened.own) {
    return "";
  }
  const bool bytes = data.tokenizer_model.empty();
  std::string theirs = (folder / "tokenizer.model").string();
  const bool has_pieces = path_exists(theirs);
  const bool has_json = data::huggingface::has_tokenizer_files(folder.string());
  if (has_json && (config.dataset_config.tokenizer_type == "huggingface" || !has_pieces)) {
    const auto files = data::huggingface::find_tokenizer_files(folder.string());
    theirs = files.tokenizer_json.empty() ? files.vocab_json : files.tokenizer_json;
    if (!bytes && is_tokenizer(config.dataset_config.tokenizer_type, data.tokenizer_model, files)) {
      return "";
    }
  } else if (!has_pieces ||
             (!bytes && path_exists(data.tokenizer_model) && !folder_exists(data.tokenizer_model) &&
              data::read_file(theirs) == data::read_file(data.tokenizer_model))) {
    return "";
  }
  return concat(weights, ": its weights were trained with the tokenizer ", theirs,
                ", the data were made with ", bytes ? "bytes" : data.tokenizer_model,
                ", so what they have learnt of its ids is lost; to keep it, prepare the text with "
                "their tokenizer: ",
                kModelKey, " beside dataset_config.text, --tokenizer_model of preprocess_data");
}

}  // namespace tapestry
