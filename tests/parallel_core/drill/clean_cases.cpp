#include "tests/parallel_core/drill/clean_cases.h"

#include <algorithm>
#include <filesystem>

#include "autograd/kernels/machine/cpu.h"
#include "diagnosis/verify/faults/find_fault.h"
#include "tests/parallel_core/layouts/layout_testing.h"
#include "tests/parallel_core/model_families.h"

namespace tapestry::testing {

namespace {

class CpuLevelScope {
 public:
  explicit CpuLevelScope(CpuLevel level) : before_(cpu_level()) { set_cpu_level(level); }
  ~CpuLevelScope() { set_cpu_level(before_); }
  CpuLevelScope(const CpuLevelScope&) = delete;
  CpuLevelScope& operator=(const CpuLevelScope&) = delete;

 private:
  CpuLevel before_;
};

CleanResult result_of(const accuracy::VerdictReport& report) {
  CleanResult result;
  result.agrees = report.outcome == accuracy::Outcome::kAgrees;
  result.difference = report.lines.empty() ? "" : report.lines.front();
  for (const accuracy::Finding& row : report.findings) {
    const double bound = row.value("bound", 0.0);
    if (bound > 0) {
      double& most = result.shares.emplace(row.value("stage", ""), 0).first->second;
      most = std::max(most, row.value("worst", 0.0) / bound);
    }
  }
  return result;
}

// Ours at one CPU level; a reference that is a run of ours is made at the best.
CleanCase against_reference(const std::string& name,
                            const DrillModel& model,
                            CpuLevel level,
                            const std::vector<std::string>& expand = {}) {
  return {.name = concat(name, " at ", name_of(level)),
          .group = model.changes.empty() ? "stored" : "find_fault",
          .compare = [model, level, expand](DrillReferences& references) {
            const std::string folder = references.folder_of(model);
            const CpuLevelScope scope(level);
            FindFaultOptions options;
            options.expand = expand;
            return result_of(find_fault(loader_of(model), folder, options));
          }};
}

// The stage that find_fault reports of such a difference.
std::string stage_of(Compared what) {
  switch (what) {
    case Compared::kChoice:
    case Compared::kActivation:
    case Compared::kExpertCounts:
      return "forward";
    case Compared::kGradient:
      return "backward";
    case Compared::kGradNorm:
      return "reduction";
    case Compared::kWeights:
      return "optimizer";
    default:
      return std::string(name_of(what));
  }
}

CleanCase against_one_process(const std::string& name,
                              const std::string& layout,
                              const Overrides& overrides) {
  return {.name = name + " " + layout,
          .group = "layout",
          .compare = [layout, overrides](DrillReferences& /*references*/) {
            const LayoutReport report = compare_layout(
                small_pair(layout, overrides),
                {.steps = 2, .timeout_seconds = kTestTimeout, .parts = made_up_data()});
            CleanResult result;
            result.agrees = report.agrees();
            if (const auto first = report.findings->first()) {
              result.difference = LayoutFindings::sentence(*first);
            }
            for (size_t i = 0; i < kNumCompared; ++i) {
              const auto what = static_cast<Compared>(i);
              const auto worst = report.findings->worst(what).finding;
              if (worst && worst->bound > 0) {
                double& most = result.shares.emplace(stage_of(what), 0).first->second;
                most = std::max(most, worst->distance / worst->bound);
              }
            }
            return result;
          }};
}

struct Structure {
  std::string name;
  Overrides overrides;
};

// As changes of llama_tiny's and gpt2_tiny's configurations, and of small_config's.
const std::vector<Structure>& structures() {
  static const std::vector<Structure> kAll = {
      {"gpt", {}},
      {"gpt untied", {kUntied}},
      {"gpt relu", {kModel + "hidden_act=relu"}},
      {"gpt alibi", {kModel + "position_embedding_type=alibi"}},
      {"gpt window", {kModel + "window_size=[3,0]"}},
      {"gpt sandwich", {kModel + "use_sandwich_norm=True"}},
      {"gpt dropout", {kModel + "hidden_dropout=0.1", kModel + "attention_dropout=0.1"}},
      {"gpt post-norm residual", {kModel + "apply_residual_connection_post_norm=True"}},
      {"llama", llama()},
      {"llama qk norm", llama({kModel + "qk_layernorm=True"})},
      {"llama half rope", llama({kModel + "rotary_config.rotary_percent=0.5"})},
      {"llama window", llama({kModel + "window_size=[4,0]"})},
      {"llama sandwich", llama({kModel + "use_sandwich_norm=True"})},
      {"llama biases", llama({kQkvBias})},
      {"llama unfused", llama({kModel + "use_fused_kernels=False"})},
      {"mixtral", mixtral()},
      {"qwen2-moe", qwen2_moe()},
  };
  return kAll;
}

}  // namespace

std::vector<CleanCase> clean_cases(const std::string& more_stored) {
  std::vector<CleanCase> all;
  const auto add = [&](CleanCase clean, bool always) {
    clean.always = always;
    all.push_back(std::move(clean));
  };
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512,
                               CpuLevel::kAvx512Bf16, CpuLevel::kAmx}) {
    if (level <= detected_cpu_level()) {
      levels.push_back(level);
    }
  }
  for (const std::string stored : {"gpt2_tiny", "llama_tiny"}) {
    for (const CpuLevel level : levels) {
      add(against_reference(stored, {.stored = stored}, level), true);
    }
    add(against_reference(stored + ", layouts", {.stored = stored}, detected_cpu_level(),
                          {"tp=2", "pp=2", "dp=2,micro=1"}),
        true);
  }
  if (!more_stored.empty()) {
    std::vector<std::string> folders;
    for (const auto& entry : std::filesystem::directory_iterator(more_stored)) {
      if (entry.is_directory()) {
        folders.push_back(entry.path().string());
      }
    }
    std::sort(folders.begin(), folders.end());
    for (const std::string& folder : folders) {
      add(against_reference(std::filesystem::path(folder).filename().string(), {.stored = folder},
                            detected_cpu_level()),
          false);
    }
  }
  for (size_t i = 0; i < structures().size(); ++i) {
    const Structure& structure = structures()[i];
    for (const std::string dtype : {"float32", "bfloat16"}) {
      const std::string compute = kModel + "compute_dtype=" + dtype;
      const DrillModel model{
          .stored = "gpt2_tiny",
          .changes = joined(structure.overrides, {compute, kModel + "init_method_std=0.1"}),
          .starts_from_stored = false};
      add(against_reference(structure.name + " " + dtype, model,
                            levels[i % std::min<size_t>(3, levels.size())]),
          i % 4 == 0);
      size_t number = 0;
      for (const std::string layout : {"tp=2", "dp=2", "pp=2,micro=2"}) {
        add(against_one_process(
                structure.name + " " + dtype, layout,
                joined(structure.overrides, {compute, "dataset_config.batch_size=2"})),
            (i + number++) % 8 == 0);
      }
    }
  }
  return all;
}

}  // namespace tapestry::testing
