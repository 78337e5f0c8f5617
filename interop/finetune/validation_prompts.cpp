#include "interop/finetune/validation_prompts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "parallel_core/sft/answers.h"
#include "parallel_core/sft/example.h"
#include "text/sources/line_reader.h"

namespace tapestry {

namespace {

// Lines of files, counted from 0.
using Lines = std::map<std::pair<std::string, int64_t>, std::string>;

// The examples' lines in the order of the data set's rows, each once.
std::vector<std::pair<std::string, int64_t>> first_lines(const data::TokenDataset& examples,
                                                         int64_t count) {
  std::vector<std::pair<std::string, int64_t>> lines;
  std::set<std::pair<std::string, int64_t>> seen;
  for (int64_t k = 0; k < examples.size(); ++k) {
    const data::RowOrigin origin = examples.origin(k);
    for (const data::DocumentPart& part : origin.documents) {
      std::pair line{part.dataset.empty() ? origin.dataset : part.dataset, part.document};
      if (seen.insert(line).second) {
        lines.push_back(std::move(line));
      }
    }
    if (static_cast<int64_t>(lines.size()) >= count) {
      break;
    }
  }
  return lines;
}

Lines read_lines(const std::vector<std::pair<std::string, int64_t>>& wanted) {
  std::map<std::string, std::set<int64_t>> by_file;
  for (const auto& [file, line] : wanted) {
    by_file[file].insert(line);
  }
  Lines lines;
  for (const auto& [file, numbers] : by_file) {
    data::LineReader reader(file, static_cast<uint64_t>(sft::kMaxLineBytes));
    std::string line;
    while (reader.number() <= *numbers.rbegin() && reader.next(line)) {
      if (numbers.contains(reader.number() - 1)) {
        lines[{file, reader.number() - 1}] = line;
      }
    }
  }
  return lines;
}

}  // namespace

std::vector<ValidationPrompt> validation_prompts(const data::TokenDataset& examples,
                                                 const data::Tokenizer& tokenizer,
                                                 const chat::ChatFormat* format,
                                                 int64_t count) {
  std::vector<ValidationPrompt> prompts;
  const auto wanted = first_lines(examples, count);
  const Lines lines = read_lines(wanted);
  for (const auto& place : wanted) {
    const auto found = lines.find(place);
    if (found == lines.end() || static_cast<int64_t>(prompts.size()) == count) {
      continue;
    }
    const std::string name = place.first + ":" + std::to_string(place.second + 1);
    const sft::AnsweredText text =
        sft::answered_texts(sft::parse_example(found->second, name), format, name).back();
    if (text.answers.empty() || text.answers.back().begin == 0) {
      continue;  // a text without a prompt
    }
    const auto begin = static_cast<size_t>(text.answers.back().begin);
    const auto end = static_cast<size_t>(text.answers.back().end);
    ValidationPrompt prompt{.text = text.text.substr(0, begin),
                            .expected = text.text.substr(begin, end - begin),
                            .ids = text.rendered ? std::vector<int32_t>{} : tokenizer.ids_before()};
    const std::vector<int32_t> ids = tokenizer.encode(prompt.text);
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace tapestry
