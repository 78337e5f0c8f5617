// Prompts with completions as tokens in memory, in units of as many as belong together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tapestry::post_training {

/// A unit is what a batch counts: a pair (its chosen sequence first), an example, a completion.
/// Sequences are numbered through: unit u has those from u * per_unit on. Reading is thread-safe.
class SequenceSet {
 public:
  explicit SequenceSet(int64_t per_unit = 1) : per_unit_(per_unit) {}

  /// Appends a sequence: a prompt with its completion, neither checked.
  void add(std::span<const int32_t> prompt, std::span<const int32_t> completion);

  int64_t per_unit() const { return per_unit_; }
  int64_t units() const { return size() / per_unit_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  /// Prompt and completion.
  std::span<const int32_t> ids(int64_t sequence) const;
  int64_t prompt_tokens(int64_t sequence) const {
    return entries_[static_cast<size_t>(sequence)].prompt;
  }
  int64_t completion_tokens(int64_t sequence) const {
    return static_cast<int64_t>(ids(sequence).size()) - prompt_tokens(sequence);
  }
  /// CRC-64 (checksum.h) of all ids and of where completions begin.
  std::string checksum() const;

 private:
  struct Entry {
    int64_t end = 0;  // of its tokens
    int64_t prompt = 0;
  };

  int64_t per_unit_;
  std::vector<int32_t> ids_;
  std::vector<Entry> entries_;
};

}  // namespace tapestry::post_training
