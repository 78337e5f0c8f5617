// Collectives as ops: what each gives, and that each one's backward is its conjugate.
#include "parallel_core/tensor_parallel/mappings.h"

#include <gtest/gtest.h>

#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::run_parallel;
using testing::same_bits;

// Small integers, so that sums are exact; the numbers of one rank.
Tensor numbers(const Shape& shape, uint64_t stream, DType dtype) {
  return randint(-8, 9, shape, kInt64, RandomKey{3, stream, 0}).to(dtype);
}

struct Axis {
  Shape local;
  int64_t axis;
};
const std::vector<Axis> kAxes = {
    {{2, 3, 4}, 0}, {{2, 3, 4}, 1}, {{2, 3, 4}, -1}, {{1, 3, 4}, 1}, {{6}, 0}};

// Every rank's numbers, as one of them can make them.
TensorList of_all_ranks(int ranks, const Shape& shape, uint64_t stream, DType dtype) {
  TensorList out;
  for (int r = 0; r < ranks; ++r) {
    out.push_back(numbers(shape, stream + static_cast<uint64_t>(r), dtype));
  }
  return out;
}

Tensor sum_of(const TensorList& list) {
  Tensor total = list[0];
  for (size_t i = 1; i < list.size(); ++i) {
    total = total + list[i];
  }
  return total;
}

Tensor piece_of(const Tensor& whole, int64_t axis, int rank, int ranks) {
  const int64_t size = whole.size(axis) / ranks;
  return whole.slice(axis, rank * size, (rank + 1) * size);
}

class Mappings : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  template <class Body>
  void on_each_rank(const Body& body) const {
    run_parallel(ranks(), {.tensor_model_parallel_size = ranks()}, [&] {
      ProcessGroup& group = get_tensor_model_parallel_group();
      body(group, group.rank());
    });
  }

  // Forward and backward of f for this rank's x and dy.
  template <class F>
  void expect(const F& f,
              const Tensor& x_,
              const Tensor& dy,
              const Tensor& y_expected,
              const Tensor& dx_expected) const {
    const Tensor x = x_.clone().set_requires_grad();
    const Tensor y = f(x);
    EXPECT_TRUE(same_bits(y, y_expected));
    const TensorList first = grad(y, {x}, dy, {.create_graph = true});
    EXPECT_TRUE(same_bits(first[0], dx_expected));
  }
};

TEST_P(Mappings, CopyAndReduceAreConjugate) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    const Shape shape = {2, 3, 4};
    const TensorList x = of_all_ranks(ranks(), shape, 10, dtype());
    const TensorList dy = of_all_ranks(ranks(), shape, 50, dtype());
    const auto own = static_cast<size_t>(rank);
    expect([&](const Tensor& t) { return copy_to_model_parallel_region(t, group); }, x[0], dy[own],
           x[0], sum_of(dy));
    expect([&](const Tensor& t) { return reduce_from_model_parallel_region(t, group); }, x[own],
           dy[0], sum_of(x), dy[0]);
    // The input stays what it was, also where it is a strided view.
    const Tensor view = x[own].transpose(0, 2);
    EXPECT_TRUE(same_bits(reduce_from_model_parallel_region(view, group),
                          sum_of(x).transpose(0, 2).contiguous()));
    EXPECT_TRUE(same_bits(x[own], numbers(shape, 10 + own, dtype())));
  });
}

TEST_P(Mappings, ScatterAndGatherAreConjugate) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    for (const Axis& a : kAxes) {
      const TensorList pieces = of_all_ranks(ranks(), a.local, 10, dtype());
      const Tensor whole = cat(pieces, a.axis);
      const Tensor dwhole = cat(of_all_ranks(ranks(), a.local, 50, dtype()), a.axis);
      const auto own = static_cast<size_t>(rank);
      const Tensor dpiece = piece_of(dwhole, a.axis, rank, ranks());
      expect([&](const Tensor& t) { return scatter_to_model_parallel_region(t, a.axis, group); },
             whole, dpiece, pieces[own], dwhole);
      expect([&](const Tensor& t) { return gather_from_model_parallel_region(t, a.axis, group); },
             pieces[own], dwhole, whole, dpiece);
    }
  });
}

TEST_P(Mappings, GatherAndReduceScatterOfTheSequenceAreConjugate) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    for (const Axis& a : kAxes) {
      const TensorList pieces = of_all_ranks(ranks(), a.local, 10, dtype());
      const Tensor whole = cat(pieces, a.axis);
      const auto own = static_cast<size_t>(rank);
      const TensorList partial = of_all_ranks(ranks(), whole.shape(), 50, dtype());
      const Tensor sum_piece = piece_of(sum_of(partial), a.axis, rank, ranks());
      expect(
          [&](const Tensor& t) { return gather_from_sequence_parallel_region(t, a.axis, group); },
          pieces[own], partial[own], whole, sum_piece);
      expect(
          [&](const Tensor& t) {
            return reduce_scatter_to_sequence_parallel_region(t, a.axis, group);
          },
          partial[own], pieces[own], sum_piece, whole);
    }
  });
}

// d/dx of sum(dx(dy) * w) with respect to dy is the forward applied to w.
TEST_P(Mappings, AreDifferentiableTwice) {
  on_each_rank([&](ProcessGroup& group, int rank) {
    const auto own = static_cast<uint64_t>(rank);
    const Tensor x = numbers({2, 4, 3}, 10 + own, dtype()).set_requires_grad();
    const Tensor w = numbers({2, 4, 3}, 20 + own, dtype());
    using Mapping = Tensor (*)(const Tensor&, int64_t, ProcessGroup&);
    const std::vector<Mapping> mappings = {gather_from_sequence_parallel_region,
                                           gather_from_model_parallel_region};
    for (const Mapping mapping : mappings) {
      const Tensor y = mapping(x, 1, group);
      const Tensor dy = numbers(y.shape(), 30, dtype()).set_requires_grad();
      const Tensor dx = grad(y, {x}, dy, {.create_graph = true})[0];
      const Tensor ddy = grad(dx, {dy}, w)[0];
      EXPECT_TRUE(same_bits(ddy, mapping(w, 1, group)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         Mappings,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(kFloat32, kFloat64, kBFloat16)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

TEST(MappingErrors, AxesThatCannotBeCutAreNamed) {
  run_parallel(2, {.tensor_model_parallel_size = 2}, [] {
    ProcessGroup& group = get_tensor_model_parallel_group();
    EXPECT_THROW(scatter_to_model_parallel_region(ones({2, 3}), 1, group), ValueError);
    EXPECT_THROW(reduce_scatter_to_sequence_parallel_region(ones({3, 2}), 0, group), ValueError);
    EXPECT_THROW(gather_from_model_parallel_region(ones({3, 2}), 2, group), IndexError);
  });
}

}  // namespace
}  // namespace tapestry
