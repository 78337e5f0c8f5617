#include "autograd/kernels/recurrence/short_convolution.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/recurrence/short_convolution_units.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void convolution_unit(const ConvolutionProblem& problem,
                      void* y,
                      const ConvolutionUnit& unit,
                      void* scratch);
void convolution_backward_unit(const ConvolutionProblem& problem,
                               const ConvolutionBackward& to,
                               const ConvolutionUnit& unit,
                               void* dweight,
                               void* dbias,
                               void* scratch);
void convolution_step_unit(const ConvolutionProblem& problem,
                           const ConvolutionStep& to,
                           const ConvolutionUnit& unit,
                           void* scratch);

namespace {

constexpr int64_t kWidth = kConvolutionChannels;

[[gnu::always_inline]] inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/// out = bias + sum_i weight[i] rows[i]; kTaps 0: any number.
template <int kTaps, class C>
[[gnu::noinline]] void sum_taps(
    int64_t n, int64_t taps, const C* const* weight, const C* const* rows, const C* bias, C* out) {
  if constexpr (kTaps > 0) {
    const C* w[kTaps];
    const C* x[kTaps];
    for (int i = 0; i < kTaps; ++i) {
      w[i] = weight[i];
      x[i] = rows[i];
    }
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < n; ++c) {
      C sum = bias[c];
#pragma GCC unroll 4
      for (int i = 0; i < kTaps; ++i) {
        sum += w[i][c] * x[i][c];
      }
      out[c] = sum;
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < n; ++c) {
      out[c] = bias[c];
    }
    for (int64_t i = 0; i < taps; ++i) {
      const C* w = weight[i];
      const C* x = rows[i];
      TAPESTRY_VECTOR_LOOP
      for (int64_t c = 0; c < n; ++c) {
        out[c] += w[c] * x[c];
      }
    }
  }
}

/// sums[i] += dz rows[i], dbias += dz.
template <int kTaps, class C>
[[gnu::noinline]] void add_products(
    int64_t n, int64_t taps, const C* dz, const C* const* rows, C* sums, C* dbias) {
  if constexpr (kTaps > 0) {
    const C* x[kTaps];
    for (int i = 0; i < kTaps; ++i) {
      x[i] = rows[i];
    }
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < n; ++c) {
      const C d = dz[c];
      dbias[c] += d;
#pragma GCC unroll 4
      for (int i = 0; i < kTaps; ++i) {
        sums[i * kWidth + c] += d * x[i][c];
      }
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < n; ++c) {
      dbias[c] += dz[c];
    }
    for (int64_t i = 0; i < taps; ++i) {
      const C* x = rows[i];
      C* sum = sums + i * kWidth;
      TAPESTRY_VECTOR_LOOP
      for (int64_t c = 0; c < n; ++c) {
        sum[c] += dz[c] * x[c];
      }
    }
  }
}

/// Calls f with the number of taps as a constant where there is a loop for it, else with 0.
template <class F>
[[gnu::always_inline]] inline void for_taps(int64_t taps, const F& f) {
  switch (taps) {
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    default:
      return f(std::integral_constant<int, 0>());
  }
}

template <class C>
[[gnu::noinline]] void apply_silu(int64_t n, C* x) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t c = 0; c < n; ++c) {
    x[c] = silu(x[c]);
  }
}

/// dz = dy silu'(z), in place of z.
template <class C>
[[gnu::noinline]] void silu_backward(int64_t n, const C* dy, C* z) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t c = 0; c < n; ++c) {
    z[c] = dy[c] * silu_derivative(z[c]);
  }
}

/// Some channels of some rows.
template <class T>
class Convolution {
 protected:
  using C = compute_t<T>;

