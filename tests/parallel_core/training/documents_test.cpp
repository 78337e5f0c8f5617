// Documents of one sample train as samples of their own do, in one process and in any layout.
#include <gtest/gtest.h>

#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry {
namespace documents_test {
namespace {

using testing::joined;
using testing::ModelRun;
using testing::Overrides;
using testing::RunDistances;
using testing::RunOptions;
using testing::small_config;

const std::string kModel = "model_config.";
const std::string kParallel = "parallel_config.";

constexpr int64_t kDocument = 8;  // tokens
constexpr int64_t kOfSample = 2;  // documents

// Two rows of 16 tokens, or as many tokens in four rows of 8: numbered, as `first_sample` is, by
// rows of 16.
data::Batch rows_of_samples(const AllConfig& config, int64_t first_sample) {
  data::Batch batch = testing::make_batch(config, 2, first_sample);
  batch.document_starts = {{0, kDocument}, {0, kDocument}};
  for (int64_t i = 0; i < batch.batch * batch.seq; ++i) {
    batch.position_ids.push_back(i % kDocument);
  }
  return batch;
}
data::Batch rows_of_documents(const AllConfig& config, int64_t first_sample) {
  AllConfig joined_rows = config;
  joined_rows.model_config.seq_length = kOfSample * kDocument;
  data::Batch batch = testing::make_batch(joined_rows, 2, first_sample);
  batch.batch *= kOfSample;
  batch.seq = kDocument;
  batch.sample_ids.clear();
  for (int64_t row = 0; row < batch.batch; ++row) {
    batch.sample_ids.push_back(kOfSample * first_sample + row);
  }
  return batch;
}

struct Layout {
  std::string name;
  ModelParallelSizes sizes;
  int ranks;
  Overrides overrides = {};
};
std::ostream& operator<<(std::ostream& out, const Layout& l) { return out << l.name; }

// With this eps an element whose gradient is nothing but rounding stays where it is.
const Overrides kBase = {"optimizer_config.eps=0.001", kModel + "max_position_embeddings=16"};

class DocumentsInLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(DocumentsInLayout, TrainAsSamplesOfTheirOwn) {
  const Layout& layout = GetParam();
  for (const Overrides& model :
       {joined(kBase, testing::kLlama),
        joined(kBase, {kModel + "parallel_position_embedding=True"}),
        joined(kBase, {kModel + "position_embedding_type=alibi", kModel + "window_size=[5, 0]"})}) {
    const RunOptions apart = {.steps = 2, .make = rows_of_documents};
    const testing::Reference& single = testing::reference_run(model, apart, "apart");
    const AllConfig config =
        small_config(joined({model, {kModel + "seq_length=16"}, layout.overrides}));
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      const ModelRun found =
          testing::train_model(config, single.start, {.steps = 2, .make = rows_of_samples});
      ASSERT_EQ(found.losses.size(), single.run.losses.size());
      testing::each_distance(
          found, single.run,
          [&](double RunDistances::*kind, const std::string& name, double distance) {
            EXPECT_LE(distance, single.bounds.*kind) << name;
          });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Documents,
    DocumentsInLayout,
    ::testing::Values(
        Layout{"one_process", {}, 1},
        Layout{"tp2",
               {.tensor_model_parallel_size = 2},
               2,
               {kParallel + "tensor_model_parallel_size=2"}},
        Layout{"dp2_z3", {}, 2, {kParallel + "zero_level=z3"}},
        Layout{"cp2", {.context_parallel_size = 2}, 2, {kParallel + "context_parallel_size=2"}},
        Layout{"pp2",
               {.pipeline_model_parallel_size = 2},
               2,
               {kParallel + "pipeline_model_parallel_size=2"}},
        Layout{
            "tp2_sp_cp2_pp2",
            {.tensor_model_parallel_size = 2,
             .pipeline_model_parallel_size = 2,
             .context_parallel_size = 2},
            8,
            {kParallel + "tensor_model_parallel_size=2", kParallel + "sequence_parallel=True",
             kParallel + "context_parallel_size=2", kParallel + "pipeline_model_parallel_size=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace documents_test
}  // namespace tapestry
