#include "parallel_core/training/watch/checkpoint_health.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/watch/token_tables.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

}  // namespace

HealthRecord HealthRecord::read(const std::string& path) {
  HealthRecord record;
  if (!fs::exists(path)) {
    return record;
  }
  const std::string text = read_file(path);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool blank = text.find_first_not_of(" \n\t\r") == std::string::npos;
  check<IoError>(json.is_array() || blank, path,
                 ": is no list of checkpoints with is_health and ckpt_name");
  for (const auto& entry : blank ? nlohmann::json::array() : json) {
    const bool whole = entry.is_object() && entry.contains("is_health") &&
                       entry["is_health"].is_number_integer() && entry.contains("ckpt_name") &&
                       entry["ckpt_name"].is_string();
    check<IoError>(whole, path, ": ", entry.dump(),
                   " is no checkpoint with is_health (0 or 1) and ckpt_name");
    record.add(entry["ckpt_name"].get<std::string>(), entry["is_health"].get<int64_t>() == 0);
  }
  return record;
}

std::optional<bool> HealthRecord::is_healthy(const std::string& name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? std::nullopt : std::optional(found->healthy);
}

bool HealthRecord::has_healthy() const { return newest_healthy().has_value(); }

void HealthRecord::add(const std::string& name, bool healthy) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.name == name; });
  entries_.push_back({name, healthy});
}

void HealthRecord::keep(const std::set<std::string>& names) {
  std::erase_if(entries_, [&](const Entry& entry) { return !names.contains(entry.name); });
}

std::optional<std::string> HealthRecord::newest_healthy() const {
  std::optional<std::string> newest;
  for (const Entry& entry : entries_) {
    if (entry.healthy && (!newest || *newest < entry.name)) {
      newest = entry.name;
    }
  }
  return newest;
}

std::string HealthRecord::text() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Entry& entry : entries_) {
    json.push_back({{"is_health", entry.healthy ? 0 : 1}, {"ckpt_name", entry.name}});
  }
  return json.dump(4) + "\n";
}

std::string health_record_path(const MonitorConfig& monitor, const std::string& run_folder) {
  if (monitor.health_ckpts_record_dir) {
    return (fs::path(*monitor.health_ckpts_record_dir) / kHealthFile).string();
  }
  fs::path folder = fs::path(run_folder).lexically_normal();
  if (!folder.has_filename()) {  // it ends with a slash
    folder = folder.parent_path();
  }
  if (folder.filename() == "checkpoint") {
    folder = folder.parent_path();
  }
  return (folder / kHealthFile).string();
}

EmbeddingNorm::EmbeddingNorm(TrainOneStepCell& cell) : tables_(token_tables(cell.network())) {
  check<ValueError>(sum_over(get_world_group(), static_cast<double>(tables_.size())) > 0,
                    "monitor_config.use_checkpoint_health_monitor: the model has no token table "
                    "(VocabParallelEmbedding or nn::Embedding) whose gradient could be looked at");
}

void EmbeddingNorm::after(FinishedStep& step) {
  double squares = 0;
  for (const std::string& name : tables_) {
    squares += step.result.local_squares.at(name);
  }
  squares = sum_over(get_tensor_model_parallel_group(), squares);
  const double own = std::isfinite(squares) ? squares : std::numeric_limits<double>::infinity();
  const Tensor largest = full({1}, own, kFloat64);
  get_world_group().all_reduce(largest, ReduceOp::kMax);
  step.record.embedding_local_norm = largest.item();
  step.lines.insert(step.lines.begin(), embedding_norm_line(largest.item()));
}

std::string embedding_norm_line(double value) {
  std::array<char, 40> digits = {};
  const auto end = std::to_chars(digits.begin(), digits.end(), static_cast<float>(value)).ptr;
  return concat("embedding_local_norm: ", std::string(digits.begin(), end));
}

}  // namespace tapestry
