#include "optim/factored_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "nn/parameter_runs.h"

namespace tapestry::optim {

namespace {

// Elements of a tile of whole rows, about, and the most rows: column sums of a tile are in float32.
constexpr int64_t kTileElements = int64_t{1} << 16U;
constexpr int64_t kMinTileRows = 64;
constexpr int64_t kMaxTileRows = 512;

int64_t rows_of_tile(int64_t columns) {
  return std::clamp(kTileElements / std::max<int64_t>(columns, 1), kMinTileRows, kMaxTileRows);
}

// Element `at` of an array.
void* element(const Tensor& array, int64_t at) {
  return static_cast<std::byte*>(array.raw()) + at * size_of(array.dtype());
}

// The numbers of a float32 or float64 tensor as doubles; the tensor is looked at once.
class Doubles {
 public:
  explicit Doubles(const Tensor& array)
      : wide_(array.dtype() == kFloat64 ? array.data<double>() : nullptr),
        narrow_(wide_ == nullptr ? array.data<float>() : nullptr) {}

  double get(int64_t i) const {
    return wide_ != nullptr ? wide_[i] : static_cast<double>(narrow_[i]);
  }
  void set(int64_t i, double value) const {
    if (wide_ != nullptr) {
      wide_[i] = value;
    } else {
      narrow_[i] = static_cast<float>(value);
    }
  }
  /// Rounded to what the array holds.
  double move(int64_t i, double beta, double mean) const {
    set(i, beta * get(i) + (1.0 - beta) * mean);
    return get(i);
  }

