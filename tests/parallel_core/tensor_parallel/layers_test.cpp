// Each parallel layer against the same layer in one process.
#include "parallel_core/tensor_parallel/layers.h"

#include <gtest/gtest.h>

#include "autograd/ops/loss.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "parallel_core/tensor_parallel/column_linear.h"
#include "parallel_core/tensor_parallel/cross_entropy.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace layers_test {
namespace {

using testing::distance;
using testing::run_parallel;
using testing::same_bits;

constexpr int64_t kIn = 12;
constexpr int64_t kOut = 24;

Tensor numbers(const Shape& shape, const char* name, DType dtype = kFloat32) {
  return normal(0, 1, shape, dtype, RandomKey{5, stream_of(name), 0});
}

struct Case {
  int ranks;
  bool sequence_parallel;
  bool sequence_first;
  bool bias;
  DType compute = kFloat32;
  bool fused = true;
};

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return concat("tp", c.ranks, c.sequence_parallel ? "_sp" : "", c.sequence_first ? "_sbh" : "_bsh",
                c.bias ? "_bias_" : "_", name_of(c.compute), c.fused ? "" : "_unfused");
}

class ParallelLayers : public ::testing::TestWithParam<Case> {
 protected:
  TensorParallelLayout layout() const {
    TransformerConfig config;
    config.sequence_parallel = GetParam().sequence_parallel;
    return tensor_parallel_layout(config, GetParam().sequence_first);
  }
  Precision precision() const {
    return {.compute = GetParam().compute,
            .activation = GetParam().fused ? GetParam().compute : kFloat32,
            .fused = GetParam().fused};
  }
  // Hidden states [B, S, n] or [S, B, n].
  Tensor hidden(int64_t width, const char* name) const {
    const Tensor x = numbers({2, 8, width}, name);
    return GetParam().sequence_first ? x.transpose(0, 1).contiguous() : x;
  }
  // What a rank has of hidden states outside the layers.
  static Tensor own(const Tensor& x, const TensorParallelLayout& layout) {
    if (!layout.sequence_axis) {
      return x;
    }
    const int64_t size = x.size(*layout.sequence_axis) / layout.size;
    return x.slice(*layout.sequence_axis, layout.rank * size, (layout.rank + 1) * size);
  }
  static Tensor channels(const Tensor& x, const TensorParallelLayout& layout) {
    const int64_t size = x.size(-1) / layout.size;
    return x.slice(-1, layout.rank * size, (layout.rank + 1) * size).contiguous();
  }
  double bound() const { return GetParam().compute == kFloat32 ? 2e-6 : 2e-2; }
  template <class Body>
  void on_each_rank(const Body& body) const {
    run_parallel(GetParam().ranks, {.tensor_model_parallel_size = GetParam().ranks}, body);
  }
};

// y, and the gradients of x, weight and bias for a given dy, of a layer in one process.
struct Expected {
  Tensor y, dx, dweight, dbias;
};

TEST_P(ParallelLayers, ColumnIsTheRowsOfTheWhole) {
  const Tensor x = hidden(kIn, "x");
  const Tensor dy = hidden(kOut, "dy").to(precision().activation);
  random_context().seed = 1;
  const auto spec = [&](const TensorParallelLayout& layout) {
    const int64_t size = kOut / layout.size;
    ParallelLinearSpec out{.input_size = kIn,
                           .output_size = size,
                           .weight = {sliced("w.weight", {kOut, kIn}, 0, layout.rank * size, size,
                                             InitMethod::normal(0.3))},
                           .precision = precision(),
                           .layout = layout};
    if (GetParam().bias) {
      out.bias = {sliced("w.bias", {kOut}, 0, layout.rank * size, size, InitMethod::normal(0.3))};
    }
    return out;
  };
  const auto run = [&](const TensorParallelLayout& layout, const Tensor& own_x,
                       const Tensor& own_dy) {
    ColumnParallelLinear layer(spec(layout));
    const Tensor in = own_x.clone().set_requires_grad();
    const Tensor y = layer.forward(in).output;
    y.backward(own_dy);
    const auto parameters = layer.named_parameters();
    return Expected{y.detach(), in.grad(), parameters[0].parameter->grad(),
                    GetParam().bias ? parameters[1].parameter->grad() : Tensor()};
  };
  const Expected single = run({}, x, dy);
  on_each_rank([&] {
    random_context().seed = 1;
    const TensorParallelLayout tp = layout();
    const Expected found = run(tp, own(x, tp), channels(dy, tp));
    EXPECT_LE(distance(found.y, channels(single.y, tp)), bound());
    EXPECT_LE(distance(found.dx, own(single.dx, tp).contiguous()), bound());
    const int64_t rows = kOut / tp.size;
    const auto share = [&](const Tensor& t) {
      return t.slice(0, tp.rank * rows, (tp.rank + 1) * rows);
    };
    EXPECT_LE(distance(found.dweight, share(single.dweight)), bound());
    if (GetParam().bias) {
      EXPECT_LE(distance(found.dbias, share(single.dbias)), bound());
    }
  });
}

