// Every op of the registry through the same checks; see op_samples.h.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <unordered_set>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tape/recompute.h"
#include "autograd/tape/registry.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {
namespace {

// ---------------------------------------------------------------------------------- presentations

enum class Layout { kContiguous, kTransposed, kStepped, kExpanded };

std::string_view name_of(Layout layout) {
  constexpr std::string_view kNames[] = {"contiguous", "transposed", "every second", "expanded"};
  return kNames[static_cast<int>(layout)];
}

// The same values on storage of another layout; kExpanded instead repeats the first entry of the
// first axis, with stride 0.
Tensor present(const Tensor& x, Layout layout) {
  const NoGradGuard guard;
  if (x.dim() == 0 || layout == Layout::kContiguous) {
    return clone(x);
  }
  if (layout == Layout::kExpanded) {
    return x.shape()[0] == 0 ? clone(x) : clone(slice(x, 0, 0, 1)).expand(x.shape());
  }
  if (layout == Layout::kTransposed) {
    Shape reversed;
    for (int64_t i = x.dim() - 1; i >= 0; --i) {
      reversed.push_back(i);
    }
    return clone(x.permute(reversed)).permute(reversed);
  }
  // Entries in between are filled with values that would be noticed.
  Shape shape = x.shape();
  shape.push_back(2);
  const Tensor other = is_floating(x.dtype()) ? full(x.shape(), NAN, x.dtype()) : zeros_like(x);
  return stack({x, other}, -1).select(-1, 0);
}

Tensor convert(const Tensor& x, DType dtype) {
  const NoGradGuard guard;
  return x.defined() && is_floating(x.dtype()) ? x.to(dtype) : x;
}

// Fresh inputs for one run, marked as wanting gradients where the sample has them.
TensorList prepare(const OpSample& sample, DType dtype, Layout layout, bool gradients) {
  TensorList out;
  for (const Tensor& x : sample.inputs) {
    out.push_back(x.defined() ? present(convert(x, dtype), layout) : x);
  }
  if (gradients) {
    for (const size_t i : sample.wanted) {
      out[i].set_requires_grad();
    }
  }
  return out;
}

// ------------------------------------------------------------------------------------------- runs

struct Outcome {
  TensorList outputs;
  TensorList gradients;  // of the wanted inputs; undefined where nothing arrived
};

Tensor upstream(const Tensor& output, size_t k) {
  std::vector<double> values(static_cast<size_t>(output.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    // Multiples of 1/8: the same number in every dtype.
    values[i] = static_cast<double>(combine(k, i) % 16) / 8 - 0.9375;
  }
  return convert(tensor(values, output.shape()), output.dtype());
}

Outcome run(const OpSample& sample, const TensorList& inputs) {
  Outcome result;
  result.outputs = sample.function(inputs);
  TensorList roots;
  TensorList weights;
  for (size_t k = 0; k < result.outputs.size(); ++k) {
    const Tensor& output = result.outputs[k];
    if (output.defined() && output.requires_grad()) {
      roots.push_back(output);
      weights.push_back(upstream(output, k));
    }
  }
  TensorList wanted;
  for (const size_t i : sample.wanted) {
    wanted.push_back(inputs[i]);
  }
  if (!roots.empty() && !wanted.empty()) {
    result.gradients = grad(roots, wanted, weights, {}, true);
  }
  for (Tensor& output : result.outputs) {
    output = output.defined() ? output.detach() : output;
  }
  return result;
}

Outcome run(const OpSample& sample, DType dtype, Layout layout) {
  return run(sample, prepare(sample, dtype, layout, true));
}

// ------------------------------------------------------------------------------------- comparisons

// |a - b| <= bound * (largest finite magnitude of b), non-finite entries by kind. `least` is what
// the smallest numbers of a dtype lie apart, however small the bound.
::testing::AssertionResult close(const Tensor& a, const Tensor& b, double bound, double least = 0) {
  if (a.defined() != b.defined()) {
    return ::testing::AssertionFailure() << describe(a) << " against " << describe(b);
  }
  if (!a.defined()) {
    return ::testing::AssertionSuccess();
  }
  if (a.shape() != b.shape()) {
    return ::testing::AssertionFailure() << "shape " << a.shape() << " against " << b.shape();
  }
  const std::vector<double> left = a.to_vector<double>();
  const std::vector<double> right = b.to_vector<double>();
  double scale = 0;
  for (const double value : right) {
    scale = std::isfinite(value) ? std::max(scale, std::abs(value)) : scale;
  }
  const double most = std::max(bound * scale, least);
  for (size_t i = 0; i < left.size(); ++i) {
    const bool both_nan = std::isnan(left[i]) && std::isnan(right[i]);
    if (!both_nan && left[i] != right[i] && !(std::abs(left[i] - right[i]) <= most)) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << a.shape() << ": " << left[i] << " against " << right[i]
             << ", " << std::abs(left[i] - right[i]) / scale << " of the scale " << scale
             << ", not " << bound;
    }
  }
  return ::testing::AssertionSuccess();
}

void expect_close(const Outcome& a, const Outcome& b, double bound) {
  ASSERT_EQ(a.outputs.size(), b.outputs.size());
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t k = 0; k < a.outputs.size(); ++k) {
    EXPECT_TRUE(close(a.outputs[k], b.outputs[k], bound)) << "output " << k;
  }
  for (size_t k = 0; k < a.gradients.size(); ++k) {
    EXPECT_TRUE(close(a.gradients[k], b.gradients[k], bound)) << "gradient " << k;
  }
}

