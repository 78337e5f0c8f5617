#include "autograd/kernels/attention/one_order_attention.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>
#include <vector>

#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

/// Queries of a group's heads that meet a block of keys together: that is widened once for them.
constexpr int64_t kRowsOfUnit = 192;
/// The kernel takes so many rows at once.
constexpr int64_t kQueriesTogether = 8;

/// What a thread does at a time: queries of a run, for one group.
struct RunUnit {
  CausalRun queries;
  int64_t group;
};

/// The units of the runs, those that see most keys of a run first.
std::vector<RunUnit> units_of(const CachedAttention& call, std::span<const CausalRun> runs) {
  const int64_t most =
      std::max<int64_t>(kQueriesTogether, kRowsOfUnit / (call.heads / call.groups));
  std::vector<RunUnit> units;
  for (const CausalRun& run : runs) {
    const int64_t parts = ceil_div(run.count, most);
    for (int64_t part = parts; part-- > 0;) {
      const auto start = [&](int64_t index) {
        return index == parts ? run.count
                              : run.count * index / parts / kQueriesTogether * kQueriesTogether;
      };
      const int64_t begin = start(part);
      CausalRun own = run;
      own.first += begin;
      own.position += begin;
      own.count = start(part + 1) - begin;
      for (int64_t group = 0; group < call.groups && own.count > 0; ++group) {
        units.push_back({own, group});
      }
    }
  }
  return units;
}

int64_t keys_of_query(const CachedAttention& call, int64_t position) {
  return call.window_left < 0 ? position + 1 : std::min(position, call.window_left) + 1;
}

double flops_of_runs(const CachedAttention& call, std::span<const CausalRun> runs) {
  double pairs = 0;
  for (const CausalRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      pairs += static_cast<double>(keys_of_query(call, run.position + i));
    }
  }
  return 2.0 * static_cast<double>(call.heads * (call.head_dim + call.value_dim)) * pairs;
}

/// Exponents of the softmax are binary: the largest, and the sum relative to it.
struct SumOfRow {
  double max;
  double sum;
};

SumOfRow sum_of_row(const float* partials, int64_t stride, int64_t blocks, double sink) {
  double max = sink * std::numbers::log2e;
  for (int64_t block = 0; block < blocks; ++block) {
    if (partials[block * stride + 1] > 0) {
      max = std::max(max, static_cast<double>(partials[block * stride]));
    }
  }
  double sum = std::isinf(sink) ? 0 : std::exp2(sink * std::numbers::log2e - max);
  for (int64_t block = 0; block < blocks; ++block) {
    sum += partials[block * stride + 1] * std::exp2(partials[block * stride] - max);
  }
  return {max, sum};
}

class RunKernel {
 public:
  RunKernel(const CachedAttention& call, float* lse, float* max_scores)
      : call_(call),
        of_group_(call.heads / call.groups),
        partial_(cached_partial_floats(call.value_dim)),
        lse_(lse),
        max_scores_(max_scores) {}

  void run(const RunUnit& unit) {
    const CausalRun& run = unit.queries;
    CachedAttention own = call_;
    own.batch = 1;
    own.q_len = run.count;
    own.positions = &run.position;
    own.counts = &run.count;
    own.q.data = moved(call_.q.data, call_.q.strides, run.sample, run.first);
    own.k.data = moved(call_.k.data, call_.k.strides, run.sample, run.first_key);
    own.v.data = moved(call_.v.data, call_.v.strides, run.sample, run.first_key);
    own.out.data =
        const_cast<char*>(moved(call_.out.data, call_.out.strides, run.sample, run.first));
    const int64_t end = run.position + run.count;
    const int64_t begin =
        (run.position + 1 - keys_of_query(call_, run.position)) / kCachedKeys * kCachedKeys;
    const int64_t blocks = ceil_div(end - begin, kCachedKeys);
    const int64_t stride = of_group_ * run.count * partial_;
    const Scratch partials(blocks * stride * size_of(kFloat32));
    const Scratch scratch(TAPESTRY_DISPATCH(cached_attention_scratch)(own) * size_of(kFloat32));
    auto* const sums = static_cast<float*>(partials.get());
    for (int64_t block = 0; block < blocks; ++block) {
      TAPESTRY_DISPATCH(cached_attention_block)
      (own, {0, unit.group, begin + block * kCachedKeys}, sums + block * stride,
       static_cast<float*>(scratch.get()));
    }
    for (int64_t h = 0; h < of_group_; ++h) {
      const int64_t head = unit.group * of_group_ + h;
      for (int64_t i = 0; i < run.count; ++i) {
        const float* own_sums = sums + (h * run.count + i) * partial_;
        TAPESTRY_DISPATCH(cached_attention_merge)(own, 0, head, i, blocks, own_sums, stride);
        note_sums(run, head, i, own_sums, stride, blocks);
      }
      raise_maximum(head, sums + h * run.count * partial_, run.count, stride, blocks);
    }
  }

