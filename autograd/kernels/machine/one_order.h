// One order of sums: a scope in which forward passes give the same bits however they are batched.
//
// Training computes many rows at once and takes the fastest way of that size; generation computes a
// few rows at a time, over keys and values that it keeps, and takes another. The sums are the same,
// their order is not, and so the log-probability that a sampler recorded differs from what the
// trainer computes of the same tokens, in the last bits. Inside the scope both take one way:
//
//   const OneOrderScope scope;            // around TextGenerator::generate(), and around the
//   ... forward passes ...                // forward passes of training that are to agree with it
//
// What has the same bits inside, whatever else is computed with it:
//   - a row of a product: each element is one sum over k, of vectors and then of their lanes, as
//     kernels/gemm/gemm_few_rows.h has it for any number of rows. float32, bfloat16 and float16;
//     experts' grouped products and quantised weights too.
//   - a query of causal attention in float32 and bfloat16: sums over blocks of keys, which are
//     counted from the first token of its document, as kernels/attention/cached_attention.h has
//     them; over packed documents, over a cache, and however a prompt is cut into segments or a
//     text among context-parallel ranks. Not with a mask or dropout, nor composed_attention(), nor
//     layers that keep a state.
//   - norms, activations, rotary embeddings and the loss of a row are so without a scope.
// For a given CPU level: other levels have other vectors, and other bits. Bits do not depend on the
// number of threads.
//
// The scope belongs to the calling thread; the threads of its loops inherit it. Backward passes run
// outside of it, whoever starts them, but what they compute again was computed inside and is so
// again: recomputed values are those of the first time. Without the scope nothing changes.
#pragma once

namespace tapestry {

namespace detail {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one for each thread
inline thread_local constinit bool computes_in_one_order = false;
}  // namespace detail

/// Whether the calling thread is inside a scope that is on.
inline bool in_one_order() { return detail::computes_in_one_order; }

/// While it lives, the calling thread is inside (`on`) or outside; afterwards as before.
class [[nodiscard]] OneOrderScope {
 public:
  explicit OneOrderScope(bool on = true) : before_(detail::computes_in_one_order) {
    detail::computes_in_one_order = on;
  }
  OneOrderScope(const OneOrderScope&) = delete;
  OneOrderScope& operator=(const OneOrderScope&) = delete;
  ~OneOrderScope() { detail::computes_in_one_order = before_; }

 private:
  bool before_;
};

}  // namespace tapestry