 public:
  Convolution(const ConvolutionProblem& problem, const ConvolutionUnit& unit, void* scratch)
      : p_(problem),
        unit_(unit),
        n_(unit.channel_end - unit.channel_begin),
        next_(static_cast<C*>(scratch)) {
    x_ = take(p_.taps);
    zeros_ = take(1);
    out_ = take(1);
    for (int64_t c = 0; c < n_; ++c) {
      zeros_[c] = 0;
    }
    for (int64_t i = 0; i < p_.taps; ++i) {
      weight_[i] = static_cast<const C*>(p_.weight) + i * p_.channels + unit_.channel_begin;
    }
    bias_ = p_.bias == nullptr ? zeros_ : static_cast<const C*>(p_.bias) + unit_.channel_begin;
  }

  void run(void* y) {
    for_taps(p_.taps, [&](auto taps) {
      for (int64_t row = unit_.row_begin; row < unit_.row_end; ++row) {
        const int64_t t = row % p_.tokens;
        if (row == unit_.row_begin || t == 0) {
          begin(row / p_.tokens, t);
        }
        const C* rows[kMostTaps];
        enter(t, rows);
        T* to = static_cast<T*>(y) + row * p_.channels + unit_.channel_begin;
        C* out = output_block(to, out_);
        sum_taps<taps.value>(n_, p_.taps, weight_, rows, bias_, out);
        if (p_.silu) {
          apply_silu(n_, out);
        }
        write_block(n_, out, to);
      }
    });
  }

 protected:
  C* take(int64_t rows) {
    C* out = next_;
    next_ += rows * kWidth;
    return out;
  }

  /// The next token is t of the sample: the rows before it are looked up.
  void begin(int64_t sample, int64_t t) {
    sample_ = sample;
    for (int64_t i = 1; i < p_.taps; ++i) {
      window_[i] = input(t - p_.taps + i);
    }
  }

  /// The rows that token t sees, the token following the one before.
  [[gnu::always_inline]] void enter(int64_t t, const C** rows) {
    for (int64_t i = 1; i < p_.taps; ++i) {
      window_[i - 1] = window_[i];
    }
    window_[p_.taps - 1] = input(t);
    const int64_t hidden = p_.taps - 1 - seen_before(t);
    for (int64_t i = 0; i < p_.taps; ++i) {
      rows[i] = i < hidden ? zeros_ : window_[i];
    }
  }

  /// How many of the rows before token t it sees.
  int64_t seen_before(int64_t t) const {
    if (p_.starts == nullptr) {
      return p_.taps - 1;
    }
    const int64_t position = p_.first_position + t;
    const int64_t start = p_.starts[sample_ * p_.starts_batch + position];
    return start == 0 ? p_.taps - 1 : smaller(position - start, p_.taps - 1);
  }

  const ConvolutionProblem& p_;
  const ConvolutionUnit& unit_;
  const int64_t n_;
  C* next_;
  int64_t sample_ = 0;
  C* x_;      // rows that were converted, by their number modulo the taps
  C* zeros_;  // a row
  C* out_;    // a row
  const C* weight_[kMostTaps] = {};
  const C* bias_;

 private:
  /// Row j of x, or of the rows before the first for j below 0.
  const C* input(int64_t j) {
    const T* row = nullptr;
    if (j >= 0) {
      row = static_cast<const T*>(p_.x.data) + sample_ * p_.x.batch + j * p_.x.row;
    } else if (p_.previous != nullptr) {
      row = static_cast<const T*>(p_.previous) +
            (sample_ * (p_.taps - 1) + p_.taps - 1 + j) * p_.channels;
    } else {
      return zeros_;
    }
    return read_block(n_, row + unit_.channel_begin, x_ + (j + p_.taps) % p_.taps * kWidth);
  }

  const C* window_[kMostTaps] = {};
};

template <class T>
class Backward : Convolution<T> {
  using Base = Convolution<T>;
  using Base::n_, Base::p_, Base::unit_;
  using typename Base::C;

