// Samples of ops: written once per op, run through every check of op_suite_test.cpp.
//
//   OP_SAMPLES(rms_norm) {  // the name under which the op is registered
//     const auto fn = [](const TensorList& in) { return rms_norm(in[0], in[1], 1e-5); };
//     for (const Shape& s : {Shape{8}, Shape{2, 3, 8}, Shape{0, 8}}) add(fn, {randn(s),
//     randn({8})}); add_large(fn, {randn({64, 1024}), randn({1024})}); add_error<ValueError>(fn,
//     {randn({2, 8}), randn({7})}, "weight");
//   }
//
// The body is a member function: `add`, `add_error` and the makers of inputs (`randn`, ...) are
// members and hide ops of the same name, which are then written tapestry::add(...).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Large enough for a team and for several blocks of any kernel.
inline const Shape kLarge = {40, 1000};

using SampleFunction = std::function<TensorList(const TensorList&)>;

/// One call of an op. Floating inputs are float64; the suite converts, lays out and marks them.
class OpSample {
 public:
  OpSample(SampleFunction function, TensorList inputs);

  /// Inputs that have a gradient; all floating ones unless said otherwise. {} for none.
  OpSample& differentiable(std::vector<size_t> inputs);
  /// false: asking for the gradient of a gradient throws (and the suite sees that it does).
  OpSample& second_order(bool value);
  /// Roundings to the dtype of 16-bit inputs, one after the other, that may lie between exact
  /// numbers and a result, each of half a unit in the last place of the tensor's largest element.
  /// Taken for granted: a result is rounded once, a gradient also has a value in it that was saved
  /// or is between two ops. Say why where there are more.
  OpSample& rounds(int outputs, int gradients);
  /// Inputs of that 16-bit dtype are a TypeError.
  OpSample& refuses(DType dtype);
  /// Leaves out non-contiguous inputs, for functions that are about the layout itself.
  OpSample& no_layouts();
  /// Results of one and two threads may differ by rounding.
  OpSample& threads_may_round();

  SampleFunction function;
  TensorList inputs;
  std::vector<size_t> wanted;  ///< inputs that have a gradient
  bool is_large = false;       ///< for threads and float32 only
  bool has_second_order = true;
  bool compares_layouts = true;
  bool compares_threads = true;
  int output_roundings = 1;
  int gradient_roundings = 2;
  std::vector<DType> refused;
};

/// One call that must throw.
struct OpErrorSample {
  SampleFunction function;
  TensorList inputs;
  std::string fragment;  ///< of the message
  std::function<bool(const std::exception&)> has_type;
};

/// The samples of one op, and the makers of their inputs. Every call of a maker gives other values,
/// the same in each run.
class OpSampleSet {
 public:
  explicit OpSampleSet(std::string_view op);
  virtual ~OpSampleSet() = default;
  virtual void define() = 0;

  const std::string& op() const { return op_; }
  const std::vector<OpSample>& samples() const { return samples_; }
  const std::vector<OpErrorSample>& errors() const { return errors_; }

 protected:
  /// function takes `const TensorList&`, or one to four `const Tensor&`; it returns a Tensor, a
  /// TensorList or a std::array of tensors. The sample it returns is valid until the next add.
  template <class F>
  OpSample& add(F function, TensorList inputs) {
    return add_sample(wrap(std::move(function)), std::move(inputs));
  }
  /// Big enough for a team of threads (more than 2^15 elements); not checked by differences.
  template <class F>
  OpSample& add_large(F function, TensorList inputs) {
    OpSample& sample = add_sample(wrap(std::move(function)), std::move(inputs));
    sample.is_large = true;
    return sample;
  }
  /// OpSample::rounds of the samples that are added after it.
  void rounds(int outputs, int gradients) {
    output_roundings_ = outputs;
    gradient_roundings_ = gradients;
  }
  /// The call throws an E whose message contains `fragment`.
  template <class E, class F>
  void add_error(F function, TensorList inputs, std::string fragment) {
    errors_.push_back(
        {wrap(std::move(function)), std::move(inputs), std::move(fragment),
         [](const std::exception& e) { return dynamic_cast<const E*>(&e) != nullptr; }});
  }

  /// float64: roughly normal (sum of uniform numbers, variance 1).
  Tensor randn(const Shape& shape);
  /// float64 in [low, high).
  Tensor uniform(const Shape& shape, double low, double high);
  /// float64 in [0.4, 2.4).
  Tensor positive(const Shape& shape);
  /// float64, magnitude in [0.4, 2.4), both signs.
  Tensor nonzero(const Shape& shape);
  /// float64, no two alike, at least 0.25 apart, exact in bfloat16 up to 256 elements.
  Tensor distinct(const Shape& shape);
  /// int64 in [0, high).
  Tensor integers(const Shape& shape, int64_t high);
  /// float64: 0, 1 or 2.
  Tensor integers_as_floats(const Shape& shape);
  Tensor bools(const Shape& shape);

 private:
  OpSample& add_sample(SampleFunction function, TensorList inputs);
  uint64_t next_stream();

  template <class Result>
  static TensorList as_list(Result&& result) {
    if constexpr (std::is_same_v<std::decay_t<Result>, Tensor>) {
      return {result};
    } else {
      return TensorList(result.begin(), result.end());
    }
  }

  template <class F>
  static SampleFunction wrap(F f) {
    using T = const Tensor&;
    return [f = std::move(f)](const TensorList& in) -> TensorList {
      if constexpr (std::is_invocable_v<const F&, const TensorList&>) {
        return as_list(f(in));
      } else if constexpr (std::is_invocable_v<const F&, T>) {
        return as_list(f(in.at(0)));
      } else if constexpr (std::is_invocable_v<const F&, T, T>) {
        return as_list(f(in.at(0), in.at(1)));
      } else if constexpr (std::is_invocable_v<const F&, T, T, T>) {
        return as_list(f(in.at(0), in.at(1), in.at(2)));
      } else {
        return as_list(f(in.at(0), in.at(1), in.at(2), in.at(3)));
      }
    };
  }

  std::string op_;
  std::vector<OpSample> samples_;
  std::vector<OpErrorSample> errors_;
  uint64_t draws_ = 0;
  int output_roundings_ = 1;
  int gradient_roundings_ = 2;
};

/// Adds a set; its define() runs when the samples are first asked for.
bool register_op_samples(std::unique_ptr<OpSampleSet> set);

/// All sets, sorted by op.
const std::vector<OpSampleSet*>& op_sample_sets();

}  // namespace tapestry

/// Defines the samples of the op registered as `op_name`. Use it inside namespace tapestry.
#define OP_SAMPLES(op_name)                                                       \
  namespace {                                                                     \
  struct OpSamplesOf_##op_name final : ::tapestry::OpSampleSet {                  \
    OpSamplesOf_##op_name() : OpSampleSet(#op_name) {}                            \
    void define() override;                                                       \
  };                                                                              \
  [[maybe_unused]] const bool op_samples_of_##op_name =                           \
      ::tapestry::register_op_samples(std::make_unique<OpSamplesOf_##op_name>()); \
  }                                                                               \
  void OpSamplesOf_##op_name::define()
