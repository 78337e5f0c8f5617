#include "parallel_core/distributed/param_and_grad_bucket.h"

#include <algorithm>
#include <tuple>

#include "autograd/kernels/exact/exact_squares.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/optimizer.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "nn/random_rows.h"
#include "parallel_core/distributed/gradient_numbers.h"

namespace tapestry {

namespace {

int64_t padded(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

Tensor flat(const Tensor& whole, int64_t begin, int64_t size) {
  return alias(whole, {size}, {1}, whole.offset() + begin);
}

// A tensor on a storage whose memory need not be there.
Tensor on_storage(const Ref<Storage>& storage, int64_t offset, const Shape& shape, DType dtype) {
  return Tensor(make_ref<TensorImpl>(storage, offset, shape, contiguous_strides(shape), dtype));
}

}  // namespace

ParamAndGradBucket::ParamAndGradBucket(std::vector<Placed> parameters,
                                       const Options& options,
                                       ProcessGroup& group)
    : parameters_(std::move(parameters)),
      options_(options),
      group_(group),
      self_(std::make_shared<ParamAndGradBucket*>(this)) {
  check<ValueError>(!options.paged || options.sharding == Sharding::kParameters,
                    "bucket: only sharded parameters can be paged");
  check<ValueError>(!options.exact || options.grad_dtype == kFloat32,
                    "bucket: exact sums are rounded to float32, not ", name_of(options.grad_dtype));
  for (Placed& placed : parameters_) {
    placed.offset = size_;
    size_ += padded(placed.parameter->numel(), kAlignment);
  }
  size_ = padded(size_, kAlignment * group_.size());
  if (options_.sharding != Sharding::kNone) {
    place_parameters();  // first, while the old places of the parameters take memory too
  }
  make_gradients();
}

ParamAndGradBucket::~ParamAndGradBucket() {
  for (const Ref<Storage>& window : {grad_window_, value_window_, copy_window_}) {
    if (window) {
      window->close();
    }
  }
}

Ref<Storage> ParamAndGradBucket::make_window(DType dtype,
                                             std::byte* (ParamAndGradBucket::*open)()) {
  return make_ref<Storage>(
      size_ * size_of(dtype), [open, bucket = std::weak_ptr(self_)]() -> std::byte* {
        const auto self = bucket.lock();
        check<RuntimeError>(self != nullptr,
                            "data parallel: the memory of a parameter or its gradient went with "
                            "the DistributedDataParallel that held it");
        return ((*self)->*open)();
      });
}

std::pair<int64_t, int64_t> ParamAndGradBucket::range_of(const Placed& placed, int rank) const {
  const int64_t size = placed.parameter->numel();
  const int64_t first = rank * shard_size() - placed.offset;
  return {std::clamp<int64_t>(first, 0, size), std::clamp<int64_t>(first + shard_size(), 0, size)};
}

void ParamAndGradBucket::make_gradients() {
  const MemoryKindGuard kind(MemoryKind::kGradient);
  is_open_ = options_.exact;
  const DType dtype = sum_dtype();
  const bool whole = !frees_gradients();
  if (whole) {
    show_gradients(zeros({size_}, dtype), {});
  } else {
    grad_window_ = make_window(dtype, &ParamAndGradBucket::open_gradients);
    show_gradients({}, zeros({shard_size()}, dtype));
  }
  // Of exact sums pieces have the place where they are rounded to.
  const Tensor memory = whole ? grads_ : grad_shard_;
  const Tensor numbers = is_open_ ? rounded_view(memory) : memory;
  const int64_t own = whole ? group_.rank() * shard_size() : 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    ParameterPiece& piece = pieces_[i];
    piece.gradient = flat(numbers, own + start_of(i), piece.end - piece.begin);
    piece.values.set_main_grad(piece.gradient);
  }
  if (frees_gradients() && dtype == kBFloat16) {
    number_shard();
  }
}

// Makes these the gradients, in the dtype that they have; without `whole` they are in the window,
// otherwise the shard is a part of them.
void ParamAndGradBucket::show_gradients(const Tensor& whole, const Tensor& shard) {
  grads_ = whole;
  grad_shard_ = whole.defined() ? flat(whole, group_.rank() * shard_size(), shard_size()) : shard;
  const DType dtype = grad_shard_.dtype();
  for (const Placed& placed : parameters_) {
    const nn::Parameter& parameter = *placed.parameter;
    const Ref<Storage>& storage = whole.defined() ? whole.storage() : grad_window_;
    const Tensor main_grad = on_storage(storage, placed.offset, parameter.shape(), dtype);
    parameter.set_main_grad(main_grad);
    if (dtype == kBFloat16 && parameter.numel() > 0) {
      number_main_grad(parameter, gradient_numbers(placed.name, parameter));
    }
  }
}

// Which random numbers round the sums in this rank's shard.
void ParamAndGradBucket::number_shard() {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const ParameterPiece& piece = pieces_[i];
    const int64_t size = piece.end - piece.begin;
    if (size == 0) {
      continue;
    }
    for (kernels::RandomRows rows :
         summed_gradient_numbers(piece.name, *piece.parameter, piece.begin, size)) {
      rows.begin += start_of(i);
      shard_numbers_.push_back(rows);
    }
  }
  if (shard_numbers_.empty() || shard_numbers_.front().begin > 0) {
    shard_numbers_.insert(shard_numbers_.begin(), kernels::RandomRows{});  // of a gap
  }
}