 public:
  Backward(const ConvolutionProblem& problem,
           const ConvolutionBackward& to,
           const ConvolutionUnit& unit,
           void* scratch)
      : Base(problem, unit, scratch), to_(to) {
    dz_ = this->take(p_.taps);
    dy_ = this->take(1);
    sums_ = this->take(p_.taps);
    dbias_ = this->take(1);
    for (int64_t c = 0; c < p_.taps * kWidth; ++c) {
      sums_[c] = 0;
    }
    for (int64_t c = 0; c < kWidth; ++c) {
      dbias_[c] = 0;
    }
    for (int64_t i = 0; i < p_.taps; ++i) {  // the last tap is that of the token itself
      turned_[i] = this->weight_[p_.taps - 1 - i];
    }
  }

  /// dweight [channels, taps] and dbias [channels] of these rows; null: not wanted.
  void run(C* dweight, C* dbias) {
    for_taps(p_.taps, [&](auto taps) {
      for (int64_t row = unit_.row_begin; row < unit_.row_end;) {
        const int64_t sample = row / p_.tokens;
        const int64_t end = smaller(unit_.row_end, (sample + 1) * p_.tokens);
        run_tokens<taps.value>(sample, row - sample * p_.tokens, end - sample * p_.tokens);
        row = end;
      }
    });
    for (int64_t c = 0; c < n_ && dweight != nullptr; ++c) {
      for (int64_t i = 0; i < p_.taps; ++i) {
        dweight[(unit_.channel_begin + c) * p_.taps + i] = sums_[i * kWidth + c];
      }
    }
    for (int64_t c = 0; c < n_ && dbias != nullptr; ++c) {
      dbias[unit_.channel_begin + c] = dbias_[c];
    }
  }

 private:
  /// Tokens [begin, end) of a sample. dx_t needs dz of the taps - 1 tokens behind it as well.
  template <int kTaps>
  void run_tokens(int64_t sample, int64_t begin, int64_t end) {
    this->begin(sample, begin);
    const int64_t before = begin == 0 && to_.dprevious != nullptr ? p_.taps - 1 : 0;
    const bool wants_inputs = to_.dx != nullptr || before > 0;
    const int64_t last = wants_inputs ? p_.taps - 1 : 0;
    int64_t next = begin;
    for (int64_t t = begin - before; t < end; ++t) {
      for (; next < p_.tokens && next <= t + last; ++next) {
        add_token<kTaps>(next, next < end);
      }
      if (t >= 0 ? to_.dx != nullptr : true) {
        store_input<kTaps>(t, begin);
      }
    }
  }

  template <int kTaps>
  [[gnu::always_inline]] void add_token(int64_t t, bool is_own) {
    const C* rows[kMostTaps];
    this->enter(t, rows);
    const T* from = static_cast<const T*>(to_.dy.data) + this->sample_ * to_.dy.batch +
                    t * to_.dy.row + unit_.channel_begin;
    const C* dy = read_block(n_, from, dy_);
    C* dz = dz_ + t % p_.taps * kWidth;
    if (p_.silu) {
      sum_taps<kTaps>(n_, p_.taps, this->weight_, rows, this->bias_, dz);
      silu_backward(n_, dy, dz);
    } else {
      for (int64_t c = 0; c < n_; ++c) {
        dz[c] = dy[c];
      }
    }
    if (is_own && (to_.dweight.out != nullptr || to_.dbias.out != nullptr)) {
      add_products<kTaps>(n_, p_.taps, dz, rows, sums_, dbias_);
    }
  }

