#include "parallel_core/training/step/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/estimates/memory_estimate.h"

namespace tapestry {

namespace {

constexpr std::array<MemoryKind, kNumMemoryKinds> kKinds = {
    MemoryKind::kParameter, MemoryKind::kGradient, MemoryKind::kOptimizer, MemoryKind::kActivation,
    MemoryKind::kWorkspace};

nlohmann::ordered_json number(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  return value;
}

nlohmann::ordered_json moe_json(const MoELayerStatistics& layer) {
  nlohmann::ordered_json out;
  out["tokens_per_expert"] = layer.tokens_per_expert;
  out["dropped_per_expert"] = layer.dropped_per_expert;
  out["smallest_router_gap"] = number(layer.smallest_router_gap);
  out["smallest_capacity_gap"] = number(layer.smallest_capacity_gap);
  if (layer.smallest_group_gap) {
    out["smallest_group_gap"] = number(*layer.smallest_group_gap);
  }
  for (const double bias : layer.expert_bias) {
    out["expert_bias"].push_back(number(bias));
  }
  return out;
}

// The step of a line; none for what is no line of a step.
std::optional<int64_t> step_of_line(const std::string& line) {
  constexpr std::string_view kStart = "{\"step\":";  // of lines as metrics_line makes them
  if (line.starts_with(kStart) && line.ends_with('}')) {
    int64_t step = 0;
    const char* end = line.data() + line.size();
    const auto parsed = std::from_chars(line.data() + kStart.size(), end, step);
    if (parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == ',') {
      return step;
    }
  }
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool has_step =
      json.is_object() && json.contains("step") && json["step"].is_number_integer();
  return has_step ? std::optional(json["step"].get<int64_t>()) : std::nullopt;
}

// Whether a line without a line break at its end has all the rest of it.
bool is_whole_line(const std::string& line) {
  return nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false).is_object();
}

// What of a metrics.jsonl is to go.
struct LaterLines {
  uintmax_t first = 0;       // where the first of them begins; the file's size if there are none
  bool at_the_end = true;    // nothing that stays follows
  bool lacks_break = false;  // the last line is whole but for its line break, and stays
};

// Calls f(line, ended by a line break, stays) for every line.
template <class F>
void each_metrics_line(const std::string& path, int64_t last_step, F&& f) {
  FileLines lines(path);
  for (std::string line; lines.next(line);) {
    const bool ended = take_newline(line);
    const auto step = step_of_line(line);
    f(line, ended, (!step || *step <= last_step) && (ended || is_whole_line(line)));
  }
}

LaterLines find_later_lines(const std::string& path, int64_t last_step) {
  LaterLines found;
  uintmax_t at = 0;
  bool any = false;
  each_metrics_line(path, last_step, [&](const std::string& line, bool ended, bool stays) {
    if (!stays && !any) {
      any = true;
      found.first = at;
    }
    found.at_the_end = found.at_the_end && (!any || !stays);
    found.lacks_break = stays && !ended;
    at += line.size() + (ended ? 1 : 0);
  });
  if (!any) {
    found.first = at;
  }
  return found;
}

}  // namespace

void keep_steps_until(const std::string& path, int64_t last_step) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    return;  // no such file; what else is wrong shows when it is opened
  }
  const LaterLines later = find_later_lines(path, last_step);
  if (later.first == size && !later.lacks_break) {
    return;
  }
  if (later.at_the_end && !later.lacks_break) {
    // As usual. One call, which needs no room on the disk for a second copy.
    const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    const bool done =
        file >= 0 && ::ftruncate(file, static_cast<off_t>(later.first)) == 0 && ::fsync(file) == 0;
    const int reason = errno;
    if (file >= 0) {
      ::close(file);
    }
    if (!done) {
      throw_io_error(path, "be shortened to the steps of the checkpoint", reason);
    }
    return;
  }
  AtomicFile kept(path);
  each_metrics_line(path, last_step, [&](const std::string& line, bool /*ended*/, bool stays) {
    if (stays) {
      kept.write(line);
      kept.write("\n");
    }
  });
  kept.commit();
}