TEST_P(ParallelLayers, RowIsTheSumOverTheColumns) {
  const Tensor x = hidden(kIn, "x").to(precision().activation);
  const Tensor dy = hidden(kOut, "dy").to(precision().activation);
  random_context().seed = 1;
  const auto run = [&](const TensorParallelLayout& layout, const Tensor& own_x,
                       const Tensor& own_dy) {
    const int64_t size = kIn / layout.size;
    ParallelLinearSpec spec{.input_size = size,
                            .output_size = kOut,
                            .weight = {sliced("w.weight", {kOut, kIn}, 1, layout.rank * size, size,
                                              InitMethod::normal(0.3))},
                            .precision = precision(),
                            .layout = layout};
    if (GetParam().bias) {
      spec.bias = {whole("w.bias", {kOut}, InitMethod::normal(0.3))};
    }
    RowParallelLinear layer(spec);
    const Tensor in = own_x.clone().set_requires_grad();
    const Tensor y = layer.forward(in).output;
    y.backward(own_dy);
    const auto parameters = layer.named_parameters();
    Expected out{y.detach(), in.grad(), parameters[0].parameter->grad(), {}};
    if (GetParam().bias) {
      out.dbias = parameters[1].parameter->grad();
      if (parameters[1].parameter->flags().tp == nn::TensorParallel::kPartial) {
        get_tensor_model_parallel_group().all_reduce(out.dbias);
      }
    }
    return out;
  };
  const Expected single = run({}, x, dy);
  on_each_rank([&] {
    random_context().seed = 1;
    const TensorParallelLayout tp = layout();
    const Expected found = run(tp, channels(x, tp), own(dy, tp).contiguous());
    EXPECT_LE(distance(found.y, own(single.y, tp).contiguous()), bound());
    EXPECT_LE(distance(found.dx, channels(single.dx, tp)), bound());
    EXPECT_LE(distance(found.dweight, channels(single.dweight, tp)), bound());
    if (GetParam().bias) {
      EXPECT_LE(distance(found.dbias, single.dbias), bound());
    }
  });
}

