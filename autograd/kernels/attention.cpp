#include "autograd/kernels/attention.h"

#include <atomic>
#include <cassert>

#include "autograd/kernels/attention_units.h"
#include "autograd/kernels/cpu.h"
#include "autograd/kernels/parallel_for.h"
#include "autograd/kernels/scratch.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA_AND_BF16(void attention_forward_rows(const AttentionForward& call,
                                                              const AttentionRows& rows,
                                                              void* scratch);
                                  void attention_backward_part(const AttentionBackward& call,
                                                               const AttentionPart& part,
                                                               void* scratch))

namespace {

/// The call with the totals of its shape filled in, as the loops want them.
template <class Call>
Call with_totals(Call call) {
  AttentionShape& shape = call.shape;
  const auto fill = [](int64_t& total, int64_t size) { total = total == 0 ? size : total; };
  fill(shape.total_heads, shape.heads);
  fill(shape.total_rows, shape.q_len);
  fill(shape.total_cols, shape.kv_len);
  return call;
}

[[maybe_unused]] bool shape_fits(DType dtype, const AttentionShape& s) {
  return is_floating(dtype) && s.groups > 0 && s.heads % s.groups == 0 && s.dropout_p >= 0 &&
         s.dropout_p < 1;
}

[[maybe_unused]] bool documents_fit(const AttentionDocuments& documents, const AttentionShape& s) {
  return documents.start == nullptr || (s.causal && s.q_offset >= 0);
}

/// Calls body(unit, scratch) for units 0 .. n-1, each by the thread that is free: they differ much
/// in work, and no result depends on who does which.
template <class Body>
void for_units(int64_t n, int64_t scratch_bytes, const Body& body) {
  std::atomic<int64_t> next{0};
  parallel_for(std::min<int64_t>(n, num_threads()), 1, [&](int64_t /*begin*/, int64_t /*end*/) {
    const Scratch scratch(scratch_bytes);
    for (int64_t unit = next++; unit < n; unit = next++) {
      body(unit, scratch.get());
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
  const auto run = TAPESTRY_DISPATCH_AND_BF16(attention_forward_rows);
  const AttentionForwardUnits units(shape, num_threads());
  const int64_t bytes =
      attention_forward_scratch(shape.head_dim) * size_of(compute_dtype(call.dtype));
  for_units(units.count(), bytes,
            [&](int64_t unit, void* scratch) { run(call, units[unit], scratch); });
}

void attention_backward(const AttentionBackward& wanted) {
  const AttentionBackward call = with_totals(wanted);
  const AttentionShape& shape = call.shape;
  if (shape.batch == 0 || shape.heads == 0) {
    return;
  }
  assert(shape_fits(call.dtype, shape) && documents_fit(call.documents, shape));
  const auto run = TAPESTRY_DISPATCH_AND_BF16(attention_backward_part);
  const AttentionBackwardUnits units(shape, num_threads(), call.documents);
  const int64_t bytes = attention_backward_scratch(shape.head_dim, units.most_keys()) *
                        size_of(compute_dtype(call.dtype));
  for_units(units.count(), bytes,
            [&](int64_t unit, void* scratch) { run(call, units[unit], scratch); });
}

}  // namespace tapestry::kernels
