// The texts of a teacher's file as the data of a run.
#pragma once

#include <memory>

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/distil/teacher_file.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry::post_training {

struct TeacherData {
  RunData run;
  std::shared_ptr<const TeacherFile> file;
};

/// Opens post_training_config.teacher_log_probs: its texts, cut at their ends to max_length, are
/// the units of the run; a text that keeps nothing of its completion is left out of steps' sums. A
/// run that goes on has the same batches, or is refused with what differs. The same on every rank.
/// ValueError for a file of another vocabulary, tokenizer or temperature; errors of TeacherFile.
TeacherData open_teacher_data(const AllConfig& config, DataUse use, const DataState* resumed);

}  // namespace tapestry::post_training