std::string metrics_line(const StepRecord& record, const StepResult& result) {
  nlohmann::ordered_json line;
  line["step"] = record.step;
  line["epoch"] = record.epoch;
  line["loss"] = number(result.loss);
  if (result.moe) {
    line["aux_loss"] = number(result.moe->aux_loss);
  }
  for (size_t depth = 1; depth <= result.mtp_losses.size(); ++depth) {
    line[concat("mtp_", depth, "_loss")] = number(result.mtp_losses[depth - 1]);
  }
  for (const auto& [name, value] : result.task) {
    line[name] = number(value);
  }
  line["grad_norm"] = number(result.grad_norm);
  line["lr"] = nlohmann::ordered_json::array();
  for (const double lr : result.lr) {
    line["lr"].push_back(number(lr));
  }
  line["loss_tokens"] = number(result.loss_tokens);
  line["tokens"] = result.tokens;
  line["step_time_ms"] = number(record.step_time_ms);
  line["peak_bytes"] = record.memory.peak_bytes;
  line["finite"] = result.finite;
  if (result.skipped || result.set_aside) {
    line["skipped"] = true;
  }
  line["loss_scale"] = number(result.loss_scale);
  if (!record.hash.empty()) {
    line["hash"] = record.hash;
  }
  if (result.bubble) {
    line["bubble"] = {{"measured", result.bubble->measured},
                      {"theoretical", result.bubble->theoretical}};
  }
  for (const MemoryKind kind : kKinds) {
    const auto i = static_cast<size_t>(kind);
    line["memory"][std::string(name_of(kind))] = {
        {"current_bytes", record.memory.current_by_kind[i]},
        {"peak_bytes", record.memory.peak_by_kind[i]}};
  }
  line["memory"]["process"] = {{"current_bytes", record.process.current_bytes},
                               {"peak_bytes", record.process.peak_bytes},
                               {"reserved_bytes", record.memory.reserved_bytes}};
  if (record.eval_loss) {
    line["eval_loss"] = number(*record.eval_loss);
    line["eval_perplexity"] = number(std::exp(*record.eval_loss));
  }
  if (record.test_loss) {
    line["test_loss"] = number(*record.test_loss);
    line["test_perplexity"] = number(std::exp(*record.test_loss));
  }
  for (const auto& [name, value] : record.eval_values) {
    line["eval_" + name] = number(value);
  }
  for (const auto& [name, value] : record.test_values) {
    line["test_" + name] = number(value);
  }
  if (!result.grad_norms.empty()) {
    for (const auto& [name, norm] : result.grad_norms) {
      line["grad_norms"][name] = number(norm);
    }
  }
  if (result.moe) {
    for (const auto& [layer, statistics] : result.moe->layers) {
      line["moe"][concat("layers.", layer, ".moe")] = moe_json(statistics);
    }
  }
  for (const auto& [layer, heads] : record.max_logits) {
    for (const float value : heads) {
      line["max_attention_logits"][concat("layers.", layer, ".attention")].push_back(number(value));
    }
  }
  if (record.embedding_local_norm) {
    line["embedding_local_norm"] = number(*record.embedding_local_norm);
  }
  for (const auto& [tag, value] : record.values) {
    line["monitor"][tag] = number(value);
  }
  for (const auto& [tag, value] : record.parameter_values) {
    line["monitor"][tag] = number(value);
  }
  for (const auto& [tag, values] : record.rank_values) {
    for (const double value : values) {
      line["ranks"][tag].push_back(number(value));
    }
  }
  return line.dump();
}

LogFields evaluation_fields(const StepRecord& record) {
  LogFields fields;
  for (const auto& [part, loss, values] :
       {std::tuple{"eval", &record.eval_loss, &record.eval_values},
        std::tuple{"test", &record.test_loss, &record.test_values}}) {
    if (*loss) {
      fields.push_back({concat(part, "_loss"), **loss});
      fields.push_back({concat(part, "_perplexity"), std::exp(**loss)});
    }
    for (const auto& [name, value] : *values) {
      fields.push_back({concat(part, "_", name), value});
    }
  }
  return fields;
}

