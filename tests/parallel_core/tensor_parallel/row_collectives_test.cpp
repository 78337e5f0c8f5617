// Rows that change ranks: what arrives, and that each function's backward is its conjugate.
#include "parallel_core/tensor_parallel/row_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/tape/engine.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using testing::run_parallel;
using testing::same_bits;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 3;

// counts[a][b] rows go from rank a to rank b. The last rank neither has nor gets any.
RowCounts sends_of(int rank, int ranks) {
  RowCounts counts(static_cast<size_t>(ranks), 0);
  for (int to = 0; to + 1 < ranks && rank + 1 < ranks; ++to) {
    counts[static_cast<size_t>(to)] = (rank * 2 + to * 3) % 4;
  }
  return counts;
}
RowCounts receives_of(int rank, int ranks) {
  RowCounts counts;
  for (int from = 0; from < ranks; ++from) {
    counts.push_back(sends_of(from, ranks)[static_cast<size_t>(rank)]);
  }
  return counts;
}
int64_t total(const RowCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Row i that rank a holds for rank b; small integers, so that sums are exact.
Tensor row_of(int from, int to, int64_t i, DType dtype) {
  return randint(-8, 9, {1, kWidth}, kInt64,
                 RandomKey{5, static_cast<uint64_t>(100 * from + 10 * to + i), 0})
      .to(dtype);
}

Tensor joined_rows(const TensorList& rows, DType dtype) {
  return rows.empty() ? zeros({0, kWidth}, dtype) : cat(rows, 0);
}

// What a rank has before and after the exchange.
Tensor sent(int rank, int ranks, DType dtype) {
  TensorList rows;
  for (int to = 0; to < ranks; ++to) {
    for (int64_t i = 0; i < sends_of(rank, ranks)[static_cast<size_t>(to)]; ++i) {
      rows.push_back(row_of(rank, to, i, dtype));
    }
  }
  return joined_rows(rows, dtype);
}
Tensor received(int rank, int ranks, DType dtype) {
  TensorList rows;
  for (int from = 0; from < ranks; ++from) {
    for (int64_t i = 0; i < sends_of(from, ranks)[static_cast<size_t>(rank)]; ++i) {
      rows.push_back(row_of(from, rank, i, dtype));
    }
  }
  return joined_rows(rows, dtype);
}

// Different counts for ranks, the last one without rows.
RowCounts ragged(int ranks) {
  RowCounts counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank + 1 == ranks && ranks > 1 ? 0 : 1 + rank * 2);
  }
  return counts;
}
Tensor numbers_of(int64_t rows, uint64_t stream, DType dtype) {
  return randint(-8, 9, {rows, kWidth}, kInt64, RandomKey{6, stream, 0}).to(dtype);
}

class RowCollectives : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  template <class Body>
  void on_each_rank(const Body& body) const {
    run_parallel(ranks(), {.expert_model_parallel_size = ranks()}, [&] {
      ProcessGroup& group = get_expert_model_parallel_group();
      body(group, group.rank());
    });
  }
};

TEST_P(RowCollectives, AllToAllTakesRowsThereAndTheirGradientsBack) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    const RowCounts send = sends_of(rank, ranks());
    const RowCounts receive = receives_of(rank, ranks());
    const Tensor x = sent(rank, ranks(), dtype()).set_requires_grad();
    const Tensor y = all_to_all_rows(x, send, receive, group);
    EXPECT_TRUE(same_bits(y, received(rank, ranks(), dtype())));
    EXPECT_TRUE(y.requires_grad());
    // The gradient of what came, and where it has to go, are the exchange read the other way.
    const Tensor dy = (received(rank, ranks(), dtype()) * 2.0).set_requires_grad();
    const Tensor dx = grad(y, {x}, dy, {.create_graph = true})[0];
    EXPECT_TRUE(same_bits(dx, sent(rank, ranks(), dtype()) * 2.0));
    const Tensor w = sent(rank, ranks(), dtype()) * 3.0;
    const Tensor ddy = grad(dx, {dy}, w)[0];
    EXPECT_TRUE(same_bits(ddy, received(rank, ranks(), dtype()) * 3.0));
  });
}

