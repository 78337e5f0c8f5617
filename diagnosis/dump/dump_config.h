// What is dumped: MindSpore's dump configuration, a JSON file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/dump/iteration_set.h"
#include "diagnosis/dump/kernel_pattern.h"
#include "diagnosis/dump/tensor_statistics.h"

namespace tapestry::dump {

enum class SavedData : uint8_t { kTensor, kStatistic, kFull };

/// The file's fields under its own names; docs/dump.md explains each. Fields that only say how a
/// device makes a dump (`e2e_dump_settings`: enable, trans_flag, stat_calc_mode,
/// device_stat_precision_mode) are checked and change nothing: there is one memory layout, the dump
/// is always synchronous, and statistics are always made on the host in float64.
struct DumpConfig {
  // common_dump_settings
  bool only_overflow = false;  ///< op_debug_mode 3: only ops that make a NaN or an infinity
  bool only_kernels = false;   ///< dump_mode 1: only ops of `kernels`
  std::string path;            ///< output root, absolute: one that was relative lies in the
                               ///< current directory; the default is filled in
  std::string net_name = "Net";
  IterationSet iteration;
  SavedData saved_data = SavedData::kTensor;
  bool inputs = true;   ///< input_output 0 (both) or 1
  bool outputs = true;  ///< input_output 0 (both) or 2
  std::vector<KernelPattern> kernels;
  std::vector<int64_t> support_device = {0, 1, 2, 3, 4, 5, 6, 7};
  StatisticSet statistic_category = {Statistic::kMax, Statistic::kMin, Statistic::kL2Norm};
  int64_t overflow_number = 0;  ///< with only_overflow: ops after which a rank stops; 0: no limit
  // e2e_dump_settings
  int64_t sample_num =
      0;  ///< first elements of each tensor that files keep; 0 (sample_mode 0): all
  bool save_kernel_args = false;

  std::string text;  ///< the file as it is, for .dump_metadata/data_dump.json

  bool saves_values() const { return saved_data != SavedData::kStatistic; }
  bool saves_statistics() const { return saved_data != SavedData::kTensor; }

  /// True if the iteration is dumped; they count from 0.
  bool wants(int64_t iteration) const { return this->iteration.contains(iteration); }
  /// True if ops of the type and name are. What modules take and give is asked for as an op of type
  /// "Module" with the module's path as its name.
  bool wants(std::string_view op_type, std::string_view op_name) const;
  /// True if the rank of this number on its host is dumped.
  bool wants_device(int64_t local_rank) const;
};

/// The configuration in a file. Every field may be left out; an empty `path` means
/// $MS_DIAGNOSTIC_DATA_PATH/debug_dump.
///
/// IoError if the file cannot be read or is no JSON. ValueError, with file, field, value and what
/// was expected, for unknown fields, values of another type or outside their range, and what does
/// not exist here: op_debug_mode 4, dump_mode 2, file_format bin; for dump_mode 1 without kernels,
/// lists that leave nothing to dump, and no path at all.
DumpConfig read_dump_config(const std::string& file);

}  // namespace tapestry::dump
