// capsule/step_N: a bad step, with all that it needs to be run again somewhere else.
//
//   report.json, report.txt   what was found
//   capsule.json              CapsuleRecord
//   config.yaml               the resolved configuration
//   weights/                  a checkpoint without states of the optimizer
//   data/step_0/rank_R/       the rows of data-parallel rank R as recorded steps (step_dataset.h),
//                             and position_ids, sample_ids and document_starts beside them
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/tensor/generator.h"
#include "diagnosis/autopsy/machine.h"
#include "parallel_core/data/data_source.h"

namespace tapestry::autopsy {

/// A rank of the run that a capsule is of.
struct CapsuleRank {
  Machine machine;
  Generator::State generator;        ///< its default one, before the step
  std::vector<double> local_losses;  ///< StepResult::local_losses
};

/// What a step began with and came to.
struct CapsuleRecord {
  int64_t step = 0;  ///< from 1
  int64_t applied = 0;
  int64_t skipped = 0;
  int64_t seed = 0;
  float loss_scale = 1;
  int64_t scale_good_steps = 0;
  int64_t data_parallel_size = 1;
  bool forward_only = false;  ///< ComputedStep::forward_only
  std::string anomaly;        ///< "nonfinite_loss", ...
  std::string verdict;        ///< "deterministic" or "transient"
  std::string layout;         ///< layout_line
  double loss = 0;            ///< bits and all
  double grad_norm = 0;
  std::string place;  ///< fault_place
  std::vector<CapsuleRank> ranks;
};

/// Whole, or not at all. IoError, StorageError.
void write_capsule_record(const std::string& folder, const CapsuleRecord& record);
/// IoError, naming file and member, for what is no such record.
CapsuleRecord read_capsule_record(const std::string& folder);

/// The micro-batches of a data-parallel rank, which all have as many rows. ValueError unless they
/// have; IoError, StorageError.
void write_capsule_batches(const std::string& folder,
                           int64_t data_parallel_rank,
                           const std::vector<data::Batch>& micro_batches);
/// Rows of the capsule's step, those of all data-parallel ranks. ValueError or IoError as
/// read_capsule_batches.
int64_t capsule_rows(const std::string& folder);

/// What write_capsule_batches was given, without origins. ValueError or IoError, as StepDataSource,
/// and for files beside the four that do not fit them.
std::vector<data::Batch> read_capsule_batches(const std::string& folder,
                                              int64_t data_parallel_rank,
                                              int64_t data_parallel_size,
                                              int64_t micro_batches,
                                              int64_t rows_each);

/// The bits of a number as 16 hexadecimal digits.
std::string bits_text(double value);
/// ValueError for another text.
double value_of_bits(const std::string& text);

}  // namespace tapestry::autopsy
