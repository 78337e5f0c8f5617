#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/kernels/optimizer.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

namespace {

void* at(const Tensor& array, int64_t element) {
  return static_cast<std::byte*>(array.raw()) + element * size_of(array.dtype());
}

void check_iterations(const MuonOptions& options) {
  check<ValueError>(options.ns_steps > 0, "Muon: ns_steps must be above 0, got ", options.ns_steps);
  for (const NewtonSchulzSegment& segment : options.coefficients) {
    check<ValueError>(
        std::isfinite(segment.a) && std::isfinite(segment.b) && std::isfinite(segment.c),
        "Muon: coefficients must be finite, got ", segment.a, ", ", segment.b, ", ", segment.c);
    check<ValueError>(segment.steps > 0,
                      "Muon: a segment of coefficients needs steps above 0, got ", segment.steps);
  }
  for (const auto& [name, blocks] : options.row_turns) {
    check<ValueError>(!blocks.empty() && *std::min_element(blocks.begin(), blocks.end()) > 0,
                      "Muon: row_turns of '", name, "' must be numbers above 0");
  }
}

}  // namespace

Muon::Muon(const TensorList& params, MuonOptions options) : Muon(single_group(params), options) {}

Muon::Muon(std::vector<ParamGroup> groups, MuonOptions options)
    : AdamBase(std::move(groups),
               {.lr = options.lr,
                .beta1 = options.beta1,
                .beta2 = options.beta2,
                .eps = options.eps,
                .weight_decay = options.weight_decay,
                .storage = options.storage},
               /*decoupled=*/true),
      options_(options) {
  check<ValueError>(options.momentum >= 0 && options.momentum < 1,
                    "Muon: momentum must lie in [0, 1), got ", options.momentum);
  check_iterations(options);
  if (options_.coefficients.empty()) {
    options_.coefficients = {{.steps = options.ns_steps}};
  }
  check_above_0("Muon", {{"matched_adamw_rms", options.matched_adamw_rms}});
  check<ValueError>(
      !options.products || *options.products == kFloat32 || *options.products == kBFloat16,
      "Muon: products must be in float32 or bfloat16, got ",
      name_of(options.products.value_or(kFloat32)));
  check<ValueError>(
      !options.storage.store_param_remainders,
      "Muon: matrices have no exp_avg_sq, in which store_param_remainders keeps bits");
}

std::vector<StateKind> Muon::state_kinds(const ParamGroup& group, bool is_matrix) const {
  return is_matrix && !group.adamw ? std::vector<StateKind>{{"momentum_buffer"}}
                                   : AdamBase::state_kinds(group, is_matrix);
}

double Muon::scale_of(const Shape& shape) const {
  const auto rows = static_cast<double>(shape[shape.size() - 2]);
  const auto columns = static_cast<double>(shape[shape.size() - 1]);
  return options_.scale == MuonScale::kOriginal
             ? std::sqrt(std::max(1.0, rows / columns))
             : options_.matched_adamw_rms * std::sqrt(std::max(rows, columns));
}

Tensor Muon::orthogonal(const Tensor& whole) const {
  const DType products = whole.dtype() == kFloat64
                             ? kFloat64
                             : options_.products.value_or(fastest_newton_schulz_dtype());
  return newton_schulz(whole, options_.coefficients, products);
}

// With the scale of each matrix in it: they may have different ones.
Tensor Muon::orthogonal_turns(const std::string& name, const Tensor& whole) const {
  const std::vector<int64_t>& blocks = options_.row_turns.at(name);
  const int64_t turn = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  check<ValueError>(whole.dim() == 2 && whole.size(0) % turn == 0, "Muon: '", name, "' ",
                    whole.shape(), " does not consist of turns of ", turn, " rows");
  const int64_t columns = whole.size(1);
  const int64_t turns = whole.size(0) / turn;
  const Tensor out = empty(whole.shape(), whole.dtype());
  int64_t first = 0;
  for (const int64_t rows : blocks) {
    const auto own = [&, offset = first * columns](const Tensor& all) {
      return alias(all, {turns, rows, columns}, {turn * columns, columns, 1},
                   all.offset() + offset);
    };
    const Tensor matrix = empty({turns * rows, columns}, whole.dtype());
    copy_values(own(whole), matrix.view({turns, rows, columns}));
    const Tensor direction = orthogonal(matrix);
    kernels::scale_inplace(direction.dtype(), direction.numel(), scale_of(matrix.shape()),
                           direction.raw());
    copy_values(direction.view({turns, rows, columns}), own(out));
    first += rows;
  }
  return out;
}

