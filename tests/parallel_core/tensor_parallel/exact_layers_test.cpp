// Linear layers in exact mode: the bits of one rank on any number of them.
#include <gtest/gtest.h>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/tensor_parallel/row_linear.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace exact_layers_test {
namespace {

using testing::run_parallel;
using testing::same_bits;

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 32;

struct Case {
  int64_t ranks;
  bool sequence_parallel;
  bool sequence_first;
  DType dtype;
};

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return concat("tp", c.ranks, c.sequence_parallel ? "_sp" : "",
                c.sequence_first ? "_sbh_" : "_bsh_", name_of(c.dtype));
}

Tensor numbers(const Shape& shape, const char* name, DType dtype) {
  return normal(0, 1, shape, dtype, RandomKey{5, stream_of(name), 0});
}

// What a pass leaves: y and dx as they are, the gradients of parameters as exact sums.
struct Passed {
  Tensor y, dx;
  TensorList gradients;
};

class ExactLayers : public ::testing::TestWithParam<Case> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  TensorParallelLayout layout() const {
    TransformerConfig config;
    config.sequence_parallel = GetParam().sequence_parallel;
    return tensor_parallel_layout(config, GetParam().sequence_first);
  }
  Precision precision() const { return {.compute = dtype(), .activation = dtype()}; }
  // Hidden states [B, S, n] or [S, B, n].
  Tensor hidden(int64_t width, const char* name) const {
    const Tensor x = numbers({kBatch, kTokens, width}, name, dtype());
    return GetParam().sequence_first ? x.transpose(0, 1).contiguous() : x;
  }
  static Tensor own(const Tensor& x, const TensorParallelLayout& layout) {
    if (!layout.sequence_axis) {
      return x;
    }
    const int64_t size = x.size(*layout.sequence_axis) / layout.size;
    return dense_copy(x.slice(*layout.sequence_axis, layout.rank * size, (layout.rank + 1) * size));
  }
  // The rank's features of each of `pieces`, or of rows of a parameter.
  static Tensor share(const Tensor& x,
                      const TensorParallelLayout& layout,
                      int64_t axis,
                      int64_t pieces = 1) {
    const int64_t size = x.size(axis) / pieces;
    const int64_t part = size / layout.size;
    TensorList out;
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t first = i * size + layout.rank * part;
      out.push_back(x.slice(axis, first, first + part));
    }
    return dense_copy(cat(out, axis));
  }
  // One sample after the other where `split`, else all in one micro-batch.
  template <class Layer>
  Passed pass(Layer& layer, const Tensor& x, const Tensor& dy, bool split = false) const {
    const ExactScope scope;
    for (const auto& named : layer.named_parameters()) {
      attach_main_grad(*named.parameter, kFloat64);
    }
    const int64_t axis = GetParam().sequence_first ? 1 : 0;
    TensorList ys;
    TensorList dxs;
    for (int64_t first = 0; first < kBatch; first += split ? 1 : kBatch) {
      const int64_t samples = split ? 1 : kBatch;
      const ExactTokensScope tokens({.samples = samples,
                                     .length = kTokens,
                                     .leaves = sequence_leaves(kTokens),
                                     .samples_first = !GetParam().sequence_first});
      const Tensor in = dense_copy(x.slice(axis, first, first + samples)).set_requires_grad();
      const OutputAndBias out = layer.forward(in);
      const Tensor y = out.bias.defined() ? add_bias(out.output, out.bias) : out.output;
      y.backward(dense_copy(dy.slice(axis, first, first + samples)));
      ys.push_back(y.detach());
      dxs.push_back(in.grad());
    }
    Passed passed{cat(ys, axis), cat(dxs, axis), {}};
    for (const auto& named : layer.named_parameters()) {
      const Tensor sums = dense_copy(named.parameter->main_grad());
      if (named.parameter->flags().tp == nn::TensorParallel::kPartial) {
        get_tensor_model_parallel_group().all_reduce(sums);
      }
      passed.gradients.push_back(sums);
    }
    return passed;
  }
  template <class Body>
  void on_each_rank(const Body& body) const {
    const auto ranks = static_cast<int>(GetParam().ranks);
    run_parallel(ranks, {.tensor_model_parallel_size = ranks}, [&] {
      random_context().seed = 1;
      body(layout());
    });
  }

  ParallelLinearSpec column_spec(const TensorParallelLayout& layout,
                                 int64_t in,
                                 int64_t out,
                                 int64_t pieces,
                                 bool bias) const {
    const int64_t part = out / pieces / layout.size;
    ParallelLinearSpec spec{.input_size = in,
                            .output_size = pieces * part,
                            .weight = {},
                            .precision = precision(),
                            .layout = layout};
    for (int64_t i = 0; i < pieces; ++i) {
      const auto placed = [&](LogicalInit init) {
        init.logical.view_shape[0] = spec.output_size;
        init.logical.begin = i * part;
        init.logical.end = (i + 1) * part;
        return init;
      };
      const std::string name = concat("w", i);
      spec.weight.push_back(placed(sliced(name + ".weight", {out / pieces, in}, 0,
                                          layout.rank * part, part, InitMethod::normal(0.3))));
      if (bias) {
        spec.bias.push_back(placed(sliced(name + ".bias", {out / pieces}, 0, layout.rank * part,
                                          part, InitMethod::normal(0.3))));
      }
    }
    return spec;
  }
  ParallelLinearSpec row_spec(const TensorParallelLayout& layout,
                              int64_t in,
                              int64_t out,
                              bool skip_bias) const {
    const int64_t part = in / layout.size;
    return {.input_size = part,
            .output_size = out,
            .weight = {sliced("w.weight", {out, in}, 1, layout.rank * part, part,
                              InitMethod::normal(0.3))},
            .bias = {whole("w.bias", {out}, InitMethod::normal(0.3))},
            .skip_bias_add = skip_bias,
            .precision = precision(),
            .layout = layout};
  }
};

