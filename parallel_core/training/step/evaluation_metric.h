// Numbers that an evaluation computes beside the loss, and evaluations of a program's own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// A micro-batch that an evaluation has run, on a rank of the last stage.
struct EvaluatedBatch {
  const data::Batch& batch;  ///< whole rows: tokens, labels, loss_mask, ...
  /// float32 [batch, seq, vocabulary], contiguous: whole rows over the whole vocabulary, whatever
  /// the layout.
  const Tensor& logits;
};

/// A named number. It has to follow from sums over micro-batches, so that it is the same in every
/// layout: all ranks' addends are summed before `value` is asked.
struct EvaluationMetric {
  std::string name;  ///< metrics.jsonl has eval_NAME, TensorBoard eval-NAME
  /// What a micro-batch adds: as many numbers each time.
  std::function<std::vector<double>(const EvaluatedBatch& batch)> measure;
  /// Of the sums; empty: the first over the second, or 0 where that is 0.
  std::function<double(std::span<const double> sums)> value = {};
};

/// What an evaluation function gets.
struct EvaluationRequest {
  ParallelModel& model;      ///< in evaluation mode, gradients are off
  data::DataSource& source;  ///< the part that is evaluated
  const AllConfig& config;
  const std::vector<EvaluationMetric>& metrics;
  int64_t step = 0;      ///< of the run, from 1
  bool of_test = false;  ///< the test part, after the last step
};

/// An evaluation in place of the library's: named values, the same on every rank, which all make
/// the call. "loss" is the evaluation's loss.
using EvaluationFunction =
    std::function<std::map<std::string, double>(const EvaluationRequest& request)>;

/// Names by which evaluations can be compared: loss, perplexity and those of the metrics.
std::string evaluation_names(const std::vector<EvaluationMetric>& metrics);

/// ValueError for a metric without a name or measure, of the name of another one, loss or
/// perplexity; and for a training_config.eval_metric that nothing computes. With a function of its
/// own a program may return any name.
void check_evaluation(const AllConfig& config,
                      const std::vector<EvaluationMetric>& metrics,
                      bool has_function);

}  // namespace tapestry