TEST_P(RowCollectives, HalvesAreTheWhole) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    const Tensor x = sent(rank, ranks(), dtype()).set_requires_grad();
    const Tensor beside = ones({2, 2}).set_requires_grad();
    PendingRows pending(x, sends_of(rank, ranks()), receives_of(rank, ranks()), group);
    const Tensor meanwhile = beside * 2.0;
    const Tensor y = pending.finish();
    EXPECT_THROW(pending.finish(), RuntimeError);
    EXPECT_TRUE(same_bits(y, received(rank, ranks(), dtype())));
    const Tensor loss = sum(y.to(kFloat32) * 2.0) + sum(meanwhile);
    loss.backward();
    EXPECT_TRUE(same_bits(x.grad(), full(x.shape(), 2, dtype())));
    EXPECT_TRUE(same_bits(beside.grad(), full({2, 2}, 2)));
  });
}

TEST_P(RowCollectives, GatherAndReduceScatterAreConjugate) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    const RowCounts counts = ragged(ranks());
    const auto own = static_cast<size_t>(rank);
    TensorList pieces;
    TensorList partial;
    for (int other = 0; other < ranks(); ++other) {
      const auto stream = static_cast<uint64_t>(other);
      pieces.push_back(numbers_of(counts[static_cast<size_t>(other)], 10 + stream, dtype()));
      partial.push_back(numbers_of(total(counts), 50 + stream, dtype()));
    }
    const Tensor whole = cat(pieces, 0);
    Tensor all = partial[0];
    for (size_t i = 1; i < partial.size(); ++i) {
      all = all + partial[i];
    }
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
    const Tensor piece = all.slice(0, first, first + counts[own]).contiguous();

    const Tensor x = pieces[own].clone().set_requires_grad();
    const Tensor y = gather_rows(x, counts, group);
    EXPECT_TRUE(same_bits(y, whole));
    const Tensor dy = partial[own].clone().set_requires_grad();
    const Tensor dx = grad(y, {x}, dy, {.create_graph = true})[0];
    EXPECT_TRUE(same_bits(dx, piece));
    EXPECT_TRUE(same_bits(grad(dx, {dy}, pieces[own])[0], whole));

    const Tensor z = partial[own].clone().set_requires_grad();
    const Tensor s = reduce_scatter_rows(z, counts, group);
    EXPECT_TRUE(same_bits(s, piece));
    const Tensor ds = pieces[own].clone().set_requires_grad();
    const Tensor dz = grad(s, {z}, ds, {.create_graph = true})[0];
    EXPECT_TRUE(same_bits(dz, whole));
    EXPECT_TRUE(same_bits(grad(dz, {ds}, partial[own])[0], piece));
  });
}

TEST_P(RowCollectives, RowsMayBeViewsOfAnyShape) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    const RowCounts counts = ragged(ranks());
    const int64_t own = counts[static_cast<size_t>(rank)];
    const Tensor x =
        randint(-8, 9, {2, 2, own}, kInt64, RandomKey{7, static_cast<uint64_t>(rank), 0})
            .to(dtype())
            .transpose(0, 2);
    EXPECT_TRUE(
        same_bits(gather_rows(x, counts, group), gather_rows(x.contiguous(), counts, group)));
    const Tensor flat = gather_rows(ones({own}, dtype()), counts, group);
    EXPECT_TRUE(same_bits(flat, ones({total(counts)}, dtype())));
  });
}

