#include "parallel_core/transformer/moe/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mutex>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

bool is_better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// The places of the best entries of a row, best first: at most `limit`, of those that are allowed.
// Each entry is compared with the worst that is held, and rarely moves further.
class Ranking {
 public:
  void rank(const float* values, int64_t count, int64_t limit, const uint8_t* allowed) {
    held_.clear();
    for (int64_t i = 0; i < count; ++i) {
      if (allowed != nullptr && allowed[i] == 0) {
        continue;
      }
      const bool is_full = std::ssize(held_) == limit;
      if (is_full && !is_better(values[i], values[held_.back()])) {
        continue;
      }
      if (is_full) {
        held_.pop_back();
      }
      auto at = held_.end();
      while (at != held_.begin() && is_better(values[i], values[*(at - 1)])) {
        --at;
      }
      held_.insert(at, static_cast<int32_t>(i));
    }
  }
  const std::vector<int32_t>& places() const { return held_; }

  // How far apart entries `i` and i + 1 of the ranking are, if it has both.
  double gap_after(const float* values, int64_t i) const {
    if (i + 1 >= std::ssize(held_)) {
      return kNoGap;
    }
    const auto at = held_.begin() + i;
    const float gap = values[at[0]] - values[at[1]];  // rounded as the values are
    return std::isnan(gap) ? kNoGap : std::min<double>(kNoGap, gap);
  }

 private:
  std::vector<int32_t> held_;
};

// The rows of one thread.
class RowChooser {
 public:
  RowChooser(const ChoiceRule& rule)
      : rule_(rule),
        per_group_(rule.num_experts / rule.num_groups),
        scores_(static_cast<size_t>(rule.num_groups)),
        allowed_(static_cast<size_t>(rule.num_experts)) {}

  void choose(const float* values, int32_t* experts) {
    const bool greedy = rule_.method == ChoiceRule::Method::kGreedy;
    if (!greedy) {
      allow_groups(values);
    }
    ranking_.rank(values, rule_.num_experts, rule_.topk + 1, greedy ? nullptr : allowed_.data());
    std::copy_n(ranking_.places().begin(), rule_.topk, experts);
    gap_ = std::min(gap_, ranking_.gap_after(values, rule_.topk - 1));
    for (int64_t j = 0; j + 1 < rule_.topk; ++j) {
      order_gap_ = std::min(order_gap_, ranking_.gap_after(values, j));
    }
  }
  void add_gaps(ExpertChoice& out) const {
    out.smallest_gap = std::min(out.smallest_gap, gap_);
    out.smallest_group_gap = std::min(out.smallest_group_gap, group_gap_);
    out.smallest_order_gap = std::min(out.smallest_order_gap, order_gap_);
  }

 private:
  void allow_groups(const float* values) {
    for (int64_t g = 0; g < rule_.num_groups; ++g) {
      const float* of_group = values + g * per_group_;
      ranking_.rank(of_group, per_group_, 2, nullptr);
      float score = of_group[ranking_.places()[0]];
      if (rule_.method == ChoiceRule::Method::kNoauxTc) {
        score += of_group[ranking_.places()[1]];
      }
      scores_[static_cast<size_t>(g)] = score;
    }
    ranking_.rank(scores_.data(), rule_.num_groups, rule_.group_topk + 1, nullptr);
    group_gap_ = std::min(group_gap_, ranking_.gap_after(scores_.data(), rule_.group_topk - 1));
    std::fill(allowed_.begin(), allowed_.end(), uint8_t{0});
    for (int64_t i = 0; i < rule_.group_topk; ++i) {
      const auto first = allowed_.begin() + ranking_.places()[static_cast<size_t>(i)] * per_group_;
      std::fill_n(first, per_group_, uint8_t{1});
    }
  }

  const ChoiceRule& rule_;
  int64_t per_group_;
  std::vector<float> scores_;
  std::vector<uint8_t> allowed_;
  Ranking ranking_;
  double gap_ = kNoGap;
  double group_gap_ = kNoGap;
  double order_gap_ = kNoGap;
};

void check_groups(const MoEConfig& config) {
  const bool greedy = config.topk_method == "greedy";
  const bool given = config.moe_router_num_groups || config.moe_router_group_topk;
  if (greedy) {
    check<ValueError>(!given,
                      "moe_router_num_groups and moe_router_group_topk belong to topk_method "
                      "group_limited_greedy or noaux_tc, but topk_method is greedy");
    return;
  }
  check<ValueError>(config.moe_router_num_groups && config.moe_router_group_topk, "topk_method ",
                    config.topk_method, " needs moe_router_num_groups and moe_router_group_topk");
  const int64_t groups = *config.moe_router_num_groups;
  const int64_t kept = *config.moe_router_group_topk;
  check<ValueError>(groups >= 1 && config.num_experts % groups == 0, "moe_router_num_groups ",
                    groups, " does not divide num_experts ", config.num_experts);
  check<ValueError>(kept >= 1 && kept <= groups, "moe_router_group_topk must lie in [1, ", groups,
                    "], the number of groups, got ", kept);
  const int64_t per_group = config.num_experts / groups;
  check<ValueError>(config.moe_router_topk <= kept * per_group, "moe_router_topk is ",
                    config.moe_router_topk, ", but moe_router_group_topk ", kept,
                    " groups have only ", kept * per_group, " experts");
  check<ValueError>(config.topk_method != "noaux_tc" || per_group >= 2,
                    "topk_method noaux_tc adds the two best of a group, but with "
                    "moe_router_num_groups ",
                    groups, " a group has one expert");
}

}  // namespace

ChoiceRule choice_rule(const MoEConfig& config) {
  using Method = ChoiceRule::Method;
  check<ValueError>(config.moe_router_topk >= 1 && config.moe_router_topk <= config.num_experts,
                    "moe_router_topk must lie in [1, ", config.num_experts,
                    "], the number of experts, got ", config.moe_router_topk);
  const std::string& method = config.topk_method;
  check<ValueError>(method == "greedy" || method == "group_limited_greedy" || method == "noaux_tc",
                    "topk_method '", method,
                    "' is not known; choose greedy, group_limited_greedy or noaux_tc");
  check_groups(config);
  return {.num_experts = config.num_experts,
          .topk = config.moe_router_topk,
          .method = method == "greedy"     ? Method::kGreedy
                    : method == "noaux_tc" ? Method::kNoauxTc
                                           : Method::kGroupLimitedGreedy,
          .num_groups = config.moe_router_num_groups.value_or(1),
          .group_topk = config.moe_router_group_topk.value_or(1)};
}

ExpertChoice choose_experts(std::span<const float> values, const ChoiceRule& rule) {
  check<ValueError>(std::ssize(values) % rule.num_experts == 0, "choose_experts: ", values.size(),
                    " values are not whole rows of ", rule.num_experts, " experts");
  const int64_t tokens = std::ssize(values) / rule.num_experts;
  ExpertChoice out;
  out.experts.resize(static_cast<size_t>(tokens * rule.topk));
  std::mutex mutex;
  const auto choose = [&](int64_t begin, int64_t end) {
    RowChooser chooser(rule);
    for (int64_t t = begin; t < end; ++t) {
      chooser.choose(values.data() + t * rule.num_experts, out.experts.data() + t * rule.topk);
    }
    const std::scoped_lock lock(mutex);
    chooser.add_gaps(out);
  };
  kernels::parallel_for(tokens, kernels::rows_per_thread(rule.num_experts), choose);
  return out;
}

}  // namespace tapestry
