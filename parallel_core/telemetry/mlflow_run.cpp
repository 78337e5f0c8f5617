#include "parallel_core/telemetry/mlflow_run.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <system_error>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::telemetry {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMeta = "meta.yaml";
constexpr const char* kTrash = ".trash";

int64_t now_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A text in quotes: YAML takes JSON's.
std::string yaml_text(std::string_view text) {
  return nlohmann::json(data::replace_invalid_utf8(text)).dump();
}

// file:///srv/my%20runs/mlruns
std::string file_uri(const fs::path& path) {
  std::string uri = "file://";
  for (const char letter : path.string()) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool stays = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') ||
                       std::string_view("_.-~/").find(letter) != std::string_view::npos;
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    if (stays) {
      uri += letter;
    } else {
      uri += {'%', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return uri;
}

std::string user_name() {
  const passwd* entry = ::getpwuid(::geteuid());  // NOLINT(concurrency-mt-unsafe): at the start
  return entry != nullptr ? entry->pw_name : std::to_string(::geteuid());
}

// A random identifier, as uuid4().hex.
std::string random_hex() {
  std::random_device device;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 32; ++i) {
    text += kDigits[device() & 15U];
  }
  text[12] = '4';
  text[16] = kDigits[8 + (device() & 3U)];
  return text;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw_io_error(folder.string(), "be made", error.value());
  }
}

YAML::Node read_meta(const fs::path& folder) {
  try {
    return YAML::LoadFile((folder / kMeta).string());
  } catch (const YAML::Exception& error) {
    throw IoError(concat((folder / kMeta).string(), ": is no YAML of MLflow: ", error.what()));
  }
}

std::string text_of(const YAML::Node& meta, const char* key) {
  const YAML::Node value = meta[key];
  return value && value.IsScalar() ? value.Scalar() : std::string();
}

// The experiment of a name that nobody has deleted; empty if there is none.
std::string find_experiment(const fs::path& store, const std::string& name) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(store, error)) {
    std::string id = entry.path().filename().string();
    if (id.starts_with('.') || !fs::exists(entry.path() / kMeta, error)) {
      continue;
    }
    const YAML::Node meta = read_meta(entry.path());
    const std::string stage = text_of(meta, "lifecycle_stage");
    if (text_of(meta, "name") == name && (stage.empty() || stage == "active")) {
      return id;
    }
  }
  return {};
}

// The number follows from the name, so that jobs which start together make one experiment. 18
// digits, as those that MLflow draws.
std::string new_experiment_id(const fs::path& store, const std::string& name) {
  if (name == "Default") {
    return "0";
  }
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  }
  constexpr uint64_t kLeast = 100'000'000'000'000'000U;
  for (uint64_t id = kLeast + hash % (9 * kLeast);; ++id) {
    std::string text = std::to_string(id);
    const bool is_other =
        fs::exists(store / text / kMeta) && text_of(read_meta(store / text), "name") != name;
    if (!is_other && !fs::exists(store / kTrash / text)) {
      return text;
    }
  }
}

std::string make_experiment(const fs::path& store, const std::string& name) {
  std::string id = new_experiment_id(store, name);
  const fs::path folder = store / id;
  make_folder(folder);
  if (!fs::exists(folder / kMeta)) {
    const int64_t now = now_milliseconds();
    write_file_atomically(
        (folder / kMeta).string(),
        concat("artifact_location: ", yaml_text(file_uri(folder)), "\ncreation_time: ", now,
               "\nexperiment_id: ", yaml_text(id), "\nlast_update_time: ", now,
               "\nlifecycle_stage: active\nname: ", yaml_text(name), "\n"));
  }
  return id;
}

// Python reads "nan" and "inf" as well.
std::string value_text(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return std::isnan(value) ? std::string("nan") : std::string(digits.data(), end.ptr);
}

// The step at the end of "milliseconds value step"; none of a line that is not whole.
std::optional<int64_t> step_of(const std::string& line) {
  const size_t blank = line.rfind(' ');
  int64_t step = 0;
  if (blank == std::string::npos || line.find(' ') == blank) {
    return std::nullopt;
  }
  const char* end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data() + blank + 1, end, step);
  return parsed.ec == std::errc{} && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

// A file without lines would be one that MLflow refuses to read.
void cut_metric(const fs::path& path, int64_t last_step) {
  std::string kept;
  bool changes = false;
  FileLines lines(path.string());
  for (std::string line; lines.next(line);) {
    const bool ended = take_newline(line);
    const std::optional<int64_t> step = ended ? step_of(line) : std::nullopt;
    if (step && *step <= last_step) {
      kept += line + "\n";
    } else {
      changes = true;
    }
  }
  if (kept.empty()) {
    ::unlink(path.c_str());
  } else if (changes) {
    write_file_atomically(path.string(), kept);
  }
}

// All of it or nothing, as far as a full disk lets it.
void append(const fs::path& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) {
    throw_io_error(path.string(), "be written", errno);
  }
  const off_t before = ::lseek(file, 0, SEEK_END);
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  const bool whole = written == static_cast<ssize_t>(text.size());
  if (!whole && written > 0 && ::ftruncate(file, before) != 0) {
    ::close(file);
    throw_io_error(path.string(), "be written, and ends in half a line", error);
  }
  ::close(file);
  if (!whole) {
    if (before == 0) {
      ::unlink(path.c_str());
    }
    throw_io_error(path.string(), "be written", error);
  }
}

// What may be lost with the power, as MLflow's own files may.
void write_plain(const fs::path& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) {
    throw_io_error(path.string(), "be written", errno);
  }
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::close(file);
  if (written != static_cast<ssize_t>(text.size())) {
    throw_io_error(path.string(), "be written", error);
  }
}

}  // namespace

