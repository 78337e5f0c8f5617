#include "parallel_core/pipeline_parallel/pipeline_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

// "F0 F1 B0", with chunks "F0.1" for micro-batch 0 of chunk 1.
std::string text(const PipelineShape& shape, int rank) {
  std::string out;
  for (const PipelinePass& pass : pipeline_order(shape, rank)) {
    out += (out.empty() ? "" : " ") + std::string(pass.backward ? "B" : "F") +
           std::to_string(pass.micro_batch) +
           (shape.chunks > 1 ? "." + std::to_string(pass.chunk) : "");
  }
  return out;
}

TEST(PipelineOrder, IsOneForwardOneBackward) {  // PipeDream, figure 8, with a flush at the end
  const PipelineShape shape{.stages = 4, .micro_batches = 5};
  EXPECT_EQ(text(shape, 0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(text(shape, 1), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(text(shape, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(text(shape, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  EXPECT_EQ(text({.stages = 4, .micro_batches = 2}, 0), "F0 F1 B0 B1");
  EXPECT_EQ(text({.stages = 1, .micro_batches = 2}, 0), "F0 B0 F1 B1");
}

TEST(PipelineOrder, IsInterleaved) {  // Narayanan et al. 2021, figure 4, with 2 instead of 4 ranks
  const PipelineShape shape{.stages = 2, .chunks = 2, .micro_batches = 4};
  EXPECT_EQ(text(shape, 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(text(shape, 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST(PipelineOrder, EvaluationRunsForwardOnly) {
  EXPECT_EQ(text({.stages = 2, .micro_batches = 2, .forward_only = true}, 1), "F0 F1");
  EXPECT_EQ(text({.stages = 2, .chunks = 2, .micro_batches = 3, .forward_only = true}, 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 F2.1");
}

// All pipelines up to 8 ranks, 4 chunks, 19 micro-batches.
template <class Body>
void for_all_shapes(const Body& body) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= (stages > 1 ? 4 : 1); ++chunks) {
      for (int64_t micro_batches = 1; micro_batches < 20; ++micro_batches) {
        body(PipelineShape{.stages = stages, .chunks = chunks, .micro_batches = micro_batches});
      }
    }
  }
}

TEST(PipelineOrder, EveryPassRunsOnceBackwardAfterForward) {
  for_all_shapes([](const PipelineShape& shape) {
    for (int rank = 0; rank < shape.stages; ++rank) {
      std::set<std::tuple<bool, int, int64_t>> seen;
      std::vector<int64_t> last(static_cast<size_t>(shape.chunks), -1);
      for (const PipelinePass& pass : pipeline_order(shape, rank)) {
        EXPECT_TRUE(seen.emplace(pass.backward, pass.chunk, pass.micro_batch).second);
        if (pass.backward) {
          EXPECT_TRUE(seen.contains({false, pass.chunk, pass.micro_batch}));
          // Gradients are summed in the order of one process.
          EXPECT_EQ(pass.micro_batch, ++last[static_cast<size_t>(pass.chunk)]);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), 2 * shape.chunks * shape.micro_batches);
    }
  });
}

TEST(PipelineOrder, InFlightPassesAreBounded) {
  for_all_shapes([](const PipelineShape& shape) {
    for (int rank = 0; rank < shape.stages; ++rank) {
      const int behind = shape.stages - 1 - rank;
      const int64_t bound =
          shape.chunks == 1 ? behind + 1 : 2 * behind + (shape.chunks - 1) * shape.stages + 1;
      EXPECT_LE(max_in_flight(shape, rank), bound);
      if (shape.micro_batches % shape.stages == 0) {
        EXPECT_EQ(max_in_flight(shape, rank),
                  std::min<int64_t>(bound, shape.chunks * shape.micro_batches));
      }
    }
  });
}

TEST(PipelineOrder, NobodyWaitsForEverAndTheBubbleIsTheOneOfTheory) {
  for_all_shapes([](PipelineShape shape) {
    const double ranks = shape.stages;
    const double work = static_cast<double>(shape.micro_batches) * shape.chunks;
    const double expected = (ranks - 1) / (work + ranks - 1);
    const double bubble = theoretical_bubble(shape);  // throws for a circle of waiting ranks
    if (shape.chunks == 1 || shape.micro_batches % shape.stages == 0) {
      EXPECT_NEAR(bubble, expected, 1e-12);
    } else {
      EXPECT_GT(bubble, expected - 1e-12);
    }
    shape.forward_only = true;
    EXPECT_GE(theoretical_bubble(shape), 0);
  });
}

TEST(PipelineOrder, RefusesWhatIsNoPipeline) {
  EXPECT_THROW(pipeline_order({.stages = 0}, 0), ValueError);
  EXPECT_THROW(pipeline_order({.micro_batches = 0}, 0), ValueError);
  EXPECT_THROW(pipeline_order({.chunks = 0}, 0), ValueError);
  EXPECT_THROW(pipeline_order({.stages = 2}, 2), ValueError);
}

}  // namespace
}  // namespace tapestry
