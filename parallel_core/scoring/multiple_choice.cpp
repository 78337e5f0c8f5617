#include "parallel_core/scoring/multiple_choice.h"

#include <algorithm>
#include <sstream>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

using Json = nlohmann::json;

ChoiceQuestion question_of(const std::string& line, const std::string& place) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  check<ValueError>(
      json.is_object(), place,
      R"(: is no JSON object, expected {"prompt": TEXT, "choices": [...], "answer": N})");
  ChoiceQuestion question;
  question.place = place;
  const auto prompt = json.find("prompt");
  check<ValueError>(prompt != json.end() && prompt->is_string(), place,
                    ": has no text \"prompt\"; it may be empty");
  question.prompt = prompt->get<std::string>();
  const auto choices = json.find("choices");
  check<ValueError>(choices != json.end() && choices->is_array() && choices->size() >= 2, place,
                    ": has no list \"choices\" of at least two texts");
  for (const Json& choice : *choices) {
    check<ValueError>(choice.is_string() && !choice.get_ref<const std::string&>().empty(), place,
                      ": choice ", question.choices.size(), " is ", choice.dump(),
                      ", expected a text that is not empty");
    question.choices.push_back(choice.get<std::string>());
  }
  const auto answer = json.find("answer");
  check<ValueError>(answer != json.end() && answer->is_number_integer(), place,
                    ": has no integer \"answer\", the index of the right choice, from 0");
  question.answer = answer->get<int64_t>();
  check<ValueError>(question.answer >= 0 && question.answer < std::ssize(question.choices), place,
                    ": \"answer\" is ", answer->dump(), ", expected 0 to ",
                    question.choices.size() - 1);
  return question;
}

struct Row {
  ScoredRow scored;
  bool is_shortened = false;
};

Row row_of(const Scorer& scorer, const ChoiceQuestion& question, size_t choice) {
  const std::string text = question.prompt + question.choices[choice];
  const data::Encoding encoded = scorer.tokenizer().encode_with_spans(text);
  const auto boundary = std::ssize(question.prompt);
  const auto of_choice = std::find_if(encoded.spans.begin(), encoded.spans.end(),
                                      [&](const auto& span) { return span.end > boundary; });
  Row row;
  row.scored.tokens = scorer.opened().saved.start;
  row.scored.first = std::ssize(row.scored.tokens) + (of_choice - encoded.spans.begin());
  row.scored.tokens.insert(row.scored.tokens.end(), encoded.ids.begin(), encoded.ids.end());
  const auto name = [&] { return concat(question.place, ": choice ", choice); };
  check<ValueError>(row.scored.first < std::ssize(row.scored.tokens), name(),
                    " has no token of its own");
  check<ValueError>(row.scored.first > 0, name(),
                    " has nothing before its first token, as the prompt is empty and the tokenizer "
                    "begins texts with nothing; give a prompt");
  const int64_t own = std::ssize(row.scored.tokens) - row.scored.first;
  check<ValueError>(own <= scorer.context(), name(), " has ", own,
                    " tokens, more than the context of ", scorer.context());
  // The last token is only scored: the model takes those before it.
  const int64_t cut = std::ssize(row.scored.tokens) - (scorer.context() + 1);
  if (cut > 0) {
    row.scored.tokens.erase(row.scored.tokens.begin(), row.scored.tokens.begin() + cut);
    row.scored.first -= cut;
    row.is_shortened = true;
  }
  return row;
}

int64_t place_of_highest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

ChoiceScores scores_of(const ChoiceQuestion& question, const double* sums) {
  ChoiceScores scores;
  std::vector<double> per_byte;
  for (size_t i = 0; i < question.choices.size(); ++i) {
    scores.log_likelihoods.push_back(sums[i]);
    scores.bytes.push_back(std::ssize(question.choices[i]));
    per_byte.push_back(sums[i] / static_cast<double>(scores.bytes.back()));
  }
  scores.chosen = place_of_highest(scores.log_likelihoods);
  scores.chosen_per_byte = place_of_highest(per_byte);
  return scores;
}

}  // namespace

std::vector<ChoiceQuestion> read_choice_questions(const std::string& path) {
  std::istringstream lines(data::read_file(path));
  std::vector<ChoiceQuestion> questions;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      questions.push_back(question_of(line, concat(path, ":", number)));
    }
  }
  check<ValueError>(!questions.empty(), path, ": has no questions");
  return questions;
}

ChoiceResult score_choices(Scorer& scorer, const std::vector<ChoiceQuestion>& questions) {
  struct Place {
    size_t question;
    size_t choice;
  };
  std::vector<Place> places;
  ChoiceResult result;
  for (size_t i = 0; i < questions.size(); ++i) {
    for (size_t choice = 0; choice < questions[i].choices.size(); ++choice) {
      places.push_back({i, choice});
      // Every rank looks at every row, so that what is wrong with one is said by all.
      result.shortened_prompts += row_of(scorer, questions[i], choice).is_shortened ? 1 : 0;
    }
  }
  const std::vector<double> sums = scorer.sums(std::ssize(places), [&](int64_t row) {
    const Place& place = places[static_cast<size_t>(row)];
    return row_of(scorer, questions[place.question], place.choice).scored;
  });
  const double* next = sums.data();
  for (const ChoiceQuestion& question : questions) {
    result.questions.push_back(scores_of(question, next));
    next += question.choices.size();
    result.right += result.questions.back().chosen == question.answer ? 1 : 0;
    result.right_per_byte += result.questions.back().chosen_per_byte == question.answer ? 1 : 0;
  }
  return result;
}

}  // namespace tapestry
