#include "tests/parallel_core/comm/collectives_suite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::testing {

namespace {

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32, kInt64, kBool};
// One element; within an envelope; a small all-reduce; one segment; several segments and odd ends.
constexpr int64_t kSizes[] = {0, 1, 77, 1500, 30000, 700007};

// Values that a rank holds, spread over magnitudes so that the order of a sum shows.
Tensor values_of(int rank, int64_t n, DType dtype) {
  std::vector<double> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const auto word =
        static_cast<uint64_t>(i * 2654435761 + rank * 40503 + 1) * 0x9e3779b97f4a7c15U;
    const double unit = static_cast<double>(word >> 40U) / (1U << 24U) - 0.5;
    values[static_cast<size_t>(i)] =
        is_floating(dtype) ? unit * static_cast<double>(1U << (word % 9U)) : double(word >> 58U);
  }
  return tensor(values, {n}).to(dtype);
}

// The reduction in rank order, written with ops; 16 bits in float32.
Tensor expected_reduction(int size, int64_t n, DType dtype, ReduceOp op) {
  const bool widen = dtype == kFloat16 || dtype == kBFloat16;
  const DType carried = widen ? kFloat32 : dtype;
  Tensor sum = values_of(0, n, dtype).to(carried);
  for (int r = 1; r < size; ++r) {
    const Tensor x = values_of(r, n, dtype).to(carried);
    const kernels::BinaryOp kernel = op == ReduceOp::kSum   ? kernels::BinaryOp::kAdd
                                     : op == ReduceOp::kMax ? kernels::BinaryOp::kMaximum
                                                            : kernels::BinaryOp::kMinimum;
    sum = map_binary("reduction", kernel, sum, x);
  }
  return sum.to(dtype);
}

void expect_same_bits(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.numel(), expected.numel()) << what;
  ASSERT_EQ(actual.dtype(), expected.dtype()) << what;
  const Tensor a = dense(actual);
  const Tensor b = dense(expected);
  const auto bytes = static_cast<size_t>(a.numel() * size_of(a.dtype()));
  EXPECT_TRUE(bytes == 0 || std::memcmp(a.raw(), b.raw(), bytes) == 0) << what;
}

std::string about(const char* what, DType dtype, int64_t n) {
  return std::string(what) + " " + std::string(name_of(dtype)) + " " + std::to_string(n);
}

void check_reductions(ProcessGroup& group) {
  const int size = group.size();
  for (const DType dtype : kDTypes) {
    for (const int64_t n : kSizes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        if (n > 30000 && (op != ReduceOp::kSum || (dtype != kFloat32 && dtype != kBFloat16))) {
          continue;
        }
        const Tensor whole = dense_copy(values_of(group.rank(), n, dtype));
        group.all_reduce(whole, op);
        expect_same_bits(whole, expected_reduction(size, n, dtype, op),
                         about("all_reduce", dtype, n));

        const int64_t total = n / size * size;
        const Tensor input = dense_copy(values_of(group.rank(), total, dtype));
        const Tensor piece = empty({total / size}, dtype);
        group.reduce_scatter(piece, input, op);
        const Tensor expected =
            expected_reduction(size, total, dtype, op)
                .slice(0, group.rank() * (total / size), (group.rank() + 1) * (total / size));
        expect_same_bits(piece, expected, about("reduce_scatter", dtype, n));
        // In place, as a gradient buffer has it.
        const Tensor own =
            input.slice(0, group.rank() * (total / size), (group.rank() + 1) * (total / size));
        group.reduce_scatter(own, input, op);
        expect_same_bits(own, expected, about("reduce_scatter in place", dtype, n));
      }
    }
  }
}