TEST_P(ParallelLayers, EmbeddingIsItsOwnersRows) {
  constexpr int64_t kVocabulary = 13;
  const Tensor rows = randint(0, kVocabulary, {2, 8}, kInt64, RandomKey{5, 1, 0});
  const Tensor ids = GetParam().sequence_first ? rows.transpose(0, 1).contiguous() : rows;
  const Tensor dy = hidden(kIn, "dy");
  random_context().seed = 1;
  const auto run = [&](const TensorParallelLayout& layout, const Tensor& own_dy) {
    VocabParallelEmbedding layer("e.weight", kVocabulary, kIn, InitMethod::normal(1), layout);
    const Tensor y = layer.forward(ids);
    y.backward(own_dy);
    return Expected{y.detach(), {}, layer.weight().grad(), {}};
  };
  const Expected single = run({}, dy);
  on_each_rank([&] {
    random_context().seed = 1;
    const TensorParallelLayout tp = layout();
    const Expected found = run(tp, own(dy, tp).contiguous());
    EXPECT_TRUE(same_bits(found.y, own(single.y, tp)));
    const VocabularyShard shard = vocabulary_shard(kVocabulary, tp.rank, tp.size);
    EXPECT_TRUE(same_bits(found.dweight.slice(0, 0, shard.valid),
                          single.dweight.slice(0, shard.first, shard.first + shard.valid)));
    EXPECT_EQ(testing::largest(found.dweight.slice(0, shard.valid, shard.rows)), 0);
    VocabParallelEmbedding layer("e.weight", kVocabulary, kIn, InitMethod::normal(1), tp);
    EXPECT_THROW(layer.forward(full({2, 8}, kVocabulary, kInt64)), IndexError);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         ParallelLayers,
                         ::testing::Values(Case{1, false, false, true},
                                           Case{2, false, false, true},
                                           Case{2, false, true, false},
                                           Case{2, true, false, true},
                                           Case{2, true, true, false},
                                           Case{4, false, true, true},
                                           Case{4, true, false, false},
                                           Case{4, true, true, true},
                                           Case{2, false, false, true, kBFloat16},
                                           Case{4, true, true, true, kBFloat16},
                                           Case{2, false, true, true, kFloat32, false},
                                           Case{2, true, false, true, kBFloat16, false}),
                         name_of_case);

TEST(ColumnParallelLinear, IsDifferentiableTwice) {
  for (const bool sequence_parallel : {false, true}) {
    const Tensor x = numbers({1, 4, kIn}, "x", kFloat64);
    const Tensor w = numbers({kOut, kIn}, "w", kFloat64);
    const Tensor u = numbers({1, 4, kIn}, "u", kFloat64);
    // d/dw of sum(dx * u), dx being the gradient of sum(sin(y)).
    const auto second = [&](const Tensor& dx, const Tensor& weight, const Tensor& own_u) {
      return grad(sum(dx * own_u), {weight})[0];
    };
    const Tensor x1 = x.clone().set_requires_grad();
    const Tensor w1 = w.clone().set_requires_grad();
    const Tensor dx1 =
        grad(sum(sin(linear(x1, w1))), {x1}, {}, BackwardOptions{.create_graph = true})[0];
    const Tensor expected = second(dx1, w1, u);
    run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
      TransformerConfig config;
      config.sequence_parallel = sequence_parallel;
      const TensorParallelLayout tp = tensor_parallel_layout(config, false);
      const auto piece = [&](const Tensor& t) {
        return sequence_parallel ? t.slice(1, tp.rank * 2, tp.rank * 2 + 2).clone() : t.clone();
      };
      const Tensor own_x = piece(x).set_requires_grad();
      const int64_t rows = kOut / 2;
      const Tensor own_w = w.slice(0, tp.rank * rows, (tp.rank + 1) * rows).clone();
      own_w.set_requires_grad();
      const Tensor y = column_parallel_linear(own_x, own_w, {}, {}, tp);
      const Tensor dx = grad(sum(sin(y)), {own_x}, {}, BackwardOptions{.create_graph = true})[0];
      EXPECT_LE(distance(second(dx, own_w, piece(u)),
                         expected.slice(0, tp.rank * rows, (tp.rank + 1) * rows)),
                1e-12);
    });
  }
}

struct LossCase {
  int ranks;
  int64_t vocabulary;
  DType dtype;
  double smoothing;
};

class SplitLoss : public ::testing::TestWithParam<LossCase> {};

