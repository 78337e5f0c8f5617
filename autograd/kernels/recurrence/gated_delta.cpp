#include "autograd/kernels/recurrence/gated_delta.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/kernels/recurrence/gated_delta_units.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void delta_forward_unit(const DeltaProblem& problem,
                                                 const DeltaForward& to,
                                                 const DeltaBorders& borders,
                                                 const DeltaUnit& unit,
                                                 void* scratch);
                         void delta_backward_unit(const DeltaProblem& problem,
                                                  const DeltaBackward& to,
                                                  const DeltaBorders& borders,
                                                  const DeltaBorders& gradients,
                                                  const DeltaUnit& unit,
                                                  void* scratch);
                         void delta_step_unit(const DeltaProblem& problem,
                                              const DeltaStep& to,
                                              int64_t begin,
                                              int64_t end,
                                              void* scratch))

namespace {

[[maybe_unused]] bool fits(const DeltaProblem& p) {
  return is_floating(p.dtype) && p.key_heads > 0 && p.value_heads % p.key_heads == 0 &&
         p.key_dim > 0 && p.value_dim > 0;
}

int64_t state_bytes(const DeltaProblem& p) {
  return p.key_dim * p.value_dim * size_of(compute_dtype(p.dtype));
}

/// How the units of a pass are numbered.
class Units {
 public:
  /// One for each sample and key head, with its value heads in turn; or, if !is_grouped, one for
  /// each value head and each of `bands` bands of columns. Each for `pieces` runs of chunks.
  Units(const DeltaProblem& p, bool is_grouped, int64_t bands, int64_t pieces)
      : p_(p), is_grouped_(is_grouped), bands_(bands), pieces_(pieces) {}

  int64_t count() const { return p_.batch * heads() * bands_ * pieces_; }
  /// The chunks [begin, end) are divided.
  DeltaUnit at(int64_t index, int64_t begin, int64_t end) const {
    DeltaUnit unit;
    const int64_t piece = index % pieces_;
    index /= pieces_;
    const int64_t band = index % bands_;
    index /= bands_;
    const int64_t group = p_.value_heads / p_.key_heads;
    const int64_t head = index % heads();
    unit.sample = index / heads();
    unit.key_head = is_grouped_ ? head : head / group;
    unit.head_begin = is_grouped_ ? head * group : head;
    unit.head_end = unit.head_begin + (is_grouped_ ? group : 1);
    unit.chunk_begin = begin + (end - begin) * piece / pieces_;
    unit.chunk_end = begin + (end - begin) * (piece + 1) / pieces_;
    const int64_t blocks = delta_padded(p_.value_dim) / kDeltaColumns;
    unit.column_begin = blocks * band / bands_ * kDeltaColumns;
    unit.column_end = std::min(p_.value_dim, blocks * (band + 1) / bands_ * kDeltaColumns);
    return unit;
  }

 private:
  int64_t heads() const { return is_grouped_ ? p_.key_heads : p_.value_heads; }

  const DeltaProblem& p_;
  bool is_grouped_;
  int64_t bands_;
  int64_t pieces_;
};

/// Calls body(unit, scratch) for all units over the chunks [begin, end), each by the thread that is
/// free; no result depends on who does which.
template <class Body>
void for_units(const DeltaProblem& p,
               const Units& units,
               int64_t begin,
               int64_t end,
               bool is_backward,
               const Body& body) {
  const int64_t n = units.count();
  std::atomic<int64_t> next{0};
  parallel_for(std::min<int64_t>(n, num_threads()), 1, [&](int64_t /*begin*/, int64_t /*end*/) {
    const Scratch scratch(delta_scratch(p, p.value_heads / p.key_heads, is_backward) *
                          size_of(compute_dtype(p.dtype)));
    for (int64_t index = next++; index < n; index = next++) {
      body(units.at(index, begin, end), scratch.get());
    }
  });
}

/// Threads that would have nothing to do if a unit went through all chunks of its heads: then the
/// states are made first, in bands of columns, and what follows from them for all chunks at once.
bool has_few_heads(const DeltaProblem& p) {
  const int64_t units = p.batch * p.key_heads;
  const int64_t threads = in_team() ? 1 : num_threads();
  return p.chunks() > 1 && units % threads != 0 && units < 4 * threads;
}

/// Bands of columns in which threads make the states of few heads.
int64_t bands_of(const DeltaProblem& p) {
  const int64_t blocks = delta_padded(p.value_dim) / kDeltaColumns;
  const int64_t heads = p.batch * p.value_heads;
  return std::clamp<int64_t>((2 * num_threads() + heads - 1) / heads, 1, blocks);
}

/// Chunks whose states are made before what follows from them: enough for all threads, in memory
/// that is bounded by their number.
int64_t window_of(const DeltaProblem& p) {
  const int64_t heads = p.batch * p.key_heads;
  return std::clamp<int64_t>((8 * num_threads() + heads - 1) / heads, 1, p.chunks());
}

DeltaBorders borders_of(const DeltaProblem& p, const void* states) {
  return {const_cast<void*>(states), p.chunks_after_first(), 1};
}

}  // namespace

double gated_delta_flops(const DeltaProblem& p) {
  const auto tokens = static_cast<double>(p.batch * p.seq * p.value_heads);
  const auto state = static_cast<double>(p.key_dim * p.value_dim);
  const auto row = static_cast<double>(kDeltaChunk) / 2;
  return 2 * tokens * (3 * state + row * static_cast<double>(2 * p.key_dim + 2 * p.value_dim));
}

