// A model's micro-batches as the work of a pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/pipeline_parallel/schedules.h"

namespace tapestry {

/// A micro-batch as the tensors that the model takes: where context-parallel ranks divide
/// sequences, the rank's chunks. Text without labels may have any length: it is filled up to a
/// multiple of `unit` tokens (ParallelModel::sequence_unit), which changes no logits before it.
/// ValueError if what cannot be filled up cannot be divided. `depths`: with the rows of so many
/// depths ahead (rows_ahead), where the batch has labels.
ModelInput to_model_input(const data::Batch& batch, int64_t unit = 1, int64_t depths = 0);

/// What the losses of tokens are multiplied by in exact mode (ModelInput::token_weight).
struct TokenWeights {
  float own = 0;
  std::vector<float> ahead = {};  ///< by depth; left out: 0
};

/// Passes of the rank's chunks over the micro-batches, with each one's samples in random_context().
/// A model that is training also gets the rows ahead that it asks for (tokens_ahead).
/// `finish` turns what the model's last chunk gives for a micro-batch into what a schedule needs;
/// it is called on the last stage alone. `model` and `micro_batches` outlive the work, as `scores`
/// does, which the model is asked for in place of its loss. In exact mode the passes know the
/// tokens that they compute (ExactTokens).
PipelineWork pipeline_work(
    ParallelModel& model,
    const std::vector<data::Batch>& micro_batches,
    std::function<StageOutput(int64_t micro_batch, ModelOutput& output)> finish,
    const TokenScoresRequest* scores = nullptr,
    const TokenWeights& weights = {});

/// Logits of one batch through all stages, without recording; undefined on all but the last stage.
Tensor pipeline_logits(ParallelModel& model, const data::Batch& batch);

}  // namespace tapestry
