#include "parallel_core/parameter_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/kernels/philox.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/random.h"

namespace tapestry {

namespace {

// Numbers with one distribution: normal with this deviation, cut at so many, or within the limit.
struct Distribution {
  double std = 0;
  double cut = 0;
  double limit = 0;
};

Distribution distribution_of(const InitMethod& init, const nn::LogicalTensor& logical) {
  using Kind = InitMethod::Kind;
  const Shape& shape = logical.shape;
  const bool by_size = init.kind == Kind::kXavierUniform || init.kind == Kind::kHeUniform ||
                       init.kind == Kind::kHeNormal;
  check<ValueError>(!by_size || shape.size() == 2, logical.name, ": start values that go by the ",
                    "sizes of a matrix are asked for, but its shape is ", shape);
  const auto in = static_cast<double>(by_size ? shape[1] : 1);
  const auto out = static_cast<double>(by_size ? shape[0] : 1);
  switch (init.kind) {
    case Kind::kTruncatedNormal:
      return {.std = init.value, .cut = 2};
    case Kind::kUniform:
      return {.limit = std::sqrt(3.0) * init.value};
    case Kind::kXavierUniform:
      return {.limit = std::sqrt(6 / (in + out)) * init.value};
    case Kind::kHeUniform:
      return {.limit = std::sqrt(6 / in) * init.value};
    case Kind::kHeNormal:
      return {.std = std::sqrt(2 / in) * init.value};
    default:
      return {.std = init.value};
  }
}

// What follows from the numbers of the elements; true if `init` is of that kind.
bool fill_by_number(const InitMethod& init,
                    const RandomKey& key,
                    uint64_t first,
                    uint64_t number,
                    int64_t n,
                    float* y) {
  if (init.kind == InitMethod::Kind::kLogUniform) {
    kernels::fill_uniform(kFloat32, n, key.seed, key.stream, first, 0.01, init.value, y);
    std::transform(y, y + n, y, [](float u) { return std::log(u); });
    return true;
  }
  if (init.kind == InitMethod::Kind::kLogCount) {
    for (int64_t i = 0; i < n; ++i) {
      y[i] = std::log(static_cast<float>(number + 1 + static_cast<uint64_t>(i)));
    }
    return true;
  }
  if (init.kind == InitMethod::Kind::kGiven) {
    std::copy_n(init.given.begin() + static_cast<int64_t>(number), n, y);
    return true;
  }
  return false;
}

// Numbers `first` to `first` + n - 1 of a stream.
void fill(const Distribution& d, const RandomKey& key, uint64_t first, int64_t n, float* y) {
  if (d.limit > 0) {
    kernels::fill_uniform(kFloat32, n, key.seed, key.stream, first, -d.limit, d.limit, y);
    return;
  }
  kernels::fill_normal(kFloat32, n, key.seed, key.stream, first, 0, d.std, y);
  for (int64_t i = 0; i < n && d.cut > 0; ++i) {
    // What another draw of the element gives does not depend on the slice that it is in.
    for (uint64_t draw = 1; std::abs(y[i]) > d.cut * d.std; ++draw) {
      kernels::fill_normal(kFloat32, 1, key.seed, combine(key.stream, draw),
                           first + static_cast<uint64_t>(i), 0, d.std, y + i);
    }
  }
}

// Numbers of the global tensor's stream for elements [begin, end) of a slice of it. They are read
// in runs: consecutive elements of the slice that are consecutive in the global tensor too.
void fill_slice(
    const LogicalInit& part, const RandomKey& key, int64_t begin, int64_t end, float* out) {
  const nn::LogicalTensor& logical = part.logical;
  if (part.init.kind == InitMethod::Kind::kConstant) {
    std::fill(out, out + (end - begin), static_cast<float>(part.init.value));
    return;
  }
  check<ValueError>(part.init.kind != InitMethod::Kind::kGiven ||
                        std::ssize(part.init.given) == logical.shape.numel(),
                    logical.name, ": ", part.init.given.size(), " start values are given for ",
                    logical.shape);
  const Distribution distribution = distribution_of(part.init, logical);
  const Shape& local = logical.local_shape();
  const Shape& global = logical.shape;
  // Axes behind the last one that is cut are in the slice as a whole.
  int64_t axis = global.size();
  while (axis > 0 && local[axis - 1] == global[axis - 1]) {
    --axis;
  }
  axis = axis > 0 ? axis - 1 : 0;
  int64_t run = 1;
  for (int64_t i = axis; i < local.size(); ++i) {
    run *= local[i];
  }
  const Strides strides = contiguous_strides(global);
  for (int64_t done = begin; done < end;) {
    int64_t rest = done / run;
    const int64_t inside = done % run;
    int64_t first = inside + (logical.offset.empty() ? 0 : logical.offset[axis] * strides[axis]);
    for (int64_t i = axis - 1; i >= 0; --i) {
      first += (rest % local[i] + (logical.offset.empty() ? 0 : logical.offset[i])) * strides[i];
      rest /= local[i];
    }
    const int64_t count = std::min(run - inside, end - done);
    const auto number = static_cast<uint64_t>(first);
    float* const y = out + (done - begin);
    if (!fill_by_number(part.init, key, key.offset + number, number, count, y)) {
      fill(distribution, key, key.offset + number, count, y);
    }
    done += count;
  }
}

}  // namespace

LogicalInit whole(std::string name, const Shape& shape, InitMethod init) {
  return {{std::move(name), shape, shape, 0, 0, shape[0]}, init};
}

namespace {

void check_fills(const nn::LogicalTensor& logical, int64_t elements) {
  check<ValueError>(elements == logical.local_shape().numel(), logical.name, ": the rank's slice ",
                    logical.local_shape(), " does not fill its piece of ", logical.view_shape);
}

Tensor make_value(const Shape& shape,
                  const std::vector<LogicalInit>& parts,
                  const std::vector<RandomKey>& keys) {
  Tensor value;
  {
    const MemoryKindGuard kind(MemoryKind::kParameter);
    value = empty(shape);
  }
  int64_t covered = 0;
  for (const LogicalInit& part : parts) {
    covered += part.logical.view_of(value).numel();
  }
  if (covered < value.numel()) {
    copy_values(broadcast_view(scalar(0), shape), value);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const nn::LogicalTensor& logical = parts[i].logical;
    const Tensor piece = logical.view_of(value);
    check_fills(logical, piece.numel());
    const Tensor start = empty(logical.local_shape());
    fill_slice(parts[i], keys[i], 0, start.numel(), start.data<float>());
    copy_values(start.view(piece.shape()), piece);
  }
  return value;
}

// Whether each logical tensor is a run of the parameter's elements.
bool are_runs(const std::vector<LogicalInit>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const LogicalInit& part) { return part.logical.axis == 0; });
}