::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) {
    return ::testing::AssertionFailure() << describe(a) << " against " << describe(b);
  }
  if (!a.defined()) {
    return ::testing::AssertionSuccess();
  }
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return ::testing::AssertionFailure() << describe(a) << " against " << describe(b);
  }
  const Tensor left = a.detach().contiguous();
  const Tensor right = b.detach().contiguous();
  const auto bytes = static_cast<size_t>(left.numel() * size_of(left.dtype()));
  if (bytes > 0 && std::memcmp(left.raw(), right.raw(), bytes) != 0) {
    return ::testing::AssertionFailure() << "bits differ";
  }
  return ::testing::AssertionSuccess();
}

std::string trace(size_t index, const OpSample& sample) {
  std::string out = concat("sample ", index, ":");
  for (const Tensor& input : sample.inputs) {
    out += concat(" ", describe(input));
  }
  return out;
}

// Names of all ops in the graph of the given tensors.
std::set<std::string> ops_in_graph(const TensorList& outputs) {
  std::set<std::string> names;
  std::vector<Node*> queue;
  std::unordered_set<Node*> seen;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) {
      names.emplace(node->name());
      queue.push_back(node);
    }
  };
  for (const Tensor& output : outputs) {
    if (output.defined()) {
      visit(grad_fn(output));
    }
  }
  while (!queue.empty()) {
    Node* node = queue.back();
    queue.pop_back();
    for (const Edge& edge : node->edges()) {
      visit(edge.node.get());
    }
  }
  return names;
}

// Puts the number of threads back.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int count) : previous_(num_threads()) { set_num_threads(count); }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;
  ~ThreadsGuard() { set_num_threads(previous_); }

 private:
  int previous_;
};

// Puts the CPU level back.
class LevelGuard {
 public:
  explicit LevelGuard(CpuLevel level) : previous_(cpu_level()) { set_cpu_level(level); }
  LevelGuard(const LevelGuard&) = delete;
  LevelGuard& operator=(const LevelGuard&) = delete;
  ~LevelGuard() { set_cpu_level(previous_); }

 private:
  CpuLevel previous_;
};

// -------------------------------------------------------------------------------------- the suite

class OpSuite : public ::testing::TestWithParam<OpSampleSet*> {
 protected:
  /// Samples are small: a team costs more than it gains, above all on a busy machine. The test of
  /// threads chooses its own numbers.
  const ThreadsGuard one_thread_{1};

  const std::vector<OpSample>& samples() const { return GetParam()->samples(); }
  bool is_differentiable() const {
    for (const OpInfo& info : registered_ops()) {
      if (info.name == GetParam()->op()) {
        return info.differentiable;
      }
    }
    return false;
  }
};