std::string MlflowRun::valid_key(std::string_view name) {
  std::string key;
  for (const char letter : name) {
    const bool stays = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') ||
                       std::string_view("_-. /").find(letter) != std::string_view::npos;
    key += stays ? letter : '_';
  }
  // MLflow takes no name that says a place in other words: "a//b", "/a", "a/../b".
  const fs::path path(key);
  const std::string normal = path.lexically_normal().string();
  return normal == key && !key.empty() && !path.is_absolute() && !key.starts_with("..") &&
                 key != "." && !key.ends_with('/')
             ? key
             : concat("_", [&] {
                 for (char& letter : key) {
                   letter = letter == '/' ? '_' : letter;
                 }
                 return key;
               }());
}

MlflowRun::MlflowRun(const MlflowRunOptions& options, const std::optional<MlflowRunId>& before) {
  const fs::path store = fs::absolute(options.store).lexically_normal();
  if (before && fs::exists(store / before->experiment / before->run / kMeta)) {
    id_ = *before;
    folder_ = (store / id_.experiment / id_.run).string();
    go_on();
    return;
  }
  make_folder(store);
  make(options);
}

void MlflowRun::make(const MlflowRunOptions& options) {
  const fs::path store = fs::absolute(options.store).lexically_normal();
  id_.experiment = find_experiment(store, options.experiment);
  if (id_.experiment.empty()) {
    id_.experiment = make_experiment(store, options.experiment);
  }
  id_.run = random_hex();
  const std::string place = text_of(read_meta(store / id_.experiment), "artifact_location");
  artifacts_ = concat(place, "/", id_.run, "/artifacts");
  folder_ = (store / id_.experiment / id_.run).string();
  run_name_ = options.run_name;
  user_ = user_name();
  start_ = now_milliseconds();
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) {
    make_folder(fs::path(folder_) / part);
  }
  write_meta(MlflowStatus::kRunning, {});
  tag("mlflow.runName", run_name_);
  tag("mlflow.user", user_);
  tag("mlflow.source.name", options.source);
  tag("mlflow.source.type", "LOCAL");
}

void MlflowRun::go_on() {
  goes_on_ = true;
  const YAML::Node meta = read_meta(folder_);
  artifacts_ = text_of(meta, "artifact_uri");
  run_name_ = text_of(meta, "run_name");
  user_ = text_of(meta, "user_id");
  const std::string start = text_of(meta, "start_time");
  const auto parsed = std::from_chars(start.data(), start.data() + start.size(), start_);
  check<IoError>(parsed.ec == std::errc{}, folder_, "/", kMeta, ": start_time is '", start,
                 "', expected milliseconds since 1970; move the run's folder away");
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) {
    make_folder(fs::path(folder_) / part);
  }
  write_meta(MlflowStatus::kRunning, {});
}

void MlflowRun::write_meta(MlflowStatus status, std::optional<int64_t> end) const {
  write_file_atomically(
      folder_ + "/" + kMeta,
      concat("artifact_uri: ", yaml_text(artifacts_),
             "\ndeleted_time: null\nend_time: ", end ? std::to_string(*end) : "null",
             "\nentry_point_name: ''\nexperiment_id: ", yaml_text(id_.experiment),
             "\nlifecycle_stage: active\nrun_id: ", yaml_text(id_.run),
             "\nrun_name: ", yaml_text(run_name_), "\nrun_uuid: ", yaml_text(id_.run),
             "\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: ", start_,
             "\nstatus: ", static_cast<int>(status), "\ntags: []\nuser_id: ", yaml_text(user_),
             "\n"));
}

void MlflowRun::keep_steps_until(int64_t step) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(fs::path(folder_) / "metrics", error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_regular_file(error)) {
      files.push_back(entry->path());
    }
  }
  if (error) {
    throw_io_error(folder_ + "/metrics", "be read", error.value());
  }
  for (const fs::path& file : files) {
    cut_metric(file, step);
  }
}

void MlflowRun::param(const std::string& key, std::string_view value) const {
  constexpr size_t kMost = 6000;  // MLflow takes no longer ones
  const std::string_view cut = value.substr(0, kMost);
  const fs::path path = fs::path(folder_) / "params" / valid_key(key);
  make_folder(path.parent_path());
  write_plain(path, value.size() > kMost ? cut.substr(0, data::without_cut_character(cut)) : value);
}

void MlflowRun::tag(const std::string& key, std::string_view value) const {
  write_plain(concat(folder_, "/tags/", valid_key(key)), value);
}

void MlflowRun::artifact(const std::string& name, std::string_view content) const {
  const fs::path folder = fs::path(folder_) / "artifacts";
  if (artifacts_ == file_uri(folder)) {
    write_file_atomically((folder / name).string(), content);
  }
}

void MlflowRun::metric(const std::string& key, double value, int64_t milliseconds, int64_t step) {
  const std::lock_guard lock(adding_);
  std::string& lines = pending_[key];
  lines +=
      std::to_string(milliseconds) + " " + value_text(value) + " " + std::to_string(step) + "\n";
}

void MlflowRun::flush() {
  const std::lock_guard writing(writing_);
  std::map<std::string, std::string> lines;
  {
    const std::lock_guard adding(adding_);
    lines.swap(pending_);  // what cannot be written is not tried again
  }
  for (const auto& [key, text] : lines) {
    const fs::path path = fs::path(folder_) / "metrics" / valid_key(key);
    if (key.find('/') != std::string::npos) {
      make_folder(path.parent_path());
    }
    append(path, text);
  }
}

void MlflowRun::set_status(MlflowStatus status) {
  write_meta(status,
             status == MlflowStatus::kRunning ? std::nullopt : std::optional(now_milliseconds()));
}

}  // namespace tapestry::telemetry
