#include "parallel_core/comm/group_operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "autograd/tensor/rank_context.h"

namespace tapestry {

GroupOperation::GroupOperation(const Label& label, Members members, Background background)
    : Operation(label, background), members_(std::move(members)) {}

int GroupOperation::group_rank(int world_rank) const {
  const std::vector<int>& ranks = *members_.world_ranks;
  const auto place = members_.ascending ? std::lower_bound(ranks.begin(), ranks.end(), world_rank)
                                        : std::find(ranks.begin(), ranks.end(), world_rank);
  return static_cast<int>(place - ranks.begin());
}

void ScheduledOperation::start(Communicator& communicator) {
  communicator_ = &communicator;
  schedule_->start(*this);
  do_own_part();
}

void ScheduledOperation::sent(Communicator& /*communicator*/, int part, int destination) {
  schedule_->sent(*this, part, group_rank(destination));
}

void ScheduledOperation::received(Communicator& /*communicator*/, int part, int source) {
  schedule_->received(*this, part, group_rank(source));
}

void ScheduledOperation::send(int to, int part) {
  const Place place = outgoing(to, part);
  communicator_->send(*this, world_rank(to), part, place.data, place.bytes);
}

void ScheduledOperation::receive(int from, int part) {
  const Place place = incoming(from, part);
  communicator_->receive(*this, world_rank(from), part, place.data, place.bytes);
}

TensorBytes::TensorBytes(const Tensor& tensor)
    : tensor_(tensor),
      data_(static_cast<std::byte*>(tensor.raw())),
      numel_(tensor.numel()),
      dtype_(tensor.dtype()) {}

Ref<Storage> comm_scratch(int64_t bytes) {
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  return make_ref<Storage>(bytes);
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

}  // namespace tapestry
