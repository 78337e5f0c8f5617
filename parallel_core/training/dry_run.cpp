#include "parallel_core/training/dry_run.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "autograd/io/tensor_source.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/dist_checkpointing/upcycle.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/estimates/trained_share.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/optimizer/schedule_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/checkpoints/adapter_run.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/checkpoints/run_checkpoints.h"
#include "parallel_core/training/files/disk_room.h"
#include "parallel_core/training/files/output_folder.h"
#include "parallel_core/training/fitting_layouts.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/ranks/equal_configurations.h"
#include "parallel_core/training/step/evaluation_metric.h"
#include "parallel_core/training/step/get_model.h"
#include "text/sources/text_files.h"
#include "text/sources/text_source.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallModel = 200'000'000;  // parameters that are quickly initialised

// The default text becomes tokens on first use. Whether it has.
bool is_prepared(const DatasetConfig& d) {
  const std::string start = concat("bible_", d.tokenizer_type, "_");
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(d.dataset_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start) && name.ends_with("_text_document.idx")) {
      return true;
    }
  }
  return false;
}

// `resume` is null for a run that starts at its beginning, `task` for one that goes without.
std::string opened_data_text(const AllConfig& config, const ResumePoint* resume, RunTask* task) {
  const DatasetConfig& d = config.dataset_config;
  const DataState* resumed = resume != nullptr && resume->data ? &*resume->data : nullptr;
  const RunData data = task != nullptr ? task->open_data(config, *single_process_group(),
                                                         DataUse::kTraining, resumed)
                                       : open_data(config, DataUse::kTraining, resumed);
  const int64_t count = BatchSchedule(config, get_data_parallel_world_size())
                            .micro_batches_at(data.opened.in_run().first_sample);
  for (int64_t micro = 0; micro < count && has_steps_left(config, data); ++micro) {
    data.train->micro_batch(data.start, micro, count, d.batch_size, get_data_parallel_rank(),
                            get_data_parallel_world_size());
  }
  std::string text = data.description;
  for (const std::string& remark : data.remarks) {
    text += "; " + remark;
  }
  return text;
}

std::string task_data_text(const AllConfig& config,
                           const ResumePoint* resume,
                           const RunTaskFactory& make) {
  const std::string& name = *config.post_training_config.task;
  const std::unique_ptr<RunTask> task = make ? make(config) : nullptr;
  check<ValueError>(task != nullptr, "post_training_config.task ", name,
                    ": this program makes no such task (DryRunOptions::task)");
  return concat("task ", name, ", ",
                task->has_data_before_model()
                    ? opened_data_text(config, resume, task.get())
                    : std::string("whose data are made with the model; not made here"));
}

std::string data_text(const AllConfig& config,
                      const ResumePoint* resume,
                      const RunTaskFactory& task) {
  const DatasetConfig& d = config.dataset_config;
  if (config.post_training_config.task) {
    return task_data_text(config, resume, task);
  }
  if (d.data_source) {
    return concat("the program's own data, ", *d.data_source, "; not opened here");
  }
  if (d.text) {
    check_tokenizer_of_weights(config);
    const std::vector<std::string> remarks = data::check_text_files(
        data::text_files(*d.text, "dataset_config.text", own_folders(config)));
    if (data::text_is_prepared(*d.text, corpus_options(config))) {
      return opened_data_text(config, resume, nullptr);
    }
    check_dataset_dir(d);
    std::string text = concat("text files, which are turned into tokens in ", d.dataset_dir,
                              " on first use; not tokenised here");
    for (const std::string& remark : remarks) {
      text += "; " + remark;
    }
    return text;
  }
  if (!d.data_path && !d.train_data_path && !d.step_data_dir && !d.sft_data_path &&
      !is_prepared(d)) {
    check_tokenizer_of_weights(config);
    const std::string remark = check_dataset_dir(d);
    return concat("the default text, which is turned into tokens in ", d.dataset_dir,
                  " on first use; not opened", remark.empty() ? "" : "; ", remark);
  }
  return opened_data_text(config, resume, nullptr);
}

// Parameters of a model in a file or folder of weights, without what files may hold beside them.
int64_t parameters_in(const std::string& path, const TransformerConfig& model) {
  const std::unique_ptr<TensorSource> files = open_weights(path);
  const std::vector<std::string> names = files->names();
  const FileNames scheme(std::set<std::string>(names.begin(), names.end()), model);
  int64_t count = 0;
  for (const std::string& name : names) {
    const bool counts = !is_constant(scheme, name) && !name.ends_with(".moe.router.expert_bias") &&
                        !name.ends_with(".e_score_correction_bias");
    count += counts ? files->shape(name).numel() : 0;
  }
  return count;
}

