#include "parallel_core/training/pretrain.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/kernels/cpu.h"
#include "autograd/kernels/gemm.h"
#include "autograd/kernels/team.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/render.h"
#include "parallel_core/data/default_text.h"
#include "parallel_core/data/step_dataset.h"
#include "parallel_core/data/tokenizer.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/memory_estimate.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// Samples that the run's length asks for. A run limited by epochs alone takes each epoch's.
data::SampleCounts wanted_samples(const AllConfig& config) {
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  const int64_t iterations = total_training_iters(config, get_data_parallel_world_size());
  return data::sample_counts(iterations, config.training_config.eval_interval.value_or(0),
                             config.training_config.eval_iters, batch);
}

// The tokenizer that preprocess_data left beside PREFIX_KEY_document: PREFIX.model. Empty if there
// is none, or if the parts of a blend have different ones.
std::string tokenizer_beside(const std::vector<std::string>& data_path) {
  constexpr std::string_view kEnding = "_document";
  std::string found;
  for (const std::string& entry : data_path) {
    if (!fs::exists(entry + ".idx")) {
      continue;  // a weight; a missing prefix is reported by the dataset
    }
    std::string prefix = entry;
    if (prefix.ends_with(kEnding)) {
      prefix.resize(prefix.size() - kEnding.size());
    }
    prefix.resize(std::min(prefix.rfind('_'), prefix.size()));
    const std::string model = prefix + ".model";
    if (!fs::is_regular_file(model) || (!found.empty() && found != model)) {
      return "";
    }
    found = model;
  }
  return found;
}

RunData open_text(const AllConfig& config) {
  const DatasetConfig& d = config.dataset_config;
  const TransformerConfig& m = config.model_config;
  RunData run;
  data::GPTDatasetsConfig datasets;
  std::string tokenizer_model = d.tokenizer_model.value_or("");
  if (d.data_path) {
    datasets.data_path = *d.data_path;
    if (d.tokenizer_type == "sentencepiece" && tokenizer_model.empty()) {
      tokenizer_model = tokenizer_beside(*d.data_path);
    }
  } else {
    const data::PreparedCorpus corpus =
        data::prepare_default_text({.dataset_dir = d.dataset_dir,
                                    .tokenizer_type = d.tokenizer_type,
                                    .vocab_size = std::min(m.vocab_size, kDefaultTextMaxVocab),
                                    .tokenizer_model = tokenizer_model});
    datasets.data_path = {corpus.prefix};
    tokenizer_model = corpus.tokenizer_model;
    run.description =
        concat(corpus.prepared ? "prepared" : "found", " the default text: ", corpus.documents,
               " documents, ", corpus.tokens, " tokens, ");
  }
  datasets.split = d.split;
  datasets.counts = wanted_samples(config);
  datasets.options.seq_length = m.seq_length;
  datasets.options.seed = config.training_config.seed;
  datasets.options.vocab_size = m.vocab_size;
  datasets.options.shuffle = d.shuffle.value_or(true);
  datasets.options.eod_id = d.eos_token_id;
  datasets.options.pad_id = d.pad_token_id.value_or(-1);
  datasets.options.eod_mask_loss = d.eod_mask_loss;
  datasets.options.reset_position_ids = d.reset_position_ids;
  datasets.options.reset_attention_mask = d.reset_attention_mask;
  if (d.tokenizer_type == "byte" || !tokenizer_model.empty()) {
    const auto tokenizer = data::make_tokenizer(d.tokenizer_type, tokenizer_model);
    check<ValueError>(tokenizer->vocab_size() <= m.vocab_size, "model_config.vocab_size is ",
                      m.vocab_size, ", but the text's is the ", tokenizer->describe(),
                      "; raise vocab_size or use another tokenizer");
    datasets.options.eod_id = tokenizer->eod_id();
    run.description += tokenizer->describe();
  }
  data::GPTDatasets built = data::build_gpt_datasets(datasets);
  check<ValueError>(built.train != nullptr, "dataset_config.split '", d.split,
                    "' leaves nothing for training");
  run.train = std::make_unique<data::TokenDataSource>(built.train);
  if (config.training_config.eval_interval) {
    check<ValueError>(built.valid != nullptr,
                      "training_config.eval_interval is set, but "
                      "dataset_config.split '",
                      d.split, "' leaves nothing for validation");
    run.validation = std::make_unique<data::TokenDataSource>(built.valid);
  }
  run.tokenizer_model = tokenizer_model;
  return run;
}

