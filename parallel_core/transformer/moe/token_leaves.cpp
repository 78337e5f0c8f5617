#include "parallel_core/transformer/moe/token_leaves.h"

#include "autograd/tensor/error.h"

namespace tapestry {

TokenLeaves token_leaves(const GroupTokens& tokens) {
  TokenLeaves out;
  if (tokens.seq_length % kTokenChunks != 0 || tokens.numbers.empty()) {
    return out;
  }
  const int64_t size = tokens.seq_length / kTokenChunks;
  std::vector<int32_t> leaf_of_run(static_cast<size_t>(tokens.rows * kTokenChunks), -1);
  std::vector<int64_t> sizes;
  out.of_token.reserve(tokens.numbers.size());
  for (const int64_t number : tokens.numbers) {  // row * seq_length + position
    int32_t& leaf = leaf_of_run[static_cast<size_t>(number / size)];
    if (leaf < 0) {
      leaf = static_cast<int32_t>(sizes.size());
      sizes.push_back(0);
    }
    ++sizes[static_cast<size_t>(leaf)];
    out.of_token.push_back(leaf);
  }
  for (const int64_t tokens_of_leaf : sizes) {
    check<ValueError>(tokens_of_leaf == size, "exact mode: a rank has ", tokens_of_leaf,
                      " tokens of a sixteenth of a sequence, which are ", size,
                      ", so the tensor- and context-parallel ranks divide sequences of ",
                      tokens.seq_length, " too often for mixtures of experts");
  }
  out.count = std::ssize(sizes);
  return out;
}

std::vector<int32_t> experts_and_leaves(std::span<const int32_t> experts,
                                        int64_t topk,
                                        const TokenLeaves& leaves) {
  std::vector<int32_t> out(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    out[i] = experts[i] * static_cast<int32_t>(leaves.count) +
             leaves.of_token[i / static_cast<size_t>(topk)];
  }
  return out;
}

}  // namespace tapestry
