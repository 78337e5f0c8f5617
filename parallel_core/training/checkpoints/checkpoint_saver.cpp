#include "parallel_core/training/checkpoints/checkpoint_saver.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/kernels/exact/exact_class.h"
#include "autograd/kernels/machine/signals_blocked.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/stored_hashes.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

using SaveClock = std::chrono::steady_clock;

// Name of a checkpoint's folder, before the step, that is not to be taken for one.
constexpr const char* kSpoiltPrefix = "diverged_step_";
constexpr const char* kBestFile = "best.json";

constexpr auto kPollInterval = std::chrono::milliseconds(5);

bool is_alone() { return !model_parallel_is_initialized() || get_world_group().size() == 1; }

// What rank 0 says, on all ranks.
bool of_rank_0(bool own) {
  if (is_alone()) {
    return own;
  }
  const Tensor value = full({1}, own ? 1 : 0, kInt32);
  get_world_group().broadcast(value, 0);
  return value.item() != 0;
}

bool on_all_ranks(bool own) {
  if (is_alone()) {
    return own;
  }
  const Tensor value = full({1}, own ? 1 : 0, kInt32);
  get_world_group().all_reduce(value, ReduceOp::kMin);
  return value.item() != 0;
}

std::string rate_text(uint64_t bytes, double seconds) {
  char text[80];
  std::snprintf(text, sizeof(text), "%.2f s (%.0f MB/s)", seconds,
                static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9));
  return text;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const ParallelModel& model,
                                 const optim::Optimizer& optimizer,
                                 const AllConfig& config,
                                 CheckpointOptions options)
    : model_(model),
      optimizer_(optimizer),
      config_(config),
      options_(std::move(options)),
      last_save_(SaveClock::now()) {}

CheckpointSaver::~CheckpointSaver() {
  if (worker_.joinable()) {
    worker_.join();
  }
}

bool CheckpointSaver::is_due(int64_t step) {
  if (options_.directory.empty()) {
    return false;
  }
  const TrainingConfig& t = config_.training_config;
  const bool by_interval = t.save_interval && step % *t.save_interval == 0;
  const bool again = failed_step_ && step >= retry_step_;
  bool by_clock = false;
  if (t.save_interval_seconds) {
    const std::chrono::duration<double> passed = SaveClock::now() - last_save_;
    by_clock = of_rank_0(passed.count() >= *t.save_interval_seconds);
  }
  return by_interval || again || by_clock;
}

void CheckpointSaver::start(int64_t step, const std::string& state) {
  options_.training_state = state;
  if (config_.training_config.exact) {
    StateHash hash(model_, &optimizer_, HashedState::kWeightsAndStates);
    options_.hashes = stored_hashes_text(
        {.bit_class = std::string(exact_class(config_.model_config.compute_dtype)),
         .tensors = hash()});
  }
  accepted_while_writing_ = false;
  writing_step_ = step;
  last_save_ = SaveClock::now();
  writer_ =
      std::make_unique<CheckpointWriter>(model_, config_.model_config, step, options_, &optimizer_);
}

void CheckpointSaver::save(int64_t step, const std::string& state, bool last) {
  if (options_.directory.empty() || (writer_ == nullptr && saved_step_ == step)) {
    return;
  }
  finish();
  if (saved_step_ == step) {
    return;
  }
  // Files need buffers that are not the allocator's: these take the place of what it has cached.
  RankContext::current().allocator().release_cache();
  try {
    start(step, state);
    const bool waits = !config_.training_config.async_save || last;
    if (waits && is_alone()) {
      writer_->write();
      complete();
      return;
    }
    if (!waits) {
      writer_->snapshot();
    }
    start_writing();
    if (waits) {
      wait_for_all();
      complete();
    }
  } catch (const IoError& error) {
    writer_.reset();
    if (last) {
      // The folder was good when the run began: whatever has become of it is no fault of the input.
      throw StorageError(error.what());
    }
    note_failure(error.what());
  }
}

void CheckpointSaver::start_writing() {
  written_ = std::make_shared<std::atomic<bool>>(false);
  const kernels::SignalsBlocked blocked;
  worker_ = std::thread([writer = writer_.get(), written = written_] {
    writer->write();
    *written = true;
  });
}

void CheckpointSaver::wait_for_all() {
  while (!on_all_ranks(written_->load())) {
    std::this_thread::sleep_for(kPollInterval);
  }
  worker_.join();
}

void CheckpointSaver::complete() {
  const std::unique_ptr<CheckpointWriter> writer = std::move(writer_);
  const std::string folder = writer->finish();
  const SaveTimes& times = writer->times();
  saved_bytes_ = static_cast<int64_t>(times.bytes);
  log_info("saved " + folder);
  log_detail(concat("saved ", times.bytes, " bytes, of them this rank ", times.own_bytes,
                    times.snapshot_seconds > 0
                        ? concat("; copied in ", rate_text(times.own_bytes, times.snapshot_seconds))
                        : std::string(),
                    "; written in ", rate_text(times.own_bytes, times.write_seconds),
                    ", read back in ", rate_text(times.own_bytes, times.verify_seconds)));
  note_success(folder);
}

void CheckpointSaver::poll() {
  if (writer_ != nullptr && on_all_ranks(written_->load())) {
    finish();
  }
}

void CheckpointSaver::finish() {
  if (writer_ == nullptr) {
    return;
  }
  try {
    wait_for_all();
    complete();
  } catch (const IoError& error) {
    note_failure(error.what());
  }
}

