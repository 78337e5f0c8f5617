#include "diagnosis/report/run_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/metrics_file.h"

namespace tapestry::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

// Objects of few numbers, which are columns.
constexpr std::array<std::string_view, 1> kSmallObjects = {"bubble"};

// Takes the lines of a file in.
class RecordReader {
 public:
  void add(const plot::MetricsLine& line);
  std::vector<RunRecord> take() && { return std::move(runs_); }
  std::vector<RunRecord>& runs() { return runs_; }

 private:
  void begin_step(int64_t step);
  void add_value(const std::string& key, const Json& value);
  void put(const std::string& key, double value);
  void read_memory(const Json& kinds);
  void read_monitor(const Json& values);
  void read_ranks(const Json& values);
  void read_flags(const Json& line);
  static void cut(RunRecord& run, int64_t step);

  std::vector<RunRecord> runs_;
};

void RecordReader::cut(RunRecord& run, int64_t step) {
  const auto again = std::lower_bound(run.steps.begin(), run.steps.end(), step);
  const auto dropped = run.steps.end() - again;
  run.notes.push_back(concat("from step ", step, " on trained again; the earlier ", dropped,
                             dropped == 1 ? " step is" : " steps are", " left out"));
  run.steps.erase(again, run.steps.end());
  for (auto& [name, values] : run.columns) {
    values.resize(std::min(values.size(), run.steps.size()));
  }
  for (auto& [name, table] : run.tables) {
    for (auto& [entry, course] : table) {
      course.cut(static_cast<double>(step));
    }
  }
  for (std::vector<int64_t>* list : {&run.not_finite, &run.skipped}) {
    list->erase(std::lower_bound(list->begin(), list->end(), step), list->end());
  }
}

void RecordReader::begin_step(int64_t step) {
  if (runs_.empty() || step <= runs_.back().steps.front()) {
    runs_.emplace_back();
  } else if (step <= runs_.back().steps.back()) {
    cut(runs_.back(), step);
  }
  runs_.back().steps.push_back(step);
}

void RecordReader::put(const std::string& key, double value) {
  RunRecord& run = runs_.back();
  std::vector<double>& column = run.columns[key];
  column.resize(run.steps.size() - 1, kAbsent);
  column.push_back(std::isfinite(value) ? value : kAbsent);
}

void RecordReader::read_memory(const Json& kinds) {
  const auto bytes = [](const Json& kind, const char* key) {
    const auto found = kind.find(key);
    return found != kind.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  std::vector<MemoryOfKind>& memory = runs_.back().memory;
  memory.clear();
  for (const auto& [name, kind] : kinds.items()) {
    if (kind.is_object()) {
      memory.push_back({name, bytes(kind, "current_bytes"), bytes(kind, "peak_bytes")});
    }
  }
}

// {"weight_norm": 1, "local_norm/PARAMETER": 2, ...}
void RecordReader::read_monitor(const Json& values) {
  RunRecord& run = runs_.back();
  for (const auto& [tag, value] : values.items()) {
    const std::optional<double> number = plot::metrics_number(value);
    const size_t slash = tag.find('/');
    if (number && slash == std::string::npos) {
      put("monitor/" + tag, *number);
    } else if (number) {
      run.tables[tag.substr(0, slash)][tag.substr(slash + 1)].add(
          static_cast<double>(run.steps.back()), *number);
    }
  }
}

// {"device_local_norm": [of rank 0, of rank 1, ...], ...}
void RecordReader::read_ranks(const Json& values) {
  for (const auto& [tag, list] : values.items()) {
    for (size_t rank = 0; list.is_array() && rank < std::min(list.size(), kRanksOfARecord);
         ++rank) {
      if (const std::optional<double> number = plot::metrics_number(list[rank])) {
        put(concat("ranks/", tag, "/", rank), *number);
      }
    }
  }
}

void RecordReader::add_value(const std::string& key, const Json& value) {
  if (const std::optional<double> number = plot::metrics_number(value)) {
    put(key, *number);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      const std::optional<double> item = plot::metrics_number(value[i]);
      // Groups that have the first one's value are not shown again.
      const bool own =
          i == 0 || value[i] != value[0] || runs_.back().columns.count(concat(key, "/", i)) != 0;
      if (item && own) {
        put(i == 0 ? key : concat(key, "/", i), *item);
      }
    }
  } else if (key == "memory" && value.is_object()) {
    read_memory(value);
  } else if (key == "monitor" && value.is_object()) {
    read_monitor(value);
  } else if (key == "ranks" && value.is_object()) {
    read_ranks(value);
  } else if (value.is_object()) {
    const bool small =
        std::find(kSmallObjects.begin(), kSmallObjects.end(), key) != kSmallObjects.end();
    for (const auto& [name, item] : value.items()) {
      const std::optional<double> entry = plot::metrics_number(item);
      if (entry && small) {
        put(concat(key, "/", name), *entry);
      } else if (entry) {
        runs_.back().tables[key][name].add(static_cast<double>(runs_.back().steps.back()), *entry);
      }
    }
  }
}

