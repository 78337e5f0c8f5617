// Writing a checkpoint: every rank its own parts, straight into the files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/range_file.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/part_io.h"
#include "parallel_core/dist_checkpointing/shard_files.h"
#include "parallel_core/dist_checkpointing/stored_tensors.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

class ProcessGroup;

/// How long the phases of a save took on this rank, and what it wrote.
struct SaveTimes {
  uint64_t bytes = 0;      ///< of all ranks' files together
  uint64_t own_bytes = 0;  ///< that this rank has written
  double snapshot_seconds = 0;
  double write_seconds = 0;   ///< with fsync
  double verify_seconds = 0;  ///< reading back
};

/// One save. The constructor and finish() are collective; write() speaks to nobody and may run on
/// another thread once a snapshot has been taken. The folder has another name until finish() has
/// seen it whole on the medium; an object that goes before removes it.
///
/// What all of them throw: RuntimeError for a weight that is not finite, StorageError for a full
/// disk, each with what was left untouched, and IoError; on every rank alike.
class CheckpointWriter {
 public:
  /// Agrees with the other ranks on what is written, looks for the space, and makes the files. The
  /// model and the optimizer (may be null) outlive the object, or the snapshot.
  CheckpointWriter(const ParallelModel& model,
                   const TransformerConfig& config,
                   int64_t step,
                   CheckpointOptions options,
                   const optim::Optimizer* optimizer);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  /// Copies what this rank writes, so that training may go on.
  void snapshot();
  /// Writes this rank's parts and reads them back. Throws nothing: finish() does.
  void write() noexcept;
  /// Gives the folder its name and returns it.
  std::string finish();

  const SaveTimes& times() const { return times_; }

 private:
  /// Where a logical tensor goes.
  struct Target {
    const nn::LogicalTensor* logical;  ///< null: the source as a whole
    FilePlace place;
    size_t file = 0;
    FileRanges ranges;
    bool only_finite = false;
  };
  /// A tensor of this rank, and what it fills.
  struct Source {
    std::function<Tensor()> values;
    int64_t first = 0;
    Tensor copy;
    std::vector<Target> targets;
  };
  struct Layout;

  void plan_files(const ParallelModel& model, const optim::Optimizer* optimizer);
  void add_sources(const ParallelModel& model,
                   const optim::Optimizer* optimizer,
                   const Layout& layout);
  void add_whole_sources(const ParallelModel& model,
                         const optim::Optimizer* optimizer,
                         const Layout& layout);
  void make_files();
  void write_parts();
  void write_source(const Source& source, std::vector<RangeFile>& files);
  void complete_folder(const std::vector<uint32_t>& checksums);
  void remove_temporary() noexcept;
  /// Throws the failure with what is left untouched.
  [[noreturn]] void rethrow(const std::exception_ptr& failure) const;
  bool is_first() const;
  FileNames file_names() const;
  /// What files of the family hold beside the weights.
  std::map<std::string, double> numbers_beside() const;
  /// Of a model with adapters what is trained alone.
  StoredPart stored_part() const;
  /// Where a logical tensor lies in the files of weights; further places, with the same values.
  FilePlace place_of(const std::string& logical, const Shape& shape) const;
  std::vector<FilePlace> further_places_of(const std::string& logical, const Shape& shape) const;

  ProcessGroup& world_;
  TransformerConfig config_;
  AdapterPlan adapters_;
  CheckpointOptions options_;
  int64_t step_;
  bool has_file_names_;
  std::string folder_;
  std::string temporary_;
  std::vector<PlannedFile> files_;            ///< without places of tensors
  std::map<std::string, std::string> texts_;  ///< small files by name, on rank 0
  std::vector<Source> sources_;
  std::vector<uint32_t> checksum_parts_;
  std::exception_ptr failure_;
  SaveTimes times_;
};

}  // namespace tapestry
