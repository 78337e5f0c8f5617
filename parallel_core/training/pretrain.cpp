#include "parallel_core/training/pretrain.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <optional>
#include <sstream>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/layer_split.h"
#include "parallel_core/config/recompute_tables.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/dist_checkpointing/upcycle.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/frozen_parameters.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/lora/freeze_base.h"
#include "parallel_core/lora/quantize_base.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/optimizer/schedule_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/training/checkpoints/adapter_run.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/checkpoints/run_checkpoints.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/training/files/output_folder.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/program.h"
#include "parallel_core/training/ranks/equal_configurations.h"
#include "parallel_core/training/start_summary.h"
#include "parallel_core/training/step/given_state.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/watch/last_step.h"
#include "parallel_core/training/watch/tensorboard_log.h"
#include "text/util/file.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

void each_line(const std::string& text, void (*log)(const std::string&)) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    log(line);
  }
}

// Finds what would stop the run at its first written file, or hours later at its first checkpoint.
void check_output_paths(const TrainingConfig& training) {
  const fs::path output = training.output_dir;
  for (const char* name : {"metrics.jsonl", "config.yaml"}) {
    check<IoError>(!fs::is_directory(output / name), (output / name).string(),
                   ": is a folder, but the run writes a file of this name; move it away or choose "
                   "another training_config.output_dir");
    check<IoError>(!fs::exists(output / name) || fs::is_regular_file(output / name),
                   (output / name).string(),
                   ": is a pipe or a device, but the run writes a file of this name; remove it or "
                   "choose another training_config.output_dir");
  }
  const fs::path checkpoints = output / "checkpoint";
  check<IoError>(!fs::exists(checkpoints) || fs::is_directory(checkpoints), checkpoints.string(),
                 ": is a file, but the run writes a folder of this name; move it away or choose "
                 "another training_config.output_dir");
}

// Reads the first step's batch, so that wrong data are found before anything is written.
void check_first_step(const AllConfig& config, const RunData& data) {
  const DatasetConfig& d = config.dataset_config;
  if (!has_steps_left(config, data)) {
    return;
  }
  for (int64_t micro = 0; micro < d.micro_batch_num; ++micro) {
    data.train->micro_batch(data.start, micro, d.micro_batch_num, d.batch_size,
                            get_data_parallel_rank(), get_data_parallel_world_size());
  }
}

// A request to stop that also comes when so many minutes have passed.
std::function<bool()> with_time_limit(std::function<bool()> requested,
                                      const std::optional<double>& minutes) {
  if (!minutes) {
    return requested;
  }
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                       std::chrono::duration<double, std::ratio<60>>(*minutes));
  return [requested = std::move(requested), end] {
    return std::chrono::steady_clock::now() >= end || (requested && requested());
  };
}

// Ranks hear of a signal at different times; all have to stop after the same step.
std::function<bool()> stop_of_all(const PretrainOptions& options,
                                  const std::optional<double>& minutes) {
  const std::function<bool()> own = with_time_limit(options.stop_requested, minutes);
  if (options.world->size() == 1 || !own) {
    return own;
  }
  return [world = options.world, requested = own] {
    const Tensor stop = full({1}, requested() ? 1 : 0, kInt32);
    world->all_reduce(stop, ReduceOp::kMax);
    return stop.item() != 0;
  };
}

// A frozen base has one copy in params_dtype from the start: its float32 start values come and go
// one by one, and not at all where weights are loaded.
std::unique_ptr<ParallelModel> make_adapted_model(const AllConfig& config, bool is_loaded) {
  const DType params = config.model_config.params_dtype;
  const bool quantized = config.lora_config.base_dtype == "q8_0";
  if (params == kFloat32 && !is_loaded && !quantized) {
    return get_model(config);
  }
  const DeferInitialValues deferred(DeferInitialValues::Values::kInitial);
  std::unique_ptr<ParallelModel> model = get_model(config);
  const NoGradGuard guard;
  if (quantized) {
    quantize_base(*model, {.values_come_later = is_loaded});
  }
  if (is_loaded) {
    clear_frozen(*model, params);
  } else {
    store_frozen(*model, params);
  }
  for (const nn::Module::NamedParameter& entry : model->trained_parameters()) {
    set_data(*entry.parameter, dense_copy(entry.parameter->detach()));
  }
  return model;
}