 private:
  double* wide_;
  float* narrow_;
};

}  // namespace

FactoredStep::FactoredStep(std::vector<Parameter> parameters, const Settings& settings)
    : parameters_(std::move(parameters)), settings_(settings) {
  // Those that the same ranks share follow one another, as their sums do.
  std::vector<std::pair<const RankGroup*, const RankGroup*>> kinds;
  const auto kind_of = [](const Parameter& p) { return std::pair(p.slices, p.copies); };
  for (const Parameter& parameter : parameters_) {
    if (std::find(kinds.begin(), kinds.end(), kind_of(parameter)) == kinds.end()) {
      kinds.push_back(kind_of(parameter));
    }
  }
  for (const bool is_matrix : {true, false}) {
    for (const auto& kind : kinds) {
      for (size_t i = 0; i < parameters_.size(); ++i) {
        if (parameters_[i].is_matrix == is_matrix && kind_of(parameters_[i]) == kind) {
          add_parts(i);
          add_shared(parameters_[i]);
        }
      }
    }
    matrix_tiles_ = is_matrix ? tiles_.size() : matrix_tiles_;
  }
  finish_tiles();
}

void FactoredStep::add_parts(size_t parameter) {
  const Parameter& owner = parameters_[parameter];
  for (size_t i = 0; i < owner.logical->size(); ++i) {
    const nn::LogicalTensor& logical = (*owner.logical)[i];
    Part part{.parameter = parameter,
              .logical = &logical,
              .suffix = i == 0 ? std::string() : concat(".", i),
              .constants = {.grad_scale = settings_.transform.scale,
                            .grad_limit = settings_.transform.limit,
                            .eps1 = settings_.eps1,
                            .eps3 = settings_.eps3,
                            .beta1 = settings_.beta1,
                            .beta2 = owner.beta2}};
    if (owner.is_matrix) {
      const Shape& shape = logical.shape;
      part.rows = shape[shape.size() - 2];
      part.columns = shape[shape.size() - 1];
      part.stack = part.rows * part.columns == 0 ? 0 : shape.numel() / (part.rows * part.columns);
      part.sums = sums_;
      sums_ += part.stack * (part.rows + part.columns);
      const MemoryKindGuard kind(MemoryKind::kWorkspace);
      part.row_root = empty({part.stack * part.rows}, owner.values.dtype());
      part.column_root = empty({part.stack * part.columns}, owner.values.dtype());
    }
    add_tiles(part);
    parts_.push_back(std::move(part));
  }
}

void FactoredStep::add_shared(const Parameter& parameter) {
  if (shared_.empty() || shared_.back().slices != parameter.slices ||
      shared_.back().copies != parameter.copies) {
    shared_.push_back({.slices = parameter.slices, .copies = parameter.copies});
  }
  shared_.back().end_part = parts_.size();
  shared_.back().end_sum = sums_;
}

void FactoredStep::add_tiles(Part& part) {
  const Parameter& owner = parameters_[part.parameter];
  const Shape& local = part.logical->local_shape();
  const int64_t columns = owner.is_matrix ? local[local.size() - 1] : 0;
  const int64_t rows = owner.is_matrix ? local[local.size() - 2] : 0;
  part.first_tile = tiles_.size();
  const nn::ElementRange range =
      nn::range_in_part(*part.logical, owner.first, owner.values.numel());
  nn::for_each_parameter_run(*part.logical, range, [&](int64_t number, int64_t at, int64_t count) {
    at -= owner.first;
    while (count > 0) {
      int64_t tile_columns = std::min(count, kTileElements);
      int64_t tile_rows = 1;
      if (owner.is_matrix) {
        tile_columns = std::min(columns - number % columns, count);
        if (tile_columns == columns) {
          tile_rows =
              std::min({count / columns, rows_of_tile(columns), rows - number / columns % rows});
        }
      }
      add_tile(part, number, at, tile_rows, tile_columns);
      number += tile_rows * tile_columns;
      at += tile_rows * tile_columns;
      count -= tile_rows * tile_columns;
    }
  });
  part.end_tile = tiles_.size();
}

void FactoredStep::add_tile(
    const Part& part, int64_t number, int64_t at, int64_t rows, int64_t columns) {
  const Parameter& owner = parameters_[part.parameter];
  const auto state = [&](const char* name) -> void* {
    const auto found = owner.states->find(name);
    return found == owner.states->end() ? nullptr : element(found->second, at);
  };
  kernels::FactoredTile tile{.rows = rows,
                             .columns = columns,
                             .dtype = owner.values.dtype(),
                             .grad_dtype = owner.grad.dtype(),
                             .g = element(owner.grad, at),
                             .p = element(owner.values, at),
                             .exp_avg = state("exp_avg"),
                             .exp_avg_sq = owner.is_matrix ? nullptr : state("exp_avg_sq"),
                             .copy_dtype = owner.copy.defined() ? owner.copy.dtype() : kBFloat16,
                             .copy = owner.copy.defined() ? element(owner.copy, at) : nullptr};
  TilePlace place;
  if (owner.is_matrix) {
    // Where the slice's element lies in the whole stack.
    const Shape& shape = part.logical->shape;
    const Shape& local = part.logical->local_shape();
    const auto offset = [&](int64_t axis) {
      return part.logical->offset.empty() ? 0 : part.logical->offset[axis];
    };
    const int64_t last = shape.size() - 1;
    const int64_t column = number % local[last] + offset(last);
    number /= local[last];
    const int64_t row = number % local[last - 1] + offset(last - 1);
    number /= local[last - 1];
    int64_t matrix = 0;
    int64_t scale = 1;
    for (int64_t axis = last - 2; axis >= 0; --axis) {
      matrix += (number % local[axis] + offset(axis)) * scale;
      number /= local[axis];
      scale *= shape[axis];
    }
    place = {.row = matrix * part.rows + row, .column = matrix * part.columns + column};
    tile.row_root = element(part.row_root, place.row);
    tile.column_root = element(part.column_root, place.column);
  }
  tiles_.push_back(tile);
  places_.push_back(place);
}

// Gives the tiles their scratch memory and constants.
void FactoredStep::finish_tiles() {
  int64_t rows = 0;
  int64_t columns = 0;  // in float32, float64 on even places
  const auto place_of = [&](const kernels::FactoredTile& tile) {
    return tile.dtype == kFloat64 ? (columns + 1) / 2 * 2 : columns;
  };
  const auto end_of = [&](const kernels::FactoredTile& tile) {
    return place_of(tile) + tile.columns * (tile.dtype == kFloat64 ? 2 : 1);
  };
  for (const kernels::FactoredTile& tile : matrices()) {
    rows += tile.rows;
    columns = end_of(tile);
  }
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  row_scratch_ = empty({rows}, kFloat64);
  column_scratch_ = empty({columns});
  norms_ = zeros({static_cast<int64_t>(tiles_.size()), 2}, kFloat64);
  rows = columns = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    kernels::FactoredTile& tile = tiles_[i];
    if (i < matrix_tiles_) {
      tile.row_sums = row_scratch_.data<double>() + rows;
      tile.column_sums = column_scratch_.data<float>() + place_of(tile);
      rows += tile.rows;
      columns = end_of(tile);
    }
    tile.squares = norms_.data<double>() + 2 * i;
    tile.param_squares = settings_.scale_parameter ? tile.squares + 1 : nullptr;
  }
  for (const Part& part : parts_) {
    for (size_t i = part.first_tile; i < part.end_tile; ++i) {
      tiles_[i].constants = &part.constants;
    }
  }
}