// Of a piece in this rank's shard.
int64_t ParamAndGradBucket::start_of(size_t index) const {
  const ParameterPiece& piece = pieces_[index];
  return piece.begin < piece.end
             ? parameters_[index].offset + piece.begin - group_.rank() * shard_size()
             : 0;
}

void ParamAndGradBucket::place_parameters() {
  const NoGradGuard guard;
  const DType dtype = options_.param_dtype;
  const int64_t first = group_.rank() * shard_size();
  const MemoryKindGuard kind(MemoryKind::kParameter);
  values_ = zeros({size_}, dtype);
  value_shard_ = flat(values_, first, shard_size());
  for (const Placed& placed : parameters_) {
    const nn::Parameter& parameter = *placed.parameter;
    copy_values(parameter.detach().view({-1}), flat(values_, placed.offset, parameter.numel()));
  }
  if (options_.paged) {
    value_shard_ = dense_copy(value_shard_);
  }
  value_window_ = make_window(dtype, &ParamAndGradBucket::open_parameters);
  for (const Placed& placed : parameters_) {
    ParameterPiece& piece =
        pieces_.emplace_back(ParameterPiece{.name = placed.name, .parameter = placed.parameter});
    std::tie(piece.begin, piece.end) = range_of(placed, group_.rank());
    const int64_t size = piece.end - piece.begin;
    piece.place = flat(value_shard_, start_of(pieces_.size() - 1), size);
    if (dtype == placed.parameter->dtype()) {
      piece.values = piece.place;
    } else {
      const MemoryKindGuard master(MemoryKind::kOptimizer);
      piece.values =
          dense_copy(flat(placed.parameter->detach().view({-1}), size > 0 ? piece.begin : 0, size));
    }
    set_data(*placed.parameter,
             on_storage(value_window_, placed.offset, placed.parameter->shape(), dtype));
  }
  if (options_.paged) {
    values_ = {};
    if (dtype != options_.compute_dtype) {
      check<ValueError>(parameters_.size() == 1, "bucket: a paged one holds one parameter");
      const Placed& only = parameters_.front();
      copy_window_ = make_window(options_.compute_dtype, &ParamAndGradBucket::open_copies);
      copy_ =
          on_storage(copy_window_, only.offset, only.parameter->shape(), options_.compute_dtype);
      set_compute_copy(*only.parameter, copy_);
    }
  }
}

