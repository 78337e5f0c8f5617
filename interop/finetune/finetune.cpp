#include "interop/finetune/finetune.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/system_memory.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/export/resized_folder.h"
#include "interop/finetune/memory_remedies.h"
#include "interop/finetune/tuned_model.h"
#include "interop/gguf/gguf_weights.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/run_task.h"
#include "parallel_core/training/data/run_data.h"
#include "parallel_core/training/data/sft_run_data.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/watch/evaluation.h"
#include "text/tokenizers/kinds/make_tokenizer.h"

namespace tapestry {

namespace {

constexpr int64_t kMostTaskLength = 1024;
constexpr int64_t kMostSeqLength = 2048;  // of rows whose length nobody has chosen

bool is_first(const FinetuneOptions& options) { return options.world->rank() == 0; }

void say(const FinetuneOptions& options, const std::string& text) {
  if (is_first(options)) {
    log_info(text);
  }
}

// The loss on the validation part before the first and after the last step of a run.
class LossesAround final : public StepObserver {
 public:
  LossesAround(TrainOneStepCell& cell,
               const AllConfig& config,
               data::DataSource& validation,
               FinetuneSummary& summary)
      : cell_(cell), config_(config), validation_(validation), summary_(summary) {}

  void before(int64_t step) override {
    if (step == 1) {
      summary_.loss_before = loss();
      report(0, *summary_.loss_before);
    }
  }
  void after(FinishedStep& step) override {
    if (step.is_last) {
      // The loop's own evaluation may have come to the same step.
      summary_.loss_after = step.record.eval_loss ? *step.record.eval_loss : loss();
      if (!step.record.eval_loss) {
        report(step.record.step, *summary_.loss_after);
      }
    }
  }

 private:
  double loss() {
    return evaluate(cell_.network(), validation_, config_, config_.training_config.eval_iters);
  }
  static void report(int64_t step, double loss) {
    if (RankContext::current().rank() == 0) {
      log_info(eval_log_line("eval", step, loss));
    }
  }

  TrainOneStepCell& cell_;
  const AllConfig& config_;
  data::DataSource& validation_;
  FinetuneSummary& summary_;
};

// Whether a run changes what it trains: one that does not ends with an error.
class WeightsWatch final : public StepObserver {
 public:
  WeightsWatch(TrainOneStepCell& cell, std::shared_ptr<ProcessGroup> world)
      : cell_(cell), world_(std::move(world)) {}

  void before(int64_t /*step*/) override {
    if (!begun_) {
      begun_ = hash_of_weights();
    }
  }
  void after(FinishedStep& step) override {
    ++updates_;
    for (const double lr : step.result.lr) {
      highest_lr_ = std::max(highest_lr_, lr);
    }
    left_out_ += !step.result.finite || step.result.skipped || step.result.set_aside ? 1 : 0;
    if (!step.is_last) {
      return;
    }
    std::string changes;
    for (const std::string& change :
         all_gather_text(*world_, begun_ != hash_of_weights() ? "changed" : "")) {
      changes += change;
    }
    if (changes.empty()) {
      step.failure = concat(
          "no weight has changed in ", updates_, updates_ == 1 ? " update" : " updates",
          ": the learning rate was at most ", highest_lr_, ", ", left_out_,
          " updates were left out for gradients that are not finite or too large; nothing is "
          "exported. A higher --learning_rate or more --epochs may help");
    }
  }

 private:
  uint64_t hash_of_weights() {
    uint64_t hash = 0;
    for (const auto& [name, parameter] : cell_.network().trained_parameters()) {
      const Tensor values = parameter->contiguous();
      const auto bytes = static_cast<size_t>(values.numel()) * size_of(values.dtype());
      constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
      hash = hash * kOdd +
             std::hash<std::string_view>()({static_cast<const char*>(values.raw()), bytes});
    }
    return hash;
  }

