#include "autograd/kernels/recurrence/state_space.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <vector>

#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/kernels/recurrence/state_space_call.h"

namespace tapestry::kernels {

namespace {

[[maybe_unused]] bool shape_fits(const StateSpaceCall& c) {
  return is_floating(c.dtype) && c.groups > 0 && c.heads % c.groups == 0 && c.chunk >= 1 &&
         c.chunk <= kMostChunk && c.step_min >= 0 && c.step_min <= c.step_max;
}

bool is_empty(const StateSpaceCall& c) { return c.batch == 0 || c.heads == 0 || c.tokens == 0; }

int64_t item_of(const StateSpaceCall& c) { return size_of(compute_dtype(c.dtype)); }
int64_t state_items(const StateSpaceCall& c) {
  return state_space_padded(c.state_size) * state_space_padded(c.head_dim);
}
int64_t chunks_of(const StateSpaceCall& c) { return state_space_chunks(c.tokens, c.chunk); }

/// Calls body(unit, scratch) for units 0 .. n-1, each by the thread that is free: no result depends
/// on who does which.
template <class Body>
void for_units(const StateSpaceCall& call, int64_t n, const Body& body) {
  std::atomic<int64_t> next{0};
  parallel_for(std::min<int64_t>(n, num_threads()), 1, [&](int64_t /*begin*/, int64_t /*end*/) {
    const Scratch scratch(state_space_scratch(call) * item_of(call));
    for (int64_t unit = next++; unit < n; unit = next++) {
      body(unit, scratch.get());
    }
  });
}

/// Heads of a group that pass over the chunks together, which reads B or C once for all of them:
/// as many as leave each thread some units.
int64_t heads_together(const StateSpaceCall& c) {
  const int64_t of_group = c.heads / c.groups;
  return std::clamp<int64_t>(c.batch * c.heads / (3 * num_threads()), 1, of_group);
}

/// Calls body(part, scratch) for all heads in blocks.
template <class Body>
void for_heads(const StateSpaceCall& c, int64_t chunk_begin, int64_t chunk_end, const Body& body) {
  const int64_t of_group = c.heads / c.groups;
  const int64_t together = heads_together(c);
  const int64_t blocks = ceil_div(of_group, together);
  for_units(c, c.batch * c.groups * blocks, [&](int64_t unit, void* scratch) {
    const int64_t group = unit / blocks % c.groups;
    const int64_t begin = unit % blocks * together;
    body(StateSpacePart{unit / blocks / c.groups, group * of_group + begin,
                        group * of_group + std::min(begin + together, of_group), chunk_begin,
                        chunk_end},
         scratch);
  });
}

/// Calls body(part, scratch) for each chunk and group.
template <class Body>
void for_chunks(const StateSpaceCall& c, int64_t chunk_begin, int64_t chunk_end, const Body& body) {
  const int64_t of_group = c.heads / c.groups;
  const int64_t chunks = chunk_end - chunk_begin;
  for_units(c, c.batch * c.groups * chunks, [&](int64_t unit, void* scratch) {
    const int64_t chunk = chunk_begin + unit % chunks;
    const int64_t group = unit / chunks % c.groups;
    body(StateSpacePart{unit / chunks / c.groups, group * of_group, (group + 1) * of_group, chunk,
                        chunk + 1},
         scratch);
  });
}

/// Chunks that are worked on together, so that what is kept for them is bounded and still in some
/// cache: as many as give each thread some.
int64_t window_of(const StateSpaceCall& c) {
  return std::clamp<int64_t>(ceil_div(4 * num_threads(), c.batch * c.groups), 1, chunks_of(c));
}

void make_states(const StateSpaceCall& call, int64_t chunk_begin, int64_t chunk_end) {
  const auto run = TAPESTRY_DISPATCH(state_space_states_part);
  for_heads(call, chunk_begin, chunk_end,
            [&](const StateSpacePart& part, void* scratch) { run(call, part, scratch); });
}

void make_output(const StateSpaceCall& call, int64_t chunk_begin, int64_t chunk_end, void* y) {
  const auto run = TAPESTRY_DISPATCH(state_space_output_part);
  for_chunks(call, chunk_begin, chunk_end,
             [&](const StateSpacePart& part, void* scratch) { run(call, part, y, scratch); });
}

/// A window after the other from the last on; `of_window` is called when its dstates are there.
template <class Body>
void for_windows_back(const StateSpaceCall& call,
                      const StateSpaceGradients& gradients,
                      const Body& of_window) {
  const int64_t window = window_of(call);
  const int64_t slot = call.batch * call.heads * state_items(call) * item_of(call);
  const Scratch memory((window + 1) * slot);
  char* const dstates = static_cast<char*>(memory.get());
  const auto run = TAPESTRY_DISPATCH(state_space_dstates_part);
  const void* after = gradients.dstates;
  for (int64_t end = chunks_of(call); end > 0; end -= window) {
    const int64_t begin = std::max<int64_t>(end - window, 0);
    std::memcpy(dstates + (end - begin) * slot, after, static_cast<size_t>(slot));
    const StateSpaceWindow part = {dstates, begin, end};
    for_heads(call, begin, end, [&](const StateSpacePart& heads, void* scratch) {
      run(call, heads, gradients, part, scratch);
    });
    of_window(part);
    after = dstates;
  }
  std::memcpy(gradients.dstates, dstates, static_cast<size_t>(slot));
}

}  // namespace

StateSpaceFlops state_space_flops(const StateSpaceCall& c) {
  const auto n = static_cast<double>(c.state_size);
  const auto p = static_cast<double>(c.head_dim);
  double pairs = 0;  // of tokens that see each other in their chunk
  for (int64_t begin = 0; begin < c.tokens; begin += c.chunk) {
    const auto count = static_cast<double>(std::min(c.chunk, c.tokens - begin));
    pairs += count * (count + 1) / 2;
  }
  const auto heads = static_cast<double>(c.batch * c.heads);
  const double states = 2 * heads * n * p * static_cast<double>(c.tokens);
  return {states, states + 2 * (heads * p + static_cast<double>(c.batch * c.groups) * n) * pairs};
}

void state_space_states(const StateSpaceCall& call) {
  assert(shape_fits(call));
  if (!is_empty(call)) {
    const CountedWork work(state_space_flops(call).states);
    make_states(call, 0, chunks_of(call));
  }
}

void state_space_output(const StateSpaceCall& call, void* y) {
  assert(shape_fits(call));
  if (!is_empty(call)) {
    const CountedWork work(state_space_flops(call).output);
    make_output(call, 0, chunks_of(call), y);
  }
}

void state_space(const StateSpaceCall& call, void* y) {
  assert(shape_fits(call));
  if (is_empty(call)) {
    return;
  }
  const StateSpaceFlops flops = state_space_flops(call);
  const CountedWork work(flops.states + flops.output);
  const int64_t window = window_of(call);
  const int64_t chunks = chunks_of(call);
  for (int64_t begin = 0; begin < chunks; begin += window) {
    const int64_t end = std::min(begin + window, chunks);
    make_states(call, begin, end);
    make_output(call, begin, end, y);
  }
}

void state_space_backward(const StateSpaceCall& call, const StateSpaceGradients& gradients) {
  assert(shape_fits(call));
  std::fill_n(gradients.da, call.heads, 0.0);
  std::fill_n(gradients.dd, call.heads, 0.0);
  std::fill_n(gradients.ddt_bias, call.heads, 0.0);
  if (is_empty(call)) {
    return;
  }
  const StateSpaceFlops flops = state_space_flops(call);
  const CountedWork work(2 * (flops.states + flops.output));
  const auto run = TAPESTRY_DISPATCH(state_space_backward_part);
  const int64_t chunks = chunks_of(call);
  // Of each row of the batch, chunk and head: added up in this order, whoever has made them.
  std::vector<StateSpaceHeadSums> sums(static_cast<size_t>(call.batch * chunks * call.heads));
  for_windows_back(call, gradients, [&](const StateSpaceWindow& window) {
    for_chunks(call, window.chunk_begin, window.chunk_end,
               [&](const StateSpacePart& part, void* scratch) {
                 const int64_t row = part.sample * chunks + part.chunk_begin;
                 run(call, part, gradients, window, sums.data() + row * call.heads, scratch);
               });
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    const size_t head = i % static_cast<size_t>(call.heads);
    gradients.da[head] += sums[i].da;
    gradients.dd[head] += sums[i].dd;
    gradients.ddt_bias[head] += sums[i].ddt_bias;
  }
}

void state_space_backward_states(const StateSpaceCall& call, const StateSpaceGradients& gradients) {
  assert(shape_fits(call));
  if (!is_empty(call)) {
    for_windows_back(call, gradients, [](const StateSpaceWindow& /*window*/) {});
  }
}

void state_space_log_decay(const StateSpaceCall& call, double* out) {
  assert(shape_fits(call));
  const auto run = TAPESTRY_DISPATCH(state_space_log_decay_of);
  for_units(call, call.batch * call.heads, [&](int64_t unit, void* scratch) {
    out[unit] = run(call, unit / call.heads, unit % call.heads, scratch);
  });
}

namespace {

template <class C>
void pad_state(int64_t p, int64_t n, const C* dense, C* padded) {
  const int64_t columns = state_space_padded(p);
  const int64_t rows = state_space_padded(n);
  std::fill_n(padded, rows * columns, C(0));
  for (int64_t i = 0; i < p; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      padded[j * columns + i] = dense[i * n + j];
    }
  }
}

template <class C>
void unpad_state(int64_t p, int64_t n, const C* padded, C* dense) {
  const int64_t columns = state_space_padded(p);
  for (int64_t i = 0; i < p; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      dense[i * n + j] = padded[j * columns + i];
    }
  }
}

/// Calls body(number, dense offset, padded offset) for each state.
template <class Body>
void for_states(int64_t count, int64_t p, int64_t n, const Body& body) {
  const int64_t dense = p * n;
  const int64_t padded = state_space_padded(p) * state_space_padded(n);
  parallel_for(count, std::max<int64_t>(kGrainSize / std::max<int64_t>(padded, 1), 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   body(i * dense, i * padded);
                 }
               });
}

}  // namespace