void gated_delta(const DeltaProblem& problem, const DeltaForward& to) {
  if (problem.batch == 0 || problem.seq == 0 || problem.value_heads == 0) {
    return;
  }
  assert(fits(problem));
  const CountedWork work(gated_delta_flops(problem));
  const auto run = TAPESTRY_DISPATCH(delta_forward_unit);
  const bool wants_tokens = to.out != nullptr;
  const int64_t chunks = problem.chunks();
  const auto pass = [&](const Units& units, int64_t begin, int64_t end, const DeltaBorders& borders,
                        bool tokens, bool states) {
    for_units(problem, units, begin, end, false, [&](DeltaUnit unit, void* scratch) {
      unit.wants_tokens = tokens;
      unit.wants_states = states;
      run(problem, to, borders, unit, scratch);
    });
  };
  if (!has_few_heads(problem)) {
    pass(Units(problem, true, 1, 1), 0, chunks, borders_of(problem, to.states), wants_tokens, true);
    return;
  }
  const Units of_states(problem, false, bands_of(problem), 1);
  if (to.states != nullptr || !wants_tokens) {
    const DeltaBorders borders = borders_of(problem, to.states);
    pass(of_states, 0, chunks, borders, false, true);
    if (wants_tokens) {
      pass(Units(problem, true, 1, chunks), 0, chunks, borders, true, false);
    }
    return;
  }
  const int64_t window = window_of(problem);
  const Scratch memory(problem.batch * problem.value_heads * (window + 1) * state_bytes(problem));
  const DeltaBorders borders = {memory.get(), window + 1, 0};
  for (int64_t begin = 0; begin < chunks; begin += window) {
    const int64_t end = std::min(begin + window, chunks);
    pass(of_states, begin, end, borders, false, true);
    pass(Units(problem, true, 1, end - begin), begin, end, borders, true, false);
  }
}

void gated_delta_again(const DeltaProblem& problem, const void* states, void* out, void* final) {
  if (problem.batch == 0 || problem.seq == 0 || problem.value_heads == 0) {
    return;
  }
  assert(fits(problem));
  const CountedWork work(gated_delta_flops(problem));
  const auto run = TAPESTRY_DISPATCH(delta_forward_unit);
  const DeltaForward to = {.out = out, .final = final};
  const DeltaBorders borders = borders_of(problem, states);
  const Units units(problem, true, 1, problem.chunks());
  for_units(problem, units, 0, problem.chunks(), false, [&](DeltaUnit unit, void* scratch) {
    unit.wants_tokens = out != nullptr;
    unit.wants_states = final != nullptr && unit.chunk_end == problem.chunks();
    if (unit.wants_tokens || unit.wants_states) {
      run(problem, to, borders, unit, scratch);
    }
  });
}

void gated_delta_backward(const DeltaProblem& problem, const DeltaBackward& to) {
  if (problem.batch == 0 || problem.seq == 0 || problem.value_heads == 0) {
    return;
  }
  assert(fits(problem));
  const CountedWork work(2 * gated_delta_flops(problem));
  const auto run = TAPESTRY_DISPATCH(delta_backward_unit);
  const bool wants_tokens = to.dqkv != nullptr;
  const int64_t chunks = problem.chunks();
  const DeltaBorders borders = borders_of(problem, to.states);
  const auto pass = [&](const Units& units, int64_t begin, int64_t end,
                        const DeltaBorders& gradients, bool tokens, bool states) {
    for_units(problem, units, begin, end, true, [&](DeltaUnit unit, void* scratch) {
      unit.wants_tokens = tokens;
      unit.wants_states = states;
      run(problem, to, borders, gradients, unit, scratch);
    });
  };
  if (!has_few_heads(problem)) {
    pass(Units(problem, true, 1, 1), 0, chunks, {}, wants_tokens, true);
    return;
  }
  const Units of_states(problem, false, bands_of(problem), 1);
  if (!wants_tokens) {
    pass(of_states, 0, chunks, {}, false, true);
    return;
  }
  const int64_t window = window_of(problem);
  const Scratch memory(problem.batch * problem.value_heads * (window + 1) * state_bytes(problem));
  const DeltaBorders gradients = {memory.get(), window + 1, 0};
  for (int64_t end = chunks; end > 0; end -= std::min(window, end)) {
    const int64_t begin = std::max<int64_t>(end - window, 0);
    pass(of_states, begin, end, gradients, false, true);
    pass(Units(problem, true, 1, end - begin), begin, end, gradients, true, false);
  }
}

void gated_delta_step(const DeltaProblem& problem, const DeltaStep& to) {
  const int64_t units = problem.batch * problem.value_heads;
  if (units == 0) {
    return;
  }
  assert(fits(problem) && problem.seq == 1);
  const CountedWork work(6.0 * static_cast<double>(units * problem.key_dim * problem.value_dim));
  const auto run = TAPESTRY_DISPATCH(delta_step_unit);
  const int64_t elements = 2 * delta_padded(problem.key_dim) + 2 * delta_padded(problem.value_dim);
  parallel_for(units, rows_per_thread(problem.key_dim * problem.value_dim),
               [&](int64_t begin, int64_t end) {
                 const Scratch scratch(elements * size_of(compute_dtype(problem.dtype)));
                 run(problem, to, begin, end, scratch.get());
               });
}

}  // namespace tapestry::kernels
