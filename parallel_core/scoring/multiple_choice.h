// Questions with answers to choose from, by how probable a model finds each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/scoring/scorer.h"

namespace tapestry {

struct ChoiceQuestion {
  std::string place;  ///< "FILE:LINE", for messages
  std::string prompt;
  std::vector<std::string> choices;
  int64_t answer = 0;  ///< index of the right one
};

/// A file of JSON objects, one in each line (empty lines are passed over): "prompt", a text that
/// may be empty; "choices", at least two texts, none empty, each to follow the prompt as it stands;
/// "answer", the index of the right one, from 0. Other keys are passed over. IoError if the file
/// cannot be read, ValueError with file and line for what is not of this form and for a file
/// without questions.
std::vector<ChoiceQuestion> read_choice_questions(const std::string& path);

/// What a model makes of a question.
struct ChoiceScores {
  std::vector<double> log_likelihoods;  ///< of each choice after the prompt
  std::vector<int64_t> bytes;           ///< of each choice
  int64_t chosen = 0;                   ///< the likeliest; of equal ones the first
  int64_t chosen_per_byte = 0;          ///< the one with the highest log-likelihood a byte
};

struct ChoiceResult {
  std::vector<ChoiceScores> questions;
  int64_t right = 0;
  int64_t right_per_byte = 0;
  int64_t shortened_prompts = 0;  ///< rows that lost the beginning of their prompt to the context
};

/// Scores all choices. Prompt and choice are encoded together; a token that reaches over the
/// boundary counts for the choice. Collective. ValueError, with the question's place, for a choice
/// without a token of its own or one that does not fit into the context, and for an empty prompt
/// where the tokenizer begins texts with nothing.
ChoiceResult score_choices(Scorer& scorer, const std::vector<ChoiceQuestion>& questions);

}  // namespace tapestry
