#include "parallel_core/comm/label.h"

#include <array>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

const char* name_of(ReduceOp op) {
  constexpr std::array<const char*, 3> kNames = {"sum", "max", "min"};
  return kNames[static_cast<size_t>(op)];
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

}  // namespace

const char* name_of(Collective collective) {
  constexpr std::array<const char*, kNumCollectives> kNames = {
      "all_reduce", "all_gather", "reduce_scatter", "broadcast",
      "all_to_all", "send",       "receive",        "barrier"};
  return kNames[static_cast<size_t>(collective)];
}

bool agree(const Label& a, const Label& b) {
  const bool same_call = a.collective == b.collective || (a.is_message() && b.is_message());
  return same_call && a.group == b.group && a.sequence == b.sequence && a.count == b.count &&
         a.root == b.root && a.reduce_op == b.reduce_op && a.dtype == b.dtype;
}

std::string to_string(const Label& label, const std::string& group_name) {
  std::string text = concat(name_of(label.collective), " #", label.sequence, " of ", group_name);
  if (label.collective == Collective::kBarrier) {
    return text;
  }
  text += concat(" (", name_of(label.dtype));
  if (label.count >= 0) {
    text += concat(", ", label.count, label.count == 1 ? " element" : " elements");
  }
  if (reduces(label.collective)) {
    text += concat(", ", name_of(label.reduce_op));
  }
  if (label.root >= 0) {
    const char* role = label.collective == Collective::kSend      ? ", to rank "
                       : label.collective == Collective::kReceive ? ", from rank "
                                                                  : ", root ";
    text += concat(role, label.root);
  }
  return text + ")";
}

}  // namespace tapestry