void Muon::update(std::span<const Update> updates, const GradTransform& transform) {
  std::vector<Update> adamw;
  std::vector<std::pair<MatrixExchange*, std::vector<Update>>> matrices;
  for (const Update& u : updates) {
    if (!u.is_matrix || u.group->adamw) {
      adamw.push_back(u);
      continue;
    }
    MatrixExchange* const exchange = &exchange_of(u);
    auto found = std::find_if(matrices.begin(), matrices.end(),
                              [&](const auto& entry) { return entry.first == exchange; });
    if (found == matrices.end()) {
      found = matrices.insert(matrices.end(), {exchange, {}});
    }
    found->second.push_back(u);
  }
  AdamBase::update(adamw, transform);
  for (const auto& [exchange, shared] : matrices) {
    update_matrices(shared, transform, *exchange);
  }
}

MatrixExchange& Muon::exchange_of(const Update& update) {
  const auto ranks = std::pair(update.slices, update.copies);
  for (auto& [known, exchange] : exchanges_) {
    if (known == ranks) {
      return exchange;
    }
  }
  exchanges_.emplace_back(ranks, MatrixExchange(update.slices, update.copies, updates_pieces()));
  return exchanges_.back().second;
}

void Muon::update_matrices(const std::vector<Update>& updates,
                           const GradTransform& transform,
                           MatrixExchange& exchange) {
  std::vector<MatrixExchange::Item> items;
  std::vector<const Update*> owners;
  for (const Update& u : updates) {
    for (const nn::LogicalTensor& logical : *u.logical) {
      items.push_back({.logical = &logical,
                       .range = nn::range_in_part(logical, u.first, u.values.numel()),
                       .dtype = u.values.dtype()});
      owners.push_back(&u);
    }
  }
  const auto for_runs = [&](size_t i, const auto& visit) {
    const nn::ElementRange range = items[i].range;
    nn::for_each_parameter_run(*items[i].logical, range,
                               [&](int64_t number, int64_t element, int64_t count) {
                                 visit(number - range.begin, element - owners[i]->first, count);
                               });
  };
  const kernels::MuonSettings settings{.momentum = options_.momentum,
                                       .nesterov = options_.nesterov,
                                       .grad_scale = transform.scale,
                                       .grad_limit = transform.limit};
  const auto read = [&](size_t i) {
    const Update& u = *owners[i];
    const Tensor& buffer = u.state->tensors.at("momentum_buffer");
    Tensor direction = empty({items[i].range.size()}, buffer.dtype());
    std::vector<kernels::MuonMomentum> runs;
    for_runs(i, [&](int64_t number, int64_t element, int64_t count) {
      runs.push_back({.n = count,
                      .dtype = buffer.dtype(),
                      .grad_dtype = u.grad.dtype(),
                      .g = at(u.grad, element),
                      .momentum_buffer = at(buffer, element),
                      .direction = at(direction, number)});
    });
    kernels::muon_momentum(runs, settings);
    return direction;
  };
  const auto in_blocks = [&](size_t i) {
    return options_.row_turns.contains(items[i].logical->name);
  };
  const auto compute = [&](size_t i, const Tensor& whole) {
    return in_blocks(i) ? orthogonal_turns(items[i].logical->name, whole) : orthogonal(whole);
  };
  const auto write = [&](size_t i, const Tensor& direction) {
    const Update& u = *owners[i];
    const double scale = in_blocks(i) ? 1 : scale_of(items[i].logical->shape);
    std::vector<kernels::MuonApply> runs;
    for_runs(i, [&](int64_t number, int64_t element, int64_t count) {
      runs.push_back({.n = count,
                      .dtype = u.values.dtype(),
                      .p = at(u.values, element),
                      .direction = at(direction, number),
                      .copy_dtype = u.copy.defined() ? u.copy.dtype() : kBFloat16,
                      .copy = u.copy.defined() ? at(u.copy, element) : nullptr,
                      .step = *u.group->lr * scale,
                      .decay = *u.group->lr * *u.group->weight_decay});
    });
    kernels::muon_apply(runs);
  };
  exchange.run(items, read, compute, write);
}

}  // namespace tapestry::optim
