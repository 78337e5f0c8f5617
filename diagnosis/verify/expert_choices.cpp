#include "diagnosis/verify/expert_choices.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"

namespace tapestry {

namespace {

// Calls f(token, sample, position) for all tokens whose sample is known.
template <class F>
void each_token(const GroupTokens& tokens, F&& f) {
  const std::vector<int64_t>& samples = random_context().sample_ids;
  for (size_t t = 0; t < tokens.numbers.size(); ++t) {
    const auto row = static_cast<size_t>(tokens.numbers[t] / tokens.seq_length);
    if (row < samples.size()) {
      f(t, samples[row], static_cast<size_t>(tokens.numbers[t] % tokens.seq_length));
    }
  }
}

template <class T>
T& element(std::vector<T>& all, size_t i, size_t size, T start) {
  all.resize(size, start);
  return all[i];
}

// The gates nearest to where an expert stopped keeping.
struct Threshold {
  double last_kept = std::numeric_limits<double>::infinity();
  double first_dropped = -std::numeric_limits<double>::infinity();

  double gap(double gate, bool kept) const {
    const double gap = kept ? gate - first_dropped : last_kept - gate;
    return std::min(gap, kNoGap);
  }
};

std::map<int32_t, Threshold> thresholds(const Assignments& all, const std::vector<uint8_t>& kept) {
  std::map<int32_t, Threshold> out;
  for (size_t i = 0; i < kept.size(); ++i) {
    Threshold& of_expert = out[all.experts[i]];
    const double gate = all.gates[i];
    if (kept[i] != 0) {
      of_expert.last_kept = std::min(of_expert.last_kept, gate);
    } else {
      of_expert.first_dropped = std::max(of_expert.first_dropped, gate);
    }
  }
  return out;
}

// From the j-th best to the j-th best, the largest; NaN if one is. Rounding that moves no value
// further than r moves no j-th best further.
double largest_gap(std::span<const float> values,
                   std::span<const int32_t> own,
                   std::span<const int32_t> theirs) {
  double out = 0;
  for (size_t j = 0; j < own.size(); ++j) {
    const double gap = std::abs(static_cast<double>(values[static_cast<size_t>(own[j])]) -
                                static_cast<double>(values[static_cast<size_t>(theirs[j])]));
    if (own[j] != theirs[j] && !(gap <= out)) {
      out = gap;
      if (std::isnan(gap)) {
        return gap;
      }
    }
  }
  return out;
}

bool are_the_same_in_any_order(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}

std::string listed(std::span<const int32_t> experts) {
  std::string out;
  for (const int32_t expert : experts) {
    out += concat(out.empty() ? "" : ", ", expert);
  }
  return out;
}

}  // namespace

void RecordedChoices::choose(int64_t layer,
                             ChoiceUse use,
                             const GroupTokens& tokens,
                             std::span<const float> values,
                             const ChoiceRule& rule,
                             std::vector<int32_t>& experts) {
  const auto topk = static_cast<size_t>(rule.topk);
  const auto width = static_cast<size_t>(rule.num_experts);
  const auto positions = static_cast<size_t>(tokens.seq_length);
  each_token(tokens, [&](size_t t, int64_t sample, size_t position) {
    SampleChoices& now = choices_[{random_context().step, layer, sample, use}];
    now.experts.resize(positions * topk, -1);
    std::copy_n(experts.begin() + static_cast<std::ptrdiff_t>(t * topk), topk,
                now.experts.begin() + static_cast<std::ptrdiff_t>(position * topk));
    if (rule.method != ChoiceRule::Method::kGreedy) {
      element(now.group_gaps, position, positions, kNoGap) =
          choose_experts(values.subspan(t * width, width), rule).smallest_group_gap;
    }
  });
}

void RecordedChoices::keep(int64_t layer,
                           const GroupTokens& tokens,
                           const Assignments& own,
                           DropPolicy policy,
                           std::vector<uint8_t>& kept) {
  const auto topk = static_cast<size_t>(own.topk);
  const size_t size = static_cast<size_t>(tokens.seq_length) * topk;
  const std::map<int32_t, Threshold> of_experts = thresholds(own, kept);
  each_token(tokens, [&](size_t t, int64_t sample, size_t position) {
    SampleChoices& now = choices_[{random_context().step, layer, sample, ChoiceUse::kRouting}];
    for (size_t j = 0; j < topk; ++j) {
      const size_t i = t * topk + j;
      const bool is_kept = kept[i] != 0;
      element(now.kept, position * topk + j, size, uint8_t{1}) = kept[i];
      element(now.drop_gaps, position * topk + j, size, kNoGap) =
          policy == DropPolicy::kProbs ? of_experts.at(own.experts[i]).gap(own.gates[i], is_kept)
                                       : kNoGap;
    }
  });
}

const SampleChoices* ImposedChoices::found(int64_t layer, int64_t sample, ChoiceUse use) const {
  const auto at = choices_.find({random_context().step, layer, sample, use});
  return at == choices_.end() ? nullptr : &at->second;
}

bool ImposedChoices::differs(const ChoiceDifference& difference) {
  if (!is_recomputing()) {
    count_ += difference.is_close() ? 1 : 0;
    if (report_) {
      report_(difference);
    }
  }
  return difference.is_close();
}

void ImposedChoices::choose(int64_t layer,
                            ChoiceUse use,
                            const GroupTokens& tokens,
                            std::span<const float> values,
                            const ChoiceRule& rule,
                            std::vector<int32_t>& experts) {
  const auto topk = static_cast<size_t>(rule.topk);
  const auto width = static_cast<size_t>(rule.num_experts);
  each_token(tokens, [&](size_t t, int64_t sample, size_t position) {
    const SampleChoices* one = found(layer, sample, use);
    if (one == nullptr || one->experts.size() < (position + 1) * topk) {
      return;
    }
    const auto theirs = std::span(one->experts).subspan(position * topk, topk);
    const auto own = std::span(experts).subspan(t * topk, topk);
    if (theirs[0] < 0) {
      return;
    }
    if (std::equal(own.begin(), own.end(), theirs.begin())) {
      equal_ += is_recomputing() ? 0 : 1;
      return;
    }
    double gap = largest_gap(values.subspan(t * width, width), own, theirs);
    if (position < one->group_gaps.size() && one->group_gaps[position] <= kClosestChoice) {
      gap = one->group_gaps[position];
    }
    if (!(gap <= kClosestChoice) && are_the_same_in_any_order(own, theirs)) {
      return;
    }
    if (differs({.name = concat("layers.", layer, ".moe.",
                                use == ChoiceUse::kRouting ? "choices" : "balance_choices"),
                 .layer = layer,
                 .sample = sample,
                 .gap = gap,
                 .detail = concat("sample ", sample, ", token ", position, ": experts ",
                                  listed(own), " against ", listed(theirs))})) {
      std::copy(theirs.begin(), theirs.end(), own.begin());
    }
  });
}

void ImposedChoices::keep(int64_t layer,
                          const GroupTokens& tokens,
                          const Assignments& own,
                          DropPolicy /*policy*/,
                          std::vector<uint8_t>& kept) {
  const auto topk = static_cast<size_t>(own.topk);
  each_token(tokens, [&](size_t t, int64_t sample, size_t position) {
    const SampleChoices* one = found(layer, sample, ChoiceUse::kRouting);
    if (one == nullptr || one->kept.size() < (position + 1) * topk) {
      return;
    }
    const auto theirs = std::span(one->experts).subspan(position * topk, topk);
    for (size_t j = 0; j < topk; ++j) {
      const size_t i = t * topk + j;
      const auto at = std::find(theirs.begin(), theirs.end(), own.experts[i]);
      if (at == theirs.end()) {
        continue;  // another expert altogether, which choose() tells of
      }
      const size_t their = position * topk + static_cast<size_t>(at - theirs.begin());
      if (kept[i] == one->kept[their]) {
        equal_ += is_recomputing() ? 0 : 1;
        continue;
      }
      if (differs({.name = concat("layers.", layer, ".moe.kept"),
                   .layer = layer,
                   .sample = sample,
                   .gap = one->drop_gaps[their],
                   .detail = concat("sample ", sample, ", token ", position, ": expert ",
                                    own.experts[i], kept[i] != 0 ? " keeps" : " drops", " what it ",
                                    kept[i] != 0 ? "drops" : "keeps", " in one process")})) {
        kept[i] = one->kept[their];
      }
    }
  });
}

}  // namespace tapestry
