// What data parallelism costs and saves: bytes that are communicated, memory by kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "autograd/tensor/rank_context.h"
#include "tests/parallel_core/distributed/data_parallel_testing.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::make_batch;
using testing::Overrides;
using testing::Trainer;

// Matrices large beside vectors, and no two of one size.
Overrides model(const Overrides& more) {
  return joined(
      {"model_config.hidden_size=96", "model_config.ffn_hidden_size=160",
       "model_config.vocab_size=512", "model_config.position_embedding_type=rope",
       "model_config.untie_embeddings_and_output_weights=True", "optimizer_config.clip_grad=1",
       "training_config.wrap_with_ddp=True", "training_config.bucket_size=5000"},
      more);
}

const Overrides kLevels[] = {{},
                             {"training_config.use_distributed_optimizer=True"},
                             {"parallel_config.zero_level=z2"},
                             {"parallel_config.zero_level=z3"}};

Overrides overlapped(Overrides overrides, bool gather) {
  overrides.emplace_back("training_config.overlap_grad_reduce=True");
  if (gather) {
    overrides.emplace_back("optimizer_config.overlap_param_gather=True");
  }
  return overrides;
}

void on_ranks(int ranks, const Overrides& overrides, const std::function<void(Trainer&)>& body) {
  run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    {
      Trainer trainer(model(overrides));
      body(trainer);
    }
    destroy_model_parallel();
  });
}

int64_t padded(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// Elements of the matrices, which z3 brings together one by one, in the order of their use.
std::vector<int64_t> matrices(const Trainer& trainer, int ranks) {
  std::vector<int64_t> out;
  for (const auto& entry : trainer.model->named_parameters()) {
    if (entry.parameter->dim() == 2) {
      out.push_back(padded(entry.parameter->numel(), 64 * ranks));
    }
  }
  return out;
}

void expect_bytes(ProcessGroup& group, Collective collective, int64_t bytes) {
  EXPECT_EQ(group.stats().of(collective).bytes, bytes) << static_cast<int>(collective);
}

// The scalars of a step: tokens, their loss masks and sequences, the loss, and with shards the
// norm.
constexpr int64_t kScalars = 4 * 8;

TEST(DataParallelCosts, BytesOfAStepAreThoseOfTheory) {
  for (const int ranks : {2, 3}) {
    for (const int64_t micro_batches : {1, 2}) {
      for (size_t level = 0; level < 4; ++level) {
        for (const bool overlap : {false, true}) {
          SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << micro_batches
                                            << " micro-batches, level " << level);
          const Overrides overrides =
              overlap ? overlapped(kLevels[level], level > 0) : kLevels[level];
          on_ranks(ranks, overrides, [&](Trainer& trainer) {
            ProcessGroup& group = get_data_parallel_group();
            const std::vector<data::Batch> batches(static_cast<size_t>(micro_batches),
                                                   make_batch(trainer.config, 2));
            trainer.cell(batches);
            trainer.data_parallel->finish_gather();
            group.reset_stats();
            trainer.cell(batches);
            trainer.data_parallel->finish_gather();
            const int64_t all = 4 * trainer.data_parallel->size();
            if (level == 0) {
              expect_bytes(group, Collective::kAllReduce, all + kScalars);
              expect_bytes(group, Collective::kReduceScatter, 0);
              expect_bytes(group, Collective::kAllGather, 0);
              return;
            }
            expect_bytes(group, Collective::kAllReduce, kScalars + 8);
            expect_bytes(group, Collective::kReduceScatter, level == 1 ? all : micro_batches * all);
            if (level < 3) {
              expect_bytes(group, Collective::kAllGather, all);
              return;
            }
            // Forward fetches each matrix. Backward fetches those of the layers again, but for the
            // last two used, which are still there; then those are the first two of the layers,
            // and a next forward fetches only one of them, since the embedding comes between.
            const std::vector<int64_t> sizes = matrices(trainer, ranks);
            int64_t fetched = 0;
            for (const int64_t size : sizes) {
              fetched += 2 * size;
            }
            int64_t elements = fetched - sizes.front() - sizes.back() - sizes[sizes.size() - 2];
            elements *= micro_batches;
            elements -= (micro_batches - 1) * sizes[1];
            for (const int64_t size : sizes) {
              elements -= size;  // from here on: what is no matrix
            }
            expect_bytes(group, Collective::kAllGather, 4 * elements + all);
          });
        }
      }
    }
  }
}

TEST(DataParallelCosts, MemoryFallsAsTheorySays) {
  for (const int ranks : {2, 4}) {
    std::array<MemoryStats, 4> stats;
    int64_t size = 0;
    int64_t largest = 0;
    for (size_t level = 0; level < 4; ++level) {
      on_ranks(ranks, overlapped(kLevels[level], false), [&](Trainer& trainer) {
        const data::Batch batch = make_batch(trainer.config, 2);
        trainer.cell({batch});
        RankContext::current().allocator().reset_peak();
        trainer.cell({batch});
        if (get_data_parallel_rank() == ranks - 1) {
          stats[level] = memory_stats();
          size = trainer.data_parallel->size();
          const auto sizes = matrices(trainer, ranks);
          largest = *std::max_element(sizes.begin(), sizes.end());
        }
      });
    }
    const auto current = [&](size_t level, MemoryKind kind) {
      return static_cast<double>(stats[level].current_by_kind[static_cast<size_t>(kind)]);
    };
    const auto peak = [&](size_t level, MemoryKind kind) {
      return static_cast<double>(stats[level].peak_by_kind[static_cast<size_t>(kind)]);
    };
    const double all = 4.0 * static_cast<double>(size);
    const double shard = all / ranks;
    const double page = 4.0 * static_cast<double>(largest);
    const double slack = 1.15;  // blocks are rounded up by at most an eighth
    for (size_t level = 0; level < 4; ++level) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, level " << level);
      // Two moments of each element that this rank updates.
      const double moments = 2 * (level >= 1 ? shard : all);
      EXPECT_LE(current(level, MemoryKind::kOptimizer), slack * moments);
      EXPECT_GE(current(level, MemoryKind::kOptimizer), 0.9 * moments);
      const double gradients = level >= 2 ? shard : all;
      EXPECT_LE(current(level, MemoryKind::kGradient), slack * gradients);
      // From z2 on a bucket is being filled and two are being reduced at any time. Before, the
      // head's gradient, which is made with the loss, has no place of its own until it is added.
      EXPECT_LE(peak(level, MemoryKind::kGradient),
                slack * (gradients + (level >= 2 ? 3 : 1) * page));
      const double parameters = level >= 3 ? shard : all;
      EXPECT_LE(current(level, MemoryKind::kParameter), slack * parameters);
      EXPECT_LE(peak(level, MemoryKind::kParameter),
                slack * (parameters + (level >= 3 ? 3 * page : 0)));
    }
  }
}

}  // namespace
}  // namespace tapestry
