// What hyper_connection.cpp hands to the loops of isa/hyper_connection.cpp.
#pragma once

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/streams/hyper_connection.h"

namespace tapestry::kernels {

/// Tokens that are taken together, one to a lane.
inline constexpr int64_t kStreamLanes = 16;
/// Columns of a stream that are taken at once: no power of two, as rows that lie so far apart would
/// share a few places of the first cache.
inline constexpr int64_t kStreamPanel = 992;
/// Columns of the weight whose gradient one task sums over all tokens, and tokens at a time.
inline constexpr int64_t kWeightColumns = 64;
inline constexpr int64_t kWeightRows = 64;

/// Elements of compute type that a call of the loops needs to work in.
inline int64_t hyper_connection_buffer(const HyperConnectionShape& s, int64_t iterations) {
  const int64_t squares = s.streams * s.streams;
  const int64_t rounds = (2 * iterations + 1) * squares + 2 * iterations * s.streams;
  return kStreamLanes * (2 * kStreamPanel + rounds + 4 * s.gates() + 2 * s.streams) +
         (2 * s.streams + 2) * kStreamPanel;
}
inline int64_t weight_gradient_buffer(const HyperConnectionShape& s) {
  return kWeightColumns * (kWeightRows + s.gates());
}

/// Of tokens [begin, end). dz and dq [rows, m]: the gradients of z and of W x.
TAPESTRY_DECLARE_PER_ISA(
    void hyper_connection_read_rows(
        const HyperConnectionRead& call, int64_t begin, int64_t end, void* buffer);
    void hyper_connection_logit_gradients(const HyperConnectionReadBackward& call,
                                          int64_t begin,
                                          int64_t end,
                                          void* dz,
                                          void* dq,
                                          void* buffer);
    void hyper_connection_stream_gradients(const HyperConnectionReadBackward& call,
                                           int64_t begin,
                                           int64_t end,
                                           const void* dq,
                                           void* buffer);
    /// Of all tokens, for columns [first, first + columns) of the weight, up to kWeightColumns.
    void hyper_connection_weight_gradients(const HyperConnectionReadBackward& call,
                                           int64_t first,
                                           int64_t columns,
                                           const void* dq,
                                           void* buffer);
    void hyper_connection_write_rows(
        const HyperConnectionWrite& call, int64_t begin, int64_t end, void* buffer);
    void hyper_connection_write_gradients(
        const HyperConnectionWriteBackward& call, int64_t begin, int64_t end, void* buffer))

}  // namespace tapestry::kernels
