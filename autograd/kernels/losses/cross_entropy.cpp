#include "autograd/kernels/losses/cross_entropy.h"

#include <cassert>
#include <cmath>
#include <cstring>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void cross_entropy_rows(const CrossEntropyForward& call, int64_t begin, int64_t end);
    void cross_entropy_backward_rows(const CrossEntropyBackward& call, int64_t begin, int64_t end);
    void cross_entropy_maximum_rows(
        const CrossEntropyShape& s, const void* logits, void* maxima, int64_t begin, int64_t end);
    void cross_entropy_exponential_rows(const CrossEntropyExponentials& call,
                                        int64_t begin,
                                        int64_t end))

namespace {

template <class Call>
void for_rows(const Call& call, void (*run)(const Call&, int64_t, int64_t)) {
  const CrossEntropyShape& s = call.shape;
  assert(is_floating(s.dtype) && s.valid_vocab >= 1 && s.valid_vocab <= s.vocab);
  parallel_for(s.rows, rows_per_thread(s.vocab),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

/// By the functions that ranks which share the vocabulary call.
void exact_cross_entropy(const CrossEntropyForward& call) {
  const CrossEntropyShape& s = call.shape;
  const int64_t item = size_of(compute_dtype(s.dtype));
  const Scratch memory(s.rows * (size_of(kFloat64) + 2 * item));
  auto* sums = static_cast<double*>(memory.get());
  void* maxima = sums + s.rows;
  void* label_logits = static_cast<char*>(maxima) + s.rows * item;
  cross_entropy_maxima(s, call.logits, maxima);
  cross_entropy_exponentials(
      {.shape = s, .logits = call.logits, .maxima = maxima, .leaves = kSumLeaves, .sums = sums});
  cross_entropy_label_logits(s, call.logits, call.labels, label_logits);
  cross_entropy_finish({.shape = s,
                        .maxima = maxima,
                        .sums = sums,
                        .label_logits = label_logits,
                        .labels = call.labels,
                        .loss = call.loss,
                        .lse = call.lse});
  for (int64_t i = 0; i < s.rows; ++i) {
    if (call.labels[i] < 0 || call.labels[i] >= s.valid_vocab) {
      std::memset(static_cast<char*>(call.loss) + i * item, 0, static_cast<size_t>(item));
    }
  }
}

template <class C>
void finish_rows(const CrossEntropyFinish& call) {
  const auto* maxima = static_cast<const C*>(call.maxima);
  const auto* label_logits = static_cast<const C*>(call.label_logits);
  for (int64_t i = 0; i < call.shape.rows; ++i) {
    const double max = maxima[i];
    const double lse = std::log(call.sums[i]) + (std::isfinite(max) ? max : 0.0);
    const bool counts = call.labels[i] != call.shape.ignore_index;
    static_cast<C*>(call.loss)[i] = static_cast<C>(counts ? lse - label_logits[i] : 0.0);
    if (call.lse != nullptr) {
      static_cast<C*>(call.lse)[i] = static_cast<C>(lse);
    }
  }
}

}  // namespace

void cross_entropy(const CrossEntropyForward& call) {
  if (in_exact()) {
    exact_cross_entropy(call);
    return;
  }
  for_rows(call, TAPESTRY_DISPATCH(cross_entropy_rows));
}

void cross_entropy_backward(const CrossEntropyBackward& call) {
  for_rows(call, TAPESTRY_DISPATCH(cross_entropy_backward_rows));
}

void cross_entropy_maxima(const CrossEntropyShape& shape, const void* logits, void* maxima) {
  const auto run = TAPESTRY_DISPATCH(cross_entropy_maximum_rows);
  parallel_for(shape.rows, rows_per_thread(shape.vocab),
               [&](int64_t begin, int64_t end) { run(shape, logits, maxima, begin, end); });
}

void cross_entropy_exponentials(const CrossEntropyExponentials& call) {
  assert(call.leaves >= 1 && call.leaves <= kSumLeaves && (call.leaves & (call.leaves - 1)) == 0);
  const auto run = TAPESTRY_DISPATCH(cross_entropy_exponential_rows);
  parallel_for(call.shape.rows, rows_per_thread(call.shape.vocab),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

void cross_entropy_label_logits(const CrossEntropyShape& shape,
                                const void* logits,
                                const int64_t* labels,
                                void* label_logits) {
  const int64_t item = size_of(shape.dtype);
  const int64_t out_item = size_of(compute_dtype(shape.dtype));
  for (int64_t i = 0; i < shape.rows; ++i) {
    const int64_t label = labels[i];
    char* out = static_cast<char*>(label_logits) + i * out_item;
    if (label != shape.ignore_index && label >= 0 && label < shape.valid_vocab) {
      const char* logit = static_cast<const char*>(logits) + (i * shape.vocab + label) * item;
      TAPESTRY_DISPATCH(to_compute)(shape.dtype, 1, logit, out);
    } else {
      std::memset(out, 0, static_cast<size_t>(out_item));
    }
  }
}

void cross_entropy_finish(const CrossEntropyFinish& call) {
  if (compute_dtype(call.shape.dtype) == kFloat64) {
    finish_rows<double>(call);
  } else {
    finish_rows<float>(call);
  }
}

}  // namespace tapestry::kernels