TEST_P(SplitLoss, IsThatOfTheWholeVocabulary) {
  const LossCase& c = GetParam();
  const Tensor logits = normal(0, 3, {3, 4, c.vocabulary}, c.dtype, RandomKey{5, 2, 0});
  Tensor labels = randint(0, c.vocabulary, {3, 4}, kInt64, RandomKey{5, 3, 0});
  labels.data<int64_t>()[5] = -100;
  const Tensor dloss =
      normal(0, 1, {3, 4}, c.dtype == kFloat64 ? kFloat64 : kFloat32, RandomKey{5, 4, 0});
  const Tensor x = logits.clone().set_requires_grad();
  const Tensor loss =
      cross_entropy(x, labels, {.reduction = Reduction::kNone, .label_smoothing = c.smoothing});
  const Tensor expected = loss.detach();
  loss.backward(dloss);
  const double bound = c.dtype == kFloat64 ? 1e-13 : (c.dtype == kFloat32 ? 1e-6 : 1e-2);
  run_parallel(c.ranks, {.tensor_model_parallel_size = c.ranks}, [&] {
    const TensorParallelLayout tp = tensor_parallel_layout({}, false);
    const VocabularyShard shard = vocabulary_shard(c.vocabulary, tp.rank, tp.size);
    const VocabParallelCrossEntropy layer(c.vocabulary, tp);
    // Padding holds what a matrix product with rows of zeros leaves there, or anything.
    const auto padded = [&](double padding) {
      Tensor own = full({3, 4, shard.rows}, padding, c.dtype);
      copy_values(logits.slice(-1, shard.first, shard.first + shard.valid),
                  own.slice(-1, 0, shard.valid));
      return own.set_requires_grad();
    };
    for (const double padding : {0.0, 50.0}) {
      const Tensor own = padded(padding);
      const Tensor found = layer.forward(own, labels, c.smoothing);
      EXPECT_LE(distance(found, expected), bound);
      const Tensor gradient = grad(found, {own}, dloss)[0];
      const Tensor single = x.grad().slice(-1, shard.first, shard.first + shard.valid);
      EXPECT_LE(distance(gradient.slice(-1, 0, shard.valid), single, testing::largest(x.grad())),
                bound);
      EXPECT_EQ(testing::largest(gradient.slice(-1, shard.valid, shard.rows)), 0);
      // The path of recorded ops.
      const Tensor recorded = grad(layer.forward(own, labels, c.smoothing), {own}, dloss,
                                   BackwardOptions{.create_graph = true})[0];
      EXPECT_LE(distance(recorded.slice(-1, 0, shard.valid), single, testing::largest(x.grad())),
                bound);
    }
    EXPECT_THROW(layer.forward(padded(0), full({3, 4}, c.vocabulary, kInt64)), IndexError);
    EXPECT_THROW(layer.forward(ones({3, 4, shard.rows + 1}), labels), ValueError);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         SplitLoss,
                         ::testing::Values(LossCase{2, 12, kFloat32, 0},
                                           LossCase{2, 13, kFloat32, 0.1},
                                           LossCase{4, 13, kFloat64, 0},
                                           LossCase{4, 14, kFloat64, 0.2},
                                           LossCase{4, 5, kFloat32, 0.1},  // a rank without rows
                                           LossCase{4, 1031, kFloat32, 0},
                                           LossCase{4, 30, kBFloat16, 0},
                                           LossCase{2, 30, kFloat16, 0.1}),
                         [](const auto& info) {
                           const LossCase& c = info.param;
                           return concat("tp", c.ranks, "_v", c.vocabulary, "_", name_of(c.dtype),
                                         c.smoothing > 0 ? "_smooth" : "");
                         });

TEST(SplitLoss, TheGradientTakesThePlaceOfLogitsThatNobodyHolds) {
  run_parallel(2, {.tensor_model_parallel_size = 2}, [] {
    const TensorParallelLayout tp = tensor_parallel_layout({}, false);
    const VocabParallelCrossEntropy layer(8, tp);
    const Tensor base = normal(0, 1, {5, 4}, kFloat32, RandomKey{5, 2, 0}).set_requires_grad();
    Tensor logits = base * 2;
    const void* place = logits.raw();
    const void* seen = nullptr;
    logits.register_hook([&](const Tensor& gradient) {
      seen = gradient.raw();
      return Tensor();
    });
    const Tensor loss = sum(layer.forward(logits, zeros({5}, kInt64)));
    logits = {};
    loss.backward();
    EXPECT_EQ(seen, place);
  });
}

}  // namespace
}  // namespace layers_test
}  // namespace tapestry