// Of values [n], elements [begin, end).
void FactoredStep::sum_over_ranks(const Shared& shared,
                                  const Tensor& values,
                                  int64_t begin,
                                  int64_t end) const {
  if (begin == end) {
    return;
  }
  const Tensor part = alias(values, {end - begin}, {1}, begin);
  if (settings_.cut_in_pieces && shared.copies != nullptr) {
    shared.copies->sum(part);
  }
  if (shared.slices != nullptr) {
    shared.slices->sum(part);
  }
}

void FactoredStep::clear_column_sums() const {
  copy_values(broadcast_view(scalar(0, kFloat32), column_scratch_.shape()), column_scratch_);
}

void FactoredStep::add_tile_sums(const Part& part, double* sums) const {
  for (size_t i = part.first_tile; i < part.end_tile; ++i) {
    const kernels::FactoredTile& tile = tiles_[i];
    double* rows = sums + places_[i].row;
    double* columns = sums + part.stack * part.rows + places_[i].column;
    for (int64_t row = 0; row < tile.rows; ++row) {
      rows[row] += tile.row_sums[row];
    }
    for (int64_t column = 0; column < tile.columns; ++column) {
      columns[column] += tile.dtype == kFloat64
                             ? static_cast<const double*>(tile.column_sums)[column]
                             : static_cast<const float*>(tile.column_sums)[column];
    }
  }
}

// Brings the sums of all ranks together and into the averages, `beta` or each parameter's beta2
// being the decay rate.
void FactoredStep::average(const std::string& row_state,
                           const std::string& column_state,
                           const double* beta) {
  const Tensor sums = zeros({sums_}, kFloat64);
  auto* values = sums.data<double>();
  const auto parts = static_cast<int64_t>(parts_.size());
  const auto for_matrices = [&](const auto& body) {
    kernels::parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (const Part& part = parts_[static_cast<size_t>(i)];
            parameters_[part.parameter].is_matrix) {
          body(part);
        }
      }
    });
  };
  for_matrices([&](const Part& part) {
    if (counts_slice(*part.logical, parameters_[part.parameter].slices)) {
      add_tile_sums(part, values + part.sums);
    }
  });
  int64_t begin = 0;
  for (const Shared& shared : shared_) {
    sum_over_ranks(shared, sums, std::exchange(begin, shared.end_sum), shared.end_sum);
  }
  for_matrices([&](const Part& part) {
    const Parameter& owner = parameters_[part.parameter];
    average(part, values + part.sums, owner.states->at(row_state + part.suffix),
            owner.states->at(column_state + part.suffix), beta != nullptr ? *beta : owner.beta2);
  });
}

