#include "parallel_core/training/files/output_folder.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr auto kPoll = std::chrono::milliseconds(200);
constexpr int64_t kPatience = 5 * 60 * 5;  // polls until a run that does not end is given up

// grads_step_12.safetensors and its like.
bool is_dump(const std::string& name) {
  constexpr std::string_view kEnding = ".safetensors";
  return name.ends_with(kEnding) &&
         (name.starts_with("grads_step_") || name.starts_with("weights_step_") ||
          name.starts_with("acts_step_"));
}

bool holds_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") || name.starts_with("diverged_step_")) {
      return true;
    }
  }
  return false;
}

// The step of the last complete line; 0 if it has none.
int64_t last_step_of(const fs::path& metrics) {
  constexpr uint64_t kTail = 1 << 20;  // a line with the norms of many parameters is long
  InputFile file(metrics.string());
  const uint64_t size = file.size();
  FileLines lines(std::move(file), size - std::min(size, kTail));
  int64_t step = 0;
  for (std::string line; lines.next(line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) {
      step = json["step"].get<int64_t>();
    }
  }
  return step;
}

std::string time_text(std::time_t time) {
  std::tm parts{};
  localtime_r(&time, &parts);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts);
  return {text.data(), size};
}

std::time_t changed(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mtime : 0;
}

// The step in a name: one of the prefixes, a number, the ending.
std::optional<int64_t> step_in_name(std::string_view name,
                                    std::initializer_list<std::string_view> prefixes,
                                    std::string_view ending = {}) {
  for (const std::string_view prefix : prefixes) {
    if (!name.starts_with(prefix) || !name.ends_with(ending) ||
        name.size() <= prefix.size() + ending.size()) {
      continue;
    }
    int64_t step = 0;
    const char* end = name.data() + name.size() - ending.size();
    const auto parsed = std::from_chars(name.data() + prefix.size(), end, step);
    if (parsed.ec == std::errc{} && parsed.ptr == end) {
      return step;
    }
  }
  return std::nullopt;
}

}  // namespace

