#include "parallel_core/dist_checkpointing/checkpoint.h"

#include "autograd/io/safetensors.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/checkpoint_writer.h"

namespace tapestry {

void write_state(const std::string& path, const LogicalState& state) {
  std::vector<TensorView> views;
  TensorList keep;
  for (const auto& [name, tensor] : state) {
    keep.push_back(dense(tensor));
    views.push_back({name, tensor.dtype(), tensor.shape(), keep.back().raw()});
  }
  write_safetensors(path, views);
}

std::string write_checkpoint(const ParallelModel& model,
                             const TransformerConfig& config,
                             int64_t step,
                             const CheckpointOptions& options,
                             const optim::Optimizer* optimizer) {
  CheckpointWriter writer(model, config, step, options, optimizer);
  writer.write();
  return writer.finish();
}

std::string save_checkpoint(const ParallelModel& model,
                            const TransformerConfig& config,
                            int64_t step,
                            const CheckpointOptions& options,
                            const optim::Optimizer* optimizer) {
  std::string folder = write_checkpoint(model, config, step, options, optimizer);
  if (RankContext::current().rank() == 0) {
    remove_old_checkpoints(options.directory, options.keep_max, folder);
  }
  return folder;
}

}  // namespace tapestry