LogFields step_fields(const StepRecord& record, const StepResult& result) {
  LogFields fields = {{"step", record.step}, {"epoch", record.epoch}, {"loss", result.loss}};
  if (result.moe) {
    fields.push_back({"aux_loss", result.moe->aux_loss});
  }
  for (size_t depth = 1; depth <= result.mtp_losses.size(); ++depth) {
    fields.push_back({concat("mtp_", depth, "_loss"), result.mtp_losses[depth - 1]});
  }
  for (const auto& [name, value] : result.task) {
    fields.push_back({name, value});
  }
  fields.push_back({"grad_norm", result.grad_norm});
  if (!result.lr.empty()) {
    fields.push_back({"lr", result.lr.front()});
  }
  fields.insert(fields.end(), {{"loss_tokens", result.loss_tokens},
                               {"tokens", result.tokens},
                               {"step_time_ms", record.step_time_ms},
                               {"peak_bytes", static_cast<int64_t>(record.memory.peak_bytes)},
                               {"finite", result.finite}});
  if (result.skipped || result.set_aside) {
    fields.push_back({"skipped", true});
  }
  fields.push_back({"loss_scale", result.loss_scale});
  if (record.embedding_local_norm) {
    fields.push_back({"embedding_local_norm", *record.embedding_local_norm});
  }
  const LogFields evaluation = evaluation_fields(record);
  fields.insert(fields.end(), evaluation.begin(), evaluation.end());
  return fields;
}

std::string memory_line(const MemoryStats& stats, const ProcessMemory& process) {
  std::string line;
  for (const MemoryKind kind : kKinds) {
    const auto i = static_cast<size_t>(kind);
    line += concat(line.empty() ? "memory: " : ", ", name_of(kind), " ",
                   size_text(stats.current_by_kind[i]), " (peak ", size_text(stats.peak_by_kind[i]),
                   ")");
  }
  return concat(line, "; peak together ", size_text(stats.peak_bytes), ", of the process ",
                size_text(process.peak_bytes));
}

MetricsWriter::MetricsWriter(const std::string& path, std::optional<int64_t> resume_step)
    : path_(path) {
  if (resume_step) {
    keep_steps_until(path, *resume_step);
  }
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat status {};
  if (file_ < 0 || ::fstat(file_, &status) != 0) {
    throw_io_error(path_, "be written", errno);
  }
  if (!S_ISREG(status.st_mode)) {
    // A pipe would take some lines, and then wait for ever for someone who reads.
    ::close(std::exchange(file_, -1));
    throw IoError(concat(path_, ": is a ", S_ISFIFO(status.st_mode) ? "pipe" : "device",
                         ", expected a regular file; remove it"));
  }
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::sync() {
  if (::fdatasync(file_) != 0) {
    throw_io_error(path_, "be brought onto the disk", errno);
  }
}

void MetricsWriter::write(const StepRecord& record, const StepResult& result) {
  const std::string line = metrics_line(record, result) + "\n";
  const off_t before = ::lseek(file_, 0, SEEK_END);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(file_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const int error = errno;
      const bool shortened = done == 0 || ::ftruncate(file_, before) == 0;
      throw_io_error(path_, shortened ? "be written" : "be written, and ends in half a line",
                     error);
    }
    done += static_cast<size_t>(written);
  }
  if (!reads_back(before, line)) {
    const bool shortened = ::ftruncate(file_, before) == 0;
    throw StorageError(
        concat(path_, ": reads back other bytes than were written; the medium or its ",
               "driver is at fault", shortened ? "" : ", and it ends in half a line"));
  }
}

bool MetricsWriter::reads_back(off_t begin, const std::string& line) const {
  std::string found(line.size(), '\0');
  size_t done = 0;
  while (done < found.size()) {
    const ssize_t got =
        ::pread(file_, found.data() + done, found.size() - done, begin + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    done += static_cast<size_t>(got);
  }
  return found == line;
}

}  // namespace tapestry
