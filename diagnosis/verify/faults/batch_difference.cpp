#include "diagnosis/verify/faults/batch_difference.h"

#include <algorithm>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

std::string shown(uint8_t flag) { return flag != 0 ? "hidden" : "visible"; }
std::string shown(int64_t value) { return concat(value); }
std::string shown(float value) { return concat(value); }

template <class T>
std::optional<BatchDifference> look(const char* name,
                                    const std::vector<T>& x,
                                    const std::vector<T>& y,
                                    const data::Batch& ours) {
  const int64_t per_row = ours.batch > 0 ? std::ssize(x) / ours.batch : 0;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] == y[i]) {
      continue;
    }
    const int64_t row = static_cast<int64_t>(i) / per_row;
    const auto at = static_cast<size_t>(row);
    return BatchDifference{
        name, at < ours.sample_ids.size() ? std::optional(ours.sample_ids[at]) : std::nullopt,
        concat(name, " of row ", row, ", position ", static_cast<int64_t>(i) % per_row, ": ",
               shown(x[i]), " against ", shown(y[i]))};
  }
  if (x.size() != y.size()) {
    return BatchDifference{name, {}, concat(name, ": ", x.size(), " numbers against ", y.size())};
  }
  return std::nullopt;
}

// What is left out stands for positions from 0 on.
std::vector<int64_t> positions_of(const data::Batch& batch) {
  if (!batch.position_ids.empty()) {
    return batch.position_ids;
  }
  std::vector<int64_t> out;
  for (int64_t i = 0; i < batch.batch * batch.seq; ++i) {
    out.push_back(i % batch.seq);
  }
  return out;
}

}  // namespace

std::optional<BatchDifference> first_difference(const data::Batch& ours,
                                                const data::Batch& theirs) {
  if (ours.batch != theirs.batch || ours.seq != theirs.seq) {
    return BatchDifference{
        "tokens",
        {},
        concat(ours.batch, " x ", ours.seq, " tokens against ", theirs.batch, " x ", theirs.seq)};
  }
  if (auto found = look("tokens", ours.tokens, theirs.tokens, ours)) {
    return found;
  }
  if (auto found = look("labels", ours.labels, theirs.labels, ours)) {
    return found;
  }
  if (auto found = look("loss_mask", ours.loss_mask, theirs.loss_mask, ours)) {
    return found;
  }
  if (auto found = look("position_ids", positions_of(ours), positions_of(theirs), ours)) {
    return found;
  }
  if (ours.document_starts != theirs.document_starts) {
    return BatchDifference{"document_starts", {}, "documents begin at other positions"};
  }
  return look("attention_mask", ours.attention_mask, theirs.attention_mask, ours);
}

}  // namespace tapestry