bool gives_gradients(const OpSample& sample) {
  if (sample.wanted.empty()) {
    return false;
  }
  for (const Tensor& output :
       sample.function(prepare(sample, kFloat64, Layout::kContiguous, true))) {
    if (output.defined() && output.requires_grad()) {
      return true;
    }
  }
  return false;
}

TEST_P(OpSuite, SamplesRunTheOp) {
  if (!is_differentiable()) {
    // Nothing of such an op stays in the graph; it must at least be called.
    EXPECT_FALSE(samples().empty());
    return;
  }
  bool found = false;
  for (const OpSample& sample : samples()) {
    const TensorList inputs = prepare(sample, kFloat64, Layout::kContiguous, true);
    found = found || ops_in_graph(sample.function(inputs)).contains(GetParam()->op());
  }
  EXPECT_TRUE(found) << "no sample has an op '" << GetParam()->op() << "' in its graph";
}

TEST_P(OpSuite, GradientMatchesDifferences) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    if (sample.is_large || !gives_gradients(sample)) {
      continue;
    }
    for (const Layout layout : {Layout::kContiguous, Layout::kTransposed}) {
      if (layout != Layout::kContiguous && !sample.compares_layouts) {
        continue;
      }
      const GradcheckResult result =
          gradcheck(sample.function, prepare(sample, kFloat64, layout, true));
      EXPECT_TRUE(result) << trace(i, sample) << ", " << name_of(layout) << ": " << result.message;
    }
  }
}

TEST_P(OpSuite, SecondOrderMatchesDifferences) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    if (sample.is_large || !gives_gradients(sample)) {
      continue;
    }
    const TensorList inputs = prepare(sample, kFloat64, Layout::kContiguous, true);
    if (!sample.has_second_order) {
      EXPECT_THROW(gradgradcheck(sample.function, inputs), Error) << trace(i, sample);
      continue;
    }
    const GradcheckResult result = gradgradcheck(sample.function, inputs);
    EXPECT_TRUE(result) << trace(i, sample) << ": " << result.message;
  }
}

TEST_P(OpSuite, LayoutDoesNotMatter) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    if (!sample.compares_layouts) {
      continue;
    }
    const Outcome plain = run(sample, kFloat64, Layout::kContiguous);
    for (const Layout layout : {Layout::kTransposed, Layout::kStepped}) {
      SCOPED_TRACE(concat(trace(i, sample), ", ", name_of(layout)));
      expect_close(run(sample, kFloat64, layout), plain, 1e-12);
    }
  }
}

TEST_P(OpSuite, ExpandedInputsAreLikeCopies) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    if (!sample.compares_layouts || sample.is_large) {
      continue;
    }
    SCOPED_TRACE(trace(i, sample));
    const TensorList expanded = prepare(sample, kFloat64, Layout::kExpanded, true);
    OpSample copied = sample;
    copied.inputs.clear();
    for (const Tensor& x : expanded) {
      copied.inputs.push_back(x.defined() ? x.detach() : x);
    }
    expect_close(run(sample, expanded), run(copied, kFloat64, Layout::kContiguous), 1e-12);
  }
}

// A tensor that is left out is one that the op can do without, or an error that says which it is.
TEST_P(OpSuite, UndefinedInputsAreNamed) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    SCOPED_TRACE(trace(i, sample));
    for (size_t k = 0; k < sample.inputs.size(); ++k) {
      TensorList inputs = prepare(sample, kFloat64, Layout::kContiguous, false);
      inputs[k] = {};
      try {
        sample.function(inputs);
      } catch (const RuntimeError& error) {
        // The tensor itself where the sample's function begins with one of its methods.
        EXPECT_THAT(error.what(),
                    ::testing::MatchesRegex(
                        "[a-z0-9_]+: the (argument [a-z0-9_.]+.*|tensor) is undefined.*"))
            << "input " << k;
      } catch (const Error& error) {
        // Of grad(): a gradient that is left out is that of one element.
        EXPECT_THAT(error.what(), ::testing::HasSubstr("a gradient of that shape"))
            << "input " << k;
      }
    }
  }
}