  TrainOneStepCell& cell_;
  std::shared_ptr<ProcessGroup> world_;
  std::optional<uint64_t> begun_;
  int64_t updates_ = 0;
  int64_t left_out_ = 0;
  double highest_lr_ = 0;
};

AllConfig configuration(const FinetuneRecipe& recipe, const RecipeFacts& facts) {
  return init_configs_from_text(recipe_yaml(recipe, facts), "finetune.yaml",
                                {.overrides = recipe.overrides});
}

// The data that a configuration trains on, with the task that has opened them, if there is one.
struct DataOfRecipe {
  std::unique_ptr<RunTask> task;
  RunData run;
};
DataOfRecipe data_of(const AllConfig& config, const FinetuneOptions& options) {
  DataOfRecipe data;
  data.task = post_training::run_task(config);
  data.run = data.task != nullptr ? data.task->open_data(config, *options.world, DataUse::kTraining,
                                                         /*resumed=*/nullptr)
                                  : open_data(config, *options.world);
  return data;
}

// What the model's config.json says.
RecipeFacts facts_of(const FinetuneRecipe& recipe) {
  const HfConfig hf = read_hf_config(recipe.from_hf);
  RecipeFacts facts;
  facts.stored = hf.dtype.value_or(kFloat32);
  for (const HfSetting& setting : hf.settings) {
    if (setting.key == "max_position_embeddings") {
      facts.positions = setting.value.as<int64_t>();
    }
  }
  const auto has = [&](const char* name) { return path_exists(recipe.from_hf + "/" + name); };
  if (has("tokenizer.json") || (has("vocab.json") && has("merges.txt"))) {
    facts.tokenizer_type = "huggingface";
    facts.tokenizer_model = recipe.from_hf;
  } else if (has("tokenizer.model")) {
    facts.tokenizer_type = "sentencepiece";
    facts.tokenizer_model = recipe.from_hf + "/tokenizer.model";
  } else {
    // The configuration refuses a folder without, unless the user says what its ids are.
    constexpr std::string_view kType = "dataset_config.tokenizer_type=";
    facts.tokenizer_type.clear();
    for (const std::string& word : recipe.overrides) {
      if (word.starts_with(kType)) {
        facts.tokenizer_type = word.substr(kType.size());
      }
    }
  }
  if (is_packed_folder(recipe.from_hf)) {
    if (!recipe.full) {
      facts.base_blocks = base_blocks(GgufWeights(recipe.from_hf));
    }
  }
  // Rows of tasks are as short as their sequences allow; those are TRL's max_length at most.
  const int64_t usual = recipe.task.empty() ? kMostSeqLength : kMostTaskLength;
  const int64_t most = facts.positions > 0 ? std::min(facts.positions, usual) : usual;
  facts.seq_length = recipe.seq_length.value_or(most);
  return facts;
}

// Tokens of the longest example, as far as rows of now have room for it.
int64_t longest_example(const RunData& data) {
  const data::TokenDataset& rows = *data.train->samples();
  int64_t longest = 0;
  for (int64_t k = 0; k < rows.size() && rows.epoch(k) == 0; ++k) {
    for (const data::DocumentPart& part : rows.origin(k).documents) {
      longest = std::max(longest, part.count);
    }
  }
  return longest;
}

int64_t updates_for(int64_t rows, int64_t rows_of_update) {
  return (rows + rows_of_update - 1) / rows_of_update;
}

// Decides rows and number of updates, and says them.
void choose_updates(const FinetuneOptions& options,
                    const FinetuneRecipe& recipe,
                    RecipeFacts& facts) {
  const auto rows_of_all_epochs = [&] {
    const RunData data = open_data(configuration(recipe, facts), *options.world);
    return data::batches_until_epoch(*data.train, 0, /*batch=*/1, recipe.epochs);
  };
  int64_t rows = rows_of_all_epochs();
  const int64_t usual = facts.batch_rows;
  if (!recipe.batch_rows) {
    facts.batch_rows = derived_batch_rows(rows, facts.data_parallel_size);
    if (updates_for(rows, facts.batch_rows) < kWantedUpdates) {
      facts.packing = false;
      const int64_t unpacked = rows_of_all_epochs();
      facts.packing = unpacked == rows;
      rows = unpacked;
      facts.batch_rows = derived_batch_rows(rows, facts.data_parallel_size);
    }
  }
  constexpr int64_t kFewRows = 1000;  // whose share for validation may be less than an example
  facts.has_validation =
      !recipe.validation_data.empty() ||
      (recipe.validation_share > 0 &&
       (rows > kFewRows ||
        open_data(configuration(recipe, facts), *options.world, DataUse::kEvaluation).validation !=
            nullptr));
  facts.training_iters = updates_for(rows, facts.batch_rows);
  const auto count = [](int64_t number, const char* what) {
    return concat(number, " ", what, number == 1 ? "" : "s");
  };
  std::string text =
      concat("updates    ", facts.training_iters, " of ", count(facts.batch_rows, "row"), ": ",
             count(rows, "row"), " in ", count(recipe.epochs, "epoch"),
             facts.packing ? "" : ", an example each");
  if (!recipe.batch_rows && facts.batch_rows < usual) {
    text += concat("; ", count(usual, "row"), " an update would make ", updates_for(rows, usual));
  }
  if (!facts.has_validation && recipe.validation_share > 0) {
    text += concat("; a share of ", recipe.validation_share,
                   " for validation is no example, so there is none");
  }
  const bool are_few = facts.training_iters < kFewUpdates;
  if (are_few) {
    const int64_t fewest = facts.data_parallel_size;
    text += concat("; that is few: ",
                   facts.batch_rows > fewest
                       ? concat("--batch_rows ", fewest, " makes ", updates_for(rows, fewest), ", ")
                       : "",
                   "more examples or more --epochs make more");
  }
  if (is_first(options)) {
    are_few ? log_warning(text) : log_info(text);
  }
}

// The same of a task, whose pairs, examples or completions each belong to one update.
void choose_task_updates(const FinetuneOptions& options,
                         const FinetuneRecipe& recipe,
                         RecipeFacts& facts) {
  facts.batch_rows = derived_task_batch(recipe, facts.data_parallel_size).update;
  facts.has_validation = !recipe.validation_data.empty();
  const DataOfRecipe data = data_of(configuration(recipe, facts), options);
  const int64_t units = data::batches_until_epoch(*data.run.train, 0, /*batch=*/1, recipe.epochs);
  facts.training_iters = updates_for(units, facts.batch_rows);
  say(options, concat("updates    ", facts.training_iters, " of ", facts.batch_rows, ": ", units,
                      recipe.task == "grpo" ? " completions in " : " in ", recipe.epochs,
                      recipe.epochs == 1 ? " epoch" : " epochs"));
}

std::string losses_text(const FinetuneSummary& summary) {
  if (!summary.loss_before || !summary.loss_after) {
    return "no validation part: losses before and after were not measured";
  }
  char text[160];
  std::snprintf(text, sizeof(text),
                "validation loss %.4f before, %.4f after (perplexity %.3f, %.3f)",
                *summary.loss_before, *summary.loss_after, std::exp(*summary.loss_before),
                std::exp(*summary.loss_after));
  return text;
}

// The template that has written conversations; empty where there were none.
std::string chat_template_of(const AllConfig& config, const RunData& data) {
  if (!data.opened.examples || data.opened.examples->template_crc64.empty()) {
    return "";
  }
  const auto tokenizer =
      data::make_tokenizer(config.dataset_config.tokenizer_type, data.tokenizer_model);
  const auto format = chat_format_of_examples(config, *tokenizer);
  return format ? format->chat_template->source() : "";
}

void check_exports(const FinetuneOptions& options) {
  for (const FinetuneExport what : options.exports) {
    check<ValueError>(what != FinetuneExport::kAdapter || !options.recipe.full,
                      "--export adapter: --full trains all weights, there is no adapter");
    const std::string path = export_path(options.recipe.output_dir, what);
    check<ValueError>(options.overwrite || options.replace || !std::filesystem::exists(path), path,
                      ": is there already; take another --output_dir, or --overwrite, which moves "
                      "it to old/");
  }
}

void save_recipe(const FinetuneOptions& options, const std::string& path, const std::string& text) {
  all_or_none_on_disk(*options.world, [&] {
    if (is_first(options)) {
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      write_file_atomically(path, text);
    }
  });
}

// An export of an earlier run goes where that run's other files are.
void move_aside(const std::string& output_dir, const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::exists(path)) {
    return;
  }
  const fs::path old = fs::path(output_dir) / "old";
  fs::create_directories(old);
  fs::path to;
  for (int number = 1; to.empty() || fs::exists(to); ++number) {
    to = old / concat(fs::path(path).filename().string(), ".", number);
  }
  fs::rename(path, to);
  log_info(concat("moved ", path, " to ", to.string()));
}

// The model with a row for each id of the tokenizer, which the run then starts from: an adapter has
// no rows, and whoever uses it needs the model that it was trained beside.
void resize_embeddings(const FinetuneOptions& options, FinetuneRecipe& recipe) {
  check<ValueError>(!options.dry_run,
                    "--dry_run writes nothing, --resize_embeddings first writes the model with the "
                    "new rows; leave one out");
  const std::string output = resized_folder_of(recipe.output_dir);
  const int64_t ids = ids_of_run(configuration(recipe, facts_of(recipe)), recipe.from_hf);
  std::string from = recipe.from_hf;
  all_or_none_on_disk(*options.world, [&] {
    if (is_first(options)) {
      from = resized_folder(recipe.from_hf, ids, output, options.overwrite || options.replace);
    }
  });
  const std::string resized = all_gather_text(*options.world, from).front();
  say(options, resized == recipe.from_hf
                   ? concat("the model has a row for each of the tokenizer's ", ids, " ids")
                   : concat("wrote ", resized, ": the model with ", ids,
                            " rows, the new ones the mean of the others"));
  recipe.from_hf = resized;
}

}  // namespace