std::byte* ParamAndGradBucket::open_gradients() {
  finish_reduce();  // the memory of before is still being read
  const MemoryKindGuard kind(MemoryKind::kGradient);
  grads_ = empty({size_}, sum_dtype());
  clear_gaps();
  return static_cast<std::byte*>(grads_.raw());
}

// Gaps between gradients are summed over the ranks like everything else.
void ParamAndGradBucket::clear_gaps() const {
  const auto clear = [&](int64_t begin, int64_t end) {
    const Tensor gap = flat(grads_, begin, end - begin);
    copy_values(broadcast_view(scalar(0, gap.dtype()), gap.shape()), gap);
  };
  int64_t end = 0;
  for (const Placed& placed : parameters_) {
    clear(end, placed.offset);
    end = placed.offset + placed.parameter->numel();
  }
  clear(end, size_);
}

std::byte* ParamAndGradBucket::open_parameters() {
  if (options_.paged) {
    const MemoryKindGuard kind(MemoryKind::kParameter);
    values_ = empty({size_}, options_.param_dtype);
    group_.all_gather(values_, value_shard_);
    options_.on_open(*this);
  } else {
    finish_gather();
  }
  return static_cast<std::byte*>(values_.raw());
}

std::byte* ParamAndGradBucket::open_copies() {
  const MemoryKindGuard kind(MemoryKind::kParameter);
  copies_ = empty({size_}, options_.compute_dtype);
  const Tensor own = flat(copies_, group_.rank() * shard_size(), shard_size());
  copy_values(value_shard_, own);
  group_.all_gather(copies_, own);
  options_.on_open(*this);
  return static_cast<std::byte*>(copies_.raw());
}

void ParamAndGradBucket::zero(int64_t step) {
  step_ = step;
  if (options_.exact && !is_open_) {
    is_open_ = true;
    const auto sums_in = [](const Tensor& numbers) {
      return numbers.defined() && numbers.offset() == 0
                 ? on_storage(numbers.storage(), 0, numbers.shape(), kFloat64)
                 : Tensor();
    };
    release_gradients();
    show_gradients(sums_in(grads_), sums_in(grad_shard_));
    if (grads_.defined()) {
      clear_gaps();
    }
  }
  reductions_ = 0;
  shard_is_fresh_ = true;
  forget_gradients();
}

// Makes the parameters' main_grads stand for zeros.
void ParamAndGradBucket::forget_gradients() {
  const uint64_t rank =
      combine(static_cast<uint64_t>(group_.rank()), static_cast<uint64_t>(reductions_));
  const uint64_t stream =
      combine(combine(stream_of("main_grad"), static_cast<uint64_t>(step_)), rank);
  for (const Placed& placed : parameters_) {
    reset_main_grad(*placed.parameter, {options_.seed, stream, 0});
  }
}

void ParamAndGradBucket::start_reduce() {
  finish_reduce();
  for (const Placed& placed : parameters_) {
    placed.parameter->main_grad();  // writes the zeros that it may only stand for
  }
  if (group_.size() == 1 && !frees_gradients()) {
    return;  // what this rank has is the sum, and its shard all of it
  }
  if (options_.sharding == Sharding::kNone) {
    reduction_ = group_.all_reduce_async(grads_);
    return;
  }
  reduced_ = grad_shard_;
  if (!shard_is_fresh_) {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    reduced_ = empty({shard_size()}, sum_dtype());
  }
  reduction_ = group_.reduce_scatter_async(reduced_, grads_);
  ++reductions_;
  if (grad_window_) {
    grad_window_->close();
    forget_gradients();
  }
}

void ParamAndGradBucket::finish_reduce() {
  if (reduction_ == nullptr) {
    return;
  }
  reduction_->wait();
  reduction_ = nullptr;
  if (!grad_window_) {
    return;
  }
  if (!shard_is_fresh_) {
    add_to_shard();
  }
  shard_is_fresh_ = false;
  reduced_ = {};
  grads_ = {};
}

