#include "parallel_core/training/watch/evaluation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/step/forward_step.h"
#include "text/util/numbers.h"

namespace tapestry {

std::vector<data::Batch> step_batches(data::DataSource& source,
                                      const AllConfig& config,
                                      data::BatchPosition position) {
  const DatasetConfig& d = config.dataset_config;
  std::vector<data::Batch> batches;
  for (int64_t m = 0; m < d.micro_batch_num; ++m) {
    const PhaseScope phase("fetch", m);
    batches.push_back(source.micro_batch(position, m, d.micro_batch_num, d.batch_size,
                                         get_data_parallel_rank(), get_data_parallel_world_size()));
  }
  return batches;
}

double evaluate(ParallelModel& model,
                data::DataSource& source,
                const AllConfig& config,
                int64_t iterations) {
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  const int64_t available = std::min(iterations, source.size_in_samples() / batch);
  check<ValueError>(available > 0, "evaluation: the data hold ", source.size_in_samples(),
                    " samples, one global batch needs ", batch,
                    "; raise their share in dataset_config.split or lower the batch size");
  const PhaseScope phase("evaluation");
  const NoGradGuard guard;
  model.eval();
  double loss = 0;
  double tokens = 0;
  for (int64_t i = 0; i < available; ++i) {
    const std::vector<data::Batch> micro_batches = step_batches(source, config, {i, i * batch});
    PipelineWork work =
        pipeline_work(model, micro_batches, [&](int64_t /*micro_batch*/, ModelOutput& output) {
          loss += output.loss.item() * output.token_count;
          tokens += output.token_count;
          return StageOutput{};
        });
    work.forward_only = true;
    work.messages.overlap = config.parallel_config.overlap_p2p_comm;
    get_forward_backward_func(work.chunks)(work);
  }
  model.train();
  std::array<double, 2> sums = {loss, tokens};  // known to the last stage
  sum_over_pipeline(sums);
  sum_over(get_data_parallel_group(), sums);
  return sums[1] > 0 ? sums[0] / sums[1] : 0;
}

std::string eval_log_line(const char* part, int64_t step, double loss) {
  char text[120];
  std::snprintf(text, sizeof(text), "%s: Step:%lld, Loss: %.6f, Perplexity: %.4f", part,
                static_cast<long long>(step), without_nan_sign(loss),
                without_nan_sign(std::exp(loss)));
  return text;
}

void StepEvaluation::after(FinishedStep& step) {
  const TrainingConfig& t = config_.training_config;
  if (validation_ != nullptr && t.eval_interval && step.record.step % *t.eval_interval == 0) {
    step.record.eval_loss = evaluate(model_, *validation_, config_, t.eval_iters);
  }
  if (test_ != nullptr && step.is_last) {
    step.record.test_loss = evaluate(model_, *test_, config_, t.eval_iters);
  }
}

}  // namespace tapestry
