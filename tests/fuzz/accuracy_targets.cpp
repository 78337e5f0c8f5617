// Files that the program accuracy compares.
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "diagnosis/accuracy/checklist_side.h"
#include "diagnosis/accuracy/curve_file.h"
#include "tests/fuzz/targets.h"

namespace tapestry::fuzz {

namespace {

void put_curve(InputFolder& folder, std::string_view input) { folder.put("curve.csv", input); }

void read_any_curve(const InputFolder& folder) {
  const accuracy::CurveRun run = accuracy::read_curve(folder.file("curve.csv"));
  must_hold(!run.steps.empty() && run.loss.size() == run.steps.size(), "a curve has no losses");
  must_hold(run.grad_norm.empty() || run.grad_norm.size() == run.steps.size(),
            "a curve lacks norms of some steps");
  for (size_t i = 1; i < run.steps.size(); ++i) {
    must_hold(run.steps[i - 1] < run.steps[i], "steps do not ascend");
  }
}

void put_config(InputFolder& folder, std::string_view input) { folder.put("config.json", input); }

// Other programs' files; a configuration of our own takes more memory than its text accounts for.
void read_foreign_side(const InputFolder& folder) {
  const std::string path = folder.file("config.json");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  accuracy::ChecklistSide side;
  if (accuracy::looks_like_megatron(text)) {
    side = accuracy::read_megatron_arguments(text, path);
  } else if (accuracy::looks_like_static_yaml(text)) {
    side = accuracy::read_static_yaml(text, path);
  }
  for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{1000}, int64_t{1} << 40U}) {
    must_hold(!side.learning_rate || !std::isnan(side.learning_rate(step)),
              "a learning rate is no number");
  }
}

constexpr std::array<Target, 2> kTargets = {
    {{"curves", put_curve, read_any_curve}, {"checklist", put_config, read_foreign_side}}};

}  // namespace

std::span<const Target> accuracy_targets() { return kTargets; }

}  // namespace tapestry::fuzz