// Elements [first, first + count) of such a parameter.
Tensor make_range(const std::vector<LogicalInit>& parts,
                  const std::vector<RandomKey>& keys,
                  int64_t first,
                  int64_t count) {
  const Tensor out = zeros({count});
  for (size_t i = 0; i < parts.size(); ++i) {
    const nn::LogicalTensor& logical = parts[i].logical;
    const int64_t row = logical.view_shape.numel() / std::max<int64_t>(1, logical.view_shape[0]);
    const int64_t start = logical.begin * row;
    check_fills(logical, (logical.end - logical.begin) * row);
    const int64_t begin = std::max(first, start);
    const int64_t end = std::min(first + count, logical.end * row);
    if (begin < end) {
      fill_slice(parts[i], keys[i], begin - start, end - start,
                 out.data<float>() + (begin - first));
    }
  }
  return out;
}

}  // namespace

Tensor initial_value(const Shape& shape, const std::vector<LogicalInit>& parts) {
  std::vector<RandomKey> keys;  // of now: the values may be made later
  for (const LogicalInit& part : parts) {
    keys.push_back(initialization_key(part.logical.name));
  }
  internal::StartRange range;
  if (are_runs(parts)) {
    range = [parts, keys](int64_t first, int64_t count) {
      return make_range(parts, keys, first, count);
    };
  }
  const Tensor deferred = internal::deferred(
      shape,
      [shape, parts, keys] {
        const NoGradGuard guard;
        return make_value(shape, parts, keys);
      },
      std::move(range));
  return deferred.defined() ? deferred : make_value(shape, parts, keys);
}

std::vector<nn::LogicalTensor> logical_of(const std::vector<LogicalInit>& parts) {
  std::vector<nn::LogicalTensor> out;
  out.reserve(parts.size());
  for (const LogicalInit& part : parts) {
    out.push_back(part.logical);
  }
  return out;
}

}  // namespace tapestry
