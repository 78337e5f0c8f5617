#include "autograd/tensor/block_owner.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <sstream>
#include <tuple>

#include "autograd/kernels/machine/team_state.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {

size_t HashOfBlockOwner::operator()(const BlockOwner& owner) const {
  const std::hash<std::string_view> hash;
  size_t sum = static_cast<size_t>(owner.kind);
  for (const std::string_view text : {owner.op, owner.backward_of, owner.module}) {
    sum = sum * 1099511628211ULL ^ hash(text);
  }
  return sum;
}

BlockOwner current_owner(MemoryKind kind) {
  const kernels::TeamState& team = kernels::team_state();
  const std::string* module = thread_state().module;
  return {.op = team.op,
          .backward_of = team.backward_of,
          .module = module == nullptr ? std::string_view() : std::string_view(*module),
          .kind = kind};
}

std::string op_text(const BlockOwner& owner) {
  if (owner.backward_of.empty()) {
    return std::string(owner.op);
  }
  return owner.op.empty() ? concat("backward of ", owner.backward_of)
                          : concat(owner.op, " in the backward of ", owner.backward_of);
}

void sort_by_size(std::vector<HeldMemory>& held) {
  std::sort(held.begin(), held.end(), [](const HeldMemory& left, const HeldMemory& right) {
    return std::tie(right.bytes, left.module, left.op, left.kind) <
           std::tie(left.bytes, right.module, right.op, right.kind);
  });
}

std::string held_text(std::vector<HeldMemory> held, size_t count) {
  sort_by_size(held);
  std::ostringstream out;
  const auto line = [&out](int64_t bytes) -> std::ostream& {
    return out << std::fixed << std::setprecision(1) << std::setw(12)
               << static_cast<double>(bytes) / (1 << 20) << " MiB  ";
  };
  for (size_t i = 0; i < std::min(count, held.size()); ++i) {
    const HeldMemory& h = held[i];
    line(h.bytes) << name_of(h.kind) << " in " << h.blocks << (h.blocks == 1 ? " block" : " blocks")
                  << (h.op.empty() ? std::string() : concat(", ", h.op))
                  << (h.module.empty() ? std::string() : concat(", ", h.module)) << "\n";
  }
  int64_t rest = 0;
  for (size_t i = count; i < held.size(); ++i) {
    rest += held[i].bytes;
  }
  if (rest > 0) {
    line(rest) << "by " << held.size() - count << " others\n";
  }
  return out.str();
}

AllocationObserver::~AllocationObserver() = default;

}  // namespace tapestry