void log_lines(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    log_info(line);
  }
}

// Finds what would stop the run at its first written file, or hours later at its first checkpoint.
void check_output_paths(const TrainingConfig& training) {
  const fs::path output = training.output_dir;
  for (const char* name : {"metrics.jsonl", "config.yaml"}) {
    check<IoError>(!fs::is_directory(output / name), (output / name).string(),
                   ": is a folder, but the run writes a file of this name; move it away or choose "
                   "another training_config.output_dir");
  }
  const fs::path checkpoints = output / "checkpoint";
  check<IoError>(!fs::exists(checkpoints) || fs::is_directory(checkpoints), checkpoints.string(),
                 ": is a file, but the run writes a folder of this name; move it away or choose "
                 "another training_config.output_dir");
}

// Reads the first step's batch, so that wrong data are found before anything is written.
void check_first_step(data::DataSource& source, const DatasetConfig& d) {
  for (int64_t micro = 0; micro < d.micro_batch_num; ++micro) {
    source.micro_batch(0, micro, d.micro_batch_num, d.batch_size, get_data_parallel_rank(),
                       get_data_parallel_world_size());
  }
}

// What is prepared on first use is prepared by rank 0; the others find it.
RunData open_data_in_turn(const AllConfig& config, ProcessGroup& world) {
  if (world.rank() != 0) {
    world.barrier();
    return open_data(config);
  }
  RunData data = open_data(config);
  world.barrier();
  return data;
}

// Ranks hear of a signal at different times; all have to stop after the same step.
std::function<bool()> stop_of_all(const PretrainOptions& options) {
  if (options.world->size() == 1 || !options.stop_requested) {
    return options.stop_requested;
  }
  return [world = options.world, requested = options.stop_requested] {
    const Tensor stop = full({1}, requested() ? 1 : 0, kInt32);
    world->all_reduce(stop, ReduceOp::kMax);
    return stop.item() != 0;
  };
}

void check_world_size(const ModelParallelConfig& p, int world_size) {
  const int64_t model =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  check<ValueError>(world_size % model == 0, "parallel_config: tensor_model_parallel_size ",
                    p.tensor_model_parallel_size, " x pipeline_model_parallel_size ",
                    p.pipeline_model_parallel_size, " x context_parallel_size ",
                    p.context_parallel_size, " need ", model,
                    " ranks, or a multiple of it; this job has ", world_size,
                    "; start it with mpirun -n ", model, " or RANKS=", model, " pretrain_gpt.sh");
}

// One comment line, whatever the text holds.
std::string comment_line(const std::string& text) {
  std::string line = "# " + text;
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return line + "\n";
}

}  // namespace

RunData open_data(const AllConfig& config) {
  const DatasetConfig& d = config.dataset_config;
  if (!d.step_data_dir) {
    return open_text(config);
  }
  RunData run;
  auto steps =
      std::make_unique<data::StepDataSource>(*d.step_data_dir, config.model_config.vocab_size);
  check<ValueError>(steps->seq_length() == config.model_config.seq_length,
                    "dataset_config.step_data_dir ", *d.step_data_dir, ": rows have ",
                    steps->seq_length(), " tokens, model_config.seq_length is ",
                    config.model_config.seq_length);
  const int64_t wanted = total_training_iters(config, get_data_parallel_world_size());
  check<ValueError>(wanted <= steps->num_steps(), "dataset_config.step_data_dir ", *d.step_data_dir,
                    " holds ", steps->num_steps(), " steps, the run has ", wanted);
  run.description = concat(steps->num_steps(), " recorded steps");
  run.train = std::move(steps);
  return run;
}

namespace {

// Model chunks of a stage, where there are several.
}  // namespace

ModelParallelSizes model_parallel_sizes(const ModelParallelConfig& config) {
  const int64_t chunks = config.virtual_pipeline_model_parallel_size.value_or(1);
  return {.tensor_model_parallel_size = static_cast<int>(config.tensor_model_parallel_size),
          .pipeline_model_parallel_size = static_cast<int>(config.pipeline_model_parallel_size),
          .virtual_pipeline_model_parallel_size =
              chunks > 1 ? std::optional(static_cast<int>(chunks)) : std::nullopt,
          .context_parallel_size = static_cast<int>(config.context_parallel_size),
          .expert_model_parallel_size = static_cast<int>(config.expert_model_parallel_size)};
}