void ParamAndGradBucket::add_to_shard() {
  if (options_.grad_dtype == kBFloat16) {
    const uint64_t stream = combine(combine(stream_of("grad_shard"), static_cast<uint64_t>(step_)),
                                    static_cast<uint64_t>(reductions_));
    kernels::add_stochastic(kBFloat16, shard_size(), reduced_.raw(), options_.seed,
                            nn::in_stream(shard_numbers_, stream), grad_shard_.data<BFloat16>());
  } else {
    kernels::axpy(sum_dtype(), shard_size(), 1, reduced_.raw(), grad_shard_.raw());
  }
}

double ParamAndGradBucket::round_gradients() {
  if (!is_open_) {
    return 0;
  }
  finish_reduce();
  is_open_ = false;
  const bool whole = !frees_gradients();
  const Tensor sums = options_.sharding == Sharding::kNone ? grads_ : grad_shard_;
  if (whole) {
    show_gradients(rounded_view(grads_), {});
  } else {
    grad_window_->close();
    show_gradients({}, rounded_view(grad_shard_));
    forget_gradients();
  }
  const Tensor& numbers = options_.sharding == Sharding::kNone ? grads_ : grad_shard_;
  return kernels::exact_to_float32(sums.numel(), sums.data<double>(), numbers.data<float>());
}

// What this rank holds of the reduced gradient of a parameter.
Tensor ParamAndGradBucket::held_gradient(size_t index) const {
  return options_.sharding == Sharding::kNone
             ? flat(grads_, parameters_[index].offset, parameters_[index].parameter->numel())
             : pieces_[index].gradient;
}

const ParamAndGradBucket::Placed& ParamAndGradBucket::largest_gradient() const {
  size_t found = 0;
  float largest = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor held = held_gradient(i);
    const float own = kernels::largest_magnitude(held.numel(), held.data<float>());
    if (own > largest) {
      largest = own;
      found = i;
    }
  }
  return parameters_[found];
}

void ParamAndGradBucket::gather_gradients() {
  if (options_.sharding == Sharding::kNone) {
    return;
  }
  for (const Placed& placed : parameters_) {
    placed.parameter->main_grad();  // not zeros any more
  }
  if (group_.size() > 1 || frees_gradients()) {
    group_.all_gather(grads_, grad_shard_);
  }
}

void ParamAndGradBucket::release_gradients() {
  if (grad_window_) {
    grad_window_->close();
    grads_ = {};
    forget_gradients();
  }
}

void ParamAndGradBucket::scale(double factor) {
  const Tensor& held = options_.sharding == Sharding::kNone ? grads_ : grad_shard_;
  kernels::scale_inplace(held.dtype(), held.numel(), factor, held.raw());
}

double ParamAndGradBucket::squares(const std::function<bool(const nn::Parameter&)>& counts) const {
  double sum = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (counts(*parameters_[i].parameter)) {
      const Tensor held = held_gradient(i);
      sum += kernels::sum_of_squares(held.dtype(), held.numel(), held.raw());
    }
  }
  return sum;
}

void ParamAndGradBucket::start_gather() {
  value_window_->bump_version();
  if (!options_.paged && group_.size() == 1) {
    return;
  }
  if (!options_.paged) {
    gather_ = group_.all_gather_async(values_, value_shard_);
    value_window_->close();
    return;
  }
  close();
  if (copy_.defined()) {
    set_compute_copy(*parameters_.front().parameter, copy_);
  }
}

bool ParamAndGradBucket::is_leased() const {
  return value_window_->is_leased() || (copy_window_ && copy_window_->is_leased());
}

void ParamAndGradBucket::finish_gather() {
  if (gather_ != nullptr) {
    gather_->wait();
    gather_ = nullptr;
  }
}

void ParamAndGradBucket::close() {
  value_window_->close();
  values_ = {};
  if (copy_window_) {
    copy_window_->close();
    copies_ = {};
  }
}

}  // namespace tapestry
