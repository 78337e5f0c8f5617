#include "diagnosis/dump/logical_tensor.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/elementwise/strided.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"
#include "diagnosis/dump/dense.h"
#include "diagnosis/dump/tensor_distance.h"

namespace tapestry::dump {
namespace {

using Ranges = std::vector<AxisRanges>;

/// Parts of the same samples: of one micro-batch, or of a tensor without samples.
struct Unit {
  std::vector<int64_t> samples;
  std::vector<const StoredTensor*> parts;

  const DumpRow& row() const { return parts.front()->row; }
};

/// Parts at the same place of a unit: copies, or summands.
using Places = std::vector<std::pair<Ranges, std::vector<const StoredTensor*>>>;

Places places_of(const Unit& unit) {
  Places places;
  for (const StoredTensor* part : unit.parts) {
    const auto same = std::find_if(places.begin(), places.end(), [&](const auto& place) {
      return place.first == part->row.ranges;
    });
    if (same == places.end()) {
      places.push_back({part->row.ranges, {part}});
    } else {
      same->second.push_back(part);
    }
  }
  return places;
}

std::vector<Unit> units_of(const std::vector<StoredTensor>& parts) {
  std::map<std::vector<int64_t>, Unit> units;
  for (const StoredTensor& part : parts) {
    Unit& unit = units[part.row.samples];
    unit.samples = part.row.samples;
    unit.parts.push_back(&part);
  }
  std::vector<Unit> list;
  for (auto& [samples, unit] : units) {
    list.push_back(std::move(unit));
  }
  return list;
}

int64_t overlap(const AxisRanges& a, const AxisRanges& b) {
  int64_t common = 0;
  for (const AxisRange& x : a) {
    for (const AxisRange& y : b) {
      common += std::max<int64_t>(0, std::min(x.end, y.end) - std::max(x.begin, y.begin));
    }
  }
  return common;
}

bool overlap(const Ranges& a, const Ranges& b) {
  for (size_t axis = 0; axis < a.size(); ++axis) {
    if (overlap(a[axis], b[axis]) == 0) {
      return false;
    }
  }
  return true;
}

bool same_statistics(const DumpRow& a, const DumpRow& b) {
  if (!(a.has == b.has) || a.has.empty()) {
    return false;
  }
  for (int i = 0; i < kNumStatistics; ++i) {
    const auto statistic = static_cast<Statistic>(i);
    if (!a.has.has(statistic)) {
      continue;
    }
    if (statistic == Statistic::kMd5) {
      if (a.statistics.md5 != b.statistics.md5) {
        return false;
      }
      continue;
    }
    const double x = a.statistics.value(statistic);
    const double y = b.statistics.value(statistic);
    if (!(x == y || (std::isnan(x) && std::isnan(y)))) {
      return false;
    }
  }
  return true;
}

bool same_elements(const StoredTensor& a, const StoredTensor& b) {
  if (a.has_value() && b.has_value()) {
    return tensor_distance(a.value(), b.value(), DistanceUnit::kElement) == 0;
  }
  return same_statistics(a.row, b.row);
}

std::string problem_of(const Unit& unit) {
  const DumpRow& first = unit.row();
  for (const StoredTensor* part : unit.parts) {
    if (!(part->row.global_shape == first.global_shape) ||
        part->row.sample_axis != first.sample_axis) {
      return concat("its parts are of wholes of different shapes: ", first.global_shape,
                    " on rank ", unit.parts.front()->rank, ", ", part->row.global_shape,
                    " on rank ", part->rank);
    }
    if ((part->row.state == TensorState::kPartial) != (first.state == TensorState::kPartial)) {
      return "it is a summand on one rank and none on another";
    }
  }
  const Places places = places_of(unit);
  int64_t elements = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    elements += places[i].second.front()->row.shape.numel();
    for (size_t j = 0; j < i; ++j) {
      if (overlap(places[i].first, places[j].first)) {
        return concat("the parts of ranks ", places[j].second.front()->rank, " and ",
                      places[i].second.front()->rank, " overlap without being equal");
      }
    }
  }
  const int64_t whole = first.global_shape.numel();
  if (elements != whole) {
    return concat("its parts have ", elements, " of ", whole,
                  " elements; were all ranks dumped (support_device)?");
  }
  // Without samples nothing says how values of several micro-batches belong together; and stages of
  // a pipeline have modules of the same name around different layers.
  const bool is_named_value = first.op_type == "Value" || first.op_type == "Parameter";
  if (first.state == TensorState::kWhole && (unit.samples.empty() || !is_named_value)) {
    for (const StoredTensor* part : unit.parts) {
      if (part != unit.parts.front() && !same_elements(*part, *unit.parts.front())) {
        return unit.samples.empty()
                   ? "it belongs to no samples, is no summand, and differs among micro-batches or "
                     "ranks"
                   : concat("ranks ", unit.parts.front()->rank, " and ", part->rank,
                            " have different values under this name");
      }
    }
  }
  return {};
}

/// An unrecorded view: `count` from `begin` on along each axis.
Tensor block_of(const Tensor& x, const Shape& begin, const Shape& count) {
  int64_t offset = x.offset();
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    offset += begin[axis] * x.strides()[axis];
  }
  return alias(x, count, x.strides(), offset);
}

