// Examples of a task as tokens, with what their lines say beside the texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/post_training/rows/sequence_set.h"

namespace tapestry::post_training {

/// The columns that a task reads, as TRL names its formats.
enum class ExampleFormat {
  kPreference,  ///< prompt, chosen, rejected; or both answers with the prompt inside
  kUnpaired,    ///< prompt, completion, label; pairs become two examples
  kReward,      ///< chosen, rejected, perhaps prompt and margin
  kCompletion,  ///< prompt, completion
  kPrompt,      ///< prompt, and whatever reward functions want to see
};

/// Where an example stands.
struct ExamplePlace {
  int32_t file = 0;  ///< number of the file
  int64_t line = 0;  ///< from 1
};

/// Units are the examples of training, then those of validation: of kPreference and kReward pairs
/// (sequences 2u, chosen, and 2u + 1, rejected), of the others single sequences. kReward has no
/// prompts (each sequence is all completion), kPrompt no completions. Reading is thread-safe.
struct TaskExamples {
  SequenceSet sequences;
  int64_t train_units = 0;
  std::vector<uint8_t> labels;       ///< kUnpaired, of each unit: 1 for a desirable completion
  std::vector<double> margins;       ///< kReward, of each unit; empty where no line has one
  std::vector<std::string> lines;    ///< kPrompt, of each unit: the line's JSON object
  std::vector<ExamplePlace> places;  ///< of each unit
  /// kto: prompts with the completions of other examples of their step, by the numbers of the
  /// sequences; those that no step needs are empty. Without: no sequences.
  SequenceSet mismatched;

  int64_t units() const { return sequences.units(); }
  int64_t validation_units() const { return units() - train_units; }
  /// The unit of a sequence's number (data::RowSequence::number).
  int64_t unit_of(int64_t number) const { return number / sequences.per_unit(); }
};

}  // namespace tapestry::post_training
