// Values of a reference's model, and their gradients, by sample.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/tensor_names.h"
#include "diagnosis/dump/dump_reader.h"
#include "diagnosis/dump/logical_tensor.h"

namespace tapestry {

/// What a dump has of values under the names of ActivationRecorder, of gradients with "Gradients/"
/// in front: rows of op_type Value, and inputs and outputs of modules that mean the same
/// (accuracy::named_values); names go through the map first. Values are read when they are asked
/// for.
class ReferenceValues {
 public:
  /// IoError for a folder that is no dump.
  ReferenceValues(const std::string& folder, accuracy::NameMap map);

  const std::string& folder() const { return reader_.folder(); }
  /// Goes to the iteration of a step, counted from 1; false if the dump does not have it.
  bool begin_step(int64_t step);
  void end_step();

  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// The row of a sample, in the shape that our row has: heads before or behind tokens ([n, S, D],
  /// [S, n, D], [S, n * D]) are the same row. Undefined if the dump does not have it. ValueError,
  /// naming it, for another number of elements and for a value that cannot be put together.
  Tensor row(const std::string& name, int64_t sample, const Shape& shape);

 private:
  struct Side {
    size_t tensor = 0;
    accuracy::Cut cut = accuracy::Cut::kNone;
    int64_t part = 0;
  };

  void index();
  const dump::JoinedTensor& loaded(const std::string& name, size_t tensor);

  dump::DumpReader reader_;
  accuracy::NameMap map_;
  std::vector<dump::LogicalTensor> of_step_;
  std::map<std::string, Side> tensors_;
  std::map<size_t, dump::JoinedTensor> joined_;
};

}  // namespace tapestry