void CheckpointSaver::note_success(const std::string& folder) {
  if (failed_step_) {
    log_info(concat("saving works again; nothing could be saved since step ", *failed_step_));
  }
  failed_step_.reset();
  retry_distance_ = 1;
  saved_step_ = writing_step_;
  newest_ = folder;
  if (observer_.saved) {
    observer_.saved(saved_step_.value(), folder);
  }
  if (!begins_interval()) {
    passing_.push_back(folder);
  }
  for (const BestEvaluation& candidate : candidates_) {
    if (candidate.step == writing_step_) {
      best_before_ = best_;
      best_ = candidate;
    }
  }
  forget_candidates();
  name_best();
  if (accepted_while_writing_) {
    accept();
  }
}

std::optional<BestEvaluation> CheckpointSaver::best() const {
  return candidates_.empty() ? best_ : candidates_.back();
}

void CheckpointSaver::forget_candidates() {
  std::erase_if(candidates_, [this](const BestEvaluation& c) { return c.step <= writing_step_; });
}

void CheckpointSaver::take_up_best(const std::optional<BestEvaluation>& best) {
  best_ = best;
  best_before_ = best;
  const std::filesystem::path file = std::filesystem::path(options_.directory) / kBestFile;
  std::error_code ignored;
  if (!options_.directory.empty() && std::filesystem::exists(file, ignored)) {
    named_best_ = "what an earlier start has left";
  }
  name_best();
}

void CheckpointSaver::name_best() {
  if (RankContext::current().rank() != 0 || options_.directory.empty()) {
    return;
  }
  const std::filesystem::path folder = options_.directory;
  std::string name = best_ ? checkpoint_name(best_->step) : std::string();
  std::error_code error;
  if (!std::filesystem::is_directory(folder / name, error)) {
    name.clear();  // in the folder of the run that this one goes on with
  }
  if (name == named_best_) {
    return;
  }
  const std::string file = (folder / kBestFile).string();
  try {
    if (name.empty()) {
      std::filesystem::remove(file, error);
      check<IoError>(!error, file, ": cannot be removed: ", error.message());
    } else {
      const nlohmann::ordered_json text = {{"step", best_->step},
                                           {"checkpoint", name},
                                           {"metric", best_->metric},
                                           {"value", best_->value}};
      write_file_atomically(file, text.dump(2) + "\n");
    }
    named_best_ = name;
  } catch (const IoError& failure) {
    // The checkpoint that the file still names stays, and so does the best one.
    log_error(concat("THE BEST CHECKPOINT COULD NOT BE NAMED: ", failure.what(),
                     ". The next save tries again"));
  }
}

void CheckpointSaver::note_failure(const std::string& what) {
  forget_candidates();
  if (!failed_step_) {
    failed_step_ = writing_step_;
  }
  retry_step_ = writing_step_ + retry_distance_;
  const std::optional<int64_t>& interval = config_.training_config.save_interval;
  retry_distance_ = std::min(2 * retry_distance_, interval.value_or(64));
  log_error(concat("THE CHECKPOINT OF STEP ", writing_step_, " COULD NOT BE SAVED: ", what,
                   ". Training goes on; the next attempt is after step ", retry_step_,
                   ". What was saved before is untouched"));
}

void CheckpointSaver::accept() {
  accepted_while_writing_ = writer_ != nullptr;
  if (saved_step_ != proven_step_) {
    proven_step_ = saved_step_;
    best_before_ = best_;
    remove_old();
  }
}

bool CheckpointSaver::begins_interval() {
  const std::chrono::duration<double, std::ratio<60>> interval(
      config_.training_config.keep_checkpoint_per_n_minutes);
  const SaveClock::time_point now = SaveClock::now();
  if (interval_start_ && now - *interval_start_ < interval) {
    return false;
  }
  interval_start_ = now;
  return true;
}

void CheckpointSaver::remove_old() {
  if (RankContext::current().rank() != 0) {
    return;
  }
  std::vector<std::string> kept;
  if (best_) {
    kept = {checkpoint_name(best_->step), named_best_};
  }
  if (observer_.kept) {
    const std::vector<std::string> more = observer_.kept();
    kept.insert(kept.end(), more.begin(), more.end());
  }
  if (config_.training_config.keep_checkpoint_per_n_minutes == 0) {
    remove_old_checkpoints(options_.directory, options_.keep_max, newest_, kept);
  } else {
    for (const std::string& folder : std::exchange(passing_, {})) {
      const std::string name = std::filesystem::path(folder).filename();
      if (folder == newest_ || std::find(kept.begin(), kept.end(), name) != kept.end()) {
        passing_.push_back(folder);
      } else {
        std::error_code ignored;
        std::filesystem::remove_all(folder, ignored);
      }
    }
  }
  if (observer_.removed) {
    observer_.removed();
  }
}

std::string CheckpointSaver::set_unproven_aside() {
  if (saved_step_ == proven_step_) {
    return {};
  }
  if (RankContext::current().rank() == 0) {
    set_checkpoint_aside(newest_, concat(kSpoiltPrefix, *saved_step_));
  }
  if (best_ && best_->step == saved_step_) {
    best_ = best_before_;
    name_best();
  }
  return concat("\nThe weights saved at step ", *saved_step_, " are spoilt: they are now in ",
                options_.directory, "/", kSpoiltPrefix, *saved_step_, ".");
}

bool is_better(const TrainingConfig& config,
               double value,
               const std::optional<BestEvaluation>& best) {
  if (!best) {
    return value == value;  // a NaN is better than nothing to nobody
  }
  const std::string& comparison = *config.best_metric_comparison;
  return comparison == "less"         ? value < best->value
         : comparison == "less_equal" ? value <= best->value
         : comparison == "greater"    ? value > best->value
                                      : value >= best->value;
}

}  // namespace tapestry
