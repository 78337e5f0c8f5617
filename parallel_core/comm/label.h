// What a rank says about a collective, so that ranks that disagree can be told apart.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/kernels/machine/dtype.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Travels with every message of a collective. All members of a group give call number `sequence`
/// the same label; a receive expects the label of its send.
struct Label {
  uint64_t group = 0;     ///< see Communicator::register_group
  uint64_t sequence = 0;  ///< counts the group's collectives; of messages, those to one rank
  int64_t count = -1;     ///< elements of each rank's tensor, -1 where that may differ
  int32_t root = -1;      ///< of a broadcast; of a message, the other side. A rank of the world
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  DType dtype = kBool;

  bool is_message() const {
    return collective == Collective::kSend || collective == Collective::kReceive;
  }
};

/// Both describe one call, a send matching its receive.
bool agree(const Label& a, const Label& b);

/// "all_reduce #12 of tp-0-1 (float32, 1024 elements, sum)"
std::string to_string(const Label& label, const std::string& group_name);

/// "all_reduce"
const char* name_of(Collective collective);

}  // namespace tapestry