void RecordReader::read_flags(const Json& line) {
  RunRecord& run = runs_.back();
  const auto is = [&](const char* key, bool wanted) {
    const auto found = line.find(key);
    return found != line.end() && found->is_boolean() && found->get<bool>() == wanted;
  };
  if (is("finite", false)) {
    run.not_finite.push_back(run.steps.back());
  } else if (is("skipped", true)) {
    run.skipped.push_back(run.steps.back());
  }
}

void RecordReader::add(const plot::MetricsLine& line) {
  begin_step(line.step);
  for (const auto& [key, value] : line.json.items()) {
    if (key != "step") {
      add_value(key, value);
    }
  }
  read_flags(line.json);
}

std::optional<std::string> read_text(const fs::path& path) {
  constexpr uint64_t kMost = uint64_t{1} << 24U;  // as of a configuration
  return fs::exists(path) ? std::optional(read_file(path.string(), kMost)) : std::nullopt;
}

// The last word of the file on each checkpoint.
std::vector<CheckpointHealth> parse_health(const std::string& text, std::string& note) {
  const Json records = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<CheckpointHealth> health;
  if (!records.is_array()) {
    note = "is no list of checkpoints";
    return health;
  }
  for (const Json& record : records) {
    if (!record.is_object() || !record.contains("ckpt_name") || !record["ckpt_name"].is_string() ||
        !record.contains("is_health") || !record["is_health"].is_number_integer()) {
      note = "has an entry without ckpt_name and is_health";
      continue;
    }
    const auto name = record["ckpt_name"].get<std::string>();
    std::erase_if(health, [&](const CheckpointHealth& other) { return other.name == name; });
    health.push_back({name, record["is_health"].get<int64_t>() == 0});
  }
  return health;
}

fs::path health_file(const RunRecord& run) {
  constexpr const char* kName = "health_ckpts.json";
  for (const ConfigEntry& entry : run.config) {
    if (entry.key == "health_ckpts_record_dir" && entry.value != "null") {
      const fs::path other = fs::path(entry.value) / kName;
      std::error_code error;
      return fs::exists(other, error) ? other : fs::path(run.folder) / kName;
    }
  }
  return fs::path(run.folder) / kName;
}

// What the folder has beside metrics.jsonl.
void read_folder(RunRecord& run) {
  const fs::path yaml = fs::path(run.folder) / "config.yaml";
  const std::optional<std::string> config = read_text(yaml);
  if (!config) {
    run.notes.emplace_back("there is no config.yaml, so its configuration is not known");
  } else {
    try {
      run.config = parse_config(*config, yaml.string());
    } catch (const IoError& error) {
      run.notes.push_back(concat("its configuration cannot be read: ", error.what()));
    }
  }
  run.samples = read_last_samples((fs::path(run.folder) / "samples.jsonl").string());
  const fs::path health = health_file(run);
  if (const std::optional<std::string> text = read_text(health)) {
    std::string note;
    run.health = parse_health(*text, note);
    if (!note.empty()) {
      run.notes.push_back(concat(health.string(), " ", note));
    }
  }
}

// All columns are as long as the steps.
void complete(RunRecord& run) {
  for (auto& [name, values] : run.columns) {
    values.resize(run.steps.size(), kAbsent);
  }
}

}  // namespace

const std::vector<double>* RunRecord::column(const std::string& name) const {
  const auto found = columns.find(name);
  return found == columns.end() ? nullptr : &found->second;
}

std::vector<RunRecord> read_run_records(const std::vector<std::string>& paths, bool with_folders) {
  const std::vector<std::string> names = plot::run_names(paths);
  std::vector<RunRecord> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string file = plot::metrics_file(paths[i]);
    RecordReader reader;
    const bool whole =
        plot::read_metrics_lines(file, [&](const plot::MetricsLine& line) { reader.add(line); });
    std::vector<RunRecord> runs = std::move(reader).take();
    if (!whole) {
      runs.back().notes.emplace_back("the last line of the file is incomplete and left out");
    }
    for (size_t part = 0; part < runs.size(); ++part) {
      RunRecord& run = runs[part];
      run.name = runs.size() == 1 ? names[i] : concat(names[i], " part ", part + 1);
      run.folder = fs::path(file).parent_path().string();
      complete(run);
      if (with_folders && part + 1 == runs.size()) {
        read_folder(run);  // what is there now is the last part's
      }
      all.push_back(std::move(run));
    }
  }
  return all;
}

}  // namespace tapestry::report
