// Writes a rank's part of a dump.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnosis/dump/dump_config.h"
#include "diagnosis/dump/dump_row.h"
#include "diagnosis/dump/dumped_tensor.h"

namespace tapestry::dump {

/// Below PATH/rank_RANK/ of the configuration:
///
///   NET/0/ITERATION/OP_TYPE.OP_NAME.TASK_ID.0.TIMESTAMP.{input,output}.SLOT.DefaultFormat.DTYPE.npy
///   NET/0/ITERATION/OP_TYPE.OP_NAME.json   with save_kernel_args
///   NET/0/ITERATION/statistic.csv          a row per tensor; for saved_data tensor, where there
///   are
///                                          no statistics, the same rows are in tensors.csv
///   execution_order/ms_execution_order_graph_0.csv         names of the last iteration's ops, in
///   order execution_order/ms_global_execution_order_graph_0.csv  iterations, in order
///   .dump_metadata/data_dump.json          the configuration as it was
///
/// In file names what is neither letter, digit, '_', '-' nor '.' becomes '_', and a name that is
/// longer than a file system takes is cut and gets its checksum; the tables have it whole. bfloat16
/// is saved as float32. Statistics are those of the elements before that.
///
/// An iteration is written into NET/0/.ITERATION.unfinished, which gets its name when all of it is
/// on disk: after a kill the folder says by its name that it is cut short. It replaces an earlier
/// dump of the same iteration. A writer belongs to one thread.
class DumpWriter {
 public:
  /// Makes the rank's folders, except where local_rank is not among support_device: then nothing is
  /// ever written. IoError.
  DumpWriter(DumpConfig config, int64_t rank, int64_t local_rank);
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;
  /// Leaves an iteration that was not ended as a kill would.
  ~DumpWriter();

  const DumpConfig& config() const { return config_; }

  /// Returns whether the iteration, counted from 0, is dumped; if not, write() does nothing.
  /// RuntimeError if the one before was not ended; IoError if a folder of the iteration's name is
  /// there and is no dump.
  bool begin_iteration(int64_t iteration);
  /// Between begin_iteration() and end_iteration() of an iteration that is dumped.
  bool active() const { return iteration_ != nullptr; }

  /// True if a tensor of such an op would be written: what is costly to make may be left out if
  /// not.
  bool wants(std::string_view op_type, std::string_view op_name, bool input) const;

  /// Takes what the configuration wants of it; the value may be changed as soon as this returns.
  /// With op_debug_mode 3 an op's tensors are held until its first output with a NaN or an
  /// infinity, or until the op turns out to make none. Each op has a task_id of its own; it may be
  /// written while another one runs (a module's inputs, its ops, its outputs). ValueError for a
  /// tensor that contradicts itself (sizes of value, ranges, samples and global_shape); IoError.
  void write(const DumpedTensor& tensor);

  /// The op's attributes, an object; the first of an iteration's ops of one name count. Does
  /// nothing without save_kernel_args.
  void write_attributes(std::string_view op_type,
                        std::string_view op_name,
                        const nlohmann::json& attributes);

  /// Flushes, syncs and names what the iteration has. IoError. Does nothing if not active().
  void end_iteration();

 private:
  class Iteration;
  /// The tensors of an op that has made no NaN or infinity yet.
  struct Held {
    bool overflows = false;
    bool has_output = false;
    std::vector<std::pair<DumpRow, Tensor>> tensors;
  };

  void write_row(DumpRow& row, const Tensor& value);
  void hold_or_write(const DumpedTensor& tensor, DumpRow& row);

  DumpConfig config_;
  StatisticSet statistics_;  // that rows have
  bool device_wanted_;
  std::string rank_folder_;
  std::unique_ptr<Iteration> iteration_;
  std::map<int64_t, Held> held_;  // by task_id
  int64_t overflows_ = 0;
};

}  // namespace tapestry::dump
