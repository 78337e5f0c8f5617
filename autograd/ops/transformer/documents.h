// Whose token it is, for ops that carry something from token to token: documents in a row, and the
// slots of texts that are continued.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Of options that are as AttentionOptions::document_starts, for `tokens` tokens from
/// `first_position` on; undefined is in order. TypeError if they are not int32; ValueError if they
/// are not contiguous [batch or 1, N], N >= first_position + tokens, decrease along a row, lie
/// behind their position or below 0, or if first_position is negative.
void check_document_starts(std::string_view op,
                           const Tensor& starts,
                           int64_t batch,
                           int64_t tokens,
                           int64_t first_position);

/// The starts as kernels take them: at the position of each token, rows `batch_stride` apart.
struct DocumentRows {
  const int32_t* starts = nullptr;
  int64_t batch_stride = 0;
};
DocumentRows document_rows(const Tensor& starts);

/// bool [B or 1, tokens]: whether token t begins a document, but for one at position 0, before
/// which there is nothing but what the caller says.
Tensor begins_document(const Tensor& starts, int64_t tokens, int64_t first_position);

/// bool [B or 1, tokens]: whether the token that lies `distance` before token t is of another
/// document, where a document that begins at position 0 goes on from what is before it.
Tensor is_of_other_document(const Tensor& starts,
                            int64_t tokens,
                            int64_t first_position,
                            int64_t distance);

/// Where the states of `texts` texts lie: ValueError unless these are so many different slots of
/// `count`.
void check_slots(std::string_view op, std::span<const int64_t> slots, int64_t texts, int64_t count);

}  // namespace tapestry