// Inputs and results are let go before backward, and made again. What is to be made again cannot be
// changed in place, which the op says.
TEST_P(OpSuite, ResultsThatAreMadeAgainHaveTheSameBits) {
  const bool in_place = GetParam()->op() == "copy_" || GetParam()->op() == "slice_assign";
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    SCOPED_TRACE(trace(i, sample));
    for (const DType dtype : {kFloat64, kFloat32}) {
      const auto outcome = [&](bool drops) {
        OpSample copied = sample;
        copied.function = [&](const TensorList& inputs) {
          RecomputedValues values;
          TensorList outputs;
          {
            const RecomputeScope scope(drops ? &values : nullptr);
            TensorList copies = inputs;
            for (const size_t wanted : sample.wanted) {
              copies[wanted] = clone(inputs[wanted]);
            }
            outputs = sample.function(copies);
          }
          values.drop();
          return outputs;
        };
        manual_seed(3);
        return run(copied, dtype, Layout::kContiguous);
      };
      const Outcome plain = outcome(false);
      if (in_place) {
        if (sample.inputs[0].numel() > 0) {
          EXPECT_THROW(outcome(true), RuntimeError);
        }
        continue;
      }
      const Outcome again = outcome(true);
      ASSERT_EQ(again.outputs.size(), plain.outputs.size());
      ASSERT_EQ(again.gradients.size(), plain.gradients.size());
      for (size_t k = 0; k < plain.outputs.size(); ++k) {
        EXPECT_TRUE(same_bits(again.outputs[k], plain.outputs[k])) << "output " << k;
      }
      for (size_t k = 0; k < plain.gradients.size(); ++k) {
        EXPECT_TRUE(same_bits(again.gradients[k], plain.gradients[k])) << "gradient " << k;
      }
    }
  }
}

// The same numbers in a narrower dtype.
OpSample rounded_to(DType dtype, const OpSample& sample) {
  OpSample rounded = sample;
  for (Tensor& x : rounded.inputs) {
    x = convert(convert(x, dtype), kFloat64);
  }
  return rounded;
}

// Sums of up to some hundred numbers: 168 roundings of the largest element.
constexpr double kFloat32Bound = 1e-5;

TEST_P(OpSuite, Float32IsCloseToFloat64) {
  for (size_t i = 0; i < samples().size(); ++i) {
    SCOPED_TRACE(trace(i, samples()[i]));
    const OpSample rounded = rounded_to(kFloat32, samples()[i]);
    expect_close(run(rounded, kFloat32, Layout::kContiguous),
                 run(rounded, kFloat64, Layout::kContiguous), kFloat32Bound);
  }
}

// Half a unit in the last place, over the number.
double rounding_of(DType dtype) { return dtype == kBFloat16 ? 0x1p-8 : 0x1p-11; }
// The same of the smallest numbers.
double least_rounding_of(DType dtype) { return dtype == kBFloat16 ? 0x1p-134 : 0x1p-25; }

// Each result is that of exact arithmetic but for as many roundings as the sample says. Sums inside
// the op are in float32 and add little to them.
void compare_half(const OpSample& sample, DType dtype) {
  const OpSample rounded = rounded_to(dtype, sample);
  if (std::find(sample.refused.begin(), sample.refused.end(), dtype) != sample.refused.end()) {
    EXPECT_THROW(run(rounded, dtype, Layout::kContiguous), TypeError);
    return;
  }
  const Outcome half = run(rounded, dtype, Layout::kContiguous);
  const Outcome exact = run(rounded, kFloat64, Layout::kContiguous);
  ASSERT_EQ(half.outputs.size(), exact.outputs.size());
  ASSERT_EQ(half.gradients.size(), exact.gradients.size());
  const auto expect = [&](const Tensor& a, const Tensor& b, int roundings, const char* what,
                          size_t k) {
    EXPECT_TRUE(close(a, b, roundings * rounding_of(dtype) + kFloat32Bound,
                      roundings * least_rounding_of(dtype)))
        << what << " " << k << ", " << roundings << " roundings of " << rounding_of(dtype);
  };
  for (size_t k = 0; k < half.outputs.size(); ++k) {
    const Tensor& output = half.outputs[k];
    // A loss in float32, an index, a mask: not rounded to 16 bits but where the sample says so.
    const bool is_wide = output.defined() && output.dtype() != dtype;
    expect(output, exact.outputs[k], sample.output_roundings - (is_wide ? 1 : 0), "output", k);
  }
  for (size_t k = 0; k < half.gradients.size(); ++k) {
    expect(half.gradients[k], exact.gradients[k], sample.gradient_roundings, "gradient", k);
  }
}