bool lies_in(const std::string& path, const std::string& folder) {
  const fs::path inner = fs::weakly_canonical(path);
  const fs::path outer = fs::weakly_canonical(folder);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

EarlierRun find_earlier_run(const std::string& output_dir) {
  const fs::path folder = output_dir;
  EarlierRun run;
  std::error_code error;
  const uintmax_t metrics = fs::file_size(folder / "metrics.jsonl", error);
  if (!error && metrics > 0) {
    run.files.emplace_back("metrics.jsonl");
    run.last_step = last_step_of(folder / "metrics.jsonl");
  }
  if (holds_checkpoint(folder / "checkpoint")) {
    run.files.emplace_back("checkpoint");
    try {
      run.checkpoint = resolve_checkpoint((folder / "checkpoint").string());
    } catch (const IoError&) {  // none of them is whole
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_dump(name)) {
      run.files.push_back(name);
    }
  }
  if (run.files.empty()) {
    return run;
  }
  for (const char* name : {"config.yaml", "health_ckpts.json", "abnormal_global_norm.json",
                           "report.html", "tokens_per_expert.jsonl", "hashes.jsonl", "capsule",
                           "profile", "metrics.prom", "mlflow_run.json"}) {
    if (fs::exists(folder / name, error)) {
      run.files.emplace_back(name);
    }
  }
  std::sort(run.files.begin(), run.files.end());
  std::time_t written = 0;
  for (const std::string& name : run.files) {
    written = std::max(written, changed(folder / name));
  }
  run.written = time_text(written);
  return run;
}

OutputFolder::OutputFolder(std::string output_dir,
                           const OutputFolderOptions& options,
                           ProcessGroup& world)
    : output_dir_(std::move(output_dir)) {
  while (true) {
    Attempt result = Attempt::kTaken;
    if (world.rank() == 0) {
      try {
        result = attempt(options);
      } catch (const StorageError& error) {  // the others have to hear of it
        refusal_ = error.what();
        result = Attempt::kNoRoom;
      } catch (const Error& error) {
        refusal_ = error.what();
        result = Attempt::kFailed;
      }
    }
    const Tensor decision = full({1}, static_cast<double>(result), kInt32);
    world.broadcast(decision, 0);
    result = static_cast<Attempt>(static_cast<int>(decision.item()));
    if (result == Attempt::kTaken) {
      return;
    }
    if (result != Attempt::kWaiting) {
      lock_.reset();
      const std::string text = all_gather_text(world, refusal_).front();
      if (result == Attempt::kNoRoom) {
        throw StorageError(text);
      }
      if (result == Attempt::kFailed) {
        throw IoError(text);
      }
      throw ValueError(text);
    }
    std::this_thread::sleep_for(kPoll);
  }
}

OutputFolder::Attempt OutputFolder::attempt(const OutputFolderOptions& options) {
  std::error_code error;
  fs::create_directories(output_dir_, error);
  check<StorageError>(error != std::errc::no_space_on_device, "training_config.output_dir '",
                      output_dir_, "': the folder cannot be made: ", error.message());
  check<IoError>(fs::is_directory(output_dir_), "training_config.output_dir '", output_dir_,
                 "': the folder cannot be made: ",
                 error ? error.message() : std::string("there is a file of this name"));
  const std::string path = (fs::path(output_dir_) / kRunLockName).string();
  LockHolder holder;
  lock_ = RunLock::take(path, holder);
  if (!lock_) {
    if (holder.is_earlier_start_of(LockHolder::self()) && attempts_ < kPatience) {
      return wait_for_earlier_start(holder, options);
    }
    if (options.replace) {
      return end_holder(holder, options);
    }
    refusal_ =
        concat("training_config.output_dir '", output_dir_, "' is in use by ", holder.describe(),
               ". Choose another output_dir, wait for it, or end it with --replace, upon "
               "which it saves. If that process is gone for good, remove ",
               path);
    return Attempt::kRefused;
  }
  if (lock_->previous()) {
    remarks_.push_back(concat(path, ": the lock of ", lock_->previous()->describe(),
                              " was stale and has been taken over"));
  }
  earlier_ = find_earlier_run(output_dir_);
  keeps_earlier_ = options.resume && !options.overwrite;
  if (!earlier_.files.empty() && !options.overwrite && !options.replace && !options.resume) {
    refuse_earlier_run();
    return Attempt::kRefused;
  }
  return Attempt::kTaken;
}

OutputFolder::Attempt OutputFolder::wait_for_earlier_start(const LockHolder& holder,
                                                           const OutputFolderOptions& options) {
  if (options.stop_requested && options.stop_requested()) {
    refusal_ = concat("stopped while waiting for the end of ", holder.describe());
    return Attempt::kRefused;
  }
  if (attempts_ == 0) {
    const std::string text =
        concat("waiting for the end of an earlier start of this job: ", holder.describe());
    remarks_.push_back(text);
    log_info(text);
  }
  ++attempts_;
  return Attempt::kWaiting;
}

void OutputFolder::refuse_earlier_run() {
  refusal_ = concat("training_config.output_dir '", output_dir_, "' holds a run already (",
                    earlier_.last_step > 0 ? concat(earlier_.last_step, " steps, ") : std::string(),
                    earlier_.checkpoint.empty() ? std::string("no checkpoint")
                                                : concat("latest checkpoint ", earlier_.checkpoint),
                    ", last written ", earlier_.written,
                    "). To go on where it stopped, start pretrain_gpt --resume ", output_dir_,
                    ", or set training_config.resume_training: True, and "
                    "load_checkpoint to what that run began with, or not at all; to start anew, "
                    "choose another output_dir, or give --overwrite, which moves its files to ",
                    (fs::path(output_dir_) / "old").string(),
                    ". load_checkpoint alone starts a new run from its weights");
}

OutputFolder::Attempt OutputFolder::end_holder(const LockHolder& holder,
                                               const OutputFolderOptions& options) {
  if (attempts_ > 0 && options.stop_requested && options.stop_requested()) {
    refusal_ = concat("stopped while waiting for the end of ", holder.describe());
    return Attempt::kRefused;
  }
  if (!holder.is_reachable()) {
    if (attempts_ > 0) {
      return Attempt::kWaiting;  // it has just ended
    }
    refusal_ = concat("training_config.output_dir '", output_dir_, "' is in use by ",
                      holder.describe(), ", which --replace cannot end from here");
    return Attempt::kRefused;
  }
  const bool last_resort = attempts_ == kPatience;
  if (attempts_ == 0 || last_resort) {
    if (::kill(static_cast<pid_t>(holder.pid), last_resort ? SIGKILL : SIGUSR1) != 0) {
      refusal_ = concat("training_config.output_dir '", output_dir_, "' is in use by ",
                        holder.describe(), ", which --replace cannot end: ", std::strerror(errno));
      return Attempt::kRefused;
    }
    remarks_.push_back(concat(last_resort ? "killed " : "ended ", holder.describe()));
    log_info(concat(last_resort ? "killing " : "waiting for the end of ", holder.describe()));
  }
  ++attempts_;
  return Attempt::kWaiting;
}

std::string OutputFolder::new_folder_aside() const {
  const fs::path old = fs::path(output_dir_) / "old";
  int64_t number = 1;
  while (fs::exists(old / concat("run_", number))) {
    ++number;
  }
  const fs::path aside = old / concat("run_", number);
  fs::create_directories(aside);
  return aside.string();
}

std::string OutputFolder::move_earlier_aside(const std::vector<std::string>& in_use) {
  if (earlier_.files.empty() || keeps_earlier_) {
    return {};
  }
  try {
    for (const std::string& path : in_use) {
      for (const std::string& name : earlier_.files) {
        check<ValueError>(path.empty() || !lies_in(path, (fs::path(output_dir_) / name).string()),
                          path,
                          ": this run needs the file, but --overwrite would move it away with the "
                          "earlier run's; copy it to another folder or choose another output_dir");
      }
    }
    const fs::path aside = new_folder_aside();
    // metrics.jsonl last: until then the folder still counts as that of the earlier run.
    auto last = std::find(earlier_.files.begin(), earlier_.files.end(), "metrics.jsonl");
    if (last != earlier_.files.end()) {
      std::rotate(last, last + 1, earlier_.files.end());
    }
    for (const std::string& name : earlier_.files) {
      fs::rename(fs::path(output_dir_) / name, aside / name);
    }
    earlier_ = {};
    return aside.string();
  } catch (const fs::filesystem_error& error) {
    throw IoError(concat("training_config.output_dir '", output_dir_,
                         "': the files of the earlier run cannot be moved aside: ", error.what()));
  }
}

std::string OutputFolder::move_later_aside(const std::string& checkpoint) {
  const fs::path output = output_dir_;
  const fs::path checkpoints = output / "checkpoint";
  fs::path gone_on_with = fs::path(checkpoint).lexically_normal();
  if (!gone_on_with.has_filename()) {  // it ends with a slash
    gone_on_with = gone_on_with.parent_path();
  }
  const auto step = step_in_name(gone_on_with.filename().string(), {"step_"});
  if (!step || !lies_in(checkpoint, checkpoints.string())) {
    return {};
  }
  const auto is_later = [&](const std::optional<int64_t>& other) {
    return other && *other > *step;
  };
  try {
    std::vector<fs::path> later;  // below the output folder
    for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints)) {
      const std::string name = entry.path().filename().string();
      if (is_later(step_in_name(name, {"step_", "diverged_step_"}))) {
        later.push_back(fs::path("checkpoint") / name);
      }
    }
    if (later.empty()) {
      return {};
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(output)) {
      const std::string name = entry.path().filename().string();
      if (is_later(
              step_in_name(name, {"grads_step_", "weights_step_", "acts_step_"}, ".safetensors"))) {
        later.emplace_back(name);
      }
    }
    const fs::path aside = new_folder_aside();
    fs::create_directories(aside / "checkpoint");
    for (const char* name :
         {"metrics.jsonl", "config.yaml", "tokens_per_expert.jsonl", "hashes.jsonl"}) {
      if (fs::exists(output / name)) {
        fs::copy_file(output / name, aside / name);
      }
    }
    // Which of them was the best; the run that goes on says anew which of its own is.
    if (const fs::path best = fs::path("checkpoint") / "best.json"; fs::exists(output / best)) {
      fs::copy_file(output / best, aside / best);
    }
    for (const fs::path& path : later) {
      fs::rename(output / path, aside / path);
    }
    sync_directory((aside / "checkpoint").string());
    sync_directory(checkpoints.string());
    return aside.string();
  } catch (const fs::filesystem_error& error) {
    throw IoError(concat("training_config.output_dir '", output_dir_, "': what is later than ",
                         checkpoint, " cannot be moved aside: ", error.what()));
  }
}

}  // namespace tapestry
