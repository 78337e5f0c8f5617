#include "diagnosis/dump/movements.h"

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"
#include "diagnosis/dump/dump_reader.h"
#include "diagnosis/dump/tensor_distance.h"

namespace tapestry::dump {

void Movements::add(const std::string& run_folder, const std::string& repetition_folder) {
  const DumpReader ours(run_folder);
  const DumpReader theirs(repetition_folder);
  for (const int64_t iteration : ours.iterations()) {
    const std::vector<LogicalTensor> expected = logical_tensors(ours.tensors(iteration));
    const std::vector<LogicalTensor> moved = logical_tensors(theirs.tensors(iteration));
    check<RuntimeError>(expected.size() == moved.size(), "measure_rounding: iteration ", iteration,
                        " has ", expected.size(), " tensors, and ", moved.size(),
                        " when it runs again");
    for (size_t i = 0; i < expected.size(); ++i) {
      add(iteration, expected[i], moved[i]);
    }
  }
}

void Movements::add(int64_t iteration, const LogicalTensor& expected, const LogicalTensor& moved) {
  const DumpRow& row = expected.row();
  const bool floating = row.data_type.starts_with("float") || row.data_type.starts_with("bfloat");
  if (!floating || !expected.problem().empty() || !expected.has_values() || !moved.has_values()) {
    return;
  }
  check<RuntimeError>(row.op_name == moved.row().op_name, "measure_rounding: '", row.op_name,
                      "' is '", moved.row().op_name, "' when it runs again");
  DistanceSum sum(distance_unit(row.data_type));
  JoinedTensor a;
  JoinedTensor b;
  try {
    a = expected.load();
    b = moved.load();
  } catch (const ValueError&) {
    return;  // micro-batches or ranks have numbers of their own under one name
  }
  for (size_t i = 0; i < a.values.size(); ++i) {
    sum.add(b.values[i], a.values[i]);
  }
  if (std::isfinite(sum.distance())) {
    double& largest = largest_[{iteration, row.pass, row.op_name, row.input, row.slot}];
    largest = std::max(largest, sum.distance());
  }
}

std::vector<RoundingRow> Movements::rows() const {
  std::vector<RoundingRow> out;
  for (const auto& [key, distance] : largest_) {
    const auto& [iteration, pass, name, input, slot] = key;
    out.push_back({.op_name = name,
                   .input = input,
                   .slot = slot,
                   .pass = pass,
                   .iteration = iteration,
                   .distance = distance});
  }
  return out;
}

}  // namespace tapestry::dump