void copy_into(const Tensor& from, const Tensor& into) {
  kernels::apply_unary(kernels::cast_row(from.dtype(), into.dtype()), extent_of(from),
                       view_of(from), view_of(into));
}

/// Puts a part's elements where its ranges say, block by block.
void place(const Tensor& part, const Ranges& ranges, const Tensor& whole) {
  if (part.numel() == 0) {
    return;
  }
  const auto axes = static_cast<int64_t>(ranges.size());
  Shape from = Shape::filled(axes, 0);
  Shape to = from;
  Shape count = from;
  // One range per axis at a time, the last axis fastest.
  const auto blocks = [&](const auto& self, int64_t axis) -> void {
    if (axis == axes) {
      copy_into(block_of(part, from, count), block_of(whole, to, count));
      return;
    }
    from[axis] = 0;
    for (const AxisRange& range : ranges[static_cast<size_t>(axis)]) {
      to[axis] = range.begin;
      count[axis] = range.end - range.begin;
      if (count[axis] > 0) {
        self(self, axis + 1);
      }
      from[axis] += count[axis];
    }
  };
  blocks(blocks, 0);
}

Tensor summed(const std::vector<const StoredTensor*>& summands) {
  const Tensor sum = dense_copy(summands.front()->value(), kFloat64);
  auto* out = sum.data<double>();
  for (size_t i = 1; i < summands.size(); ++i) {
    const Tensor next = dense_copy(summands[i]->value(), kFloat64);
    const auto* x = next.data<double>();
    for (int64_t j = 0; j < sum.numel(); ++j) {
      out[j] += x[j];
    }
  }
  return sum;
}

Tensor copy_checked(const std::vector<const StoredTensor*>& copies, JoinedTensor& out) {
  const Tensor first = wide(copies.front()->value());
  for (size_t i = 1; i < copies.size(); ++i) {
    const double distance = tensor_distance(copies[i]->value(), first, DistanceUnit::kElement);
    if (distance > out.copies_distance) {
      out.copies_distance = distance;
      out.copies = concat("ranks ", copies.front()->rank, " and ", copies[i]->rank);
    }
  }
  return first;
}

Tensor whole_of(const Unit& unit, JoinedTensor& out) {
  const bool partial = unit.row().state == TensorState::kPartial;
  const Places places = places_of(unit);
  if (places.size() == 1 && places.front().second.front()->row.shape == unit.row().global_shape &&
      std::all_of(places.front().first.begin(), places.front().first.end(),
                  [](const AxisRanges& ranges) { return ranges.size() == 1; })) {
    return partial ? summed(places.front().second) : copy_checked(places.front().second, out);
  }
  Tensor whole;
  for (const auto& [ranges, parts] : places) {
    const Tensor part = partial ? summed(parts) : copy_checked(parts, out);
    if (!whole.defined()) {
      whole = empty(unit.row().global_shape, part.dtype());
    }
    place(part, ranges, whole);
  }
  return whole;
}

/// The rows of each of the unit's samples.
void cut_into_samples(const Tensor& whole, const Unit& unit, std::map<int64_t, Tensor>& samples) {
  const int64_t axis = unit.row().sample_axis;
  const auto count = static_cast<int64_t>(unit.samples.size());
  const int64_t rows = whole.size(axis) / count;
  Shape shape = {rows};
  Strides strides = {whole.strides()[axis]};
  for (int64_t other = 0; other < whole.dim(); ++other) {
    if (other != axis) {
      shape.push_back(whole.size(other));
      strides.push_back(whole.strides()[other]);
    }
  }
  if (rows == 1) {
    shape.erase(0);
    strides.erase(0);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t offset = whole.offset() + i * rows * whole.strides()[axis];
    samples[unit.samples[static_cast<size_t>(i)]] = dense(alias(whole, shape, strides, offset));
  }
}

/// Forward, backward, all else.
int order_of_pass(const std::string& pass) {
  return pass == "forward" ? 0 : pass == "backward" ? 1 : 2;
}

auto order_of(const DumpRow& row) {
  // Inputs of an op that was written at one moment come before its outputs.
  return std::make_tuple(order_of_pass(row.pass), row.timestamp, row.task_id, !row.input, row.slot);
}

}  // namespace

std::vector<int64_t> LogicalTensor::samples() const {
  std::set<int64_t> all;
  for (const StoredTensor& part : parts_) {
    all.insert(part.row.samples.begin(), part.row.samples.end());
  }
  return {all.begin(), all.end()};
}

bool LogicalTensor::has_values() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const StoredTensor& part) { return part.has_all_elements(); });
}

