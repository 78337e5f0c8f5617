#include "autograd/ops/transformer/documents.h"

#include <vector>

#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

void check_document_starts(std::string_view op,
                           const Tensor& starts,
                           int64_t batch,
                           int64_t tokens,
                           int64_t first_position) {
  check<ValueError>(first_position >= 0, op, ": first_position must not be negative, got ",
                    first_position);
  if (!starts.defined()) {
    return;
  }
  check<TypeError>(starts.dtype() == kInt32, op, ": document_starts must be int32, got ",
                   name_of(starts.dtype()));
  check<ValueError>(starts.dim() == 2 && starts.is_contiguous() &&
                        (starts.size(0) == batch || starts.size(0) == 1) &&
                        starts.size(1) >= first_position + tokens,
                    op, ": document_starts must be contiguous [", batch, " or 1, at least ",
                    first_position + tokens, "], got ", describe(starts));
  const int32_t* row = starts.data<int32_t>();
  for (int64_t b = 0; b < starts.size(0); ++b, row += starts.size(1)) {
    for (int64_t p = 0; p < starts.size(1); ++p) {
      check<ValueError>(row[p] >= (p > 0 ? row[p - 1] : 0) && row[p] <= p, op,
                        ": document_starts must not decrease nor lie behind their position, got ",
                        row[p], " at position ", p, " of row ", b);
    }
  }
}

DocumentRows document_rows(const Tensor& starts) {
  if (!starts.defined()) {
    return {};
  }
  return {starts.data<int32_t>(), starts.size(0) == 1 ? 0 : starts.size(1)};
}

namespace {

/// bool [B or 1, tokens] of what is(position, start) says.
template <class Is>
Tensor of_tokens(const Tensor& starts, int64_t tokens, int64_t first_position, const Is& is) {
  Tensor out = empty({starts.size(0), tokens}, kBool);
  bool* to = out.data<bool>();
  for (int64_t b = 0; b < starts.size(0); ++b) {
    const int32_t* row = starts.data<int32_t>() + b * starts.size(1) + first_position;
    for (int64_t t = 0; t < tokens; ++t) {
      *to++ = is(first_position + t, int64_t{row[t]});
    }
  }
  return out;
}

}  // namespace

Tensor begins_document(const Tensor& starts, int64_t tokens, int64_t first_position) {
  return of_tokens(starts, tokens, first_position,
                   [](int64_t position, int64_t start) { return start == position && start > 0; });
}

Tensor is_of_other_document(const Tensor& starts,
                            int64_t tokens,
                            int64_t first_position,
                            int64_t distance) {
  return of_tokens(starts, tokens, first_position, [distance](int64_t position, int64_t start) {
    return start > 0 && position - distance < start;
  });
}

void check_slots(std::string_view op,
                 std::span<const int64_t> slots,
                 int64_t texts,
                 int64_t count) {
  check<ValueError>(static_cast<int64_t>(slots.size()) == texts, op, ": ", slots.size(),
                    " slots for ", texts, " texts");
  std::vector<bool> is_taken(static_cast<size_t>(count));
  for (const int64_t slot : slots) {
    check<ValueError>(slot >= 0 && slot < count, op, ": slot ", slot, " of a state with ", count,
                      " slots");
    check<ValueError>(!is_taken[static_cast<size_t>(slot)], op, ": two texts in slot ", slot);
    is_taken[static_cast<size_t>(slot)] = true;
  }
}

}  // namespace tapestry
