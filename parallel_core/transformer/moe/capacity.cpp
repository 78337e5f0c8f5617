#include "parallel_core/transformer/moe/capacity.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// The token with each number.
std::vector<int64_t> tokens_by_number(const std::vector<int64_t>& numbers) {
  std::vector<int64_t> out(numbers.size(), -1);
  for (size_t t = 0; t < numbers.size(); ++t) {
    const int64_t number = numbers[t];
    check<ValueError>(number >= 0 && number < std::ssize(numbers), "capacity: a token has number ",
                      number, ", but the routing group has ", numbers.size(), " tokens");
    int64_t& place = out[static_cast<size_t>(number)];
    check<ValueError>(place < 0, "capacity: two tokens have number ", number);
    place = static_cast<int64_t>(t);
  }
  return out;
}

// The assignments of each expert, one expert after the other; those of one by ascending number.
class ByExpert {
 public:
  ByExpert(const Assignments& all, int64_t num_experts, const std::vector<int64_t>& order)
      : ends_(static_cast<size_t>(num_experts) + 1, 0), assignments_(all.experts.size()) {
    for (const int32_t expert : all.experts) {
      ++ends_[static_cast<size_t>(expert) + 1];
    }
    for (size_t e = 1; e < ends_.size(); ++e) {
      ends_[e] += ends_[e - 1];
    }
    std::vector<size_t> next(ends_.begin(), ends_.end() - 1);
    for (const int64_t t : order) {
      for (int64_t j = 0; j < all.topk; ++j) {
        const int64_t assignment = t * all.topk + j;
        const auto expert = static_cast<size_t>(all.experts[static_cast<size_t>(assignment)]);
        assignments_[next[expert]++] = assignment;
      }
    }
  }
  std::span<int64_t> of(size_t expert) {
    return std::span(assignments_).subspan(ends_[expert], ends_[expert + 1] - ends_[expert]);
  }

 private:
  std::vector<size_t> ends_;
  std::vector<int64_t> assignments_;
};

// Orders an expert's assignments, which come by ascending number, as the policy accepts them; only
// which of them are among the first `capacity` counts.
void order_by_policy(std::span<int64_t> assignments, const Assignments& all, DropPolicy policy) {
  if (policy == DropPolicy::kProbs) {
    std::stable_sort(assignments.begin(), assignments.end(), [&](int64_t a, int64_t b) {
      const float x = all.gates[static_cast<size_t>(a)];
      const float y = all.gates[static_cast<size_t>(b)];
      return x > y || (std::isnan(y) && !std::isnan(x));
    });
  } else if (policy == DropPolicy::kChoice) {
    std::stable_sort(assignments.begin(), assignments.end(),
                     [&](int64_t a, int64_t b) { return a % all.topk < b % all.topk; });
  }
}

}  // namespace

int64_t expert_capacity(int64_t tokens, int64_t topk, int64_t num_experts, double factor) {
  check<ValueError>(factor > 0, "moe_expert_capacity_factor must be above 0, got ", factor);
  const double share = static_cast<double>(tokens * topk) / static_cast<double>(num_experts);
  const double capacity = std::ceil(share * factor);
  return capacity < static_cast<double>(tokens) ? static_cast<int64_t>(capacity) : tokens;
}

DropPolicy drop_policy(const std::string& name) {
  if (name == "probs") {
    return DropPolicy::kProbs;
  }
  if (name == "position") {
    return DropPolicy::kPosition;
  }
  check<ValueError>(name == "choice", "moe_token_drop_policy '", name,
                    "' is not known; choose probs, position or choice");
  return DropPolicy::kChoice;
}

KeptAssignments keep_assignments(const Assignments& all,
                                 int64_t num_experts,
                                 int64_t capacity,
                                 DropPolicy policy) {
  KeptAssignments out;
  out.kept.assign(all.experts.size(), 1);
  out.dropped_per_expert.assign(static_cast<size_t>(num_experts), 0);
  ByExpert by_expert(all, num_experts, tokens_by_number(all.numbers));
  for (size_t e = 0; e < static_cast<size_t>(num_experts); ++e) {
    const std::span<int64_t> assignments = by_expert.of(e);
    if (std::ssize(assignments) <= capacity) {
      continue;
    }
    order_by_policy(assignments, all, policy);
    const auto dropped = assignments.subspan(static_cast<size_t>(capacity));
    for (const int64_t assignment : dropped) {
      out.kept[static_cast<size_t>(assignment)] = 0;
    }
    out.dropped_per_expert[e] = std::ssize(dropped);
    if (policy == DropPolicy::kProbs && capacity > 0) {
      const auto last = dropped.begin() - assignments.begin();
      const auto gate = [&](std::ptrdiff_t i) {
        return all.gates[static_cast<size_t>(assignments[static_cast<size_t>(i)])];
      };
      const float gap = gate(last - 1) - gate(last);
      out.smallest_gap =
          std::isnan(gap) ? out.smallest_gap : std::min<double>(out.smallest_gap, gap);
    }
  }
  return out;
}

Assignments gather_assignments(const Assignments& own,
                               ProcessGroup& group,
                               const std::vector<int64_t>& tokens_of_ranks) {
  // A row per token: its number, then expert and the bits of the gate for each choice.
  const int64_t width = 1 + own.topk;
  const int64_t most = *std::max_element(tokens_of_ranks.begin(), tokens_of_ranks.end());
  const Tensor sent = zeros({most, width}, kInt64);
  auto* row = sent.data<int64_t>();
  for (size_t t = 0; t < own.numbers.size(); ++t, row += width) {
    row[0] = own.numbers[t];
    for (int64_t j = 0; j < own.topk; ++j) {
      const size_t i = t * static_cast<size_t>(own.topk) + static_cast<size_t>(j);
      const auto expert = static_cast<uint64_t>(own.experts[i]);
      row[1 + j] = std::bit_cast<int64_t>(expert << 32U | std::bit_cast<uint32_t>(own.gates[i]));
    }
  }
  const Tensor received = empty({group.size() * most, width}, kInt64);
  group.all_gather(received, sent);
  Assignments out{.topk = own.topk};
  for (size_t r = 0; r < tokens_of_ranks.size(); ++r) {
    const int64_t* theirs = received.data<int64_t>() + static_cast<int64_t>(r) * most * width;
    for (int64_t t = 0; t < tokens_of_ranks[r]; ++t, theirs += width) {
      out.numbers.push_back(theirs[0]);
      for (int64_t j = 0; j < own.topk; ++j) {
        const auto packed = std::bit_cast<uint64_t>(theirs[1 + j]);
        out.experts.push_back(static_cast<int32_t>(packed >> 32U));
        out.gates.push_back(std::bit_cast<float>(static_cast<uint32_t>(packed)));
      }
    }
  }
  return out;
}

}  // namespace tapestry
