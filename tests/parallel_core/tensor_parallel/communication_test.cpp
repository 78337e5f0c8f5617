// Bytes that a training step hands to the tensor-parallel group, against the count on paper.
#include <gtest/gtest.h>

#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::make_batch;
using testing::Overrides;
using testing::run_parallel;
using testing::small_config;
using testing::Trainer;

const std::string kModel = "model_config.";

// Of one rank, in one step: bytes as CommunicationStats counts them.
struct Bytes {
  int64_t all_reduce = 0;
  int64_t all_gather = 0;
  int64_t reduce_scatter = 0;
};

struct Case {
  std::string name;
  int ranks;
  bool sequence_parallel;
  DType compute;
  bool grouped;  // one group of keys and values, which all ranks share
};

class BytesPerStep : public ::testing::TestWithParam<Case> {};

Bytes on_paper(const Case& c, const AllConfig& config, int64_t micro_batches, int64_t rows) {
  const TransformerConfig& m = config.model_config;
  const int64_t tokens = rows * m.seq_length;
  const int64_t hidden = tokens * m.hidden_size * size_of(c.compute);
  const int64_t hidden32 = tokens * m.hidden_size * size_of(kFloat32);
  Bytes out;
  if (c.sequence_parallel) {
    // Forward: each block gathers its input and scatters its output. Backward: the same in reverse,
    // and each input is gathered once more for the gradient of the weight behind it.
    const int64_t blocks = 2 * m.num_layers;
    out.all_gather = blocks * 3 * hidden;
    out.reduce_scatter = blocks * 2 * hidden;
    // The head gathers twice and scatters once; the embeddings scatter once and gather once, in
    // float32.
    out.all_gather += 2 * hidden + hidden32;
    out.reduce_scatter += hidden + hidden32;
  } else {
    // One sum a block and pass; the head's in backward, the embeddings' in forward.
    out.all_reduce = 2 * m.num_layers * 2 * hidden + hidden + hidden32;
  }
  // Two float32 numbers of each rank and token for the loss.
  out.all_gather += c.ranks * 2 * tokens * 4;
  out.all_reduce *= micro_batches;
  out.all_gather *= micro_batches;
  out.reduce_scatter *= micro_batches;
  // Once a step, in float32: what each rank has only its share of.
  int64_t partial = 0;
  if (c.sequence_parallel) {
    partial += (2 * m.num_layers + 1) * m.hidden_size;  // RMSNorm
    partial += m.num_layers * 2 * m.hidden_size;        // biases of the two projections
  }
  if (c.grouped) {
    partial += m.num_layers * 2 * *m.kv_channels * (m.hidden_size + 1);  // wk, wv, biases
  }
  out.all_reduce += 4 * partial;
  out.all_reduce += 8;  // the sum of squares behind the gradient norm, in double precision
  return out;
}

TEST_P(BytesPerStep, AreTheTheoreticalCount) {
  const Case& c = GetParam();
  const AllConfig config = small_config(
      {concat("parallel_config.tensor_model_parallel_size=", c.ranks),
       concat("parallel_config.sequence_parallel=", c.sequence_parallel ? "True" : "False"),
       concat(kModel, "compute_dtype=", name_of(c.compute)),
       concat(kModel, "num_query_groups=", c.grouped ? 1 : 4),
       concat(kModel, "group_query_attention=True"), kModel + "normalization=RMSNorm",
       kModel + "position_embedding_type=rope"});
  constexpr int64_t kMicroBatches = 3;
  constexpr int64_t kRows = 2;
  const Bytes expected = on_paper(c, config, kMicroBatches, kRows);
  run_parallel(c.ranks, {.tensor_model_parallel_size = c.ranks}, [&] {
    Trainer trainer(config);
    ProcessGroup& group = get_tensor_model_parallel_group();
    std::vector<data::Batch> batches;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      batches.push_back(make_batch(config, kRows, kRows * i));
    }
    group.reset_stats();
    trainer.cell(batches);
    const CommunicationStats& stats = group.stats();
    EXPECT_EQ(stats.of(Collective::kAllReduce).bytes, expected.all_reduce);
    EXPECT_EQ(stats.of(Collective::kAllGather).bytes, expected.all_gather);
    EXPECT_EQ(stats.of(Collective::kReduceScatter).bytes, expected.reduce_scatter);
    for (const Collective other :
         {Collective::kBroadcast, Collective::kAllToAll, Collective::kSend, Collective::kReceive}) {
      EXPECT_EQ(stats.of(other).bytes, 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(TensorParallel,
                         BytesPerStep,
                         ::testing::Values(Case{"tp2", 2, false, kFloat32, false},
                                           Case{"tp4", 4, false, kFloat32, true},
                                           Case{"tp2_bf16", 2, false, kBFloat16, false},
                                           Case{"tp2_sp", 2, true, kFloat32, false},
                                           Case{"tp4_sp_bf16", 4, true, kBFloat16, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tapestry
