#include <string>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_folder.h"
#include "interop/gguf/gguf_weights.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/upcycle.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/starting_run.h"

namespace tapestry {

namespace {

// Reads the first step's batch, so that wrong data are found before anything is written.
void check_first_step(const AllConfig& config, const RunData& data) {
  const DatasetConfig& d = config.dataset_config;
  if (!has_steps_left(config, data)) {
    return;
  }
  const int64_t count = BatchSchedule(config, get_data_parallel_world_size())
                            .micro_batches_at(data.opened.in_run().first_sample);
  for (int64_t micro = 0; micro < count; ++micro) {
    data.train->micro_batch(data.start, micro, count, d.batch_size, get_data_parallel_rank(),
                            get_data_parallel_world_size());
  }
}

// Says with which of two folders a run goes on that was started again.
std::string own_run_text(const TrainingConfig& t, const std::string& checkpoint) {
  return lies_in(checkpoint, t.output_dir)
             ? concat("resume_training: ", t.output_dir,
                      " is the run that began with load_checkpoint ", t.load_checkpoint,
                      ", and goes on with its own checkpoints")
             : concat("resume_training: ", t.output_dir,
                      " is the run that began with load_checkpoint ", t.load_checkpoint,
                      "; it has saved no checkpoint of its own yet and begins with that one again");
}

// Of a GGUF file, what becomes of matrices that it has in blocks.
void log_file_types(const AllConfig& config, const std::string& path) {
  if (is_packed_folder(path)) {
    const auto kept = [&](BlockFormat format) {
      return config.lora_config.use_lora && config.lora_config.base_dtype == name_of(format);
    };
    if (const std::string text = gguf_types_text(GgufWeights(path), kept); !text.empty()) {
      log_info(text);
    }
  }
}

}  // namespace

void find_checkpoint(StartingRun& run) {
  const TrainingConfig& training = run.config.training_config;
  run.resume = find_resume_point(run.config, *run.options.world, run.is_started_again);
  if (run.resume) {
    log_info(concat("going on after step ", run.resume->trainer.position.seen, " with ",
                    run.resume->checkpoint));
    if (run.is_started_again) {
      log_info(own_run_text(training, run.resume->checkpoint));
    }
  } else if (training.resume_training.on) {
    log_info(concat("resume_training: ", run.output(),
                    " holds no checkpoint yet, so the run starts from its beginning"));
  }
}

void choose_weights(StartingRun& run) {
  const AllConfig& config = run.config;
  RunWeights& weights = run.weights;
  const StartWeights start = start_weights(config);
  weights.path = run.resume           ? run.resume->checkpoint
                 : start.path.empty() ? std::string()
                                      : resolve_checkpoint(start.path);
  weights.upcycles = !run.resume && start.dense;
  // With z3 no rank can hold the whole model, not even once.
  weights.in_pieces = zero_level(config) == 3 && !config.lora_config.use_lora &&
                      get_data_parallel_world_size(/*with_context_parallel=*/true) > 1;
  const auto verify = [&](const std::string& path) {
    verify_weights(path, config.training_config.crc_check, *run.options.world);
  };
  if (!weights.path.empty() && !run.resume) {
    verify(weights.path);
  }
  weights.adapter = adapter_run(config, weights.path);
  const AdapterRun& adapter = weights.adapter;
  log_file_types(config, adapter.on ? adapter.base.path : weights.path);
  if (adapter.on && !adapter.base.path.empty() && adapter.base.path != weights.path) {
    verify(adapter.base.path);
  }
  if (weights.path.empty() || run.options.model) {
    return;
  }
  if (weights.upcycles) {
    check_dense_model(config.model_config, weights.path);
  } else {
    check_hf_config(config.model_config, adapter.on ? adapter.base.path : weights.path);
  }
}

void open_run_data(StartingRun& run) {
  const DataState* resumed = run.resume && run.resume->data ? &*run.resume->data : nullptr;
  if (run.task != nullptr) {
    run.data = run.task->open_data(run.config, *run.options.world, DataUse::kTraining, resumed);
    if (run.task->has_data_before_model()) {
      check_first_step(run.config, run.data);
    }
    return;
  }
  run.data = run.options.data
                 ? open_own_data(run.config, run.options.data, *run.options.world, resumed)
                 : open_data(run.config, *run.options.world, DataUse::kTraining, resumed);
  check_first_step(run.config, run.data);
}

void log_data(const StartingRun& run) {
  log_detail("data: " + run.data.description);
  for (const std::string& remark : run.data.remarks) {
    log_info("data: " + remark);
  }
}

}  // namespace tapestry