TEST_P(OpSuite, SixteenBitsRoundAsOftenAsTheSampleSays) {
  for (size_t i = 0; i < samples().size(); ++i) {
    for (const DType dtype : {kBFloat16, kFloat16}) {
      SCOPED_TRACE(concat(trace(i, samples()[i]), ", ", name_of(dtype)));
      compare_half(samples()[i], dtype);
    }
  }
}

TEST_P(OpSuite, OneThreadAndTwoGiveTheSameBits) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    SCOPED_TRACE(trace(i, sample));
    for (const DType dtype : {kFloat64, kFloat32}) {
      const auto with_threads = [&](int count) {
        const ThreadsGuard guard(count);
        return run(sample, dtype, Layout::kContiguous);
      };
      const Outcome one = with_threads(1);
      const Outcome two = with_threads(2);
      ASSERT_EQ(one.gradients.size(), two.gradients.size());
      if (!sample.compares_threads) {
        expect_close(one, two, dtype == kFloat64 ? 1e-12 : kFloat32Bound);
        continue;
      }
      for (size_t k = 0; k < one.outputs.size(); ++k) {
        EXPECT_TRUE(same_bits(one.outputs[k], two.outputs[k])) << "output " << k;
      }
      for (size_t k = 0; k < one.gradients.size(); ++k) {
        EXPECT_TRUE(same_bits(one.gradients[k], two.gradients[k])) << "gradient " << k;
      }
    }
  }
}

// Ops whose bits depend on the level of vectors in exact mode, too.
bool depends_on_level(const std::string& op) {
  static const std::set<std::string> kOps = {
      // Mixers and streams that exact mode refuses: states and products of their own.
      "gated_delta_rule", "gated_delta_step",      "state_space",
      "state_space_step", "hyper_connection_read", "hyper_connection_write"};
  return kOps.contains(op);
}

// Of all vectors that fuse multiply-adds. bfloat16 in pairs rounds otherwise by design.
TEST_P(OpSuite, ExactModeHasTheSameBitsAtEveryLevel) {
  if (cpu_level() < CpuLevel::kAvx512 || !is_compiled(CpuLevel::kAvx2)) {
    GTEST_SKIP() << "there is only one such level here";
  }
  if (depends_on_level(GetParam()->op())) {
    return;
  }
  const auto at_level = [&](CpuLevel level, const OpSample& sample, DType dtype) {
    const LevelGuard guard(level);
    const ExactScope scope;
    manual_seed(3);
    return run(sample, dtype, Layout::kContiguous);
  };
  for (size_t i = 0; i < samples().size(); ++i) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      const OpSample& sample = samples()[i];
      SCOPED_TRACE(concat(trace(i, sample), ", ", name_of(dtype)));
      if (std::find(sample.refused.begin(), sample.refused.end(), dtype) != sample.refused.end()) {
        continue;
      }
      const Outcome narrow = at_level(CpuLevel::kAvx2, sample, dtype);
      const Outcome wide = at_level(CpuLevel::kAvx512, sample, dtype);
      ASSERT_EQ(narrow.gradients.size(), wide.gradients.size());
      for (size_t k = 0; k < narrow.outputs.size(); ++k) {
        EXPECT_TRUE(same_bits(narrow.outputs[k], wide.outputs[k])) << "output " << k;
      }
      for (size_t k = 0; k < narrow.gradients.size(); ++k) {
        EXPECT_TRUE(same_bits(narrow.gradients[k], wide.gradients[k])) << "gradient " << k;
      }
    }
  }
}

