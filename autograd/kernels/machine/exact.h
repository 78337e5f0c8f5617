// Exact mode: a scope in which results have the same bits however the work is divided, among
// threads, ranks and micro-batches, and at every CPU level with fused multiply-adds.
//
//   const ExactScope scope;      // around forward and backward passes, the optimizer, generation
//
// Inside:
//   - a product sums over k in order, one fused multiply-add after the other, whatever the other
//     rows and columns are. Where ranks may divide k, the sum is a tree of up to kSumLeaves pieces
//     of it (kernels/gemm/gemm_exact.h), of which a rank has a subtree.
//   - what is summed along a row runs in kSumLanes lanes, as if every vector had so many.
//   - gradients of parameters are sums over tokens in any order: each term is rounded to a multiple
//     of one unit, and such numbers add without rounding (kernels/exact_sums.h). A term is a
//     token's share, or that of a leaf of tokens, which no layout divides (ExactTokens).
//   - attention's gradients of keys and values are a tree over the leaves of queries.
// An op that sums over tokens otherwise may not contribute to a gradient here: main_grad throws.
//
// bfloat16 in pairs (prefers_bfloat16_pairs) rounds otherwise than widened to float32, so its bits
// are a class of their own: exact_class().
//
// The scope belongs to the calling thread; the threads of its loops, backward passes and what they
// compute again inherit it.
#pragma once

#include <cstdint>

namespace tapestry {

/// Lanes of a sum along a row, at every CPU level.
inline constexpr int64_t kSumLanes = 16;
/// Pieces of a sum that ranks may divide, and of a sequence: the most ranks that can.
inline constexpr int64_t kSumLeaves = 8;

namespace detail {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one for each thread
inline thread_local constinit bool computes_exactly = false;
}  // namespace detail

/// Whether the calling thread is inside a scope that is on.
inline bool in_exact() { return detail::computes_exactly; }

/// While it lives, the calling thread is inside (`on`) or outside; afterwards as before.
class [[nodiscard]] ExactScope {
 public:
  explicit ExactScope(bool on = true) : before_(detail::computes_exactly) {
    detail::computes_exactly = on;
  }
  ExactScope(const ExactScope&) = delete;
  ExactScope& operator=(const ExactScope&) = delete;
  ~ExactScope() { detail::computes_exactly = before_; }

 private:
  bool before_;
};

/// Which tokens the rows of a micro-batch's activations are. A sequence of n tokens has
/// sequence_leaves(n) = L leaves: of its 2 L equal chunks, leaf i is chunks i and 2 L - 1 - i, so
/// that context-parallel ranks have whole leaves. A rank has `leaves` of them, and their chunks lie
/// one after the other: of the rank's own 2 `leaves` chunks leaf i is again i and 2 leaves - 1 - i.
struct ExactTokens {
  int64_t samples = 0;        ///< 0: not known, every row is a leaf of its own
  int64_t length = 0;         ///< tokens of a sample here
  int64_t leaves = 1;         ///< of a sample here
  bool samples_first = true;  ///< rows are [samples, length] rather than [length, samples]

  int64_t rows() const { return samples * length; }
};

/// Leaves of a sequence of so many tokens: kSumLeaves, or fewer where its chunks would not be
/// equal.
constexpr int64_t sequence_leaves(int64_t tokens) {
  int64_t leaves = kSumLeaves;
  while (leaves > 1 && tokens % (2 * leaves) != 0) {
    leaves /= 2;
  }
  return leaves;
}

namespace detail {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one for each thread
inline thread_local constinit ExactTokens exact_tokens_of_thread;
}  // namespace detail

/// Of the micro-batch that the calling thread computes. Ops whose rows are others than these (a
/// piece of the sequence, rows that a router has sorted) take each row for a leaf.
inline const ExactTokens& exact_tokens() { return detail::exact_tokens_of_thread; }

/// Says so for the lifetime.
class [[nodiscard]] ExactTokensScope {
 public:
  explicit ExactTokensScope(const ExactTokens& tokens) : before_(detail::exact_tokens_of_thread) {
    detail::exact_tokens_of_thread = tokens;
  }
  ExactTokensScope(const ExactTokensScope&) = delete;
  ExactTokensScope& operator=(const ExactTokensScope&) = delete;
  ~ExactTokensScope() { detail::exact_tokens_of_thread = before_; }

 private:
  ExactTokens before_;
};

}  // namespace tapestry