std::unique_ptr<ParallelModel> make_model(const AllConfig& config,
                                          const PretrainOptions& options,
                                          bool in_pieces,
                                          bool all_are_loaded) {
  if (config.lora_config.use_lora) {
    check<ValueError>(
        !options.model,
        "lora_config.use_lora: a model of one's own has no adapters; set it to False");
    return make_adapted_model(config, all_are_loaded);
  }
  std::optional<DeferInitialValues> deferred;
  if (in_pieces) {
    deferred.emplace(all_are_loaded ? DeferInitialValues::Values::kZeros
                                    : DeferInitialValues::Values::kInitial);
  }
  return options.model ? get_model(options.model, config) : get_model(config);
}

// Puts everything but the weights back to where the checkpoint was made.
void go_on_with(const ResumePoint& point,
                const TrainingConfig& t,
                ParallelModel& model,
                optim::Optimizer& optimizer,
                TrainOneStepCell& cell) {
  if (t.no_load_optim) {
    load_buffers(point.checkpoint, model);
  } else {
    load_optimizer_state(point.checkpoint, model, optimizer);
    cell.grad_scaler().set_state(point.trainer.scaler);
  }
  if (!t.no_load_rng) {
    RankContext::current().default_generator().set_state(point.trainer.generator);
  }
  cell.set_position(point.trainer.position);
  if (NormSpikes* spikes = cell.norm_spikes(); spikes != nullptr && point.trainer.norm_spikes) {
    spikes->set_state(*point.trainer.norm_spikes);
  }
}

// Of a run whose best checkpoint is gone, removed by hand or spoilt, the next evaluation is the
// best.
void forget_best_that_is_gone(TrainerState& trainer,
                              const std::string& checkpoint,
                              const std::string& own_folder,
                              ProcessGroup& world) {
  if (!trainer.best) {
    return;
  }
  const std::string name = checkpoint_name(trainer.best->step);
  const fs::path beside = fs::path(checkpoint).parent_path();
  std::error_code none;
  const bool there =
      fs::is_directory(beside / name, none) || fs::is_directory(fs::path(own_folder) / name, none);
  if (all_gather_text(world, there ? "there" : "").front().empty()) {
    log_warning(concat("the best checkpoint, ", (beside / name).string(),
                       ", is not there any more; the next evaluation is the best anew"));
    trainer.best.reset();
  }
}

// Files look the same to all ranks, but one may see a new one later than the others.
bool is_started_again_on_first_rank(const AllConfig& config, const PretrainOptions& options) {
  const bool own = !options.overwrite && is_started_again(config.training_config);
  return !all_gather_text(*options.world, own ? "again" : "").front().empty();
}

// Says with which of two folders a run goes on that was started again.
std::string own_run_text(const TrainingConfig& t, const std::string& checkpoint) {
  return lies_in(checkpoint, t.output_dir)
             ? concat("resume_training: ", t.output_dir,
                      " is the run that began with load_checkpoint ", t.load_checkpoint,
                      ", and goes on with its own checkpoints")
             : concat("resume_training: ", t.output_dir,
                      " is the run that began with load_checkpoint ", t.load_checkpoint,
                      "; it has saved no checkpoint of its own yet and begins with that one again");
}

// "finished after 12 steps, 4 of them in this start: loss 3.1 -> 2.9". A run that was stopped says
// how to go on.
std::string end_text(const TrainSummary& summary,
                     int64_t steps_of_run,
                     const PretrainOptions& options) {
  const bool ends = !summary.stopped_on_request || options.rehearsed_steps;
  const std::string go_on =
      ends ? std::string()
           : concat("; to go on: ", options.go_on.empty()
                                        ? std::string("training_config.resume_training: True")
                                        : options.go_on);
  const std::string start =
      concat(summary.stopped_on_request ? "stopped on request after " : "finished after ",
             steps_of_run, " steps");
  if (summary.steps == 0) {
    return concat(start, ", none of them in this start", go_on);
  }
  return concat(start,
                steps_of_run == summary.steps
                    ? std::string()
                    : concat(", ", summary.steps, " of them in this start"),
                ": loss ", without_nan_sign(summary.first_loss), " -> ",
                without_nan_sign(summary.last_loss), go_on);
}

// Where the layers are and what they recompute; what that spares is for the terminal too.
void log_recompute(const AllConfig& config) {
  const TransformerConfig& model = config.model_config;
  each_line(layer_placement_text(layers_per_chunk(model.num_layers, config.parallel_config)),
            log_detail);
  each_line(recompute_config_text(config), log_detail);
  each_line(layer_recompute_text(model), log_detail);
  const PatternRemarks remarks = pattern_remarks(model);
  for (const std::string& note : remarks.notes) {
    log_info(note);
  }
  for (const std::string& warning : remarks.warnings) {
    log_warning(warning);
  }
  each_line(recompute_cost_text(config), log_info);
}

