#include "parallel_core/training/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/training/memory_estimate.h"

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

}  // namespace

double without_nan_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string metrics_line(const StepRecord& record, const StepResult& result) {
  nlohmann::ordered_json line;
  line["step"] = record.step;
  line["epoch"] = record.epoch;
  line["loss"] = number(result.loss);
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
  line["loss_scale"] = number(result.loss_scale);
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
  if (record.eval_loss) {
    line["eval_loss"] = number(*record.eval_loss);
    line["eval_perplexity"] = number(std::exp(*record.eval_loss));
  }
  if (record.test_loss) {
    line["test_loss"] = number(*record.test_loss);
    line["test_perplexity"] = number(std::exp(*record.test_loss));
  }
  if (!result.grad_norms.empty()) {
    for (const auto& [name, norm] : result.grad_norms) {
      line["grad_norms"][name] = number(norm);
    }
  }
  return line.dump();
}

std::string memory_line(const MemoryStats& stats) {
  std::string line;
  for (const MemoryKind kind : kKinds) {
    const auto i = static_cast<size_t>(kind);
    line += concat(line.empty() ? "memory: " : ", ", name_of(kind), " ",
                   size_text(stats.current_by_kind[i]), " (peak ", size_text(stats.peak_by_kind[i]),
                   ")");
  }
  return line + "; peak together " + size_text(stats.peak_bytes);
}

MetricsWriter::MetricsWriter(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_ < 0) {
    throw_io_error(path_, "be written", errno);
  }
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

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
}

}  // namespace tapestry
