// A program of the user's that rewards completions.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/post_training/rewards/child_process.h"
#include "parallel_core/post_training/rewards/reward_function.h"

namespace tapestry::post_training {

/// `program: COMMAND`, which /bin/sh runs. It is started with the first batch, once for each
/// data-parallel rank, and kept. On its standard input it gets a line of JSON for each completion:
/// all members of the prompt's line with `completion`, the text, and `completion_ids`. For each it
/// writes one line with a number, or null for no reward, to its standard output, in that order, and
/// flushes them before it waits for more input: all lines of a batch are sent before the first
/// answer is waited for. Its standard error goes to the log, a line each.
///
/// A program that ends, or does not answer for `timeout` seconds, is started once more for the
/// completions that it has not answered, with a warning; what it fails at again is a RewardError,
/// with the command, how it ended, and the first completion without an answer. Lines that are no
/// number, and lines too many, are one at once.
class RewardProgram final : public RewardFunction {
 public:
  RewardProgram(std::string command, double timeout)
      : RewardFunction("program"), command_(std::move(command)), timeout_(timeout) {}
  std::vector<double> rewards(std::span<const JudgedCompletion> completions) override;

 private:
  std::string failure_of(std::span<const JudgedCompletion> completions,
                         std::vector<double>& answers);
  void take_answers(std::span<const JudgedCompletion> completions, std::vector<double>& answers);
  void refuse_further_lines(std::span<const JudgedCompletion> completions);
  [[noreturn]] void fail(const std::string& what,
                         std::span<const JudgedCompletion> completions,
                         size_t at) const;

  std::string command_;
  double timeout_;
  std::unique_ptr<ChildProcess> child_;
  std::string output_;  // what has not been looked at
};

}  // namespace tapestry::post_training
