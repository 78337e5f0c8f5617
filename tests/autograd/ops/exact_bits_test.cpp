// The bits of exact mode are the same on every machine of a class: five steps of a small
// transformer against what they were when this was written. A change of these numbers changes the
// hashes of users' runs: say so in CHANGELOG.md.
#include <gtest/gtest.h>

#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/kernels/exact/element_hash.h"
#include "autograd/kernels/exact/exact_class.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/exact_runs.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/ops/transformer/rope.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "tests/cpu_levels.h"

namespace tapestry {
namespace exact_bits_test {
namespace {

constexpr int64_t kSamples = 2;
constexpr int64_t kTokens = 48;
constexpr int64_t kHidden = 40;
constexpr int64_t kHeads = 4;
constexpr int64_t kInner = 72;
constexpr int64_t kVocabulary = 56;

class Block {
 public:
  explicit Block(DType compute) : compute_(compute) {
    add("embedding", {kVocabulary, kHidden});
    add("positions", {kTokens, kHidden});
    add("norm", {kHidden}, 1);
    add("norm_bias", {kHidden}, 0);
    add("qkv", {3 * kHidden, kHidden});
    add("qkv_bias", {3 * kHidden}, 0);
    add("out", {kHidden, kHidden});
    add("gains", {kHidden}, 1);
    add("gate_up", {2 * kInner, kHidden});
    add("down", {kHidden, kInner});
  }

  void step(int64_t number) {
    for (const auto& [name, weight] : weights_) {
      weight.set_main_grad(zeros(weight.shape(), kFloat64));
    }
    const Tensor ids = randint(0, kVocabulary, {kSamples, kTokens}, kInt64,
                               RandomKey{5, static_cast<uint64_t>(number), 0});
    loss(ids).backward();
    const NoGradGuard guard;
    for (const auto& [name, weight] : weights_) {
      const Tensor sums = weight.main_grad();
      const Tensor gradient = empty(weight.shape(), kFloat32);
      kernels::exact_to_float32(sums.numel(), sums.data<double>(), gradient.data<float>());
      weight.set_main_grad({});
      copy_values(weight - gradient * 0.5, weight);
      weight.bump_version();
    }
  }

  std::string hash() const {
    kernels::ElementHash sum;
    int64_t first = 0;
    for (const auto& [name, weight] : weights_) {
      sum += kernels::hash_elements(4, weight.numel(), weight.raw(), first);
      first += weight.numel();
    }
    std::ostringstream out;
    out << std::hex << std::setfill('0') << std::setw(16) << sum.high << std::setw(16) << sum.low;
    return out.str();
  }

 private:
  void add(const std::string& name, const Shape& shape, double mean = 0) {
    // Whole numbers of 2^-10, which no libm has a part in.
    Tensor value =
        randint(-200, 200, shape, kInt64, RandomKey{9, static_cast<uint64_t>(weights_.size()), 0})
            .to(kFloat32);
    value = value * 0x1p-10 + mean;
    value.set_requires_grad();
    weights_.emplace(name, value);
  }

  const Tensor& at(const std::string& name) const { return weights_.at(name); }

  Tensor projected(const Tensor& x, const std::string& name, const Tensor& bias = {}) const {
    const Tensor& weight = at(name);
    return linear(x, weight, bias, {}, nullptr,
                  {.inputs = tree_runs(weight.size(1)), .outputs = tree_runs(weight.size(0))});
  }

  Tensor loss(const Tensor& ids) const {
    Tensor x = embedding(at("embedding"), ids);
    const Tensor places = arange(kTokens).to(kInt64).unsqueeze(0);
    x = x + embedding(at("positions"), cat({places, places}, 0));
    const Tensor normed = layer_norm(x, at("norm"), at("norm_bias"), 1e-5, compute_);
    const Tensor qkv = projected(normed, "qkv", at("qkv_bias"));
    const auto heads = [&](int64_t which) {
      return qkv.slice(2, which * kHidden, (which + 1) * kHidden)
          .reshape({kSamples, kTokens, kHeads, kHidden / kHeads})
          .permute({0, 2, 1, 3});
    };
    const Tensor attended = scaled_dot_product_attention(
        heads(0), heads(1), heads(2),
        {.causal = true, .dropout_p = 0.1, .dropout_source = RandomKey{3, 1, 0}});
    x = x + projected(attended.permute({0, 2, 1, 3}).reshape({kSamples, kTokens, kHidden}), "out")
                .to(kFloat32);
    const Tensor inner = projected(rms_norm(x, at("gains"), 1e-5, compute_), "gate_up");
    x = x + projected(swiglu(inner), "down").to(kFloat32);
    return linear_cross_entropy(x.to(compute_), at("embedding"), ids,
                                {.loss = {.reduction = Reduction::kSum,
                                          .loss_mask = full({kSamples, kTokens}, 0x1p-6, kFloat32)},
                                 .chunk_rows = 20});
  }

  DType compute_;
  std::map<std::string, Tensor> weights_;
};

std::string hash_of_five_steps(DType compute) {
  const ExactScope exact;
  const ExactTokensScope tokens({.samples = kSamples,
                                 .length = kTokens,
                                 .leaves = sequence_leaves(kTokens),
                                 .samples_first = true});
  Block block(compute);
  for (int64_t step = 0; step < 5; ++step) {
    block.step(step);
  }
  return std::string(exact_class(compute)) + ":" + block.hash();
}

TEST(ExactBits, AreThoseOfTheirClass) {
  const std::map<std::string, std::string> known = {
      {"float32-fma", "c4dd640938df821802981e839438e98c"},
      {"bfloat16-pairs", "33216b172580955f235066e951a7ac35"},
      {"bfloat16-widened", "04f9e7d5919ebb9a4f47bc17e8ed109e"},
  };
  int compared = 0;
  for (const CpuLevel level : fused_cpu_levels()) {
    const CpuLevelGuard guard(level);
    for (const DType dtype : {kFloat32, kBFloat16}) {
      const std::string hash = hash_of_five_steps(dtype);
      const std::string name = hash.substr(0, hash.find(':'));
      ASSERT_TRUE(known.contains(name)) << name;
      EXPECT_EQ(hash, name + ":" + known.at(name)) << name_of(level);
      ++compared;
    }
  }
  if (fused_cpu_levels().empty()) {
    GTEST_SKIP() << "products and sums are not fused on this processor";
  }
  EXPECT_GE(compared, 2);
}

}  // namespace
}  // namespace exact_bits_test
}  // namespace tapestry
