#include "parallel_core/training/watch/max_logits_log.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

std::string tag_of(int64_t layer) {
  return concat("max_attention_logit/layers.", layer, ".attention");
}

double mean_of(const std::vector<float>& heads) {
  return std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
}

double largest_of(const std::vector<float>& heads) {
  return *std::max_element(heads.begin(), heads.end());
}

std::string four_digits(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.4g", without_nan_sign(value));
  return text;
}

HeadMaxima on_first_stage(const HeadMaxima& own) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [layer, heads] : own) {
    tensors.emplace(std::to_string(layer), tensor(heads, {std::ssize(heads)}));
  }
  HeadMaxima all;
  for (const auto& [layer, heads] : gather_over_pipeline(std::move(tensors))) {
    all.emplace(std::stoll(layer), heads.to_vector<float>());
  }
  return all;
}

}  // namespace

std::vector<std::string> max_logit_lines(const HeadMaxima& maxima, int64_t step, int64_t total) {
  char place[60];
  std::snprintf(place, sizeof(place), "step:[%5lld/%5lld] ", static_cast<long long>(step),
                static_cast<long long>(std::max(total, step)));
  std::vector<std::string> lines;
  for (const auto& [layer, heads] : maxima) {
    const std::string start = place + tag_of(layer);
    std::string values;
    for (const float value : heads) {
      values += concat(values.empty() ? "" : ", ", four_digits(value));
    }
    lines.push_back(concat(start, ": [", values, "]"));
    lines.push_back(concat(start, "/mean: ", four_digits(mean_of(heads))));
    lines.push_back(concat(start, "/max: ", four_digits(largest_of(heads))));
  }
  return lines;
}

void MaxLogitsLog::after(FinishedStep& step) {
  if (!interval_ || step.record.step % *interval_ != 0) {
    return;
  }
  step.record.max_logits = on_first_stage(step.result.max_logits);
  if (RankContext::current().rank() != 0) {
    return;
  }
  const std::vector<std::string> lines =
      max_logit_lines(step.record.max_logits, step.record.step, total_);
  step.lines.insert(step.lines.end(), lines.begin(), lines.end());
  for (const auto& [layer, heads] : step.record.max_logits) {
    step.record.scalars[tag_of(layer) + "/mean"] = mean_of(heads);
    step.record.scalars[tag_of(layer) + "/max"] = largest_of(heads);
  }
}

}  // namespace tapestry