std::string layout_line(const ModelParallelConfig& config, int64_t data_parallel_size) {
  const auto& vpp = config.virtual_pipeline_model_parallel_size;
  return concat("dp ", data_parallel_size, " | pp ", config.pipeline_model_parallel_size, " | tp ",
                config.tensor_model_parallel_size, " | sp ",
                config.sequence_parallel ? "True" : "False", " | vpp ",
                vpp ? std::to_string(*vpp) : "None",
                config.context_parallel_size > 1 ? concat(" | cp ", config.context_parallel_size)
                                                 : std::string());
}

TrainSummary pretrain(const AllConfig& config, const PretrainOptions& options) {
  require_supported(config);
  if (config.training_config.num_threads) {
    set_num_threads(static_cast<int>(*config.training_config.num_threads));
  }
  if (!model_parallel_is_initialized()) {
    const ModelParallelConfig& p = config.parallel_config;
    check_world_size(p, options.world->size());
    initialize_model_parallel(model_parallel_sizes(p), options.world);
  }

  if (!options.model) {
    check_fits(estimate_memory(config, get_data_parallel_world_size()),
               available_memory() / options.ranks_on_host);
  }
  const std::string& output = config.training_config.output_dir;
  check_output_paths(config.training_config);
  open_logs(output);
  log_info(layout_line(config.parallel_config, get_data_parallel_world_size()));
  log_info(concat(name_of(cpu_level()), ", ", num_threads(), " threads, OpenBLAS ",
                  kernels::blas_flavour()));
  if (!options.progress_text.empty()) {
    log_info(options.progress_text);
  }
  if (!options.run_cmd.empty()) {
    log_info("run_cmd: " + options.run_cmd);
  }
  log_lines(config_log_text(config));
  for (const std::string& note : config.notes) {
    log_warning(note);
  }

  RunData data = open_data_in_turn(config, *options.world);
  check_first_step(*data.train, config.dataset_config);
  log_info("data: " + data.description);
  const std::unique_ptr<ParallelModel> model =
      options.model ? get_model(options.model, config) : get_model(config);
  if (!config.training_config.load_checkpoint.empty()) {
    load_weights(*model, config.model_config, config.training_config.load_checkpoint);
    log_info("loaded " + config.training_config.load_checkpoint);
  }
  log_info(options.model ? concat("model: ", model->type_name(), ", this rank holds ",
                                  model->num_parameters(), " parameters")
                         : concat("model: ", parameter_count(config.model_config), " parameters",
                                  model->stage().size > 1
                                      ? concat(", this stage holds ", model->num_parameters())
                                      : std::string()));

  std::string resolved = resolved_yaml(config);
  if (!options.run_cmd.empty()) {
    resolved = comment_line("run_cmd: " + options.run_cmd) + resolved;
  }
  const bool first = RankContext::current().rank() == 0;
  if (first) {
    write_file_atomically(output + "/config.yaml", resolved);
  }
  if (get_data_parallel_world_size(/*with_context_parallel=*/true) > 1) {
    check_equal_parameters(*model, get_data_parallel_group(/*with_context_parallel=*/true));
  }
  const auto data_parallel = get_data_parallel(config, *model);
  const auto optimizer =
      options.param_groups
          ? get_optimizer(config, *model, options.param_groups(*model), data_parallel.get())
          : get_optimizer(config, *model, data_parallel.get());
  const auto schedule = get_optimizer_param_scheduler(config, get_data_parallel_world_size());
  TrainOneStepCell cell(*model, *optimizer, *schedule, config, data_parallel.get());
  std::optional<MetricsWriter> metrics;
  if (first) {
    metrics.emplace(output + "/metrics.jsonl");
  }
  const TrainSummary summary =
      train(cell, *data.train, config,
            {.validation = data.validation.get(),
             .metrics = metrics ? &*metrics : nullptr,
             .checkpoint = {.directory = output + "/checkpoint",
                            .keep_max = config.training_config.keep_checkpoint_max,
                            .resolved_config = resolved,
                            .tokenizer_model = data.tokenizer_model},
             .stop_requested = stop_of_all(options)});
  log_info(concat(summary.stopped_on_request ? "stopped on request after " : "finished after ",
                  summary.steps, " steps: loss ", summary.first_loss, " -> ", summary.last_loss));
  return summary;
}

}  // namespace tapestry
