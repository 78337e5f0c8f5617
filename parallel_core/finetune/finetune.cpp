#include "parallel_core/finetune/finetune.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/system_memory.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/read_hf_config.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/finetune/memory_remedies.h"
#include "parallel_core/finetune/tuned_model.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/evaluation.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/run_data.h"

namespace tapestry {

namespace {

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

AllConfig configuration(const FinetuneRecipe& recipe, const RecipeFacts& facts) {
  return init_configs_from_text(recipe_yaml(recipe, facts), "finetune.yaml",
                                {.overrides = recipe.overrides});
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
  const auto has = [&](const char* name) {
    return std::filesystem::exists(recipe.from_hf + "/" + name);
  };
  if (has("tokenizer.json") || (has("vocab.json") && has("merges.txt"))) {
    facts.tokenizer_type = "huggingface";
    facts.tokenizer_model = recipe.from_hf;
  } else if (has("tokenizer.model")) {
    facts.tokenizer_type = "sentencepiece";
    facts.tokenizer_model = recipe.from_hf + "/tokenizer.model";
  }
  const int64_t most =
      facts.positions > 0 ? std::min(facts.positions, kMostSeqLength) : kMostSeqLength;
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

// Updates of so many epochs: as many as it takes until no row of them is left.
int64_t updates_of(const data::DataSource& train, int64_t epochs, int64_t rows_of_update) {
  const auto is_done = [&](int64_t updates) {
    return updates * rows_of_update >= train.size_in_samples() ||
           train.epoch(updates * rows_of_update) >= epochs;
  };
  int64_t high = 1;
  while (!is_done(high)) {
    high *= 2;
  }
  int64_t low = high / 2;  // not done, but for 0
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (is_done(middle) ? high : low) = middle;
  }
  return high;
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

}  // namespace

FinetuneSummary finetune(const FinetuneOptions& options) {
  check_recipe(options.recipe);
  check_exports(options);
  FinetuneRecipe recipe = options.recipe;
  RecipeFacts facts = facts_of(recipe);
  AllConfig config = configuration(recipe, facts);
  initialize_ranks(config, options.world);
  facts.data_parallel_size = get_data_parallel_world_size();
  check<ValueError>(recipe.batch_rows % facts.data_parallel_size == 0, "--batch_rows ",
                    recipe.batch_rows, " is no multiple of the ", facts.data_parallel_size,
                    " data-parallel ranks");

  FinetuneSummary summary;
  {
    // How long the examples are decides the rows, and these the number of updates.
    config = configuration(recipe, facts);
    if (!recipe.seq_length) {
      const RunData data = open_data(config, *options.world);
      facts.seq_length = derived_seq_length(longest_example(data), facts.seq_length);
      config = configuration(recipe, facts);
    }
    const RunData data = open_data(config, *options.world);
    facts.training_iters = updates_of(*data.train, recipe.epochs, recipe.batch_rows);
    config = configuration(recipe, facts);
  }
  const int64_t available = available_memory() / options.ranks_on_host;
  check_recipe_fits(recipe, facts, config, available);

  summary.config_path = recipe.output_dir + "/finetune.yaml";
  const std::string yaml = recipe_yaml(recipe, facts);
  if (options.dry_run) {
    say(options, "configuration:\n" + yaml);
    say(options, memory_report(recipe, facts, config, available));
    return summary;
  }
  const RunData data = open_data(config, *options.world);
  PretrainOptions training{.run_cmd = options.run_cmd,
                           .stop_requested = options.stop_requested,
                           .go_on = "pretrain_gpt --resume " + recipe.output_dir,
                           .overwrite = options.overwrite,
                           .replace = options.replace,
                           .world = options.world,
                           .ranks_on_host = options.ranks_on_host,
                           .rank_on_host = options.rank_on_host,
                           .progress_text = options.progress_text};
  if (data.validation != nullptr) {
    training.observers.push_back([&](TrainOneStepCell& cell) {
      return std::make_unique<LossesAround>(cell, config, *data.validation, summary);
    });
  }
  save_recipe(options, summary.config_path, yaml);
  summary.stopped_on_request = pretrain(config, training).stopped_on_request;
  if (summary.stopped_on_request) {
    return summary;
  }
  say(options, losses_text(summary));
  all_or_none_on_disk(*options.world, [&] {
    if (!is_first(options)) {
      return;
    }
    const TunedModel tuned(config);
    if (data.validation != nullptr && options.answers > 0) {
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
