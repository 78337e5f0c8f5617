#include "diagnosis/accuracy/pair_distance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/dump/dense.h"
#include "text/util/numbers.h"

namespace tapestry::accuracy {
namespace {

using dump::DistanceUnit;
using dump::JoinedTensor;
using dump::LogicalTensor;
using dump::Statistic;

/// An unrecorded view with other axes.
Tensor permuted(const Tensor& x, const Shape& axes) {
  Shape shape;
  Strides strides;
  for (const int64_t axis : axes) {
    shape.push_back(x.size(axis));
    strides.push_back(x.strides()[axis]);
  }
  return alias(x, shape, strides, x.offset());
}

/// Part `part` of `parts` equal ones along the last axis; undefined if they are not equal.
Tensor last_axis_part(const Tensor& x, int64_t parts, int64_t part) {
  if (x.dim() == 0 || x.shape().back() % parts != 0) {
    return {};
  }
  Shape shape = x.shape();
  shape.back() /= parts;
  return alias(x, shape, x.strides(), x.offset() + part * shape.back());
}

/// q, k or v of a matrix [S, groups * (heads per group + 2) * D] as [S, n, D]; `like` is the other
/// side's, [n, S, D] or [S, n, D]. Undefined if that does not say how the matrix is made.
Tensor group_part(const Tensor& x, int64_t part, const Shape& like) {
  if (x.dim() != 2 || like.size() != 3) {
    return {};
  }
  const int64_t tokens = x.size(0);
  const int64_t own = like[0] == tokens ? like[1] : like[0];
  const int64_t size = like[2];
  if (size == 0 || x.size(1) % size != 0) {
    return {};
  }
  const int64_t all = x.size(1) / size;  // heads + 2 * groups
  const int64_t groups = part == 0 ? (all - own) / 2 : own;
  const int64_t heads = all - 2 * groups;
  if (groups <= 0 || heads <= 0 || heads % groups != 0) {
    return {};
  }
  const int64_t per_group = heads / groups;
  const int64_t first = part == 0 ? 0 : per_group + part - 1;
  const int64_t count = part == 0 ? per_group : 1;
  const Tensor view =
      alias(x, {tokens, groups, count, size}, {x.strides()[0], (per_group + 2) * size, size, 1},
            x.offset() + first * size);
  return alias(dump::dense_copy(view, x.dtype()), {tokens, groups * count, size},
               {groups * count * size, size, 1}, 0);
}

Tensor cut_value(const Tensor& x, const TensorSide& side, const Shape& like) {
  switch (side.cut) {
    case Cut::kThirds:
      return last_axis_part(x, 3, side.part);
    case Cut::kHalves:
      return last_axis_part(x, 2, side.part);
    case Cut::kGroups:
      return group_part(x, side.part, like);
    case Cut::kNone:
      break;
  }
  return x;
}

/// The logical parameter in another program's.
Tensor at_place(const Tensor& x, const FilePlace& place, const Shape& shape) {
  Strides strides = x.strides();
  if (place.transposed) {
    std::swap(strides[0], strides[1]);
  }
  const int64_t first = shape.empty() ? 0 : place.first * strides[0];
  return alias(x, shape, strides, x.offset() + first);
}

Shape without_ones(const Shape& shape) {
  Shape out;
  for (const int64_t size : shape) {
    if (size != 1) {
      out.push_back(size);
    }
  }
  return out;
}

/// True if axes of one are products of neighbouring axes of the other.
bool are_views(const Shape& a, const Shape& b) {
  int64_t i = 0;
  int64_t j = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t first_left = i;
    const int64_t first_right = j;
    int64_t left = a[i++];
    int64_t right = b[j++];
    while (left != right) {
      if (left < right && i < a.size()) {
        left *= a[i++];
      } else if (right < left && j < b.size()) {
        right *= b[j++];
      } else {
        return false;
      }
    }
    if (i - first_left > 1 && j - first_right > 1) {
      return false;
    }
  }
  return i == a.size() && j == b.size();
}

/// `x` with its elements in the order of a tensor of the shape `like`; undefined if there is none.
Tensor in_order_of(const Tensor& x, const Shape& like) {
  const Shape& shape = x.shape();
  if (shape == like) {
    return x;
  }
  // [n, S, D] as [S, n * D] or [S, n, D], and back.
  if (shape.size() == 3 && like.size() == 2 && like[0] == shape[1] &&
      like[1] == shape[0] * shape[2]) {
    return permuted(x, {1, 0, 2});
  }
  if (shape.size() == 3 && like.size() == 3 && like[0] == shape[1] && like[1] == shape[0] &&
      like[2] == shape[2]) {
    return permuted(x, {1, 0, 2});
  }
  if (shape.size() == 2 && like.size() == 3 && shape[0] == like[1] &&
      shape[1] == like[0] * like[2]) {
    const Tensor heads =
        alias(x, {like[1], like[0], like[2]},
              {x.strides()[0], like[2] * x.strides()[1], x.strides()[1]}, x.offset());
    return permuted(heads, {1, 0, 2});
  }
  return are_views(without_ones(shape), without_ones(like)) ? x : Tensor();
}

/// Rows of the one value as those of `count` samples.
Tensor row_block(const Tensor& x, int64_t count, int64_t which) {
  Shape shape = x.shape();
  const int64_t rows = shape[0] / count;
  shape[0] = rows;
  const int64_t offset = x.offset() + which * rows * x.strides()[0];
  if (rows > 1) {
    return alias(x, shape, x.strides(), offset);
  }
  Strides strides = x.strides();
  shape.erase(0);
  strides.erase(0);
  return alias(x, shape, strides, offset);
}

/// The same rows on both sides.
struct Rows {
  std::optional<int64_t> sample;
  Tensor ours;
  Tensor expected;
};

/// Nothing where the sides have no samples in common; `problem` says so.
std::vector<Rows> common_rows(const JoinedTensor& ours,
                              const JoinedTensor& expected,
                              std::string& problem) {
  std::vector<Rows> rows;
  if (ours.samples.empty() && expected.samples.empty()) {
    rows.push_back({std::nullopt, ours.values[0], expected.values[0]});
    return rows;
  }
  if (ours.samples.empty() || expected.samples.empty()) {
    // A program that does not say which samples it has: those of the other, in order.
    const bool ours_knows = !ours.samples.empty();
    const JoinedTensor& known = ours_knows ? ours : expected;
    const Tensor& all = ours_knows ? expected.values[0] : ours.values[0];
    const auto count = static_cast<int64_t>(known.samples.size());
    if (all.dim() == 0 || all.size(0) % count != 0) {
      problem = concat("one side has ", count, " samples, the other a tensor ", all.shape());
      return rows;
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(i);
      const Tensor row = row_block(all, count, i);
      rows.push_back({known.samples[place], ours_knows ? known.values[place] : row,
                      ours_knows ? row : known.values[place]});
    }
    return rows;
  }
  for (size_t i = 0; i < ours.samples.size(); ++i) {
    const auto found =
        std::lower_bound(expected.samples.begin(), expected.samples.end(), ours.samples[i]);
    if (found != expected.samples.end() && *found == ours.samples[i]) {
      const auto place = static_cast<size_t>(found - expected.samples.begin());
      rows.push_back({ours.samples[i], ours.values[i], expected.values[place]});
    }
  }
  if (rows.empty()) {
    problem = concat("no sample is on both sides: ours begin with ", ours.samples.front(),
                     ", the others with ", expected.samples.front());
  }
  return rows;
}

PairDistance value_distance(const TensorPair& pair, DistanceUnit unit) {
  PairDistance out;
  const JoinedTensor ours = pair.ours.tensor->load();
  const JoinedTensor expected = pair.expected.tensor->load();
  dump::DistanceSum sum(unit);
  std::optional<int64_t> worst_sample;
  for (const Rows& rows : common_rows(ours, expected, out.problem)) {
    Tensor a = cut_value(rows.ours, pair.ours, rows.expected.shape());
    Tensor b = cut_value(rows.expected, pair.expected, rows.ours.shape());
    if (a.defined() && b.defined()) {
      if (pair.ours.place.has_value()) {
        a = at_place(a, *pair.ours.place, b.shape());
      }
      if (pair.expected.place.has_value()) {
        b = at_place(b, *pair.expected.place, a.shape());
      }
    }
    const Tensor ordered =
        a.defined() && b.defined() && a.numel() == b.numel() ? in_order_of(b, a.shape()) : Tensor();
    if (!ordered.defined()) {
      out.problem =
          concat("shapes do not fit: ", rows.ours.shape(), " and ", rows.expected.shape());
      return out;
    }
    if (sum.add(dump::dense(a), dump::dense(ordered))) {
      worst_sample = rows.sample;
    }
  }
  if (!out.problem.empty()) {
    return out;
  }
  out.distance = sum.distance();
  out.sample = worst_sample;
  if (sum.largest_difference() > 0) {
    out.detail =
        concat(number_text(sum.found(), 9), " instead of ", number_text(sum.expected(), 9));
    const bool whole = pair.ours.cut == Cut::kNone && !pair.ours.place.has_value();
    out.micro_batch = pair.ours.tensor->micro_batch_of(worst_sample);
    if (whole) {
      out.rank = pair.ours.tensor->rank_of(ours.samples.empty() ? std::nullopt : worst_sample,
                                           sum.worst());
    }
  }
  for (const JoinedTensor* side : {&ours, &expected}) {
    if (side->copies_distance > out.distance) {
      out.distance = side->copies_distance;
      out.detail = concat(side == &ours ? "our " : "the other side's ", "copies on ", side->copies,
                          " differ");
    }
  }
  return out;
}

/// |a - b|, where a NaN or an infinity on both sides is the same.
double gap(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) {
    return 0;
  }
  const double difference = std::fabs(a - b);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

PairDistance statistic_distance(const TensorPair& pair, DistanceUnit unit) {
  PairDistance out;
  out.by_statistics = true;
  const LogicalTensor& ours = *pair.ours.tensor;
  const LogicalTensor& expected = *pair.expected.tensor;
  const auto is_part = [](const TensorSide& side, const TensorSide& other) {
    return side.cut != Cut::kNone ||
           (side.place.has_value() &&
            side.place->shape.numel() != other.tensor->row().global_shape.numel());
  };
  if (is_part(pair.ours, pair.expected) || is_part(pair.expected, pair.ours)) {
    out.problem = "part of a tensor whose values were not dumped";
    return out;
  }
  const auto our_samples = ours.samples();
  const auto their_samples = expected.samples();
  if (!our_samples.empty() && !their_samples.empty() && our_samples != their_samples) {
    out.problem = "statistics of other samples";
    return out;
  }
  const dump::JoinedStatistics a = ours.statistics();
  const dump::JoinedStatistics b = expected.statistics();
  const auto both = [&](Statistic statistic) {
    return a.has.has(statistic) && b.has.has(statistic);
  };
  const bool has_extremes = both(Statistic::kMax) && both(Statistic::kMin);
  const bool has_norm = both(Statistic::kL2Norm);
  if (!has_extremes && !has_norm) {
    out.problem = "neither values nor max and min nor l2norm on both sides";
    return out;
  }
  if (a.statistics.count != b.statistics.count) {
    out.problem =
        concat("statistics of ", a.statistics.count, " and ", b.statistics.count, " elements");
    return out;
  }
  for (const Statistic count :
       {Statistic::kNanCount, Statistic::kNegativeInfCount, Statistic::kPositiveInfCount}) {
    if (both(count) && a.statistics.value(count) != b.statistics.value(count)) {
      out.distance = std::numeric_limits<double>::infinity();
      out.detail = concat(category_of(count), " ", a.statistics.value(count), " instead of ",
                          b.statistics.value(count));
      return out;
    }
  }
  // Of n elements that differ by at most d in the unit, what these numbers differ by at most.
  const double root = std::sqrt(static_cast<double>(std::max<int64_t>(a.statistics.count, 1)));
  const double extremes = has_extremes ? std::max(gap(a.statistics.max, b.statistics.max),
                                                  gap(a.statistics.min, b.statistics.min))
                                       : 0;
  const double norms = has_norm ? gap(a.statistics.l2norm, b.statistics.l2norm) : 0;
  const double largest =
      has_extremes ? std::max(std::fabs(b.statistics.max), std::fabs(b.statistics.min)) : 0;
  double scale = 0;
  double difference = 0;
  if (unit == DistanceUnit::kElement) {
    difference = std::max(extremes, norms / root);
    scale = has_extremes ? largest : b.statistics.l2norm;
  } else {
    difference = std::max(extremes, norms);
    scale = has_norm ? b.statistics.l2norm : root * largest;
  }
  out.distance = difference == 0 ? 0
                 : scale > 0     ? difference / scale
                                 : std::numeric_limits<double>::infinity();
  if (out.distance > 0) {
    out.detail = extremes >= norms ? concat("max ", number_text(a.statistics.max, 9),
                                            " instead of ", number_text(b.statistics.max, 9),
                                            ", min ", number_text(a.statistics.min, 9),
                                            " instead of ", number_text(b.statistics.min, 9))
                                   : concat("l2norm ", number_text(a.statistics.l2norm, 9),
                                            " instead of ", number_text(b.statistics.l2norm, 9));
  }
  return out;
}

}  // namespace

PairDistance pair_distance(const TensorPair& pair, DistanceUnit unit) {
  PairDistance out;
  for (const LogicalTensor* side : {pair.ours.tensor, pair.expected.tensor}) {
    out.problem = side->problem();
    if (!out.problem.empty()) {
      return out;
    }
  }
  return pair.ours.tensor->has_values() && pair.expected.tensor->has_values()
             ? value_distance(pair, unit)
             : statistic_distance(pair, unit);
}

}  // namespace tapestry::accuracy
