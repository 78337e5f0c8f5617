#include "parallel_core/training/step/rows_ahead.h"

#include <algorithm>
#include <numeric>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// Where the document that position `last` is in begins; 0 without documents.
int64_t document_start(const data::Batch& batch, int64_t row, int64_t last) {
  int64_t found = 0;
  if (!batch.document_starts.empty()) {
    for (const int64_t start : batch.document_starts[static_cast<size_t>(row)]) {
      found = start <= last ? std::max(found, start) : found;
    }
  }
  return found;
}

}  // namespace

RowsAhead rows_ahead(const data::Batch& batch, int64_t depth) {
  check<ValueError>(depth >= 1 && batch.labels.size() == batch.tokens.size(), "rows ahead: depth ",
                    depth, " needs to be positive, and ", batch.labels.size(),
                    " labels as many as the ", batch.tokens.size(), " tokens");
  const int64_t seq = batch.seq;
  const auto at = [&](int64_t row, int64_t i) { return static_cast<size_t>(row * seq + i); };
  RowsAhead out = {.tokens = std::vector<int64_t>(batch.tokens.size()),
                   .labels = std::vector<int64_t>(batch.tokens.size()),
                   .loss_mask = std::vector<float>(batch.tokens.size())};
  for (int64_t row = 0; row < batch.batch; ++row) {
    for (int64_t i = 0; i < seq; ++i) {
      const int64_t ahead = i + depth;
      if (ahead < seq) {
        out.tokens[at(row, i)] = batch.tokens[at(row, ahead)];
        out.labels[at(row, i)] = batch.labels[at(row, ahead)];
        // What the label is, is known up to the end of the row.
        const int64_t target = std::min(ahead + 1, seq - 1);
        const bool together = document_start(batch, row, target) <= i;
        const float mask = batch.loss_mask.empty() ? 1.0F : batch.loss_mask[at(row, ahead)];
        out.loss_mask[at(row, i)] = together ? mask : 0.0F;
      } else if (ahead == seq) {
        // A label that counts for nothing may be no token.
        out.tokens[at(row, i)] = std::max<int64_t>(batch.labels[at(row, seq - 1)], 0);
      }
    }
  }
  return out;
}

double tokens_that_count_ahead(const data::Batch& batch, int64_t depth) {
  const RowsAhead rows = rows_ahead(batch, depth);
  return std::accumulate(rows.loss_mask.begin(), rows.loss_mask.end(), 0.0);
}

}  // namespace tapestry