void check_moves(ProcessGroup& group) {
  const int size = group.size();
  const int rank = group.rank();
  for (const DType dtype : {kFloat32, kBFloat16, kInt64, kBool}) {
    for (const int64_t n : kSizes) {
      if (n > 30000 && dtype != kFloat32) {
        continue;
      }
      const Tensor own = values_of(rank, n, dtype);
      const Tensor gathered = empty({size * n}, dtype);
      group.all_gather(gathered, own);
      for (int r = 0; r < size; ++r) {
        expect_same_bits(gathered.slice(0, r * n, (r + 1) * n), values_of(r, n, dtype),
                         about("all_gather", dtype, n));
      }
      for (int root = 0; root < size; ++root) {
        const Tensor x = dense_copy(own);
        group.broadcast(x, root);
        expect_same_bits(x, values_of(root, n, dtype), about("broadcast", dtype, n));
      }
      const int64_t part = n / size;
      const Tensor exchanged = empty({part * size}, dtype);
      group.all_to_all(exchanged, dense_copy(own.slice(0, 0, part * size)));
      for (int r = 0; r < size; ++r) {
        expect_same_bits(exchanged.slice(0, r * part, (r + 1) * part),
                         values_of(r, n, dtype).slice(0, rank * part, (rank + 1) * part),
                         about("all_to_all", dtype, n));
      }
    }
  }
  // Rank r sends r + 2 c elements to rank c.
  std::vector<int64_t> input_counts;
  std::vector<int64_t> output_counts;
  for (int r = 0; r < size; ++r) {
    input_counts.push_back(rank + 2 * r);
    output_counts.push_back(r + 2 * rank);
  }
  const int64_t out = std::accumulate(output_counts.begin(), output_counts.end(), int64_t{0});
  const int64_t in = std::accumulate(input_counts.begin(), input_counts.end(), int64_t{0});
  const Tensor received = empty({out}, kInt32);
  group.all_to_all(received, full({in}, rank, kInt32), output_counts, input_counts);
  int64_t at = 0;
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < output_counts[static_cast<size_t>(r)]; ++i) {
      EXPECT_EQ(received.at({at++}), r);
    }
  }
}

// Several calls under way at once, finished in another order than they were made in.
void check_asynchronous(ProcessGroup& group) {
  const int size = group.size();
  std::vector<Tensor> tensors;
  std::vector<WorkHandle> works;
  for (const int64_t n : {40000, 3, 200000, 1, 40000}) {
    tensors.push_back(full({n}, group.rank() + 1));
    works.push_back(group.all_reduce_async(tensors.back()));
  }
  const Tensor gathered = empty({size * int64_t{5000}});
  const WorkHandle gather = group.all_gather_async(gathered, full({5000}, group.rank()));
  group.barrier();
  gather->wait();
  EXPECT_EQ(gathered.at({size * int64_t{5000} - 1}), size - 1);
  for (size_t i = works.size(); i-- > 0;) {
    works[i]->wait();
    works[i]->wait();  // a second call returns at once
    const double sum = size * (size + 1) / 2.0;
    EXPECT_EQ(tensors[i].at({0}), sum);
    EXPECT_EQ(tensors[i].at({tensors[i].numel() - 1}), sum);
  }
  {  // One that nobody waits for is waited for.
    const Tensor x = full({100000}, 1);
    group.all_reduce_async(x);
    EXPECT_EQ(x.at({99999}), size);
  }
}

// Each rank's messages to the next arrive in order, whatever the order of waiting.
void check_messages(ProcessGroup& group) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  constexpr int64_t kLengths[] = {10, 100000, 1, 20000};
  std::vector<WorkHandle> works;
  std::vector<Tensor> received;
  for (const int64_t n : kLengths) {
    works.push_back(group.send_async(full({n}, group.rank() * 1000000 + n), next));
  }
  for (const int64_t n : kLengths) {
    received.push_back(empty({n}));
    works.push_back(group.receive_async(received.back(), previous));
  }
  for (const WorkHandle& work : works) {
    work->wait();
  }
  for (const Tensor& x : received) {
    EXPECT_EQ(x.at({x.numel() - 1}), previous * 1000000 + x.numel());
  }
}

