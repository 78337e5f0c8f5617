// Layouts of every kind train as one process does, and twice to the same bits. All of them:
// scripts/layout_matrix.sh.
#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "autograd/tensor/error.h"
#include "tests/cpu_levels.h"
#include "tests/parallel_core/layouts/layout_table.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using testing::layout_table;
using testing::LayoutRow;

std::vector<LayoutRow> some_rows() {
  std::vector<LayoutRow> rows;
  std::copy_if(layout_table().begin(), layout_table().end(), std::back_inserter(rows),
               [](const LayoutRow& row) { return row.in_every_test_run; });
  return rows;
}

class LayoutMatrixRow : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(LayoutMatrixRow, TrainsAsOneProcessDoes) {
  if (only_bfloat16_is_new() && !testing::has_bfloat16(GetParam())) {
    GTEST_SKIP() << "in float32 this is the run at avx512";
  }
  const data::TempDir folder;
  const std::string checkpoint = testing::start_checkpoint(GetParam().model, folder.path());
  const LayoutReport report = testing::compare_row(GetParam(), checkpoint);
  EXPECT_TRUE(report.agrees()) << LayoutFindings::sentence(*report.findings->first()) << "\n"
                               << report.findings->table();
  EXPECT_EQ(report.steps, 20);
  EXPECT_EQ(testing::run_row(GetParam(), checkpoint).checksums, report.checksums);
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         LayoutMatrixRow,
                         ::testing::ValuesIn(some_rows()),
                         [](const auto& info) { return info.param.name(true); });

// Stages hand on what one process computes, also where the residual stream is rounded.
TEST(LayoutMatrix, PipelinesHaveTheActivationsOfOneProcessBitForBit) {
  const data::TempDir folder;
  for (const char* model : {"gpt2_bf16_params", "llama_bf16_stream", "qwen"}) {
    const LayoutReport report =
        testing::run_row({model, "pp=4,micro=2"}, testing::start_checkpoint(model, folder.path()));
    EXPECT_EQ(report.findings->worst(Compared::kActivation).finding->distance, 0) << model;
  }
}

TEST(LayoutTable, HasManyLayoutsAndNoneTwice) {
  std::set<std::string> names;
  for (const LayoutRow& row : layout_table()) {
    names.insert(row.name());
  }
  EXPECT_EQ(names.size(), layout_table().size());
  EXPECT_GE(names.size(), 40U);
  EXPECT_GE(some_rows().size(), 12U);
}

}  // namespace
}  // namespace tapestry
