// Collectives of the ranks of a group: what they have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/comm/collectives.h"
#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/schedule.h"

namespace tapestry {

class GroupOperation : public Operation {
 protected:
  GroupOperation(const Label& label, Members members, Background background = Background::kYes);

  int size() const { return members_.size(); }
  int rank() const { return members_.rank; }
  int world_rank(int rank) const { return (*members_.world_ranks)[static_cast<size_t>(rank)]; }
  int group_rank(int world_rank) const;

 private:
  Members members_;
};

/// Carries out a schedule: an operation says where the data of its messages are.
class ScheduledOperation : public GroupOperation, private ScheduleActions {
 protected:
  struct Place {
    void* data;
    int64_t bytes;
  };
  ScheduledOperation(const Label& label,
                     const Members& members,
                     std::unique_ptr<Schedule> schedule,
                     Background background = Background::kYes)
      : GroupOperation(label, members, background), schedule_(std::move(schedule)) {}

  virtual Place outgoing(int to, int part) = 0;
  virtual Place incoming(int from, int part) = 0;
  void reduce(int64_t /*segment*/) override {}
  /// What needs no message, done while the first are on their way.
  virtual void do_own_part() {}

 private:
  void start(Communicator& communicator) final;
  void sent(Communicator& communicator, int part, int destination) final;
  void received(Communicator& communicator, int part, int source) final;
  void send(int to, int part) final;
  void receive(int from, int part) final;

  std::unique_ptr<Schedule> schedule_;
  Communicator* communicator_ = nullptr;
};

/// Where a tensor's data are, asked of it once, by the rank's thread: a tensor may be a window.
class TensorBytes {
 public:
  explicit TensorBytes(const Tensor& tensor);

  int64_t numel() const { return numel_; }
  DType dtype() const { return dtype_; }
  int64_t element() const { return size_of(dtype_); }
  int64_t bytes() const { return numel_ * element(); }
  std::byte* at(int64_t element) const { return data_ + element * this->element(); }

 private:
  Tensor tensor_;  // kept
  std::byte* data_;
  int64_t numel_;
  DType dtype_;
};

/// Workspace of the current rank.
Ref<Storage> comm_scratch(int64_t bytes);

/// Nothing if there is nothing to copy: an empty tensor may have no address.
void copy_bytes(void* to, const void* from, int64_t bytes);

}  // namespace tapestry
