#include "autograd/kernels/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/kernels/attention/attention_units.h"
#include "autograd/kernels/attention/one_order_attention.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/bfloat16_pairs.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

// bfloat16 at the level kAvx512Bf16, where it is multiplied in pairs, everything else at the
// others.
TAPESTRY_DECLARE_PER_ISA_AND_PAIRS(void attention_forward_rows(const AttentionForward& call,
                                                               const AttentionRows& rows,
                                                               void* scratch);
                                   void attention_backward_part(const AttentionBackward& call,
                                                                const AttentionPart& part,
                                                                void* scratch))

namespace {

bool multiplies_pairs(DType dtype) {
  return dtype == kBFloat16 && (in_exact() ? prefers_bfloat16_pairs() : has_bfloat16_pairs());
}

/// The call with the value size and the totals of its shape filled in, as the loops want them.
template <class Call>
Call with_totals(Call call) {
  AttentionShape& shape = call.shape;
  const auto fill = [](int64_t& total, int64_t size) { total = total == 0 ? size : total; };
  fill(shape.value_dim, shape.head_dim);
  fill(shape.total_heads, shape.heads);
  fill(shape.total_rows, shape.q_len);
  fill(shape.total_cols, shape.kv_len);
  return call;
}

[[maybe_unused]] bool shape_fits(DType dtype, const AttentionShape& s) {
  return is_floating(dtype) && s.groups > 0 && s.heads % s.groups == 0 && s.dropout_p >= 0 &&
         s.dropout_p < 1 && s.score_cap >= 0;
}

[[maybe_unused]] bool documents_fit(const AttentionDocuments& documents, const AttentionShape& s) {
  return documents.start == nullptr || (s.causal && s.q_offset >= 0);
}

/// The keys that query `row` may look at, as far as causality, window and documents say; what a
/// mask hides counts as seen.
int64_t seen_keys(const AttentionShape& s, const int32_t* starts, int64_t row) {
  const int64_t position = row + s.q_offset;
  const int64_t end = s.causal ? std::min(position + 1, s.kv_len) : s.kv_len;
  int64_t begin = s.window_left < 0 ? 0 : std::max<int64_t>(position - s.window_left, 0);
  if (starts != nullptr) {
    begin = std::max<int64_t>(begin, starts[position]);
  }
  return std::max<int64_t>(end - begin, 0);
}

[[maybe_unused]] bool leaves_fit(const AttentionLeaves& leaves, const AttentionShape& s) {
  const int64_t n = leaves.count;
  return n == 0 || (n <= kSumLeaves && (n & (n - 1)) == 0 && (n == 1 || s.q_len % (2 * n) == 0) &&
                    (leaves.late_shift == 0 || s.q_len % 2 == 0));
}

/// FLOPs of the two products of forward.
template <class Call>
double forward_flops(const Call& call, int64_t late_shift = 0) {
  const AttentionShape& s = call.shape;
  const bool has_documents = call.documents.start != nullptr;
  double pairs = 0;
  for (int64_t b = 0; b < (has_documents ? s.batch : 1); ++b) {
    const int32_t* starts =
        has_documents ? call.documents.start + b * call.documents.batch : nullptr;
    for (int64_t row = 0; row < s.q_len; ++row) {
      pairs +=
          static_cast<double>(seen_keys(s, starts, row + (row >= s.q_len / 2 ? late_shift : 0)));
    }
  }
  const auto samples = static_cast<double>(has_documents ? 1 : s.batch);
  return 2.0 * samples * static_cast<double>(s.heads * (s.head_dim + s.value_dim)) * pairs;
}

/// dsinks -= e^(sink - lse) delta, of each head in the order of samples and queries; of exact sums
/// each term in units.
template <class C>
void subtract_sink_terms(const AttentionBackward& call) {
  const AttentionShape& s = call.shape;
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, s.batch * s.q_len));
  parallel_for(s.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      double sum = 0;
      const double unit = call.exact_dsinks ? std::ldexp(1.0, -kExactUnitExponent) : 1;
      for (int64_t b = 0; b < s.batch; ++b) {
        const int64_t first = (b * s.heads + head) * s.q_len;
        const C* lse = static_cast<const C*>(call.lse) + first;
        const C* delta = static_cast<const C*>(call.delta) + first;
        for (int64_t i = 0; i < s.q_len; ++i) {
          const double term = std::exp(call.sinks[head] - lse[i]) * delta[i];
          sum += call.exact_dsinks ? std::nearbyint(term * unit) : term;
        }
      }
      const bool none = call.sinks[head] == -std::numeric_limits<double>::infinity();
      call.dsinks[head] -= none ? 0 : sum;
    }
  });
}

