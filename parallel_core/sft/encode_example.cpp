#include "parallel_core/sft/encode_example.h"

#include <algorithm>
#include <numeric>

#include "autograd/tensor/error.h"

namespace tapestry::sft {
namespace {

using data::TextSpan;

bool is_learned(const TextSpan& token, const TextSpan& answer) {
  if (token.begin == token.end) {
    return token.begin >= answer.begin && token.begin < answer.end;
  }
  return token.begin < answer.end && token.end > answer.begin;
}

}  // namespace

int64_t EncodedExample::learned() const {
  return answer.empty() ? 0 : std::accumulate(answer.begin() + 1, answer.end(), int64_t{0});
}

EncodedExample encode_example(const AnsweredText& answered,
                              const data::Tokenizer& tokenizer,
                              int32_t eod,
                              LearnedTokens learned,
                              int32_t next_turn) {
  const data::Encoding encoding = tokenizer.encode_with_spans(answered.text);
  EncodedExample example;
  const size_t count = encoding.ids.size();
  example.ids.reserve(count + 2);
  example.answer.reserve(count + 2);
  if (!answered.rendered) {
    example.ids = tokenizer.ids_before();
    example.answer.assign(example.ids.size(), 0);
    example.begins_twice =
        !example.ids.empty() && count > 0 && example.ids.back() == encoding.ids.front();
  }
  for (size_t i = 0; i < count; ++i) {
    const TextSpan& token = encoding.spans[i];
    // Answers are few, and their ends ascend.
    const auto answer = std::find_if(answered.answers.begin(), answered.answers.end(),
                                     [&](const TextSpan& a) { return is_learned(token, a); });
    const bool found = answer != answered.answers.end();
    example.ids.push_back(encoding.ids[i]);
    example.answer.push_back(found ? 1 : 0);
    example.crossing += found && (token.begin < answer->begin || token.end > answer->end) ? 1 : 0;
  }
  if (answered.rendered && next_turn >= 0) {
    for (size_t i = 1; i < example.ids.size(); ++i) {
      if (example.ids[i] == next_turn && example.answer[i - 1] != 0) {
        example.answer[i] = 1;
      }
    }
    if (!example.answer.empty() && example.answer.back() != 0 && example.ids.back() != next_turn) {
      example.ids.push_back(next_turn);
      example.answer.push_back(1);
    }
  }
  if (!answered.rendered) {
    check<ValueError>(eod >= 0, tokenizer.describe(),
                      ": has no token that ends a text; name one with dataset_config.eos_token_id");
    example.ids.push_back(eod);
    example.answer.push_back(1);
  }
  if (learned == LearnedTokens::kAll) {
    std::fill(example.answer.begin(), example.answer.end(), 1);
    example.crossing = 0;
  }
  return example;
}

}  // namespace tapestry::sft
