// A row of statistic.csv, between the text and its meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/dump/csv.h"
#include "diagnosis/dump/dumped_tensor.h"
#include "diagnosis/dump/tensor_statistics.h"

namespace tapestry::dump {

/// What a dump says about a tensor.
struct DumpRow {
  std::string op_type;
  std::string op_name;
  int64_t task_id = 0;
  int64_t stream_id = 0;
  int64_t timestamp = 0;
  bool input = false;
  int64_t slot = 0;
  int64_t data_size = 0;  ///< bytes of the elements in `data_type`
  std::string data_type;  ///< of the value in the model
  Shape shape;            ///< of this rank's part
  StatisticSet has;       ///< which of `statistics` there are; the count always is
  TensorStatistics statistics;
  std::string module;
  std::string pass;
  int64_t micro_batch = 0;
  std::vector<int64_t> samples;
  int64_t sample_axis = 0;
  Shape global_shape;
  std::vector<AxisRanges> ranges;  ///< one entry per axis
  TensorState state = TensorState::kWhole;
  std::string source;
  std::string file;  ///< the .npy with the elements, in the same folder; "" if there is none
};

/// Op Type ... Shape, the chosen statistics, then Module, Pass, Micro Batch, Samples, Global Shape,
/// Begin, State, Source, File.
std::vector<std::string> dump_columns(StatisticSet chosen);

/// The fields under those columns. Shapes are "(2,3)". Samples are numbers and ranges, "0-3 8",
/// with
/// "@1" behind them where they lie along axis 1. Begin has a number per axis, "(0,4)"; where the
/// part has several ranges along it, their begins joined by +, "(0,0+12)", with their lengths where
/// those differ, "(0,0:3+12:5)".
std::vector<std::string> dump_fields(const DumpRow& row, StatisticSet chosen);

/// Reads rows of a table by the names of its columns, in any order. Tables of MindSpore, which end
/// with the statistics, are read as whole tensors, of the backward pass where the name begins with
/// "Gradients/", else of the forward pass.
class DumpRowReader {
 public:
  /// IoError if a column is missing without which there is no meaning.
  explicit DumpRowReader(const CsvTable& table);

  /// IoError, with file, line, column and field, for what is not of the form above or contradicts
  /// itself.
  DumpRow read(size_t row) const;

 private:
  const CsvTable& table_;
  std::vector<std::pair<Statistic, size_t>> statistics_;
};

/// ValueError, saying what contradicts what, unless the part of this shape fits where it claims to
/// lie, and samples divide their axis. Fills in `ranges` of a part that has none.
void check_place(DumpRow& row);

}  // namespace tapestry::dump
