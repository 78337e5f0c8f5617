// Compares every layout of the table with one process, twice, and prints the worst distances.
// layout_matrix [WORD]...: only layouts whose names hold all words. Exit code 1 if one differs.
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/parallel_core/layouts/layout_table.h"
#include "tests/temp_dir.h"

namespace {

using tapestry::Compared;
using tapestry::LayoutReport;
using tapestry::testing::LayoutRow;

double worst(const LayoutReport& report, Compared what) {
  const auto found = report.findings->worst(what).finding;
  return found ? found->distance : 0;
}

// Prints a line, and true if the layout is right.
bool compare(const LayoutRow& row, const std::string& folder) {
  const auto start = std::chrono::steady_clock::now();
  const std::string checkpoint = tapestry::testing::start_checkpoint(row.model, folder);
  std::string verdict = "agrees";
  LayoutReport report;
  try {
    report = tapestry::testing::compare_row(row, checkpoint);
    if (!report.agrees()) {
      verdict = tapestry::LayoutFindings::sentence(*report.findings->first());
    } else if (tapestry::testing::run_row(row, checkpoint).checksums != report.checksums) {
      verdict = "other bits when run again";
    }
  } catch (const std::exception& error) {
    std::printf("%-64s  %s\n", row.name().c_str(), error.what());
    return false;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%-64s %5zu  %.1e  %.1e  %.1e  %.1e  %.1e  %5.1f  %s\n", row.name().c_str(),
              report.checksums.size(), worst(report, Compared::kActivation),
              worst(report, Compared::kLoss), worst(report, Compared::kGradient),
              worst(report, Compared::kGradNorm), worst(report, Compared::kWeights), seconds,
              verdict.c_str());
  std::fflush(stdout);
  return verdict == "agrees";
}

}  // namespace

int main(int argc, char** argv) {
  const tapestry::data::TempDir folder;
  std::printf("%-64s ranks  activ.   loss     gradient norm     weights  sec.\n", "layout");
  size_t rows = 0;
  size_t wrong = 0;
  for (const LayoutRow& row : tapestry::testing::layout_table()) {
    bool wanted = true;
    for (int i = 1; i < argc; ++i) {
      wanted = wanted && row.name().find(argv[i]) != std::string::npos;
    }
    if (wanted) {
      ++rows;
      wrong += compare(row, folder.path()) ? 0 : 1;
    }
  }
  std::printf("%zu layouts, %zu of them wrong\n", rows, wrong);
  return wrong == 0 && rows > 0 ? 0 : 1;
}