TEST_P(RowCollectives, StatisticsCountWhatIsHandedOver) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    if (ranks() == 1) {
      return;
    }
    const RowCounts counts = ragged(ranks());
    const int64_t row = kWidth * size_of(dtype());
    const auto bytes = [&] { return group.stats().of(Collective::kAllToAll).bytes; };
    const Tensor x = sent(rank, ranks(), dtype()).set_requires_grad();
    group.reset_stats();
    const Tensor y = all_to_all_rows(x, sends_of(rank, ranks()), receives_of(rank, ranks()), group);
    EXPECT_EQ(bytes(), total(sends_of(rank, ranks())) * row);
    sum(y).backward();
    EXPECT_EQ(bytes(), (total(sends_of(rank, ranks())) + total(receives_of(rank, ranks()))) * row);
    group.reset_stats();
    const int64_t own = counts[static_cast<size_t>(rank)];
    const Tensor z = gather_rows(ones({own, kWidth}, dtype()), counts, group);
    EXPECT_EQ(bytes(), own * ranks() * row);
    reduce_scatter_rows(z, counts, group);
    EXPECT_EQ(bytes(), (own * ranks() + total(counts)) * row);
    EXPECT_EQ(group.stats().of(Collective::kAllToAll).calls, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         RowCollectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(kFloat32, kFloat64, kBFloat16)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

TEST(RowCollectivesOfTwoRanks, CarryWhatIsNotANumber) {
  run_parallel(2, {.expert_model_parallel_size = 2}, [] {
    ProcessGroup& group = get_expert_model_parallel_group();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor x = full({2, 2}, group.rank() == 0 ? nan : 1.0).set_requires_grad();
    const Tensor y = all_to_all_rows(x, {1, 1}, {1, 1}, group);
    EXPECT_TRUE(std::isnan(y.slice(0, 0, 1).contiguous().data<float>()[0]));
    EXPECT_EQ(y.slice(0, 1, 2).contiguous().data<float>()[0], 1);
    const Tensor shared = reduce_scatter_rows(gather_rows(x, {2, 2}, group), {2, 2}, group);
    EXPECT_EQ(std::isnan(shared.data<float>()[0]), group.rank() == 0);
    sum(shared * full({2, 2}, group.rank() == 1 ? nan : 1.0)).backward();
    EXPECT_EQ(std::isnan(x.grad().data<float>()[0]), group.rank() == 1);
  });
}

// The sum of 16-bit values is made in float32: 256 + 1 + 1 is 258, but 256 + 1 is 256 in bfloat16.
TEST(RowCollectivesOfTwoRanks, RoundSumsOnce) {
  run_parallel(3, {.expert_model_parallel_size = 3}, [] {
    ProcessGroup& group = get_expert_model_parallel_group();
    const Tensor x = full({3, 1}, group.rank() == 0 ? 256.0 : 1.0, kBFloat16);
    const Tensor y = reduce_scatter_rows(x, {1, 1, 1}, group);
    EXPECT_EQ(y.to(kFloat32).data<float>()[0], 258);
  });
}

// A rank without rows does not touch what it has: were the exchange made again at the first touch,
// it would not take part.
TEST(RowCollectivesOfTwoRanks, KeepTheirResultsWhereOthersAreMadeAgain) {
  run_parallel(2, {.expert_model_parallel_size = 2}, [] {
    ProcessGroup& group = get_expert_model_parallel_group();
    const int64_t rows = group.rank() == 0 ? 2 : 0;
    const Tensor x = ones({rows, 2}).set_requires_grad();
    group.reset_stats();
    RecomputedValues values;
    Tensor y;
    {
      const RecomputeScope scope(&values);
      const Tensor there = all_to_all_rows(x * 2.0, {rows, 0}, {rows, 0}, group);
      y = square(there);
    }
    values.keep(y);
    values.drop();
    sum(y).backward();
    EXPECT_TRUE(same_bits(x.grad(), full({rows, 2}, 8)));
    EXPECT_EQ(group.stats().of(Collective::kAllToAll).calls, 2);
  });
}

TEST(RowCollectiveErrors, NameTheCounts) {
  run_parallel(2, {.expert_model_parallel_size = 2}, [] {
    ProcessGroup& group = get_expert_model_parallel_group();
    const Tensor x = ones({3, 2});
    const auto refused = [](const auto& call, const char* text) {
      EXPECT_THAT(call, ThrowsMessage<ValueError>(HasSubstr(text)));
    };
    const RowCounts three = {1, 1, 1};
    const RowCounts negative = {4, -1};
    const RowCounts fits = {2, 1};
    const RowCounts too_many = {2, 2};
    refused([&] { all_to_all_rows(x, three, fits, group); },
            "all_to_all_rows: 3 send counts for the 2 ranks of ep-0-1");
    refused([&] { all_to_all_rows(x, fits, three, group); }, "3 receive counts for the 2 ranks");
    refused([&] { all_to_all_rows(x, negative, fits, group); },
            "the send count for rank 1 must not be negative, got -1");
    refused([&] { all_to_all_rows(x, too_many, fits, group); },
            "has 3 rows, the send counts sum to 4");
    refused([&] { all_to_all_rows(ones({}), fits, fits, group); }, "has no rows");
    refused([&] { PendingRows(x, too_many, fits, group); }, "the send counts sum to 4");
    refused([&] { gather_rows(x, {4, 4}, group); }, "has 3 rows, the count of this rank is 4");
    refused([&] { gather_rows(x, three, group); }, "gather_rows: 3 row counts for the 2 ranks");
    refused([&] { reduce_scatter_rows(x, too_many, group); },
            "reduce_scatter_rows: float32 [3, 2] has 3 rows, the counts sum to 4");
    EXPECT_THROW(gather_rows(ones({3, 2}, kInt64), {3, 3}, group), TypeError);
  });
}

}  // namespace
}  // namespace tapestry
