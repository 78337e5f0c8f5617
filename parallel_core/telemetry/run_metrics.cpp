#include "parallel_core/telemetry/run_metrics.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "autograd/tensor/error.h"
#include "parallel_core/telemetry/exposition.h"

namespace tapestry::telemetry {

namespace {

namespace fs = std::filesystem;

constexpr std::array<RunState, 4> kStates = {RunState::kRunning, RunState::kFinished,
                                             RunState::kStopped, RunState::kFailed};
constexpr std::array<MemoryKind, kNumMemoryKinds> kKinds = {
    MemoryKind::kParameter, MemoryKind::kGradient, MemoryKind::kOptimizer, MemoryKind::kActivation,
    MemoryKind::kWorkspace};

constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kCounter = MetricType::kCounter;

double number(int64_t value) { return static_cast<double>(value); }

// Bytes of this process that are in memory; empty where the system does not say.
std::optional<double> resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  if (!(file >> all >> resident)) {
    return std::nullopt;
  }
  return number(resident) * number(::sysconf(_SC_PAGESIZE));
}

struct NewestCheckpoint {
  int64_t step = 0;
  double written = 0;
};

// By name: a checkpoint gets it when it is complete, and so do those of an earlier start.
std::optional<NewestCheckpoint> newest_checkpoint(const std::string& folder) {
  constexpr std::string_view kStart = "step_";
  std::optional<NewestCheckpoint> newest;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const bool is_checkpoint = name.starts_with(kStart) && name.size() > kStart.size() &&
                               std::from_chars(name.data() + kStart.size(), end, step).ptr == end;
    struct stat status {};
    if (is_checkpoint && (!newest || step > newest->step) &&
        ::stat(entry->path().c_str(), &status) == 0) {
      newest = {.step = step,
                .written = number(status.st_mtim.tv_sec) + number(status.st_mtim.tv_nsec) / 1e9};
    }
  }
  return newest;
}

void add_run(Exposition& out, const RunFacts& facts, const RunMetrics& m) {
  out.metric("tapestry_run_info", kGauge, "What the run is; always 1.");
  out.sample(1, {{"ranks", std::to_string(facts.ranks)},
                 {"layout", facts.layout},
                 {"output_dir", facts.output_dir}});
  out.metric("tapestry_run_state", kGauge, "1 for the state that the run is in, 0 for the others.");
  for (const RunState state : kStates) {
    out.sample(state == m.state ? 1 : 0, {{"state", std::string(name_of(state))}});
  }
  out.single("tapestry_start_time_seconds", kGauge,
             "When this start of the run began to train, since 1970.", m.started);
  if (facts.planned_steps > 0) {
    out.single("tapestry_planned_steps", kGauge, "Steps that the run is to have.",
               number(facts.planned_steps));
  }
  out.single("tapestry_steps_total", kCounter,
             "Steps of the run, those of earlier starts included.", number(m.step));
  out.single("tapestry_last_step_timestamp_seconds", kGauge,
             "When the last step ended, since 1970; before the first one, when training began.",
             m.last_step_time);
  out.single("tapestry_tokens_total", kCounter, "Tokens that the run has trained on.",
             number(m.tokens));
  out.single("tapestry_samples_total", kCounter, "Samples that the run has trained on.",
             number(m.samples));
  out.single("tapestry_skipped_steps_total", kCounter,
             "Steps since this start that have updated nothing.", number(m.skipped));
  out.single("tapestry_gradient_norm_spikes_total", kCounter,
             "Steps since this start whose gradient norm was a spike.", number(m.spikes));
  out.single("tapestry_nonfinite_steps_total", kCounter,
             "Steps since this start whose gradients were not finite.", number(m.not_finite));
}

void add_last_step(Exposition& out, const RunMetrics& m) {
  if (m.steps_here == 0) {
    return;
  }
  out.single("tapestry_epoch", kGauge, "Epoch of the last step, from 0.", number(m.epoch));
  out.single("tapestry_step_seconds", kGauge, "Time that the last step has taken.", m.step_seconds);
  out.single("tapestry_loss", kGauge, "Loss of the last step, before its update.", m.loss);
  out.single("tapestry_learning_rate", kGauge, "Of the last step, of the first parameter group.",
             m.learning_rate);
  out.single("tapestry_gradient_norm", kGauge, "Of the last step, before clipping.",
             m.gradient_norm);
  out.single("tapestry_loss_scale", kGauge, "Loss scale of the last step.", m.loss_scale);
}

void add_evaluations(Exposition& out, const RunMetrics& m) {
  const std::array<std::pair<const char*, const std::optional<EvaluationLoss>*>, 2> parts = {
      {{"validation", &m.validation}, {"test", &m.test}}};
  const auto add = [&](const char* name, const char* help, auto&& value) {
    if (m.validation || m.test) {
      out.metric(name, kGauge, help);
    }
    for (const auto& [part, loss] : parts) {
      if (*loss) {
        out.sample(value(**loss), {{"part", part}});
      }
    }
  };
  add("tapestry_evaluation_loss", "Loss of the last evaluation on a part of the data.",
      [](const EvaluationLoss& of) { return of.loss; });
  add("tapestry_evaluation_step", "Step of that evaluation.",
      [](const EvaluationLoss& of) { return number(of.step); });
}

void add_memory(Exposition& out, const RunMetrics& m) {
  out.metric("tapestry_memory_bytes", kGauge, "Memory of this rank's tensors after the last step.");
  for (const MemoryKind kind : kKinds) {
    out.sample(number(m.memory.current_by_kind[static_cast<size_t>(kind)]),
               {{"kind", std::string(name_of(kind))}});
  }
  out.single("tapestry_peak_memory_bytes", kGauge,
             "Largest memory of this rank's tensors since the start.", number(m.memory.peak_bytes));
  if (const std::optional<double> resident = resident_bytes()) {
    out.single("tapestry_resident_bytes", kGauge, "Memory of this rank's process.", *resident);
  }
}

void add_checkpoint(Exposition& out, const std::string& folder) {
  if (const std::optional<NewestCheckpoint> newest = newest_checkpoint(folder)) {
    out.single("tapestry_last_checkpoint_timestamp_seconds", kGauge,
               "When the newest checkpoint was written, since 1970.", newest->written);
    out.single("tapestry_last_checkpoint_step", kGauge, "Step of the newest checkpoint.",
               number(newest->step));
  }
}

}  // namespace

std::string_view name_of(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return "running";
    case RunState::kFinished:
      return "finished";
    case RunState::kStopped:
      return "stopped";
    case RunState::kFailed:
      break;
  }
  return "failed";
}

std::string SharedMetrics::exposition() const {
  const RunMetrics metrics = copy();
  Exposition out(
      {{"run", facts_.run}, {"host", facts_.host}, {"rank", std::to_string(facts_.rank)}});
  add_run(out, facts_, metrics);
  add_last_step(out, metrics);
  add_evaluations(out, metrics);
  add_memory(out, metrics);
  add_checkpoint(out, facts_.checkpoints);
  return out.text();
}

std::string SharedMetrics::health() const {
  const RunMetrics m = copy();
  const auto ago = static_cast<int64_t>(std::max(0.0, unix_seconds() - m.last_step_time));
  return concat(name_of(m.state), ", step ", m.step,
                facts_.planned_steps > 0 ? concat(" of ", facts_.planned_steps) : std::string(),
                ", ", ago, " s ago\n");
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tapestry::telemetry
