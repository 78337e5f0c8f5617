#include "parallel_core/inference/generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/ops/random.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/forward_step.h"

namespace tapestry {

namespace {

// Dropout off; afterwards the model is in the mode that it had, also after an error.
class EvaluationGuard {
 public:
  explicit EvaluationGuard(nn::Module& model) : model_(model), training_(model.is_training()) {
    model_.eval();
  }
  EvaluationGuard(const EvaluationGuard&) = delete;
  EvaluationGuard& operator=(const EvaluationGuard&) = delete;
  ~EvaluationGuard() { model_.train(training_); }

 private:
  nn::Module& model_;
  bool training_;
};

void check_options(const GenerationOptions& o) {
  check<ValueError>(o.max_new_tokens >= 0, "max_new_tokens must not be negative, got ",
                    o.max_new_tokens);
  check<ValueError>(o.temperature >= 0, "temperature must not be negative, got ", o.temperature);
  check<ValueError>(o.top_k >= 0, "top_k must not be negative, got ", o.top_k);
  check<ValueError>(o.top_p > 0 && o.top_p <= 1, "top_p must lie in (0, 1], got ", o.top_p);
}

}  // namespace

int64_t sample_token(std::span<const float> logits, const GenerationOptions& options, double draw) {
  const size_t vocab = options.vocab_size > 0
                           ? std::min(logits.size(), static_cast<size_t>(options.vocab_size))
                           : logits.size();
  check<ValueError>(vocab > 0, "sample_token: there are no logits to choose from");
  for (size_t i = 0; i < vocab; ++i) {
    // -inf is a token that must not be chosen; anything else that is not finite has no order.
    check<ValueError>(logits[i] < std::numeric_limits<float>::infinity(), "sample_token: logit ", i,
                      " is ", logits[i], "; are the weights finite?");
  }
  std::vector<int64_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature == 0) {
    return *std::min_element(order.begin(), order.end(), likelier);
  }
  std::sort(order.begin(), order.end(), likelier);
  if (options.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  }
  std::vector<double> weights;
  weights.reserve(order.size());
  const double highest = logits[static_cast<size_t>(order[0])];
  for (const int64_t id : order) {
    weights.push_back(std::exp((logits[static_cast<size_t>(id)] - highest) / options.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  // The shortest list of the likeliest that reaches top_p.
  double kept = 0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) {
    kept += weights[count++];
  }
  double left = draw * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= weights[i];
    if (left < 0) {
      return order[i];
    }
  }
  return order[count - 1];
}

std::vector<int32_t> generate(ParallelModel& model,
                              std::span<const int32_t> prompt,
                              const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token) {
  check_options(options);
  check<ValueError>(!prompt.empty(), "generate: the prompt has no tokens");
  const NoGradGuard guard;
  const EvaluationGuard evaluation(model);
  std::vector<int64_t> context(prompt.begin(), prompt.end());
  std::vector<int32_t> generated;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto length = static_cast<int64_t>(context.size());
    const int64_t seen = options.max_context > 0 ? std::min(length, options.max_context) : length;
    data::Batch batch;
    batch.batch = 1;
    batch.seq = seen;
    batch.tokens.assign(context.end() - seen, context.end());
    const Tensor logits = pipeline_logits(model, batch);
    int64_t next = 0;
    if (logits.defined()) {
      // The last position stands last in either data layout, since there is one row.
      const std::vector<float> last =
          logits.reshape({seen, logits.size(2)}).select(0, seen - 1).to_vector<float>();
      const RandomKey key{options.seed, stream_of("generate"), static_cast<uint64_t>(i)};
      const double draw = rand({1}, kFloat64, key).item();
      next = sample_token(last, options, draw);
    }
    next = from_last_stage(next);
    if (next == options.eod_id) {
      break;
    }
    context.push_back(next);
    generated.push_back(static_cast<int32_t>(next));
    if (on_token) {
      on_token(generated.back());
    }
  }
  return generated;
}

}  // namespace tapestry