TEST_P(ExactLayers, ColumnHasTheBitsOfOneRank) {
  struct Sizes {
    int64_t in, out, pieces;
  };
  // Leaves of several sizes: of 20 / 8 features; gate and up projections.
  for (const Sizes& s : {Sizes{24, 64, 1}, Sizes{20, 20, 1}, Sizes{24, 40, 2}}) {
    const Tensor x = hidden(s.in, "x");
    const Tensor dy = hidden(s.out, "dy");
    random_context().seed = 1;
    ColumnParallelLinear whole_layer(column_spec({}, s.in, s.out, s.pieces, true));
    const Passed single = pass(whole_layer, x, dy);
    on_each_rank([&](const TensorParallelLayout& tp) {
      ColumnParallelLinear layer(column_spec(tp, s.in, s.out, s.pieces, true));
      const Passed found = pass(layer, own(x, tp), share(dy, tp, 2, s.pieces));
      EXPECT_TRUE(same_bits(found.y, share(single.y, tp, 2, s.pieces)));
      EXPECT_TRUE(same_bits(found.dx, own(single.dx, tp)));
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(same_bits(found.gradients[i], share(single.gradients[i], tp, 0, s.pieces)));
      }
    });
  }
}

TEST_P(ExactLayers, RowHasTheBitsOfOneRank) {
  for (const int64_t in : {64, 20}) {
    for (const bool skip_bias : {false, true}) {
      const Tensor x = hidden(in, "x");
      const Tensor dy = hidden(24, "dy");
      random_context().seed = 1;
      RowParallelLinear whole_layer(row_spec({}, in, 24, skip_bias));
      const Passed single = pass(whole_layer, x, dy);
      on_each_rank([&](const TensorParallelLayout& tp) {
        RowParallelLinear layer(row_spec(tp, in, 24, skip_bias));
        const Passed found = pass(layer, share(x, tp, 2), own(dy, tp));
        EXPECT_TRUE(same_bits(found.y, own(single.y, tp)));
        EXPECT_TRUE(same_bits(found.dx, share(single.dx, tp, 2)));
        EXPECT_TRUE(same_bits(found.gradients[0], share(single.gradients[0], tp, 1)));
        EXPECT_TRUE(same_bits(found.gradients[1], single.gradients[1]));
      });
    }
  }
}

TEST_P(ExactLayers, ReplicatedRowsTakeEveryTokenForALeaf) {
  const auto spec = [&](const TensorParallelLayout& layout) {
    ParallelLinearSpec out = column_spec({}, 24, 20, 1, true);
    out.layout = layout;
    out.replicated = true;
    return out;
  };
  const Tensor x = hidden(24, "x");
  const Tensor dy = hidden(20, "dy");
  random_context().seed = 1;
  ColumnParallelLinear whole_layer(spec({}));
  const Passed single = pass(whole_layer, x, dy);
  on_each_rank([&](const TensorParallelLayout& tp) {
    ColumnParallelLinear layer(spec(tp));
    const Passed found = pass(layer, own(x, tp), own(dy, tp));
    EXPECT_TRUE(same_bits(found.y, own(single.y, tp)));
    EXPECT_TRUE(same_bits(found.dx, own(single.dx, tp)));
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(same_bits(found.gradients[i], single.gradients[i]));
    }
  });
}