  /// dx_t = sum of w_(taps - 1 - d) dz_(t + d) over those that see t.
  template <int kTaps>
  [[gnu::always_inline]] void store_input(int64_t t, int64_t begin) {
    const C* rows[kMostTaps];
    for (int64_t d = 0; d < p_.taps; ++d) {
      const int64_t of = t + d;
      const bool sees = of >= larger(begin, 0) && of < p_.tokens && d <= this->seen_before(of);
      rows[d] = sees ? dz_ + of % p_.taps * kWidth : this->zeros_;
    }
    T* to = t >= 0 ? static_cast<T*>(to_.dx) + (this->sample_ * p_.tokens + t) * p_.channels
                   : static_cast<T*>(to_.dprevious) +
                         (this->sample_ * (p_.taps - 1) + p_.taps - 1 + t) * p_.channels;
    to += unit_.channel_begin;
    C* out = output_block(to, this->out_);
    sum_taps<kTaps>(n_, p_.taps, turned_, rows, this->zeros_, out);
    write_block(n_, out, to);
  }

  const ConvolutionBackward& to_;
  C* dz_;  // of tokens, by their number modulo the taps
  C* dy_;
  C* sums_;  // of each tap
  C* dbias_;
  const C* turned_[kMostTaps] = {};
};

/// Some channels of one token of each text; states of type S.
template <class T, class S>
void step_rows(const ConvolutionProblem& p,
               const ConvolutionStep& to,
               const ConvolutionUnit& unit,
               void* scratch) {
  using C = compute_t<T>;
  const int64_t n = unit.channel_end - unit.channel_begin;
  C* buffers = static_cast<C*>(scratch);
  C* out_buffer = buffers + p.taps * kWidth;
  C* zeros = out_buffer + kWidth;
  for (int64_t c = 0; c < n; ++c) {
    zeros[c] = 0;
  }
  const C* weight[kMostTaps];
  const C* rows[kMostTaps];
  for (int64_t i = 0; i < p.taps; ++i) {
    weight[i] = static_cast<const C*>(p.weight) + i * p.channels + unit.channel_begin;
  }
  const C* bias = p.bias == nullptr ? zeros : static_cast<const C*>(p.bias) + unit.channel_begin;
  for (int64_t text = unit.row_begin; text < unit.row_end; ++text) {
    const T* x = static_cast<const T*>(p.x.data) + text * p.x.batch + unit.channel_begin;
    S* state =
        static_cast<S*>(to.state) + to.slots[text] * (p.taps - 1) * p.channels + unit.channel_begin;
    for (int64_t i = 0; i + 1 < p.taps; ++i) {
      rows[i] = read_block(n, state + i * p.channels, buffers + i * kWidth);
    }
    rows[p.taps - 1] = read_block(n, x, buffers + (p.taps - 1) * kWidth);
    T* y = static_cast<T*>(to.y) + text * p.channels + unit.channel_begin;
    C* out = output_block(y, out_buffer);
    for_taps(p.taps, [&](auto taps) { sum_taps<taps.value>(n, p.taps, weight, rows, bias, out); });
    if (p.silu) {
      apply_silu(n, out);
    }
    write_block(n, out, y);
    for (int64_t i = 0; i + 1 < p.taps; ++i) {
      store_row(n, rows[i + 1], state + i * p.channels);
    }
  }
}

}  // namespace

void convolution_unit(const ConvolutionProblem& problem,
                      void* y,
                      const ConvolutionUnit& unit,
                      void* scratch) {
  for_floating(problem.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    Convolution<T>(problem, unit, scratch).run(y);
  });
}

void convolution_backward_unit(const ConvolutionProblem& problem,
                               const ConvolutionBackward& to,
                               const ConvolutionUnit& unit,
                               void* dweight,
                               void* dbias,
                               void* scratch) {
  for_floating(problem.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    Backward<T>(problem, to, unit, scratch).run(static_cast<C*>(dweight), static_cast<C*>(dbias));
  });
}

void convolution_step_unit(const ConvolutionProblem& problem,
                           const ConvolutionStep& to,
                           const ConvolutionUnit& unit,
                           void* scratch) {
  for_floating(problem.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    if (to.state_dtype == problem.dtype) {
      step_rows<T, T>(problem, to, unit, scratch);
    } else {
      step_rows<T, compute_t<T>>(problem, to, unit, scratch);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