std::string LogicalTensor::problem() const {
  std::set<int64_t> seen;
  bool without_samples = false;
  for (const Unit& unit : units_of(parts_)) {
    without_samples = without_samples || unit.samples.empty();
    for (const int64_t sample : unit.samples) {
      if (!seen.insert(sample).second) {
        return concat("sample ", sample, " is in two micro-batches");
      }
    }
    if (std::string problem = problem_of(unit); !problem.empty()) {
      return problem;
    }
  }
  return without_samples && !seen.empty()
             ? "some parts say to which samples they belong, others not"
             : "";
}

JoinedTensor LogicalTensor::load() const {
  const std::string wrong = problem();
  check<ValueError>(wrong.empty(), row().op_name, ": ", wrong);
  check<ValueError>(has_values(), row().op_name,
                    ": its values were not dumped, or not all of them");
  JoinedTensor out;
  std::map<int64_t, Tensor> by_sample;
  for (const Unit& unit : units_of(parts_)) {
    const Tensor whole = whole_of(unit, out);
    if (unit.samples.empty()) {
      out.values.push_back(whole);
    } else {
      cut_into_samples(whole, unit, by_sample);
    }
  }
  for (const auto& [sample, value] : by_sample) {
    out.samples.push_back(sample);
    out.values.push_back(value);
  }
  return out;
}

JoinedStatistics LogicalTensor::statistics() const {
  JoinedStatistics out;
  std::vector<TensorStatistics> parts;
  bool first = true;
  for (const Unit& unit : units_of(parts_)) {
    for (const auto& [ranges, same] : places_of(unit)) {
      const DumpRow& row = same.front()->row;
      if (row.state == TensorState::kPartial && same.size() > 1) {
        return {};
      }
      if (!first && !(row.has == out.has)) {
        return {};
      }
      out.has = row.has;
      first = false;
      parts.push_back(row.statistics);
    }
  }
  out.statistics = parts.size() == 1 ? parts.front() : joined(parts);
  return out;
}

int64_t LogicalTensor::rank_of(std::optional<int64_t> sample, int64_t index) const {
  for (const Unit& unit : units_of(parts_)) {
    const DumpRow& row = unit.row();
    int64_t first_row = 0;
    int64_t rows = 0;
    if (sample.has_value()) {
      const auto found = std::find(unit.samples.begin(), unit.samples.end(), *sample);
      if (found == unit.samples.end()) {
        continue;
      }
      rows = row.global_shape[row.sample_axis] / static_cast<int64_t>(unit.samples.size());
      first_row = (found - unit.samples.begin()) * rows;
    }
    // The element's indices along the axes of the whole, the last one fastest.
    Shape at = Shape::filled(row.global_shape.size(), 0);
    int64_t rest = index;
    for (int64_t axis = row.global_shape.size() - 1; axis >= 0; --axis) {
      if (sample.has_value() && axis == row.sample_axis) {
        continue;
      }
      const int64_t size = std::max<int64_t>(row.global_shape[axis], 1);
      at[axis] = rest % size;
      rest /= size;
    }
    if (sample.has_value()) {
      at[row.sample_axis] = first_row + rest;
    }
    for (const StoredTensor* part : unit.parts) {
      bool inside = true;
      for (int64_t axis = 0; axis < at.size(); ++axis) {
        const AxisRanges own = {{at[axis], at[axis] + 1}};
        inside = inside && overlap(part->row.ranges[static_cast<size_t>(axis)], own) > 0;
      }
      if (inside) {
        return part->rank;
      }
    }
  }
  return parts_.front().rank;
}

int64_t LogicalTensor::micro_batch_of(std::optional<int64_t> sample) const {
  for (const StoredTensor& part : parts_) {
    const auto& samples = part.row.samples;
    if (sample.has_value() && std::find(samples.begin(), samples.end(), *sample) != samples.end()) {
      return part.row.micro_batch;
    }
  }
  return row().micro_batch;
}

std::vector<LogicalTensor> logical_tensors(const std::vector<StoredTensor>& tensors) {
  using Key = std::tuple<std::string, std::string, std::string, bool, int64_t>;
  // How often a rank has had the key in a micro-batch so far.
  std::map<std::tuple<Key, int64_t, int64_t>, int64_t> runs;
  std::map<std::pair<Key, int64_t>, std::vector<StoredTensor>> groups;
  for (const StoredTensor& tensor : tensors) {
    const DumpRow& row = tensor.row;
    const Key key = {row.op_type, row.op_name, row.pass, row.input, row.slot};
    const int64_t run = runs[{key, tensor.rank, row.micro_batch}]++;
    groups[{key, run}].push_back(tensor);
  }
  std::vector<LogicalTensor> logical;
  for (auto& [key, parts] : groups) {
    std::stable_sort(parts.begin(), parts.end(), [](const StoredTensor& a, const StoredTensor& b) {
      return order_of(a.row) < order_of(b.row);
    });
    logical.emplace_back(std::move(parts));
  }
  std::stable_sort(logical.begin(), logical.end(),
                   [](const LogicalTensor& a, const LogicalTensor& b) {
                     return order_of(a.row()) < order_of(b.row());
                   });
  return logical;
}

}  // namespace tapestry::dump