TEST_P(ExactLayers, MicroBatchesOfAnySizeGiveTheSameSums) {
  const Tensor x = hidden(64, "x");
  const Tensor dy = hidden(40, "dy");
  random_context().seed = 1;
  ColumnParallelLinear column(column_spec({}, 64, 40, 2, true));
  RowParallelLinear row(row_spec({}, 64, 40, false));
  const auto same = [](const Passed& a, const Passed& b) {
    EXPECT_TRUE(same_bits(a.y, b.y));
    EXPECT_TRUE(same_bits(a.dx, b.dx));
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(same_bits(a.gradients[i], b.gradients[i]));
    }
  };
  same(pass(column, x, dy), pass(column, x, dy, /*split=*/true));
  same(pass(row, x, dy), pass(row, x, dy, /*split=*/true));
}

// Adapters of a layer whose rows are [groups, 3, 4] with queries first, and keys; both have an A.
LowRankSpec adapters(const TensorParallelLayout& layout, int64_t in, bool divides_inputs) {
  constexpr int64_t kGroups = 8;
  constexpr int64_t kDim = 4;
  constexpr int64_t kRank = 3;
  LowRankSpec out;
  const int64_t groups = divides_inputs ? kGroups : kGroups / layout.size;
  const int64_t part = in / layout.size;
  const auto output = [&](const std::string& name, int64_t first, int64_t rows_of_group) {
    LowRankModule::Output made;
    made.rows = {
        .first = first * kDim, .rows = rows_of_group * kDim, .stride = 3 * kDim, .count = groups};
    const int64_t rows = rows_of_group * kDim * kGroups;
    made.b = divides_inputs
                 ? whole(name + ".b", {rows, kRank}, InitMethod::normal(0.3))
                 : sliced(name + ".b", {rows, kRank}, 0, layout.rank * rows / layout.size,
                          rows / layout.size, InitMethod::normal(0.3));
    return made;
  };
  for (int64_t i = 0; i < 2; ++i) {
    LowRankModule module;
    module.name = concat("m", i);
    module.rank = kRank;
    module.scale = 0.7;
    module.a = divides_inputs ? sliced(module.name + ".a", {kRank, in}, 1, layout.rank * part, part,
                                       InitMethod::normal(0.3))
                              : whole(module.name + ".a", {kRank, in}, InitMethod::normal(0.3));
    module.a.logical.view_shape = {2 * kRank, divides_inputs ? part : in};
    module.a.logical.axis = 0;
    module.a.logical.begin = i * kRank;
    module.a.logical.end = (i + 1) * kRank;
    // The first A serves two weights.
    module.outputs.push_back(output(concat("w", i), i == 0 ? 0 : 2, 1));
    if (i == 0) {
      module.outputs.push_back(output("w2", 1, 1));
    }
    out.modules.push_back(std::move(module));
  }
  int64_t element = 0;
  const int64_t total = LowRankAddition::b_shape(out).numel();
  for (LowRankModule& module : out.modules) {
    for (LowRankModule::Output& made : module.outputs) {
      const int64_t own = made.rows.total() * kRank;
      made.b.logical.view_shape = {total};
      made.b.logical.axis = 0;
      made.b.logical.begin = element;
      made.b.logical.end = element += own;
    }
  }
  return out;
}

TEST_P(ExactLayers, AdaptersOfColumnsHaveTheBitsOfOneRank) {
  const Tensor x = hidden(24, "x");
  const Tensor dy = hidden(96, "dy");
  const auto spec = [&](const TensorParallelLayout& layout) {
    ParallelLinearSpec out = column_spec(layout, 24, 96, 1, true);
    out.low_rank = adapters(layout, 24, /*divides_inputs=*/false);
    return out;
  };
  random_context().seed = 1;
  ColumnParallelLinear whole_layer(spec({}));
  const Passed single = pass(whole_layer, x, dy);
  on_each_rank([&](const TensorParallelLayout& tp) {
    ColumnParallelLinear layer(spec(tp));
    const Passed found = pass(layer, own(x, tp), share(dy, tp, 2));
    EXPECT_TRUE(same_bits(found.y, share(single.y, tp, 2)));
    EXPECT_TRUE(same_bits(found.dx, own(single.dx, tp)));
    EXPECT_TRUE(same_bits(found.gradients[2], single.gradients[2]));
    // Three Bs one below the other.
    EXPECT_TRUE(same_bits(found.gradients[3], share(single.gradients[3], tp, 0, 3)));
  });
}