void FactoredStep::average(const Part& part,
                           const double* sums,
                           const Tensor& row_state,
                           const Tensor& column_state,
                           double beta) const {
  const Doubles row_values(row_state);
  const Doubles column_values(column_state);
  const Doubles row_roots(part.row_root);
  const Doubles column_roots(part.column_root);
  const double* column_sums = sums + part.stack * part.rows;
  for (int64_t matrix = 0; matrix < part.stack; ++matrix) {
    const int64_t row = matrix * part.rows;
    const int64_t column = matrix * part.columns;
    double mean = 0;  // over rows
    for (int64_t i = row; i < row + part.rows; ++i) {
      mean += row_values.move(i, beta, sums[i] / static_cast<double>(part.columns));
    }
    mean /= static_cast<double>(part.rows);
    for (int64_t i = row; i < row + part.rows; ++i) {
      // The roots are taken apart: the product of both numbers can vanish in float32.
      row_roots.set(i, std::sqrt(mean / row_values.get(i)));
    }
    for (int64_t i = column; i < column + part.columns; ++i) {
      const double average =
          column_values.move(i, beta, column_sums[i] / static_cast<double>(part.rows));
      column_roots.set(i, 1.0 / std::sqrt(average));
    }
  }
}

void FactoredStep::scale_steps() {
  const Tensor totals = zeros({2 * static_cast<int64_t>(parts_.size())}, kFloat64);
  auto* total = totals.data<double>();
  const auto* norms = norms_.data<double>();
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (size_t tile = parts_[i].first_tile; tile < parts_[i].end_tile; ++tile) {
      if (counts_slice(*parts_[i].logical, parameters_[parts_[i].parameter].slices)) {
        total[2 * i] += norms[2 * tile];
        total[2 * i + 1] += norms[2 * tile + 1];
      }
    }
  }
  int64_t begin = 0;
  for (const Shared& shared : shared_) {
    const auto end = 2 * static_cast<int64_t>(shared.end_part);
    sum_over_ranks(shared, totals, std::exchange(begin, end), end);
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Parameter& owner = parameters_[parts_[i].parameter];
    const auto count = static_cast<double>(std::max<int64_t>(parts_[i].logical->shape.numel(), 1));
    kernels::FactoredConstants& k = parts_[i].constants;
    k.clip = 1.0 / std::max(1.0, std::sqrt(total[2 * i] / count) / settings_.clip_threshold);
    k.step = owner.lr;
    if (settings_.scale_parameter) {
      k.step *= std::max(settings_.eps2, std::sqrt(total[2 * i + 1] / count));
    }
    k.decay = k.step * owner.weight_decay;
  }
}

void FactoredStep::find_directions() {
  clear_column_sums();
  kernels::factored_squares(matrices());
  average("exp_avg_sq_row", "exp_avg_sq_col", nullptr);
  kernels::factored_norms(tiles_);
  scale_steps();
}

void FactoredStep::apply_directions() { kernels::adafactor_apply(tiles_); }

void FactoredStep::apply_with_confidence(double beta3) {
  clear_column_sums();
  kernels::came_average(tiles_);
  average("exp_avg_res_row", "exp_avg_res_col", &beta3);
  kernels::came_apply(matrices());
}

std::vector<FactoredStep::Parameter> FactoredOptimizer::parameters_of(
    std::span<const Update> updates) {
  std::vector<FactoredStep::Parameter> parameters;
  for (const Update& u : updates) {
    parameters.push_back({.values = u.values,
                          .grad = u.grad,
                          .copy = u.copy,
                          .first = u.first,
                          .logical = u.logical,
                          .slices = u.slices,
                          .copies = u.copies,
                          .is_matrix = u.is_matrix,
                          .states = &u.state->tensors,
                          .lr = *u.group->lr,
                          .weight_decay = *u.group->weight_decay});
  }
  return parameters;
}

}  // namespace tapestry::optim