// One comment line, whatever the text holds.
std::string comment_line(const std::string& text) {
  std::string line = "# " + text;
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return line + "\n";
}

}  // namespace

TrainSummary pretrain(const AllConfig& config, const PretrainOptions& options) {
  initialize_ranks(config, options.world);

  const int64_t available = available_memory() / options.ranks_on_host;
  if (!options.model) {
    check_fits(estimate_memory(config, get_data_parallel_world_size()), available);
  }
  const std::string& output = config.training_config.output_dir;
  check_output_paths(config.training_config);
  const std::vector<std::unique_ptr<RunPart>> parts = make_parts(options.parts);
  require_parts(config, pointers_to(parts));
  for (const auto& part : parts) {
    part->check(config);
  }
  for (const auto& part : parts) {
    part->begin(config);
  }
  const bool started_again = is_started_again_on_first_rank(config, options);
  const bool in_place = started_again || resumes_in_place(config.training_config);
  OutputFolder folder(output,
                      {.overwrite = options.overwrite,
                       .replace = options.replace,
                       .resume = in_place,
                       .stop_requested = options.stop_requested},
                      *options.world);
  open_logs(output);
  for (const std::string& remark : folder.remarks()) {
    log_info(remark);
  }
  log_detail(layout_line(config.parallel_config, get_data_parallel_world_size()));
  log_detail(concat(name_of(cpu_level()), ", ", num_threads(), " threads, OpenBLAS ",
                    kernels::blas_flavour()));
  if (!options.progress_text.empty()) {
    log_detail(options.progress_text);
  }
  if (!options.run_cmd.empty()) {
    log_info("run_cmd: " + options.run_cmd);
  }
  each_line(config_log_text(config), log_detail);
  for (const std::string& note : config.notes) {
    log_warning(note);
  }
  for (const std::string& warning : plan_adapter(config).warnings) {
    log_warning(warning);
  }
  if (!options.model) {
    log_recompute(config);
  } else if (!config.model_config.layer_recompute.empty()) {
    log_warning(
        "recompute_config: of a model of one's own, layers that it runs by "
        "TransformerModel::run_layer are recomputed as a whole, and nothing else");
  }

  log_info(checkpoint_plan(config.training_config));

  const bool first = RankContext::current().rank() == 0;
  if (first) {
    remove_unfinished_checkpoints(output + "/checkpoint");
    for (const std::string& left : {output, output + "/checkpoint"}) {
      for (const std::string& remark : data::remove_stale_temporaries(left, "")) {
        log_detail(remark);
      }
    }
  }
  if (!options.model && !options.rehearsed_steps) {
    all_or_none(*options.world, [&] {
      if (first) {
        log_detail("disk: " + disk_room_text(config, get_data_parallel_world_size()));
      }
    });
  }
  const std::optional<ResumePoint> resume =
      find_resume_point(config, *options.world, started_again);
  const bool goes_on = config.training_config.resume_training.on;
  if (resume) {
    log_info(concat("going on after step ", resume->trainer.position.seen, " with ",
                    resume->checkpoint));
    if (started_again) {
      log_info(own_run_text(config.training_config, resume->checkpoint));
    }
  } else if (goes_on) {
    log_info(concat("resume_training: ", output,
                    " holds no checkpoint yet, so the run starts from its beginning"));
  }
  const StartWeights start = start_weights(config);
  const std::string weights = resume               ? resume->checkpoint
                              : start.path.empty() ? std::string()
                                                   : resolve_checkpoint(start.path);
  const bool upcycles = !resume && start.dense;
  std::optional<EndAtSignals> before_training(std::in_place);
  if (!weights.empty() && !resume) {
    verify_weights(weights, config.training_config.crc_check, *options.world);
  }
  const AdapterRun adapter = adapter_run(config, weights);
  if (adapter.on && !adapter.base.path.empty() && adapter.base.path != weights) {
    verify_weights(adapter.base.path, config.training_config.crc_check, *options.world);
  }
  if (!weights.empty() && !options.model) {  // before data and model are made
    if (upcycles) {
      check_dense_model(config.model_config, weights);
    } else {
      check_hf_config(config.model_config, adapter.on ? adapter.base.path : weights);
    }
  }
  RunData data = open_data(config, *options.world, DataUse::kTraining,
                           resume && resume->data ? &*resume->data : nullptr);
  check_first_step(config, data);
  before_training.reset();
  log_detail("data: " + data.description);
  for (const std::string& remark : data.remarks) {
    log_info("data: " + remark);
  }
  // What a model of one's own computes is not known.
  const std::string time = options.model ? std::string()
                                         : expected_time(config, get_data_parallel_world_size(),
                                                         options.world->size(), available);
  // With z3 no rank can hold the whole model, not even once.
  const bool in_pieces = zero_level(config) == 3 && !config.lora_config.use_lora &&
                         get_data_parallel_world_size(/*with_context_parallel=*/true) > 1;
  const std::unique_ptr<ParallelModel> model =
      make_model(config, options, in_pieces, !weights.empty() && !upcycles && adapter.loads_base());
  if (!weights.empty()) {
    if (!in_pieces && upcycles) {
      load_upcycled(*model, config.model_config, weights);
    } else if (!in_pieces) {
      TransformerConfig loaded = config.model_config;
      if (adapter.on && !adapter.base.path.empty()) {
        loaded.from_hf = adapter.base.path;
      }
      load_weights(*model, loaded, weights);
    }
    log_info(concat("loaded ", weights,
                    upcycles ? ": experts are copies of the MLPs of this dense model" : ""));
    if (adapter.on && adapter.adapter != weights && !adapter.adapter.empty()) {
      log_info(concat("the adapter starts as that in ", adapter.adapter));
    } else if (adapter.on && !adapter.adapter.empty()) {
      log_info(adapter.base.path.empty()
                   ? std::string("the adapter's base has the start values of this seed")
                   : concat("the adapter's base is ", adapter.base.path));
    }
    const std::string remark = other_tokenizer_remark(config, data, weights);
    if (!remark.empty()) {
      log_warning(remark);
    }
  }
  if (weights.empty() && !adapter.adapter.empty()) {
    load_adapter(*model, config.model_config, adapter.adapter);
    log_info(concat("the adapter starts as that in ", adapter.adapter));
  } else if (adapter.on && adapter.adapter.empty()) {
    start_magnitudes(*model);
  }
  const std::string own_model = options.model
                                    ? concat(model->type_name(), ", this rank holds ",
                                             with_thousands(model->num_parameters()), " parameters")
                                    : std::string();
  if (options.model || model->stage().size > 1) {
    log_detail(concat("model: this rank holds ", model->num_parameters(), " parameters"));
  }
  each_line(start_summary(config, data,
                          {.own_model = own_model,
                           .ranks = options.world->size(),
                           .ranks_on_host = options.ranks_on_host,
                           .available = available,
                           .progress_text = options.progress_text,
                           .time = time}),
            log_info);

  std::string resolved = resolved_yaml(config);
  if (!options.run_cmd.empty()) {
    resolved = comment_line("run_cmd: " + options.run_cmd) + resolved;
  }
  check_equal_parameters(*model, copies_group(/*of_expert=*/false));
  const auto data_parallel = get_data_parallel(config, *model);
  const auto optimizer =
      options.param_groups
          ? get_optimizer(config, *model, options.param_groups(*model), data_parallel.get())
          : get_optimizer(config, *model, data_parallel.get());
  if (in_pieces && !weights.empty()) {
    if (upcycles) {
      load_upcycled(*model, config.model_config, weights, optimizer.get());
    } else {
      load_own_weights(*model, config.model_config, weights, *optimizer);
    }
    data_parallel->parameters_changed();
  }
  if (options.start_weights) {
    check<ValueError>(!resume, options.start_weights_name,
                      ": a run that goes on with a checkpoint has weights already; set "
                      "training_config.resume_training: False, or do not give others");
    set_weights(*model, *optimizer, options.start_weights(), options.start_weights_name);
    if (data_parallel != nullptr) {
      data_parallel->parameters_changed();
    }
    log_info("weights are those of " + options.start_weights_name);
  }
  const int64_t ranks = get_data_parallel_world_size();
  ResumedSchedule schedule;
  if (resume) {
    schedule = resume_schedule(config, ranks, resume->trainer.schedule, resume->checkpoint);
    if (!schedule.remark.empty()) {
      log_warning(schedule.remark);
    }
  } else {
    schedule = {.schedule = get_optimizer_param_scheduler(config, ranks),
                .state = schedule_state(config, ranks),
                .remark = {}};
    if (schedule.schedule->learning_rate({}) == 0) {
      log_info(
          "the first update has a learning rate of 0 and changes nothing: the schedule's formula "
          "begins there; lr_decay_style with lr_warmup_iters does not, unless lr_warmup_init is 0");
    }
  }
  const optim::ConstantSchedule zero(0, 0);
  const optim::Schedule& applied =
      options.zero_learning_rate ? static_cast<const optim::Schedule&>(zero) : *schedule.schedule;
  TrainOneStepCell cell(*model, *optimizer, applied, config, data_parallel.get());
  TrainerState trainer;
  if (resume) {
    go_on_with(*resume, config.training_config, *model, *optimizer, cell);
    trainer = resume->trainer;
    forget_best_that_is_gone(trainer, resume->checkpoint, output + "/checkpoint", *options.world);
  }
  HfSource beside_weights;  // of the first rank, which writes the files
  all_or_none(*options.world, [&] {
    if (first) {
      beside_weights = hf_source_of(config, data, weights);
    }
  });
  // Nothing that the run begins with can be wrong any more.
  if (options.overwrite || options.replace) {
    options.world->barrier();  // every rank has read what may be moved now
  }
  if (first) {
    const std::string aside = folder.move_earlier_aside(
        {data.tokenizer_model, resume ? resume->checkpoint : std::string()});
    if (!aside.empty()) {
      log_info("the files of the earlier run are now in " + aside);
    }
    if (resume) {
      const std::string later = folder.move_later_aside(resume->checkpoint);
      if (!later.empty()) {
        log_info("what the run did after this step is now in " + later);
      }
    }
    write_file_atomically(output + "/config.yaml", resolved);
  }
  trainer.schedule = schedule.state;
  trainer.layout = layout_line(config.parallel_config, ranks);
  std::optional<MetricsWriter> metrics;
  if (first) {
    metrics.emplace(output + "/metrics.jsonl",
                    in_place ? std::optional(cell.position().seen) : std::nullopt);
  }
  const std::unique_ptr<TensorBoardLog> board =
      make_tensorboard_log(config, {.rank = RankContext::current().rank(),
                                    .ranks = options.world->size(),
                                    .global_batch_size = global_batch_size(config, ranks),
                                    .model_flops = options.model ? 0 : model_flops(config, ranks),
                                    .steps_done = cell.position().seen,
                                    .samples_done = data.opened.in_run().first_sample});
  if (board && !board->moved_to().empty()) {
    log_info(concat("TensorBoard events of an earlier run are now in ", board->moved_to()));
  }
  const TrainingConfig& t = config.training_config;
  CheckpointOptions checkpoint;
  checkpoint.directory = options.rehearsed_steps ? std::string() : output + "/checkpoint";
  checkpoint.keep_max = t.keep_checkpoint_max;
  checkpoint.resolved_config = resolved;
  checkpoint.source = std::move(beside_weights);
  checkpoint.adapter_config = adapter.adapter_config;
  checkpoint.base_model = adapter.base_model;
  checkpoint.max_shard_bytes = static_cast<uint64_t>(t.max_shard_size);
  checkpoint.ckpt_prefix = t.ckpt_format == "ckpt" ? t.prefix : std::string();
  checkpoint.remove_redundancy = t.remove_redundancy;
  TrainOptions train_options;
  if (!options.rehearsed_steps) {
    train_options.validation = data.validation.get();
    train_options.test = data.test.get();
  }
  train_options.metrics = metrics ? &*metrics : nullptr;
  std::vector<std::unique_ptr<StepObserver>> further;
  for (const auto& make : options.observers) {
    train_options.observers.push_back(further.emplace_back(make(cell)).get());
  }
  std::optional<LastStep> last_step;
  if (options.rehearsed_steps) {
    train_options.observers.push_back(&last_step.emplace(*options.rehearsed_steps));
  }
  std::optional<HistogramLog> histograms;
  if (board) {
    train_options.observers.push_back(&*board);
    if (config.tensorboard.histogram_interval) {
      train_options.observers.push_back(
          &histograms.emplace(cell, *config.tensorboard.histogram_interval, *board));
    }
  }
  train_options.parts = pointers_to(parts);
  train_options.checkpoint = std::move(checkpoint);
  train_options.tokenizer_model = data.tokenizer_model;
  train_options.stop_requested = stop_of_all(options, t.exit_duration_in_mins);
  train_options.start = data.start;
  train_options.total_steps = total_steps(config, data.opened.in_run());
  train_options.trainer = std::move(trainer);
  train_options.data_state = [&data](data::BatchPosition next) {
    return data_state_json(data.state(next));
  };
  if (!options.model) {
    train_options.step_flops = step_work(config, ranks).flops;
  }
  const TrainSummary summary = train(cell, *data.train, config, train_options);
  log_info(end_text(summary, cell.position().seen, options));
  return summary;
}

}  // namespace tapestry
