// What the routers of one process have decided, for layouts in which rounding decides otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel_core/transformer/moe/choice_observer.h"

namespace tapestry {

/// Decisions about the tokens of a sample, by position.
struct SampleChoices {
  std::vector<int32_t> experts;    ///< [positions * k], first choice first; -1: not known
  std::vector<double> group_gaps;  ///< [positions], see ExpertChoice; empty without groups
  std::vector<uint8_t> kept;       ///< [positions * k]; empty where nothing is ever dropped
  /// [positions * k]: how far a gate is from the nearest one with which its expert did otherwise;
  /// kNoGap if there is none, or if gates do not decide.
  std::vector<double> drop_gaps;
};

/// By step, layer and sample of random_context().
using ExpertChoices = std::map<std::tuple<int64_t, int64_t, int64_t, ChoiceUse>, SampleChoices>;

/// Adds the decisions of a process that has whole routing groups.
class RecordedChoices final : public ChoiceObserver {
 public:
  explicit RecordedChoices(ExpertChoices& choices) : choices_(choices) {}
  void choose(int64_t layer,
              ChoiceUse use,
              const GroupTokens& tokens,
              std::span<const float> values,
              const ChoiceRule& rule,
              std::vector<int32_t>& experts) override;
  void keep(int64_t layer,
            const GroupTokens& tokens,
            const Assignments& own,
            DropPolicy policy,
            std::vector<uint8_t>& kept) override;

 private:
  ExpertChoices& choices_;
};

/// Decisions between numbers that are no farther apart than this may differ.
inline constexpr double kClosestChoice = 1e-5;

/// A decision about a token that is not that of one process.
struct ChoiceDifference {
  std::string name;  ///< "layers.3.moe.choices", .balance_choices or .kept
  int64_t layer = 0;
  int64_t sample = 0;
  double gap = 0;      ///< of the numbers that decide; NaN and kNoGap are possible
  std::string detail;  ///< "sample 7, token 12: experts 0, 3 against 0, 5"

  bool is_close() const { return gap <= kClosestChoice; }
};

/// Puts recorded decisions in the place of a rank's own where they differ by no more than
/// kClosestChoice: differences that rounding makes, and which would hide all others behind them.
/// Experts are that close if the j-th choices of both are, for all j, or if their groups are; a
/// dropped assignment, if its gate is to the last one that its expert has kept. Tells of each
/// difference once; those that are not close stay. Experts in another order alone, and farther
/// apart, are none. A token without a record keeps what it has.
class ImposedChoices final : public ChoiceObserver {
 public:
  using Report = std::function<void(const ChoiceDifference&)>;
  explicit ImposedChoices(const ExpertChoices& choices, Report report = {})
      : choices_(choices), report_(std::move(report)) {}
  void choose(int64_t layer,
              ChoiceUse use,
              const GroupTokens& tokens,
              std::span<const float> values,
              const ChoiceRule& rule,
              std::vector<int32_t>& experts) override;
  void keep(int64_t layer,
            const GroupTokens& tokens,
            const Assignments& own,
            DropPolicy policy,
            std::vector<uint8_t>& kept) override;

  int64_t equal() const { return equal_; }  ///< decisions about tokens and assignments
  int64_t count() const { return count_; }  ///< those that differed and were replaced

 private:
  const SampleChoices* found(int64_t layer, int64_t sample, ChoiceUse use) const;
  // True if the decision is to be replaced.
  bool differs(const ChoiceDifference& difference);

  const ExpertChoices& choices_;
  Report report_;
  int64_t equal_ = 0;
  int64_t count_ = 0;
};

}  // namespace tapestry