TEST_P(ExactLayers, AdaptersOfRowsHaveTheBitsOfOneRank) {
  const Tensor x = hidden(20, "x");
  const Tensor dy = hidden(96, "dy");
  const auto spec = [&](const TensorParallelLayout& layout) {
    ParallelLinearSpec out = row_spec(layout, 20, 96, false);
    out.low_rank = adapters(layout, 20, /*divides_inputs=*/true);
    return out;
  };
  random_context().seed = 1;
  RowParallelLinear whole_layer(spec({}));
  const Passed single = pass(whole_layer, x, dy);
  on_each_rank([&](const TensorParallelLayout& tp) {
    RowParallelLinear layer(spec(tp));
    const Passed found = pass(layer, share(x, tp, 2), own(dy, tp));
    EXPECT_TRUE(same_bits(found.y, own(single.y, tp)));
    EXPECT_TRUE(same_bits(found.dx, share(single.dx, tp, 2)));
    EXPECT_TRUE(same_bits(found.gradients[1], single.gradients[1]));
    EXPECT_TRUE(same_bits(found.gradients[2], share(single.gradients[2], tp, 1)));
    EXPECT_TRUE(same_bits(found.gradients[3], single.gradients[3]));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         ExactLayers,
                         ::testing::Values(Case{2, false, false, kFloat32},
                                           Case{2, true, true, kFloat32},
                                           Case{4, true, false, kFloat32},
                                           Case{4, false, true, kFloat32},
                                           Case{2, true, false, kBFloat16},
                                           Case{2, false, true, kBFloat16},
                                           Case{4, false, false, kBFloat16},
                                           Case{4, true, true, kBFloat16}),
                         name_of_case);

TEST(ExactRefusals, NameWhatHasNoExactSums) {
  const ExactScope scope;
  const Tensor x = ones({1, 2, 8});
  const ParallelLinearSpec plain{.input_size = 8,
                                 .output_size = 8,
                                 .weight = {whole("w.weight", {8, 8}, InitMethod::normal(1))}};
  ParallelLinearSpec copied = plain;
  copied.weight[0].logical.copies = 2;
  EXPECT_THROW(ColumnParallelLinear(copied).forward(x), ValueError);
  ParallelLinearSpec unfused = plain;
  unfused.precision = {.compute = kBFloat16, .fused = false};
  EXPECT_THROW(ColumnParallelLinear(unfused).forward(x), ValueError);
  ParallelLinearSpec thirds = plain;
  thirds.layout.size = 3;
  EXPECT_THROW(ColumnParallelLinear(thirds).forward(x), ValueError);
  EXPECT_THROW(RowParallelLinear(thirds).forward(x), ValueError);
  ColumnParallelLinear layer(plain);
  const Tensor in = ones({1, 2, 8}).set_requires_grad();
  EXPECT_THROW(
      grad(layer.forward(in).output, {in}, ones({1, 2, 8}), BackwardOptions{.create_graph = true}),
      RuntimeError);
  // Sums over tokens that no op has made of terms.
  attach_main_grad(layer.weight(), kFloat64);
  EXPECT_THROW(matmul(x, layer.weight().t()).backward(ones({1, 2, 8})), RuntimeError);
}

TEST(ExactRuns, LeavesOfARankAreThoseOfTheWhole) {
  const auto all = tree_runs(20);
  for (const int64_t ranks : {2, 4}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto own = tree_runs(20 / ranks, 8 / ranks);
      for (size_t i = 0; i < own.size(); ++i) {
        const auto& of_whole = all[static_cast<size_t>(rank * 8 / ranks) + i];
        EXPECT_EQ(own[i].begin + rank * 20 / ranks, of_whole.begin);
        EXPECT_EQ(own[i].end + rank * 20 / ranks, of_whole.end);
      }
    }
  }
  EXPECT_THROW(tree_runs_of_pieces(21, 2, 8), ValueError);
  EXPECT_THROW(divided_runs(12, {.size = 3}), ValueError);
}

}  // namespace
}  // namespace exact_layers_test
}  // namespace tapestry
