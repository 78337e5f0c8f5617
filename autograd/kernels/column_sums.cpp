#include "autograd/kernels/column_sums.h"

#include <cassert>
#include <cstring>

#include "autograd/kernels/exact/exact_sums.h"

namespace tapestry::kernels {

namespace {

template <class C>
void combine(int64_t blocks, int64_t n, const C* partial, const ColumnSums& out) {
  constexpr int64_t kColumns = 64;  // at a time, so that a cache line is used whole
  const int64_t item = size_of(out.dtype);
  C piece[kColumns];
  for (int64_t done = 0; done < n; done += kColumns) {
    const int64_t m = std::min(kColumns, n - done);
    char* target = static_cast<char*>(out.out) + done * item;
    double sums[kColumns] = {};
    if (out.accumulate) {
      TAPESTRY_DISPATCH(to_compute)(out.dtype, m, target, piece);
      std::copy(piece, piece + m, sums);
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const C* row = partial + block * n + done;
      for (int64_t i = 0; i < m; ++i) {
        sums[i] += row[i];
      }
    }
    std::transform(sums, sums + m, piece, [](double sum) { return static_cast<C>(sum); });
    TAPESTRY_DISPATCH(from_compute)(out.dtype, m, piece, target);
  }
}

}  // namespace

void combine_blocks(
    DType partial_dtype, int64_t blocks, int64_t n, const void* partial, const ColumnSums& sums) {
  if (sums.out == nullptr) {
    return;
  }
  assert(!sums.exact);
  if (partial_dtype == kFloat64) {
    combine(blocks, n, static_cast<const double*>(partial), sums);
  } else {
    combine(blocks, n, static_cast<const float*>(partial), sums);
  }
}

ExactColumns::ExactColumns(const ColumnSums& sums, int64_t n, bool wanted)
    : sums_(sums), n_(n), wanted_(wanted || sums.out != nullptr) {
  if (sums.out == nullptr) {
    return;
  }
  if (sums.exact) {
    total_ = static_cast<double*>(sums.out);
  } else {
    memory_ = Scratch(n * size_of(kFloat64));
    total_ = static_cast<double*>(memory_.get());
    std::fill(total_, total_ + n, 0.0);
  }
}

void ExactColumns::finish() {
  if (sums_.out == nullptr || sums_.exact) {
    return;
  }
  auto* rounded = reinterpret_cast<float*>(total_);
  exact_to_float32(n_, total_, rounded);
  combine_blocks(kFloat32, 1, n_, rounded, sums_);
}

ExactColumnsPart::ExactColumnsPart(ExactColumns& whole) : whole_(whole) {
  if (!whole.wanted_) {
    return;
  }
  memory_ = Scratch(whole.n_ * (size_of(kFloat64) + size_of(kFloat32)));
  sums_ = static_cast<double*>(memory_.get());
  terms_ = reinterpret_cast<float*>(sums_ + whole.n_);
  std::fill(sums_, sums_ + whole.n_, 0.0);
}

ExactColumnsPart::~ExactColumnsPart() {
  if (sums_ == nullptr || whole_.total_ == nullptr) {
    return;
  }
  const std::scoped_lock lock(whole_.mutex_);
  for (int64_t i = 0; i < whole_.n_; ++i) {
    whole_.total_[i] += sums_[i];
  }
}

float* ExactColumnsPart::next_row() {
  if (terms_ != nullptr) {
    std::memset(terms_, 0, static_cast<size_t>(whole_.n_ * size_of(kFloat32)));
  }
  return terms_;
}

void ExactColumnsPart::add_row() {
  if (terms_ != nullptr) {
    TAPESTRY_DISPATCH(add_row_to_exact)(whole_.n_, terms_, sums_);
  }
}

}  // namespace tapestry::kernels
