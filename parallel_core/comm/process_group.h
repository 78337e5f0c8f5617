// A group of ranks that communicate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "autograd/tensor/tensor.h"

namespace tapestry {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

/// The collectives that training is written against. Every rank of the group calls the same one
/// with the same shape and dtype. Tensors are contiguous and are changed in place; none of the
/// calls is recorded on the tape (the recorded ops are in tensor_parallel/mappings.h).
class ProcessGroup {
 public:
  ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What messages call it, for example "tp-0-1".
  virtual std::string name() const = 0;

  /// Replaces the tensor on every rank by the element-wise reduction over all ranks.
  virtual void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum) = 0;
  /// Copies the tensor of rank `root` to every rank. ValueError if there is no such rank.
  virtual void broadcast(const Tensor& tensor, int root) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;
};

/// The group of a process that is alone: each collective leaves its tensor as it is.
std::shared_ptr<ProcessGroup> single_process_group();

}  // namespace tapestry