void pad_states(DType dtype, int64_t count, int64_t p, int64_t n, const void* dense, void* padded) {
  for_states(count, p, n, [&](int64_t from, int64_t to) {
    if (dtype == kFloat64) {
      pad_state(p, n, static_cast<const double*>(dense) + from, static_cast<double*>(padded) + to);
    } else {
      pad_state(p, n, static_cast<const float*>(dense) + from, static_cast<float*>(padded) + to);
    }
  });
}

void unpad_states(
    DType dtype, int64_t count, int64_t p, int64_t n, const void* padded, void* dense) {
  for_states(count, p, n, [&](int64_t to, int64_t from) {
    if (dtype == kFloat64) {
      unpad_state(p, n, static_cast<const double*>(padded) + from,
                  static_cast<double*>(dense) + to);
    } else {
      unpad_state(p, n, static_cast<const float*>(padded) + from, static_cast<float*>(dense) + to);
    }
  });
}

void state_space_step(const StateSpaceStep& step) {
  const StateSpaceCall& c = step.call;
  if (c.batch == 0 || c.heads == 0) {
    return;
  }
  const CountedWork work(4.0 * static_cast<double>(c.batch * c.heads * c.head_dim * c.state_size));
  const auto run = TAPESTRY_DISPATCH(state_space_step_heads);
  const int64_t grain = std::max<int64_t>(kGrainSize / 2 / (c.head_dim * c.state_size + 1), 1);
  parallel_for(c.batch * c.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t text = i / c.heads;
      const int64_t next = std::min(end, (text + 1) * c.heads);
      run(step, text, i % c.heads, i % c.heads + next - i);
      i = next;
    }
  });
}

}  // namespace tapestry::kernels