TEST_P(OpSuite, MemoryIsReturned) {
  for (size_t i = 0; i < samples().size(); ++i) {
    const OpSample& sample = samples()[i];
    RankContext context;
    const RankContextGuard guard(context);
    {
      const Outcome result = run(sample, kFloat64, Layout::kContiguous);
      EXPECT_FALSE(result.outputs.empty()) << trace(i, sample);
      // A graph that is dropped without a backward, and one whose gradients keep a graph.
      const TensorList inputs = prepare(sample, kFloat64, Layout::kContiguous, true);
      const TensorList dropped = sample.function(inputs);
      if (sample.has_second_order && gives_gradients(sample) && !sample.is_large) {
        EXPECT_TRUE(gradgradcheck(sample.function, inputs)) << trace(i, sample);
      }
    }
    EXPECT_EQ(memory_stats().current_bytes, 0) << trace(i, sample);
  }
}

TEST_P(OpSuite, ErrorsAreClear) {
  const std::vector<OpErrorSample>& errors = GetParam()->errors();
  for (size_t i = 0; i < errors.size(); ++i) {
    try {
      errors[i].function(errors[i].inputs);
      ADD_FAILURE() << "error " << i << " ('" << errors[i].fragment << "'): nothing was thrown";
    } catch (const std::exception& e) {
      EXPECT_TRUE(errors[i].has_type(e)) << "error " << i << ": another type: " << e.what();
      EXPECT_THAT(e.what(), ::testing::HasSubstr(errors[i].fragment)) << "error " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpSuite, ::testing::ValuesIn(op_sample_sets()), [](const auto& info) {
  return info.param->op();
});

OpSample between_one_and_two(SampleFunction function) {
  std::vector<double> values;
  for (int i = 0; i < 4096; ++i) {
    values.push_back(1 + i / 4096.0);
  }
  return {std::move(function), {tensor(values, {4096})}};
}

TEST(OpSamples, ARoundingTooManyIsFound) {
  OpSample twice =
      between_one_and_two([](const TensorList& in) -> TensorList { return {(in[0] * 1.1) * 0.7}; });
  for (const DType dtype : {kBFloat16, kFloat16}) {
    twice.rounds(1, 2);
    EXPECT_NONFATAL_FAILURE(compare_half(twice, dtype), "output 0, 1 roundings");
    twice.rounds(2, 2);
    compare_half(twice, dtype);
  }
  twice.rounds(2, 1);
  EXPECT_NONFATAL_FAILURE(compare_half(twice, kBFloat16), "gradient 0, 1 roundings");
  // Through float32 there is one.
  OpSample once = between_one_and_two([](const TensorList& in) -> TensorList {
    return {((in[0].to(kFloat32) * 1.1) * 0.7).to(in[0].dtype())};
  });
  compare_half(once.rounds(1, 1), kBFloat16);
}

TEST(OpSamples, RefusalsAreDeclared) {
  OpSample picky = between_one_and_two([](const TensorList& in) -> TensorList {
    check<TypeError>(in[0].dtype() != kBFloat16, "picky: not for bfloat16");
    return {clone(in[0])};
  });
  EXPECT_THROW(compare_half(picky, kBFloat16), TypeError);
  picky.refuses(kBFloat16);
  compare_half(picky, kBFloat16);
  compare_half(picky, kFloat16);
  picky.refuses(kFloat16);
  EXPECT_NONFATAL_FAILURE(compare_half(picky, kFloat16), "throws nothing");
}

TEST(OpSamples, EveryOpHasSamples) {
  std::set<std::string> sampled;
  for (const OpSampleSet* set : op_sample_sets()) {
    EXPECT_TRUE(sampled.insert(set->op()).second) << "two sets of samples for " << set->op();
    EXPECT_FALSE(set->samples().empty()) << set->op();
  }
  std::vector<std::string> missing;
  for (const OpInfo& info : registered_ops()) {
    if (sampled.erase(std::string(info.name)) == 0) {
      missing.emplace_back(info.name);
    }
  }
  EXPECT_THAT(missing, ::testing::IsEmpty()) << "ops without samples";
  EXPECT_THAT(sampled, ::testing::IsEmpty()) << "samples without an op";
}

}  // namespace
}  // namespace tapestry