 private:
  const char* moved(const void* data,
                    const AttentionStrides& strides,
                    int64_t sample,
                    int64_t row) const {
    return static_cast<const char*>(data) +
           (sample * strides.batch + row * strides.row) * size_of(call_.dtype);
  }

  void note_sums(const CausalRun& run,
                 int64_t head,
                 int64_t i,
                 const float* sums,
                 int64_t stride,
                 int64_t blocks) const {
    if (lse_ == nullptr) {
      return;
    }
    const double sink =
        call_.sinks == nullptr ? -std::numeric_limits<double>::infinity() : call_.sinks[head];
    const SumOfRow row = sum_of_row(sums, stride, blocks, sink);
    lse_[(run.sample * call_.heads + head) * call_.q_len + run.first + i] =
        static_cast<float>((row.max + std::log2(row.sum)) * std::numbers::ln2);
  }

  void raise_maximum(
      int64_t head, const float* sums, int64_t count, int64_t stride, int64_t blocks) {
    if (max_scores_ == nullptr) {
      return;
    }
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = 0; i < count; ++i) {
        const float* own = sums + block * stride + i * partial_;
        most = own[1] > 0 ? std::max(most, own[0]) : most;
      }
    }
    const std::scoped_lock lock(mutex_);
    max_scores_[head] = std::max(max_scores_[head], static_cast<float>(most * std::numbers::ln2));
  }

  const CachedAttention& call_;
  const int64_t of_group_;
  const int64_t partial_;
  float* const lse_;
  float* const max_scores_;
  std::mutex mutex_;
};

/// The documents of a call's rows.
std::vector<CausalRun> runs_of(const AttentionForward& wanted) {
  const AttentionShape& s = wanted.shape;
  std::vector<CausalRun> runs;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int32_t* starts = wanted.documents.start == nullptr
                                ? nullptr
                                : wanted.documents.start + b * wanted.documents.batch + s.q_offset;
    for (int64_t i = 0; i < s.q_len;) {
      const int64_t start = starts == nullptr ? 0 : starts[i];
      int64_t end = i + 1;
      while (end < s.q_len && (starts == nullptr || starts[end] == start)) {
        ++end;
      }
      runs.push_back({.sample = b,
                      .first = i,
                      .count = end - i,
                      .position = i + s.q_offset - start,
                      .first_key = start});
      i = end;
    }
  }
  return runs;
}

}  // namespace

void attend_runs(const CachedAttention& call,
                 std::span<const CausalRun> runs,
                 float* lse,
                 float* max_scores) {
  assert(call.dtype == kFloat32 || call.dtype == kBFloat16);
  const double flops = flops_of_runs(call, runs);
  const CountedWork work(flops);
  const std::vector<RunUnit> units = units_of(call, runs);
  const auto count = static_cast<int64_t>(units.size());
  RunKernel kernel(call, lse, max_scores);
  // A thread whose share would take less than some microseconds is not woken.
  const int64_t threads =
      std::min<int64_t>({count, num_threads(), 1 + static_cast<int64_t>(flops) / (8 * kGrainSize)});
  std::atomic<int64_t> taken = 0;
  parallel_for(threads, 1, [&](int64_t, int64_t) {
    for (int64_t unit = taken++; unit < count; unit = taken++) {
      kernel.run(units[static_cast<size_t>(unit)]);
    }
  });
}

bool wants_one_order(const AttentionForward& wanted) {
  const AttentionShape& s = wanted.shape;
  return in_one_order() && !in_exact() && (wanted.dtype == kFloat32 || wanted.dtype == kBFloat16) &&
         s.causal && s.q_offset >= 0 && s.q_offset + s.q_len <= s.kv_len &&
         wanted.mask.data == nullptr && s.dropout_p == 0;
}

void attention_in_one_order(const AttentionForward& wanted) {
  const AttentionShape& s = wanted.shape;
  attend_runs({.dtype = wanted.dtype,
               .batch = s.batch,
               .heads = s.heads,
               .groups = s.groups,
               .q_len = s.q_len,
               .head_dim = s.head_dim,
               .value_dim = s.value_dim > 0 ? s.value_dim : s.head_dim,
               .capacity = s.kv_len,
               .window_left = s.window_left,
               .scale = s.scale,
               .score_cap = s.score_cap,
               .slopes = wanted.slopes,
               .sinks = wanted.sinks,
               .q = wanted.q,
               .k = wanted.k,
               .v = wanted.v,
               .out = wanted.out},
              runs_of(wanted), static_cast<float*>(wanted.lse), wanted.max_scores);
}

}  // namespace tapestry::kernels
