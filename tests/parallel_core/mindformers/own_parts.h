// One part of each kind that a program can register: docs/register.md shows them.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "parallel_core/parallel_core.h"
#include "parallel_core/register.h"

namespace tapestry::testing {

// m = beta m + (1 - beta) g; p = p - lr (m / (|m| + eps) + wd p): a sign that is smooth at 0.
class SoftSign final : public optim::Optimizer {
 public:
  SoftSign(std::vector<optim::ParamGroup> groups, const OptimizerSettings& settings)
      : Optimizer(std::move(groups), {settings.learning_rate, settings.weight_decay}),
        beta_(number_option(settings.options, "beta")),
        eps_(number_option(settings.options, "eps")) {}
  std::string type_name() const override { return "SoftSign"; }

 protected:
  void check_group(const optim::ParamGroup& /*group*/) const override {}
  std::vector<optim::StateKind> state_kinds(const optim::ParamGroup& /*group*/,
                                            bool /*is_matrix*/) const override {
    return {{"exp_avg"}};
  }
  void update(std::span<const Update> updates, const optim::GradTransform& transform) override {
    for (const Update& u : updates) {
      const Tensor grad =
          clamp(u.grad.to(kFloat32) * transform.scale, -transform.limit, transform.limit);
      const Tensor& m = u.state->tensors.at("exp_avg");
      copy_values(m * beta_ + grad * (1 - beta_), m);
      const Tensor step = m / (abs(m) + eps_) + u.values * *u.group->weight_decay;
      copy_values(u.values - step * *u.group->lr, u.values);
      if (u.copy.defined()) {  // the 16-bit values that the model computes with
        copy_values(u.values, u.copy);
      }
    }
  }

 private:
  double beta_, eps_;
};

// lr / (1 + decay * updates).
class Hyperbola final : public optim::Schedule {
 public:
  explicit Hyperbola(const ScheduleSettings& settings)
      : lr_(settings.learning_rate), decay_(number_option(settings.options, "decay")) {}
  double learning_rate(Position position) const override {
    return lr_ / (1 + decay_ * static_cast<double>(position.applied));
  }
  std::optional<double> weight_decay(Position /*position*/) const override { return {}; }

 private:
  double lr_, decay_;
};

// Rows that count up by a step of their own, from a start that the number of the row says.
class CountingRows final : public data::DataSource {
 public:
  CountingRows(const AllConfig& config, int64_t first)
      : seq_(config.model_config.seq_length),
        vocabulary_(config.model_config.vocab_size),
        first_(first) {}

  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t /*micro_batch_num*/,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    data::Batch batch{.batch = micro_batch_size, .seq = seq_};
    const int64_t before = (micro_index * dp_size + dp_rank) * micro_batch_size;
    for (int64_t row = 0; row < micro_batch_size; ++row) {
      const int64_t sample = position.first_sample + before + row;
      batch.sample_ids.push_back(sample);
      for (int64_t i = 0; i < seq_; ++i) {
        const int64_t step = 1 + sample % 3;
        batch.tokens.push_back((first_ + sample + i * step) % vocabulary_);
        batch.labels.push_back((first_ + sample + (i + 1) * step) % vocabulary_);
        batch.loss_mask.push_back(1);
      }
    }
    return batch;
  }
  int64_t seq_length() const override { return seq_; }
  int64_t size_in_samples() const override { return int64_t{1} << 40; }
  int64_t epoch(int64_t /*first_sample*/) const override { return 0; }

 private:
  int64_t seq_, vocabulary_, first_;
};

// Cross entropy with a tenth of the target spread over the vocabulary, and z-loss.
inline TokenLoss smoothed_loss(const AllConfig& config) {
  const int64_t vocabulary = config.model_config.vocab_size;
  const TensorParallelLayout layout = tensor_parallel_layout(config);
  return [=](const Tensor& logits, const Tensor& labels) {
    const VocabParallelCrossEntropy cross_entropy(vocabulary, layout);
    const Tensor z = vocab_parallel_logsumexp(logits, vocabulary, layout);
    return cross_entropy.forward(logits, labels, 0.1) + 1e-3 * square(z);
  };
}

inline void register_parts() {
  ModuleRegistry::register_item<ModuleType::kOptimizer>(
      "SoftSign",
      [](std::vector<optim::ParamGroup> groups, const OptimizerSettings& settings) {
        return std::make_unique<SoftSign>(std::move(groups), settings);
      },
      {{"beta", 0.9}, {"eps", 1e-3}});
  ModuleRegistry::register_item<ModuleType::kLrScheduler>(
      "hyperbola",
      [](const ScheduleSettings& settings) { return std::make_unique<Hyperbola>(settings); },
      {{"decay", 0.1}});
  ModuleRegistry::register_item<ModuleType::kActivationFunc>(
      "softsign", {.function = [](const Tensor& x) { return x / (abs(x) + 1); }});
  ModuleRegistry::register_item<ModuleType::kActivationFunc>(
      "reglu", {.function =
                    [](const Tensor& x) {
                      const int64_t last = x.dim() - 1;
                      const int64_t half = x.size(last) / 2;
                      return relu(x.slice(last, 0, half)) * x.slice(last, half, 2 * half);
                    },
                .gated = true});
  ModuleRegistry::register_item<ModuleType::kGradProcessFunc>(
      "soft_clip", [](double grad_norm, double clip_value) {
        return optim::GradTransform{.scale = clip_value / (clip_value + grad_norm)};
      });
  ModuleRegistry::register_item<ModuleType::kLossFunc>("smoothed", smoothed_loss);
  ModuleRegistry::register_item<ModuleType::kDataset>(
      "counting",
      [](const AllConfig& config, const DataRank& /*rank*/) {
        const auto& options = config.dataset_config.data_source_kwargs;
        const int64_t first = integer_option(options, "first");
        return OwnData{.train = std::make_unique<CountingRows>(config, first),
                       .validation = std::make_unique<CountingRows>(config, first + 1000)};
      },
      {{"first", int64_t{0}}});
}

}  // namespace tapestry::testing