/// Calls body(unit, scratch) for units 0 .. n-1; no result depends on who does which. Of the first
/// `even` of them, which are alike, each thread begins with a range of its own: it finds in its
/// cache the rows that it has written in the op before, and no row of a sample travels back and
/// forth. Whoever is done helps the others, and the units behind go to whoever is free.
template <class Body>
void for_units(int64_t even, int64_t n, int64_t scratch_bytes, const Body& body) {
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };
  const int64_t team = std::max<int64_t>(std::min<int64_t>(n, num_threads()), 1);
  std::vector<Range> ranges(static_cast<size_t>(team) + 1);
  for (int64_t part = 0; part < team; ++part) {
    Range& range = ranges[static_cast<size_t>(part)];
    range.next = even * part / team;
    range.end = even * (part + 1) / team;
  }
  ranges.back().next = even;
  ranges.back().end = n;
  parallel_for(team, 1, [&](int64_t part, int64_t /*end*/) {
    const Scratch scratch(scratch_bytes);
    for (int64_t step = 0; step <= team; ++step) {
      Range& range = ranges[static_cast<size_t>(step < team ? (part + step) % team : team)];
      for (int64_t unit = range.next++; unit < range.end; unit = range.next++) {
        body(unit, scratch.get());
      }
    }
  });
}

}  // namespace

void attention(const AttentionForward& wanted) {
  const AttentionForward call = with_totals(wanted);
  const AttentionShape& shape = call.shape;
  if (shape.batch == 0 || shape.heads == 0) {
    return;
  }
  assert(shape_fits(call.dtype, shape) && documents_fit(call.documents, shape));
  if (wants_one_order(call)) {
    attention_in_one_order(call);
    return;
  }
  const CountedWork work(forward_flops(call));
  const auto run = TAPESTRY_DISPATCH_PAIRS(multiplies_pairs(call.dtype), attention_forward_rows);
  const AttentionForwardUnits units(shape, num_threads());
  const int64_t bytes = attention_forward_scratch(shape) * size_of(compute_dtype(call.dtype));
  const bool measures = call.max_scores != nullptr;
  const Scratch found(measures ? units.count() * size_of(kFloat32) : 0);
  auto* maxima = static_cast<float*>(found.get());
  for_units(units.even(), units.count(), bytes, [&](int64_t unit, void* scratch) {
    AttentionRows rows = units[unit];
    rows.max_score = measures ? maxima + unit : nullptr;
    run(call, rows, scratch);
  });
  for (int64_t unit = 0; measures && unit < units.count(); ++unit) {
    float& most = call.max_scores[units[unit].head];
    most = std::max(most, maxima[unit]);
  }
}

void attention_backward(const AttentionBackward& wanted) {
  AttentionBackward call = with_totals(wanted);
  const AttentionShape& shape = call.shape;
  if (shape.batch == 0 || shape.heads == 0) {
    return;
  }
  assert(shape_fits(call.dtype, shape) && documents_fit(call.documents, shape));
  assert(call.sinks == nullptr || call.dsinks != nullptr);
  assert(leaves_fit(call.leaves, shape));
  Scratch delta;
  if (call.sinks != nullptr) {
    delta = Scratch(shape.batch * shape.heads * shape.q_len * size_of(compute_dtype(call.dtype)));
    call.delta = delta.get();
  }
  // Those of dq, dk, dv and of the probabilities' gradient.
  const CountedWork work(2 * forward_flops(call, call.leaves.late_shift));
  const auto run = TAPESTRY_DISPATCH_PAIRS(multiplies_pairs(call.dtype), attention_backward_part);
  // Leaves begin where no document does, and pairs of bfloat16 with keys of even positions.
  const bool by_leaves = call.leaves.count > 0;
  const AttentionBackwardUnits units(shape, num_threads(),
                                     by_leaves ? AttentionDocuments{} : call.documents);
  const int64_t sums = by_leaves ? attention_leaf_sets(call.leaves, shape.q_len).sums() : 1;
  const int64_t bytes = attention_backward_scratch(shape, units.most_keys(), sums) *
                        size_of(compute_dtype(call.dtype));
  for_units(units.even(), units.count(), bytes,
            [&](int64_t unit, void* scratch) { run(call, units[unit], scratch); });
  if (call.sinks != nullptr && call.dtype == kFloat64) {
    subtract_sink_terms<double>(call);
  } else if (call.sinks != nullptr) {
    subtract_sink_terms<float>(call);
  }
}

}  // namespace tapestry::kernels