FinetuneSummary finetune(const FinetuneOptions& options) {
  check_recipe(options.recipe);
  check_exports(options);
  FinetuneRecipe recipe = options.recipe;
  if (recipe.resize_embeddings) {
    resize_embeddings(options, recipe);
  }
  RecipeFacts facts = facts_of(recipe);
  AllConfig config = configuration(recipe, facts);
  initialize_ranks(config, options.world);
  facts.data_parallel_size = get_data_parallel_world_size();
  check<ValueError>(!recipe.batch_rows || *recipe.batch_rows % facts.data_parallel_size == 0,
                    "--batch_rows ", recipe.batch_rows.value_or(0), " is no multiple of the ",
                    facts.data_parallel_size, " data-parallel ranks");
  facts.batch_rows = recipe.batch_rows.value_or(
      derived_batch_rows(std::numeric_limits<int32_t>::max(), facts.data_parallel_size));

  FinetuneSummary summary;
  // How long the examples are decides the rows, and these the number of updates.
  if (!recipe.seq_length && recipe.task.empty()) {
    const RunData data = open_data(configuration(recipe, facts), *options.world);
    facts.seq_length = derived_seq_length(longest_example(data), facts.seq_length);
  }
  if (recipe.task.empty()) {
    choose_updates(options, recipe, facts);
  } else {
    choose_task_updates(options, recipe, facts);
  }
  summary.updates = facts.training_iters;
  config = configuration(recipe, facts);
  const int64_t available = available_memory() / options.ranks_on_host;
  check_recipe_fits(recipe, facts, config, available);

  summary.config_path = recipe.output_dir + "/finetune.yaml";
  const std::string yaml = recipe_yaml(recipe, facts);
  if (options.dry_run) {
    say(options, "configuration:\n" + yaml);
    say(options, memory_report(recipe, facts, config, available));
    return summary;
  }
  const DataOfRecipe opened = data_of(config, options);
  const RunData& data = opened.run;
  PretrainOptions training{.run_cmd = options.run_cmd,
                           .stop_requested = options.stop_requested,
                           .go_on = "pretrain_gpt --resume " + recipe.output_dir,
                           .overwrite = options.overwrite,
                           .replace = options.replace,
                           .world = options.world,
                           .ranks_on_host = options.ranks_on_host,
                           .rank_on_host = options.rank_on_host,
                           .progress_text = options.progress_text,
                           .parts = options.parts,
                           .task = post_training::run_task};
  training.observers.push_back(
      [&](TrainOneStepCell& cell) { return std::make_unique<WeightsWatch>(cell, options.world); });
  const bool is_measured = data.validation != nullptr && recipe.task.empty();
  if (is_measured) {
    training.observers.push_back([&](TrainOneStepCell& cell) {
      return std::make_unique<LossesAround>(cell, config, *data.validation, summary);
    });
  }
  save_recipe(options, summary.config_path, yaml);
  summary.stopped_on_request = pretrain(config, training).stopped_on_request;
  if (summary.stopped_on_request) {
    return summary;
  }
  if (recipe.task.empty()) {
    say(options, losses_text(summary));
  }
  if (data.opened.examples && !data.opened.examples->chat_date.empty()) {
    config.dataset_config.chat_date = data.opened.examples->chat_date;  // also where it is answered
  }
  all_or_none_on_disk(*options.world, [&] {
    if (!is_first(options)) {
      return;
    }
    const TunedModel tuned(config, chat_template_of(config, data));
    if (is_measured && options.answers > 0) {
      summary.answers =
          tuned.answers(*data.validation->samples(), options.answers, options.answer_tokens);
      for (const FinetuneAnswer& answer : summary.answers) {
        log_info(answer_text(answer));
      }
    }
    for (const FinetuneExport what : options.exports) {
      move_aside(recipe.output_dir, export_path(recipe.output_dir, what));
      summary.exported.push_back(tuned.export_to(what, options.gguf_type));
      log_info("wrote " + summary.exported.back());
    }
  });
  return summary;
}

}  // namespace tapestry