// Where a run goes on, and by which schedule.
std::string resume_text(const AllConfig& config,
                        const std::optional<ResumePoint>& resume,
                        int64_t data_parallel_size) {
  if (!resume) {
    return concat(config.training_config.output_dir,
                  " holds no checkpoint yet, so the run starts from its beginning");
  }
  const ResumedSchedule schedule =
      resume_schedule(config, data_parallel_size, resume->trainer.schedule, resume->checkpoint);
  return concat("goes on after step ", resume->trainer.position.seen, " with ", resume->checkpoint,
                schedule.remark.empty() ? "" : "; ", schedule.remark);
}

// `weights.path` is one as resolve_checkpoint takes it.
std::string weights_text(const AllConfig& config, const StartWeights& weights, int64_t available) {
  const TransformerConfig& model = config.model_config;
  const TransformerConfig stored = weights.dense ? dense_model_of(model) : model;
  const std::string path = resolve_checkpoint(weights.path);
  const AdapterRun adapter = adapter_run(config, path);
  const std::string& base = adapter.on ? adapter.base.path : path;
  if (weights.dense) {
    check_dense_model(model, path);
  } else if (!base.empty()) {
    check_hf_config(model, base);
  }
  const int64_t found = base.empty() ? 0 : parameters_in(base, stored);
  const int64_t expected = parameter_count(stored);
  // Files may repeat tied embeddings as the output matrix.
  const int64_t repeated = model.untie_embeddings_and_output_weights
                               ? 0
                               : matrices_before_layers(model).front().shape.numel();
  const int64_t size = parameter_count(model);
  const bool small = size <= kSmallModel && size * 16 < available;
  // Reading is collective where ranks have parts of the model, and this one is alone.
  const bool whole = get_tensor_model_parallel_world_size() == 1 &&
                     get_pipeline_model_parallel_world_size() == 1 &&
                     get_expert_model_parallel_world_size() == 1 &&
                     get_expert_tensor_parallel_world_size() == 1;
  if (small && whole) {
    const auto whole_model = get_model(config);
    if (weights.dense) {
      load_upcycled(*whole_model, model, path);
    } else {
      load_weights(*whole_model, model, path);
    }
  } else if (!adapter.on) {
    check<ValueError>(found == expected || found == expected + repeated, path, ": holds ", found,
                      " parameters, the ", weights.dense ? "dense model" : "model", " has ",
                      expected);
  }
  if (adapter.on) {
    return concat(
        base.empty() ? std::string("start values") : concat(base, ", ", found, " parameters"),
        adapter.adapter.empty() ? std::string(", and a new adapter")
                                : concat(", and the adapter in ", adapter.adapter));
  }
  return concat(path, ", ", found, " parameters",
                weights.dense ? ", whose MLPs become experts" : "");
}

std::string folder_text(const AllConfig& config, const DryRunOptions& options) {
  const TrainingConfig& training = config.training_config;
  check_evaluation(config, {}, config.post_training_config.task.has_value());
  const auto parts = make_parts(options.parts);
  require_parts(config, pointers_to(parts));
  for (const auto& part : parts) {
    part->check(config);
  }
  const std::string& output = training.output_dir;
  std::string text = output;
  if (const auto holder = read_lock((fs::path(output) / kRunLockName).string())) {
    text += concat(", in use by ", holder->describe(), " unless that is gone");
  }
  const EarlierRun earlier = find_earlier_run(output);
  if (earlier.files.empty()) {
    return text + ", no run in it yet";
  }
  return text + concat(", holds a run of ", earlier.last_step, " steps, last written ",
                       earlier.written,
                       resumes_in_place(training) || is_started_again(training)
                           ? ", which goes on"
                           : "; a new one needs --overwrite or another output_dir");
}

// One where this process stands for a layout of several ranks.
int64_t data_parallel_size_of(const AllConfig& config, int ranks) {
  const ModelParallelConfig& p = config.parallel_config;
  const int64_t model =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  return std::max<int64_t>(1, ranks / model);
}

// Groups of ranks as the run would have them; in one process those of one rank.
void make_groups(const AllConfig& config, const DryRunOptions& options) {
  const int ranks = options.world->size();
  if (config.training_config.num_threads) {
    set_num_threads(static_cast<int>(*config.training_config.num_threads));
  }
  check_equal_configurations(config, *options.world);
  if (ranks > 1) {
    check_world_size(config.parallel_config, ranks);
    check_expert_ranks(config, ranks);
  }
  if (!model_parallel_is_initialized()) {
    initialize_model_parallel(
        ranks > 1 ? model_parallel_sizes(config.parallel_config) : ModelParallelSizes{},
        options.world);
  }
}

// What a dry run says, line by line, and what it has found that would stop the run.
class DryRunReport {
 public:
  DryRunReport(const AllConfig& config, const DryRunOptions& options, std::ostream& out)
      : config_(config),
        options_(options),
        out_(out),
        ranks_(data_parallel_size_of(config, options.world->size())),
        available_(available_memory() / options.ranks_on_host) {
    check_rampup(config, ranks_);
  }