void check_arguments(ProcessGroup& group) {
  const int size = group.size();
  const Tensor x = zeros({2 * int64_t{size}, 3});
  EXPECT_THROW(group.all_reduce(x.t()), ValueError);
  EXPECT_THROW(group.all_gather(zeros({size * 3 + 1}), zeros({3})), ValueError);
  EXPECT_THROW(group.all_gather(zeros({size * int64_t{3}}), zeros({3}, kFloat64)), ValueError);
  EXPECT_THROW(group.reduce_scatter(zeros({3}), zeros({size * 3 + 1})), ValueError);
  EXPECT_THROW(group.broadcast(x, size), ValueError);
  EXPECT_THROW(group.send(x, -1), ValueError);
  EXPECT_THROW(group.receive(x, size), ValueError);
  EXPECT_THROW(group.all_to_all(x, x, {1}, {1, 2, 3}), ValueError);
  EXPECT_THROW(group.new_group({size}, "outside"), ValueError);
  EXPECT_THROW(group.new_group({0, 0}, "twice"), ValueError);
}

void check_statistics(ProcessGroup& group) {
  const int64_t size = group.size();
  group.reset_stats();
  group.all_reduce(zeros({10}));
  group.all_gather(zeros({10 * size}, kBFloat16), zeros({10}, kBFloat16));
  group.reduce_scatter(zeros({10}), zeros({10 * size}));
  group.broadcast(zeros({3}), 0);
  group.barrier();
  EXPECT_EQ(group.stats().of(Collective::kAllReduce).bytes, 40);
  EXPECT_EQ(group.stats().of(Collective::kAllGather).bytes, 20 * size);
  EXPECT_EQ(group.stats().of(Collective::kReduceScatter).bytes, 40 * size);
  EXPECT_EQ(group.stats().of(Collective::kBroadcast).bytes, 12);
  EXPECT_EQ(group.stats().of(Collective::kBarrier).calls, 1);
  EXPECT_EQ(group.stats().of(Collective::kBarrier).bytes, 0);
}

// The balanced tree over the ranks from `first` on.
Tensor tree_sum(int first, int count, int64_t n, DType dtype) {
  if (count == 1) {
    return values_of(first, n, dtype).to(kFloat32);
  }
  return map_binary("reduction", kernels::BinaryOp::kAdd, tree_sum(first, count / 2, n, dtype),
                    tree_sum(first + count / 2, count / 2, n, dtype));
}

}  // namespace

void check_exact_sums(ProcessGroup& group) {
  const ExactScope scope;
  const int size = group.size();
  const bool is_tree = (size & (size - 1)) == 0;
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const int64_t n : {1, 77, 1500, 70007}) {
      const auto expected = [&](int64_t count) {
        return is_tree ? tree_sum(0, size, count, dtype).to(dtype)
                       : expected_reduction(size, count, dtype, ReduceOp::kSum);
      };
      const Tensor whole = dense_copy(values_of(group.rank(), n, dtype));
      group.all_reduce(whole);
      expect_same_bits(whole, expected(n), about("exact all_reduce", dtype, n));
      const int64_t piece = n / size;
      const Tensor own = empty({piece}, dtype);
      group.reduce_scatter(own, dense_copy(values_of(group.rank(), piece * size, dtype)));
      expect_same_bits(
          own, expected(piece * size).slice(0, group.rank() * piece, (group.rank() + 1) * piece),
          about("exact reduce_scatter", dtype, n));
    }
  }
}

void check_collectives(ProcessGroup& world) {
  check_reductions(world);
  check_exact_sums(world);
  check_moves(world);
  check_asynchronous(world);
  check_messages(world);
  check_arguments(world);
  check_statistics(world);
  // Even and odd ranks apart, the even ones in reverse.
  std::vector<int> half;
  for (int r = world.rank() % 2; r < world.size(); r += 2) {
    half.push_back(r);
  }
  if (world.rank() % 2 == 0) {
    half = std::vector<int>(half.rbegin(), half.rend());
  }
  const auto group = world.new_group(half, world.rank() % 2 == 0 ? "even" : "odd");
  EXPECT_EQ(group->world_ranks()[static_cast<size_t>(group->rank())], world.rank());
  check_moves(*group);
  check_asynchronous(*group);
  check_messages(*group);
}

}  // namespace tapestry::testing
