// The data of a task, from files of examples.
#pragma once

#include <memory>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry::post_training {

struct TaskData {
  RunData run;
  std::shared_ptr<const TaskExamples> examples;
  int64_t pad_id = 0;  ///< what fills up rows
};

/// The columns that a task's examples have.
ExampleFormat example_format(const AllConfig& config);

/// Most tokens of a prompt with its completion: post_training_config.max_length, or what a row has
/// room for.
int64_t most_tokens(const AllConfig& config);

/// How sequences are put into rows: seq_length, the parallel layout's unit, the pad id.
RowRoom row_room(const AllConfig& config, int64_t pad_id);

/// Opens post_training_config.data and, with eval_interval, validation_data: reads, encodes and
/// cuts every example as TRL's trainer of the task does. The order is the files' with
/// dataset_config.shuffle: False, else one of its own each epoch; of kto, whose mismatched pairs
/// belong to the order, the same one each epoch. A run that goes on has the same batches, or is
/// refused with what differs. The same on every rank. Collective.
TaskData open_task_data(const AllConfig& config,
                        ProcessGroup& world,
                        DataUse use,
                        const DataState* resumed);

}  // namespace tapestry::post_training