  void show_model() {
    out_ << layout_line(config_.parallel_config, ranks_) << "\n";
    if (options_.verbose) {
      out_ << config_log_text(config_) << "\n";
    }
    memory_ = estimate_memory(config_, ranks_);
    out_ << "model: " << parameter_count(config_.model_config) << " parameters";
    if (config_.model_config.moe.num_experts > 1) {
      out_ << ", of which a token meets " << active_parameter_count(config_.model_config);
    }
    out_ << "\n";
    if (config_.model_config.lora.use_lora) {
      show("adapters", [&] {
        std::string text = trained_share_text(config_.model_config);
        for (const std::string& warning : plan_adapter(config_).warnings) {
          text += "\n  " + warning;
        }
        return text;
      });
    }
  }

  void show_memory() {
    if (options_.verbose) {
      out_ << memory_text(memory_) << "\n";
    }
    if (const std::string text = recompute_cost_text(config_); options_.verbose && !text.empty()) {
      out_ << text << "\n";
    }
    show("memory", [&] {
      check_memory(config_, memory_,
                   {.data_parallel_size = ranks_,
                    .ranks = options_.world->size(),
                    .ranks_on_host = options_.ranks_on_host,
                    .available = available_});
      return concat("needs ", size_text(memory_.peak()), ", ", size_text(available_),
                    " are available",
                    options_.ranks_on_host > 1 ? " to each rank of this machine" : "");
    });
  }

  void show_sources() {
    const TrainingConfig& t = config_.training_config;
    if (t.resume_training.on) {
      show("resume_training", [&] {
        resume_ = find_resume_point(config_, *single_process_group(), is_started_again(t));
        return resume_text(config_, resume_, ranks_);
      });
    }
    show("data", [&] { return data_text(config_, resume_ ? &*resume_ : nullptr, options_.task); });
    const StartWeights weights =
        resume_ ? StartWeights{.path = resume_->checkpoint} : start_weights(config_);
    if (!weights.path.empty()) {
      show("weights", [&] { return weights_text(config_, weights, available_); });
    }
    const std::optional<std::string>& reference = config_.post_training_config.reference;
    if (reference && *reference != "adapter_off") {
      show("reference", [&] { return weights_text(config_, {.path = *reference}, available_); });
    }
  }

  void show_output() {
    show("output", [&] { return folder_text(config_, options_); });
    out_ << checkpoint_plan(config_.training_config) << "\n";
    show("disk", [&] { return disk_room_text(config_, get_data_parallel_world_size()); });
    show("expected time", [&] {
      const int64_t done = resume_ ? resume_->trainer.position.seen : 0;
      const int64_t steps = total_training_iters(config_, ranks_);
      if (steps > 0 && done >= steps) {
        return concat("none, all ", steps, " steps are done");
      }
      return time_text(step_work(config_, ranks_), measure_speed(config_),
                       whole_steps(config_, ranks_, steps, done));
    });
  }

  void show_notes() {
    for (const std::string& note : config_.notes) {
      out_ << "note: " << note << "\n";
    }
    if (!config_.unsupported.empty()) {
      out_ << "not supported:\n";
      for (const std::string& finding : config_.unsupported) {
        out_ << "  " << finding << "\n";
      }
      findings_.insert(findings_.end(), config_.unsupported.begin(), config_.unsupported.end());
    }
    out_.flush();
  }

  void check_findings() const {
    std::string all;
    for (const std::string& finding : findings_) {
      all += (all.empty() ? "" : "\n") + finding;
    }
    check<ValueError>(findings_.empty(), all);
  }

 private:
  // A line "what: text". A finding is shown by its first line, all of it at the end.
  void show(const char* what, const std::function<std::string()>& text) {
    std::string line;
    try {
      line = text();
    } catch (const Error& error) {
      line = error.what();
      findings_.push_back(line);
      line.resize(std::min(line.find('\n'), line.size()));
    }
    out_ << what << ": " << line << "\n" << std::flush;
  }

  const AllConfig& config_;
  const DryRunOptions& options_;
  std::ostream& out_;
  int64_t ranks_;      // data-parallel
  int64_t available_;  // bytes
  MemoryEstimate memory_;
  std::optional<ResumePoint> resume_;
  std::vector<std::string> findings_;
};

}  // namespace

void dry_run(const AllConfig& config, const DryRunOptions& options, std::ostream& out) {
  make_groups(config, options);
  if (options.world->rank() != 0) {
    return;
  }
  DryRunReport report(config, options, out);
  report.show_model();
  report.show_memory();
  report.show_sources();
  report.show_output();
  report.show_notes();
  report.check_findings();
}

}  // namespace tapestry
