#include "autograd/kernels/attention.h"

#include <atomic>
#include <cassert>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/isa/attention_call.h"
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

constexpr int64_t kB = kAttentionBlock;

int64_t blocks_of(int64_t n) { return (n + kB - 1) / kB; }

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

/// Queries of a unit of the forward pass: many, so that keys are packed for many at once, unless
/// that left threads without work. The results are the same for any number.
int64_t rows_per_unit(int64_t planes, int64_t q_len) {
  constexpr int64_t kUnitsPerThread = 4;
  int64_t rows = kAttentionChunk;
  while (rows > kB && planes * ((q_len + rows - 1) / rows) < kUnitsPerThread * num_threads()) {
    rows -= kB;
  }
  return rows;
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
  assert(shape_fits(call.dtype, shape));
  const auto run = TAPESTRY_DISPATCH_AND_BF16(attention_forward_rows);
  const int64_t planes = shape.batch * shape.heads;
  const int64_t rows = rows_per_unit(planes, shape.q_len);
  const int64_t parts = (shape.q_len + rows - 1) / rows;
  const int64_t bytes =
      attention_forward_scratch(shape.head_dim) * size_of(compute_dtype(call.dtype));
  for_units(planes * parts, bytes, [&](int64_t unit, void* scratch) {
    const int64_t plane = unit % planes;
    const int64_t begin = (parts - 1 - unit / planes) * rows;  // the longest causal rows first
    run(call,
        {.sample = plane / shape.heads,
         .head = plane % shape.heads,
         .q_begin = begin,
         .q_end = std::min(begin + rows, shape.q_len)},
        scratch);
  });
}

void attention_backward(const AttentionBackward& wanted) {
  const AttentionBackward call = with_totals(wanted);
  const AttentionShape& shape = call.shape;
  if (shape.batch == 0 || shape.heads == 0) {
    return;
  }
  assert(shape_fits(call.dtype, shape));
  const auto run = TAPESTRY_DISPATCH_AND_BF16(attention_backward_part);
  const int64_t item = size_of(compute_dtype(call.dtype));
  const int64_t heads = shape.heads / shape.groups;
  const auto part_of = [&](int64_t plane) {
    const int64_t group = plane % shape.groups;
    return AttentionPart{.sample = plane / shape.groups,
                         .group = group,
                         .head_begin = group * heads,
                         .head_end = (group + 1) * heads,
                         .q_begin = 0,
                         .q_end = shape.q_len,
                         .k_begin = 0,
                         .k_end = shape.kv_len,
                         .want_dq = true,
                         .want_dkv = true};
  };
  const int64_t planes = shape.batch * shape.groups;
  if (planes >= num_threads()) {
    for_units(planes, attention_backward_scratch(shape.head_dim, shape.kv_len) * item,
              [&](int64_t unit, void* scratch) { run(call, part_of(unit), scratch); });
    return;
  }
  // Too few groups for the team: the keys of a group are split for dk and dv, then its queries for
  // dq. The probabilities are computed twice, but every sum runs in the same order as above.
  const int64_t k_blocks = blocks_of(shape.kv_len);
  for_units(planes * k_blocks, attention_backward_scratch(shape.head_dim, kB) * item,
            [&](int64_t unit, void* scratch) {
              AttentionPart part = part_of(unit / k_blocks);
              part.k_begin = unit % k_blocks * kB;
              part.k_end = std::min(part.k_begin + kB, shape.kv_len);
              part.want_dq = false;
              run(call, part, scratch);
            });
  const int64_t q_blocks = blocks_of(shape.q_len);
  for_units(shape.batch * shape.heads * q_blocks,
            attention_backward_scratch(shape.head_dim, 0) * item, [&](int64_t unit, void* scratch) {
              const int64_t plane = unit / q_blocks;
              const int64_t head = plane % shape.heads;
              AttentionPart part = part_of(plane / shape.heads * shape.groups + head / heads);
              part.head_begin = head;
              part.head_end = head + 1;
              part.q_begin = (q_blocks - 1 - unit % q_blocks) * kB;
              part.q_end = std::min(part.q_begin + kB, shape.q_len);
              part.want_dkv = false;
              run(call, part, scratch);
            });
}

}  // namespace tapestry::kernels
